"""A run that counts and sleeps. Its checkpoint is the step; it stops when it is asked to, unless it is stubborn."""

import contextlib
import os
import signal
import time

from ctld_lab.control import Interrupted
from ctld_lab.records import Appender


def run(directory, config, control):
    if config["method"] == "slow":
        (directory.path / "pid").write_text(str(os.getpid()))
        time.sleep(60.0)  # as an import may take, or data
    control.saves = True
    if config["method"] == "failing" and config["role"] == "final":
        raise ArithmeticError(f"seed {config['seed']} fails\nas it was asked to")
    if config["method"] == "dying":
        os.kill(os.getpid(), signal.SIGKILL)
    start = int(directory.checkpoint.read_text()) if directory.checkpoint.exists() else 0
    steps = sum(config["steps"]) if isinstance(config["steps"], list) else config["steps"]
    with contextlib.closing(Appender(directory.path / "metrics.jsonl")) as metrics:
        metrics.append({"step": start, "stage": 0, "train": {"mse": 1.0}, "test": {"mse": 1.5}, "lr": 0.1})
        metrics.flush()
        (directory.path / "pid").write_text(str(os.getpid()))
        for step in range(start, steps):
            control.tell(directory, step, steps)
            time.sleep(config["sleep"])
            if control.stopping and config["method"] != "stubborn":
                directory.checkpoint.write_text(str(step + 1))
                raise Interrupted
        value = 0.5 if config["method"] == "good" else 0.25
        metrics.append({"step": steps, "stage": 0, "train": {"mse": value}, "test": {"mse": "nan"}, "lr": 0.1})
    return {
        "value": value,
        "train": {"mse": value},
        "test": {"mse": value},
        "steps": steps,
        "started_at": start,
        "memory": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        "data": os.environ.get("CTLD_DATA"),
    }
