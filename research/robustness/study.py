"""Is the ensemble's default ever worse than SGD? One grid of problems, learning rates, weight decays and budgets.

varied   the method
tuned    nothing: every method runs at every point of one fixed grid, chosen before any run
fixed    gradients, batches, initial weights and rows of each seed; momentum 0.9

README.md has the protocol and the findings. MNIST, UCI's sets and War and Peace lie in $CTLD_DATA.
"""

import itertools
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cells import Cell, Found, Study

from . import problems
from .methods import CORE, METHODS, Training
from .problems import PROBLEMS, Problem
from .tables import findings, pack

WEIGHT_DECAYS = (5e-4, 3e-3, 1e-2)


@dataclass(frozen=True)
class Plan:
    problems: Sequence[str]
    seeds: int
    weight_decays: Sequence[float] = WEIGHT_DECAYS
    shorten: int = 1
    """What budgets are divided by, to see that all works."""
    parts: Sequence[str] = ("core",)
    """Halves of the methods: the three that the verdict is about, and their rivals."""


PLANS = {
    "smoke": Plan(("wine-mlp", "digits-bn", "diabetes"), 2, (3e-3,), shorten=5, parts=("core", "rivals")),
    "design": Plan([problem.name for problem in problems.DESIGN], 3),
    "laptop": Plan([problem.name for problem in problems.FINAL], 3),
    "rivals": Plan([problem.name for problem in problems.FINAL], 3, parts=("rivals",)),
}


def cells(scale: str) -> Sequence[Cell]:
    """Return a cell for each problem and half of the methods."""
    plan = PLANS[scale]
    halves = {"core": CORE, "rivals": tuple(name for name in METHODS if name not in CORE)}
    return [
        Cell(
            f"{name}/{part}",
            {"problem": name, "methods": halves[part], "plan": _grid(plan)},
            lambda found, key=(name, halves[part], plan): work(found, *key),
        )
        for part in plan.parts
        for name in plan.problems
    ]


def _grid(plan: Plan) -> dict[str, Any]:
    """Return what decides the numbers of a cell."""
    return {name: value for name, value in asdict(plan).items() if name != "parts"}


def points(problem: Problem, plan: Plan) -> Iterator[tuple[float, float, int]]:
    budgets = [max(2, epochs // plan.shorten) for epochs in problem.budgets]
    return itertools.product(problem.rates, plan.weight_decays, budgets)


def work(found: Found, name: str, methods: Sequence[str], plan: Plan) -> Iterator[str]:
    """Train with each method at each point and seed; one part of the cell for each seed."""
    if os.environ.get("CTLD_DATA"):
        problems.DATA = Path(os.environ["CTLD_DATA"])
    problem, runs = PROBLEMS[name], found.setdefault("runs", [])
    for seed in range(len({run["seed"] for run in runs}), plan.seeds):
        made = [
            {"lr": lr, "weight_decay": decay, "epochs": epochs, "method": method, "seed": seed}
            | one(problem, method, lr, decay, epochs, seed)
            for lr, decay, epochs in points(problem, plan)
            for method in methods
        ]
        runs += made
        yield f"seed {seed}"


def one(problem: Problem, method: str, lr: float, weight_decay: float, epochs: int, seed: int) -> dict[str, Any]:
    """Return the nll on validation rows and on test rows, and what it cost; NaN if the training diverged."""
    torch.set_flush_denormal(True)  # weights that decay without a gradient become denormal, which takes time and no bit
    training, began = Training(problem, lr, weight_decay, epochs, seed), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outputs = METHODS[method](training)
        except (FloatingPointError, ValueError) as error:
            return {"valid": float("nan"), "test": float("nan"), "failed": str(error)[:200]}
    seconds = time.process_time() - began
    *_, targets = problem.draw(seed)
    half = len(targets) // 2  # an even share of rows, drawn by the seed: validation and test
    return {
        "valid": problem.judge([part[:half] for part in outputs], targets[:half]),
        "test": problem.judge([part[half:] for part in outputs], targets[half:]),
        "members": len(outputs),
        "seconds": round(seconds, 2),
    }


STUDY = Study("robustness", {scale: lambda where, scale=scale: cells(scale) for scale in PLANS}, pack, findings)
