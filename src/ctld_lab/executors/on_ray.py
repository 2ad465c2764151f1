"""Execution on Ray: each run is a task, here or on a cluster that shares the directory. Needs the extra `distributed`."""

import importlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ctld_lab import jobs
from ctld_lab.control import Control


class EngineError(Exception):
    """The engine cannot be used; the message says what to do."""


def run(
    paths: Sequence[Path],
    workers: int,
    threads: int,
    control: Control,
    on_end: Callable[[Path, str], None],
    address: str | None,
) -> dict[Path, str]:
    """The state of each; see `run_all`. With an `address`, the cluster decides how many run at a time."""
    states = dict.fromkeys(paths, "waiting")
    if not paths:
        return states
    ray = _start(workers * threads, address)
    control.listen()  # again: Ray has taken SIGTERM
    stop = paths[0].absolute().parent / f".stop.{os.getpid()}"  # where every task can see it
    task = ray.remote(num_cpus=threads, max_retries=0)(_execute)
    try:
        pending = {task.remote(str(path.absolute()), threads, str(stop)): path for path in paths}
        while pending:
            if control.stopping and not stop.exists():
                stop.touch()
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=0.5)
            for reference in ready:
                path = pending.pop(reference)
                try:
                    states[path] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    first, *_ = [*str(error).strip().splitlines(), "the task died"]
                    states[path] = jobs.lost(path, f"{type(error).__name__}: {first}", control, str(error))
                on_end(path, states[path])
    finally:
        stop.unlink(missing_ok=True)
        ray.shutdown()
    return states


def _start(cpus: int, address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError as missing:
        raise EngineError(
            f'the engine "ray" needs {missing.name}, which is not installed: pip install "ctld[distributed]"'
        ) from None
    variables = jobs.MEMORY | {
        name: os.environ[name] for name in (*jobs.MEMORY, "CTLD_DATA", jobs.OWN) if name in os.environ
    }
    options: dict[str, Any] = {
        "runtime_env": {"env_vars": variables},
        "log_to_driver": False,
        "logging_level": "error",
    }
    if address is None:
        # A cluster of our own, even where another is running; results go to disk, so it needs little shared memory.
        options |= {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": 100 * 2**20,
        }
    else:
        _reach(address)
        options["address"] = address
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(f"Ray does not start{f' at {address}' if address else ''}: {error}") from None
    return ray


def _reach(address: str) -> None:
    """Ray would try for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        if place.hostname is not None and place.port is not None:  # else a word of Ray's own, such as auto
            socket.create_connection((place.hostname, place.port), timeout=10.0).close()
    except (OSError, ValueError) as error:
        raise EngineError(f"there is no Ray cluster at {address}: {error}") from None


# ---- in a task ----


def _execute(path: str, threads: int, stop: str) -> str:
    control = Control()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            control.stopping = control.stopping or Path(stop).exists()

    control.stopping = Path(stop).exists()
    threading.Thread(target=watch, daemon=True).start()
    try:
        return jobs.execute(Path(path), threads=threads, control=control)
    finally:
        over.set()
