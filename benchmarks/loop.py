"""What the laboratory's training loop costs over a bare one: records, clocks, checkpoints, and a way to be stopped.

    python benchmarks/loop.py

A whole step of either loop differs by less than steps differ from each other on a busy machine, so the parts are timed. What
the loop adds to a step: both loops, block by block in turn, with passes and optimizer that do nothing, traces of every step
included. What a checkpoint of this network takes, one every 20 seconds; and the word on how far the run is, once a second. Put
together and divided by a real step of the bare loop, they give the share. Evaluations are left out: how many there are is
the study's choice.
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
from benchmarks.timing import Contender, interleave, median_interval, rounded, undisturbed_share, verdict
from ctld_lab import studies
from ctld_lab.control import Control
from ctld_lab.data import identify
from ctld_lab.records import RunDirectory
from ctld_lab.train import Training

TARGET = 1.03
FOREVER = 10**9
CHECKPOINT_SECONDS = 20.0  # of the laptop scale
# The networks of the laptop scale, on embedded data.
STUDIES = {"sda": "digits", "charrnn": "pydoc"}
METHODS = {"sgd": {"lr": 0.01}, "ctld": {"lr": 0.01, "temperature": 0.01}}


class Bare(Contender):
    """Five lines."""

    def __init__(self, workload: Any, optimizer: Any) -> None:
        super().__init__()
        self.workload, self.optimizer = workload, optimizer
        self.step = 0

    def run(self, steps: int) -> float:
        start = time.perf_counter()
        for step in range(self.step, self.step + steps):
            loss = self.workload.loss(step)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step(loss=loss)
        self.step += steps
        return (time.perf_counter() - start) / steps


class Recorded(Contender):
    """The laboratory's."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training = training

    def run(self, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            self.training.take_step()
        return (time.perf_counter() - start) / steps


class Idle:
    """A workload and an optimizer whose passes and steps do nothing."""

    def __init__(self) -> None:
        self.value = torch.zeros((), requires_grad=True)

    def loss(self, step: int) -> Any:
        return self.value

    def zero_grad(self) -> None:
        pass

    def step(self, loss: Any) -> None:
        pass


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
        "checkpoint_seconds": 1e9,  # taken and timed apart
    }


def parts(training: Training, effort: float) -> dict[str, Any]:
    """In seconds, medians with their intervals."""
    training.restore()
    training.begin_stage()
    training.trace_every = 1  # as in explorations of up to 1,000 steps
    training.take_step()
    optimizer: Any = training.optimizer
    bare = Bare(training.workload, optimizer)
    bare.step = 1
    interleave([bare], block_seconds=0.2, budget=8 * effort, label="a step")
    saves, words = [], []
    for _ in range(max(6, round(20 * effort))):
        start = time.perf_counter()
        training.save()
        saved = time.perf_counter()
        training.control._written = 0.0
        training.control.tell(training.directory, 1, 2)
        saves.append(saved - start)
        words.append(time.perf_counter() - saved)
    idle: Any = Idle()
    workload, training.workload, training.optimizer = training.workload, idle, idle
    recorded, empty = Recorded(training), Bare(idle, idle)
    rounds = interleave([recorded, empty], block_seconds=0.05, budget=8 * effort, label="what the loop adds")
    training.workload, training.optimizer = workload, optimizer
    added = [recorded.seconds[each] - empty.seconds[each] for each in recorded.seconds]
    return {
        "rounds": rounds,
        "undisturbed": undisturbed_share([recorded, empty]),
        "step": median_interval(list(bare.seconds.values())),
        "added": median_interval(added),
        "save": median_interval(saves),
        "word": median_interval(words),
    }


def share(each: dict[str, Any]) -> dict[str, float]:
    """Time relative to a bare loop; its interval takes every part at its worst, or at its best."""

    def of(end: str, other: str) -> float:
        every_second = each["word"][end] + each["save"][end] / CHECKPOINT_SECONDS
        return rounded(1.0 + each["added"][end] / each["step"][other] + every_second)

    return {"low": of("low", "high"), "median": of("median", "median"), "high": of("high", "low")}


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
                result["loops"].append({"study": study, "method": method, **parts(training, effort)})
                training.close()
    return result


def tables(result: Result) -> list[str]:
    rows = []
    for each in result["loops"]:
        interval = share(each)
        step, added, save, word = (each[name]["median"] for name in ("step", "added", "save", "word"))
        rows.append(
            (
                f"{each['study']}, {each['method']}",
                f"{1e3 * step:.2f}",
                f"{1e6 * added:.0f}",
                f"{1e3 * save:.1f}",
                f"{1e3 * word:.2f}",
                f"{interval['median']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})",
                verdict(interval, TARGET),
            )
        )
    header = (
        "workload, method",
        "ms a step",
        "µs that the loop adds to it",
        f"ms a checkpoint, every {CHECKPOINT_SECONDS:.0f} s",
        "ms a word, every second",
        "relative to a bare loop",
        f"at most {TARGET}",
    )
    return [*where(result), "", *table(header, rows)]


if __name__ == "__main__":
    main("loop", "The laboratory's training loop beside a bare one.", run, tables)
