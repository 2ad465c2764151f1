"""What the laboratory's training loop costs over a bare one: records, clocks, checkpoints, and a way to be stopped.

    python benchmarks/loop.py

The same workload and optimizer in the loop of `ctld_lab.train` and in five lines of Python, block by block in turn. The loop's
blocks are a second long, so that the word once a second on how far it is falls into each; a checkpoint is taken every
20 seconds. Evaluations are left out: how many there are is the study's choice.
"""

import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, it has only its own folder

import torch

from benchmarks.stored import Result, heading, main, table, where
from benchmarks.timing import Contender, interleave, summary, undisturbed_share, verdict
from ctld_lab import studies, workloads
from ctld_lab.control import Control
from ctld_lab.data import identify
from ctld_lab.records import RunDirectory
from ctld_lab.train import Training

TARGET = 1.03
FOREVER = 10**9
# The networks of the laptop scale, on embedded data.
STUDIES = {"sda": "digits", "charrnn": "pydoc"}
METHODS = {"sgd": {"lr": 0.01}, "ctld": {"lr": 0.01, "temperature": 0.01}}


class Bare(Contender):
    """Five lines."""

    def __init__(self, config: dict[str, Any], training: Training) -> None:
        super().__init__()
        self.workload = workloads.build(config)
        self.optimizer: Any = training.build_optimizer(self.workload.begin(0))
        self.step = 0

    def run(self, steps: int) -> float:
        start = time.perf_counter()
        for step in range(self.step, self.step + steps):
            loss = self.workload.loss(step)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step(loss=loss)
        self.step += steps
        return (time.perf_counter() - start) / steps


class Recorded(Contender):
    """The laboratory's."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training
        training.begin_stage()
        training.trace_every = 1  # as in explorations of up to 1,000 steps

    def run(self, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            self.training.take_step()
        return (time.perf_counter() - start) / steps


def configuration(study: str, method: str) -> dict[str, Any]:
    """A run without end and without evaluations."""
    settings = studies.get(study).scales["laptop"]
    chosen = {"widths": settings["widths"]} if study == "sda" else {}
    return {
        "method": method,
        "optimizer": METHODS[method],
        "role": "final",
        "seed": 0,
        "data": {"name": STUDIES[study], "sha256": identify(STUDIES[study])},
        "workload": {"name": "sda" if study == "sda" else "char_lstm"} | chosen,
        "steps": [FOREVER] * (4 if study == "sda" else 1),
        "exploration_steps": FOREVER,
        "evaluations": 1,
        "checkpoint_seconds": 20.0,
    }


def run(*, effort: float, command: str) -> Result:
    result = heading("the laboratory's training loop beside a bare one", command, effort=effort)
    result["loops"] = []
    torch.set_num_threads(1)  # as runs of a study have it
    result["machine"]["torch_threads"] = 1
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is no prior; nothing is sampled here
        for study in STUDIES:
            for method in METHODS:
                config = configuration(study, method)
                place = Path(folder) / f"{study}-{method}"
                place.mkdir()
                training = Training(RunDirectory(place), config, Control())
                recorded, bare = Recorded(training), Bare(config, training)
                rounds = interleave([recorded, bare], block_seconds=1.0, budget=50 * effort, label=f"{study}, {method}")
                training.close()
                result["loops"].append(
                    {
                        "study": study,
                        "method": method,
                        "rounds": rounds,
                        "undisturbed": undisturbed_share([recorded, bare]),
                        **summary(recorded, bare),
                    }
                )
    return result


def tables(result: Result) -> list[str]:
    rows = [
        (
            f"{each['study']}, {each['method']}",
            f"{each['microseconds']['median'] / 1000:.2f}",
            f"{each['interval']['median']:.3f} ({each['interval']['low']:.3f} to {each['interval']['high']:.3f})",
            verdict(each["interval"], TARGET),
        )
        for each in result["loops"]
    ]
    header = ("workload, method", "ms a step", "relative to a bare loop, 95 % interval", f"at most {TARGET}")
    return [*where(result), "", *table(header, rows)]


if __name__ == "__main__":
    main("loop", "The laboratory's training loop beside a bare one.", run, tables)
