"""Tuning, a scan of the temperature, and the final runs: a file for each problem and method, written after each stage.

Stages have replicas of their own. All methods of a stage share instances, initial weights (of later runs too) and minibatches.
"""

import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctld_lab.files import read_of, write_cell
from ctld_lab.traps.dynamics import Noise, Outcome, run
from ctld_lab.traps.methods import LEVELS, METHODS, NOISY, PAIRS, Method, setting
from ctld_lab.traps.problem import Problem, chosen

STAGES = ("tuning", "scan", "final")


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    budget: int
    """Gradients of a replica."""
    tuning: int
    """Replicas at each of the points of a design."""
    scan: int
    """Replicas at each temperature."""
    final: int


def seed_of(stage: str, problem: str, *more: int | str) -> int:
    """Returns a seed that no other stage, problem or purpose has."""
    words = [stage, problem, *more]
    sequence = np.random.SeedSequence([zlib.crc32(str(word).encode()) for word in words])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def generator(stage: str, problem: str, *more: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(stage, problem, *more))


def runs(
    problem: Problem, method: Method, points: Sequence[tuple[int, int]], *, replicas: int, stage: str, budget: int
) -> Outcome:
    """Runs the same `replicas` at each point, (pair, level); rows are points, then replicas."""
    rows = torch.arange(len(points) * replicas) % replicas
    starts: dict[int, Tensor] = {}

    def start(number: int) -> Tensor:
        if number not in starts:
            starts[number] = problem.start(replicas, generator(stage, problem.name, "start", number))[rows]
        return starts[number]

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


@dataclass(frozen=True)
class Trial:
    """What the tuning replicas did at one point of the design."""

    pair: int
    level: int
    solved: int
    gradients: float
    """Mean number until solved, the budget where it was not."""
    loss: float
    """Median at the end."""


def tune(problem: Problem, method: Method, size: Size) -> list[Trial]:
    """Returns a trial for each point of the design."""
    points = [(pair, level) for pair in range(PAIRS) for level in range(LEVELS)]
    outcome = runs(problem, method, points, replicas=size.tuning, stage="tuning", budget=size.budget)
    trials = []
    for row, (pair, level) in enumerate(points):
        mine = slice(row * size.tuning, (row + 1) * size.tuning)
        times = outcome.solved_at[mine]
        losses = [loss if np.isfinite(loss) else float("inf") for loss in outcome.loss[mine]]
        gradients = statistics.fmean(at or size.budget for at in times)
        trials.append(Trial(pair, level, sum(map(bool, times)), gradients, statistics.median(losses)))
    return trials


def choose(trials: Sequence[Trial]) -> Trial:
    """Returns the trial with most replicas solved.

    Among equals, the one whose neighbours in level solved most; then the quickest, then the lowest loss, then the first.
    """
    solved = {(trial.pair, trial.level): trial.solved for trial in trials}

    def worth(trial: Trial) -> tuple[float, ...]:
        beside = sum(solved.get((trial.pair, trial.level + step), 0) for step in (-1, 1))
        return trial.solved, beside, -trial.gradients, -trial.loss

    return max(trials, key=worth)


def carry_out(
    directory: Path,
    problems: Sequence[Problem],
    size: Size,
    *,
    methods: Sequence[str] = tuple(METHODS),
    environment: dict[str, Any],
    say: Callable[[str], None] = print,
) -> None:
    """Does what has not been done yet, problem by problem; what was done with another size is refused."""
    torch.set_flush_denormal(True)  # tails of Gaussians, an order of magnitude slower otherwise
    try:
        _carry_out(directory, problems, size, methods, environment, say)
    finally:
        torch.set_flush_denormal(False)


def _carry_out(
    directory: Path,
    problems: Sequence[Problem],
    size: Size,
    methods: Sequence[str],
    environment: dict[str, Any],
    say: Callable[[str], None],
) -> None:
    for problem in problems:
        for name in methods:
            path = cell_path(directory, problem.name, name)
            for stage in STAGES:
                cell = read_of(path, {"problem": problem.name, "method": name, "size": asdict(size)})
                if stage in cell or (stage == "scan" and name not in NOISY):
                    continue
                begun = time.perf_counter()
                cell[stage] = _stage(stage, problem, METHODS[name], size, cell)
                cell.setdefault("seconds", {})[stage] = round(time.perf_counter() - begun, 1)
                if cell.setdefault("environment", environment) != environment:
                    cell[stage]["environment"] = environment
                write_cell(path, cell)
                say(f"{problem.name} {name}: {stage} in {cell['seconds'][stage]:.0f} s{_brief(cell, stage)}")


def _stage(stage: str, problem: Problem, method: Method, size: Size, cell: dict[str, Any]) -> dict[str, Any]:
    if stage == "tuning":
        trials = tune(problem, method, size)
        best = choose(trials)
        point = setting(problem, method, best.pair, best.level)
        return {"trials": [asdict(trial) for trial in trials], "chosen": asdict(best) | {"setting": asdict(point)}}
    pair, level = (cell["tuning"]["chosen"][name] for name in ("pair", "level"))
    if stage == "scan":
        points = [(pair, each) for each in range(LEVELS)]
        found = runs(problem, method, points, replicas=size.scan, stage=stage, budget=size.budget).solved_at
        return {"solved_at": [found[first : first + size.scan] for first in range(0, len(found), size.scan)]}
    outcome = runs(problem, method, [(pair, level)], replicas=size.final, stage=stage, budget=size.budget)
    # A loss that float32 rounded below zero is zero to its accuracy; five digits are what a reader can use.
    return {"solved_at": outcome.solved_at, "loss": [float(f"{loss:.5g}") for loss in outcome.loss]}


def _brief(cell: dict[str, Any], stage: str) -> str:
    if stage == "tuning":
        return f", chose {cell[stage]['chosen']['setting']} with {cell[stage]['chosen']['solved']} solved"
    times = np.array(cell[stage]["solved_at"])
    return f", solved {(times > 0).mean(axis=-1).round(2).tolist()}"


def cell_path(directory: Path, problem: str, method: str) -> Path:
    return directory / problem / f"{method}.json"
