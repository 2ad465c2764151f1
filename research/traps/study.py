"""The study of bad minima: its problems and sizes, and a cell for each problem and method.

varied   the method: SGD-M, restarts, Adam, exploration in one pass at five kinds of temperature, cycles of six kinds
tuned    lr and momentum (six pairs, the same for all), and thirteen levels of T, of restarts or of decay: 78 points for each
fixed    the budget of gradients, the share of exploration, the number of cycles

A cell has three stages with replicas of their own: tuning, a scan of the temperature, the final runs. All methods share
instances, initial weights (of later runs too) and minibatches.
"""

import statistics
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cells import Cell, Found, Study
from traps import tables
from traps.dynamics import Noise, Outcome, run
from traps.golf import RunningParity, SparseParity, ThreeSines
from traps.methods import LEVELS, METHODS, NOISY, PAIRS, Method, setting
from traps.networks import RBF, Convolution, SampledRBF, SampledTeacherStudent, TeacherStudent
from traps.problem import Problem, chosen

PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "rbf8": lambda: RBF(8),
    "rbf16": lambda: RBF(16),
    "rbf32": lambda: RBF(32),
    "sines": ThreeSines,
    "convolution": Convolution,
    "relu12": lambda: TeacherStudent(12),
    "rbf16-batch": lambda: SampledRBF(16),
    "relu16": lambda: TeacherStudent(16),
    "running-parity": RunningParity,
    "sparse-parity": SparseParity,
    "relu12-batch": lambda: SampledTeacherStudent(12),
    "rbf48": lambda: RBF(48),
    "relu24": lambda: TeacherStudent(24),
    "rbf32-batch": lambda: SampledRBF(32, coldest=1e-3),
    "relu16-batch": lambda: SampledTeacherStudent(16, batch=64, rates=(0.025, 0.05, 0.1), coldest=1e-5),
    "relu24-batch": lambda: SampledTeacherStudent(24, batch=128, rates=(0.025, 0.05, 0.1), coldest=1e-5),
}
"""The problems, in the order of computation."""


@dataclass(frozen=True)
class Size:
    """Gradients of a replica, and replicas: at each point of the tuning, at each temperature, in the final runs."""

    budget: int
    tuning: int
    scan: int
    final: int


SIZES = {
    "smoke": Size(budget=240, tuning=1, scan=1, final=4),
    "laptop": Size(budget=3000, tuning=6, scan=24, final=300),
    "paper": Size(budget=10_000, tuning=20, scan=100, final=300),
}


def generator(stage: str, problem: str, *more: int | str) -> torch.Generator:
    """Return random numbers that no other stage, problem or purpose has."""
    sequence = np.random.SeedSequence([zlib.crc32(str(word).encode()) for word in (stage, problem, *more)])
    return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))


def runs(
    problem: Problem, method: Method, points: Sequence[tuple[int, int]], *, replicas: int, stage: str, budget: int
) -> Outcome:
    """Run the same `replicas` at each point, (pair, level); rows are points, then replicas."""
    rows = torch.arange(len(points) * replicas) % replicas
    starts: dict[int, Tensor] = {}

    def start(number: int) -> Tensor:
        if number not in starts:
            starts[number] = problem.start(replicas, generator(stage, problem.name, "start", number))[rows]
        return starts[number]

    torch.set_flush_denormal(True)  # tails of Gaussians, an order of magnitude slower otherwise
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a tempering that does not fit into so short a run is part of the question
            return run(
                problem,
                method,
                [setting(problem, method, *point) for point in points for _ in range(replicas)],
                chosen(problem.draw(replicas, generator(stage, problem.name, "instance")), rows),
                start,
                budget=budget,
                noise=Noise(generator(stage, problem.name, "noise", method.name)),
                batches=generator(stage, problem.name, "batches"),
            )
    finally:
        torch.set_flush_denormal(False)


def cell(problem: str, method: str, size: Size) -> Cell:
    """Return the cell of a problem and a method."""

    def work(found: Found) -> Iterator[str]:
        made, way = PROBLEMS[problem](), METHODS[method]
        if "tuning" not in found:
            found["tuning"] = tune(made, way, size)
            yield "tuning"
        pair, level = (found["tuning"]["chosen"][name] for name in ("pair", "level"))
        if "scan" not in found and method in NOISY:
            points = [(pair, each) for each in range(LEVELS)]
            at = runs(made, way, points, replicas=size.scan, stage="scan", budget=size.budget).solved_at
            found["scan"] = {"solved_at": [at[first : first + size.scan] for first in range(0, len(at), size.scan)]}
            yield "scan"
        if "final" not in found:
            outcome = runs(made, way, [(pair, level)], replicas=size.final, stage="final", budget=size.budget)
            losses = [float(f"{loss:.5g}") for loss in outcome.loss]
            found["final"] = {"solved_at": outcome.solved_at, "loss": losses}
            yield f"final, {sum(map(bool, outcome.solved_at))} of {size.final} solved"

    return Cell(f"{problem}/{method}", {"problem": problem, "method": method, "size": asdict(size)}, work)


def tune(problem: Problem, method: Method, size: Size) -> dict[str, Any]:
    """Return a trial for each point of the design, and the chosen one with its setting."""
    points = [(pair, level) for pair in range(PAIRS) for level in range(LEVELS)]
    outcome = runs(problem, method, points, replicas=size.tuning, stage="tuning", budget=size.budget)
    trials = []
    for row, (pair, level) in enumerate(points):
        mine = slice(row * size.tuning, (row + 1) * size.tuning)
        times = outcome.solved_at[mine]
        losses = [loss if np.isfinite(loss) else float("inf") for loss in outcome.loss[mine]]
        gradients = statistics.fmean(at or size.budget for at in times)
        trial = {"pair": pair, "level": level, "solved": sum(map(bool, times))}
        trials.append(trial | {"gradients": gradients, "loss": statistics.median(losses)})
    best = choose(trials)
    return {
        "trials": trials,
        "chosen": best | {"setting": asdict(setting(problem, method, best["pair"], best["level"]))},
    }


def choose(trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the trial with most replicas solved.

    Among equals, the one whose neighbours in level solved most; then the quickest, then the lowest loss, then the first.
    """
    solved = {(trial["pair"], trial["level"]): trial["solved"] for trial in trials}

    def worth(trial: Mapping[str, Any]) -> tuple[float, ...]:
        beside = sum(solved.get((trial["pair"], trial["level"] + step), 0) for step in (-1, 1))
        return trial["solved"], beside, -trial["gradients"], -float(trial["loss"])

    return dict(max(trials, key=worth))


def plan(scale: str) -> list[Cell]:
    """Return the cells of a scale; smoke has one problem."""
    problems = ["rbf8"] if scale == "smoke" else PROBLEMS
    return [cell(problem, method, SIZES[scale]) for problem in problems for method in METHODS]


def findings(results: Path) -> dict[str, Any]:
    return tables.findings(results, {name: make().title for name, make in PROBLEMS.items()})


STUDY = Study(
    "traps",
    {scale: lambda _, scale=scale: plan(scale) for scale in SIZES},
    lambda directory, results: tables.pack(directory, results, tuple(PROBLEMS)),
    findings,
)
