"""Cycles beside other methods that turn one budget of gradients into a prediction with an uncertainty.

varied   the method: `ctld.Ensemble` with three kinds of T, and everything in methods.py
tuned    lr, weight decay, and a third option where a method has one: eight trials each, by validation nll
fixed    the number of gradients, networks, batches, momentum 0.9

README.md has the protocol and the findings. Other people's packages come by `make peers`.
"""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.linalg import LinAlgError

from cells import Cell, Found, Study, read
from ctld import NonFiniteError

from .methods import EVERY, check_packages, sgd
from .plans import PLANS, Plan
from .problems import Problem
from .scores import averaged, judge, nested, nll
from .tables import REFERENCE, findings, pack

TUNING_SEED = 1000  # far from the seeds of the runs that count
FAILURES = (NonFiniteError, FloatingPointError, LinAlgError, SystemExit)
"""Errors of a training that diverges; laplace-torch exits where an eigenvalue fails."""


def cells(scale: str, directory: Path) -> Sequence[Cell]:
    """Return a cell for each problem and method; smoke leaves out what needs a package that is not there."""
    found = []
    for name, plan in PLANS[scale].items():
        for method, row in EVERY.items():
            if name not in row.not_for and not (plan.small and row.module and find_spec(row.module) is None):
                facts = {"problem": name, "method": method, "plan": asdict(plan) | {"spaces": plan.searched(method)}}
                found.append(Cell(f"{name}/{method}", facts, lambda found, key=(name, method, plan): work(found, *key)))
        facts = {"problem": name, "method": REFERENCE, "plan": asdict(plan) | {"spaces": {}}}
        found.append(
            Cell(
                f"{name}/{REFERENCE}",
                facts,
                lambda found, key=(name, plan): reference(found, read(directory, f"{key[0]}/sgd")["chosen"], *key),
                needs=[f"{name}/sgd"],
            )
        )
    return found


def work(found: Found, name: str, method: str, plan: Plan) -> Iterator[str]:
    """Carry out the trials, choose, carry out the final runs."""
    check_packages([method])
    trials, finals = found.setdefault("trials", []), found.setdefault("final", [])
    for options in plan.trial_options(method)[len(trials) :]:
        problem = plan.load(name, TUNING_SEED, tuning=True)
        trials.append({"options": options} | _by(found) | run(problem, method, options, TUNING_SEED))
        yield f"trial {len(trials)}, nll {trials[-1]['nll']}"
    if not finals:
        found["chosen"] = min(trials, key=lambda trial: float(trial["nll"]))["options"]
    for seed in range(len(finals), plan.seeds):
        problem = plan.load(name, seed, tuning=False)
        finals.append({"seed": seed} | _by(found) | run(problem, method, found["chosen"], seed))
        yield f"seed {seed}, nll {finals[-1]['nll']}"


def reference(found: Found, chosen: Mapping[str, float], name: str, plan: Plan) -> Iterator[str]:
    """Train networks at the settings that SGD-M's trials chose, and score the first one, two, three ... together."""
    found["chosen"] = chosen
    finals = found.setdefault("final", [])
    for seed in range(len(finals), plan.seeds):
        problem, began = plan.load(name, seed, tuning=False), time.process_time()
        curve = nested([sgd(problem, chosen, seed, member) for member in range(plan.reference)], problem)
        finals.append({"seed": seed, **_by(found), "curve": curve, "seconds": time.process_time() - began})
        yield f"seed {seed}"


def run(problem: Problem, method: str, options: Mapping[str, float], seed: int) -> dict[str, Any]:
    """Return scores and the processor's seconds of training; a run that diverges has an infinite nll as its result."""
    began = time.process_time()
    # Adam's moments of a weight that decays without a gradient are denormal: no bit of the result, most of the time.
    torch.set_flush_denormal(True)
    try:
        with warnings.catch_warnings():  # a bad setting shows in its nll
            warnings.simplefilter("ignore")
            predict = EVERY[method].train(problem, options, seed)
            seconds = time.process_time() - began
            if problem.held_out is problem.valid:
                found: dict[str, Any] = {"nll": nll(averaged(predict(problem.held_out[0])), problem.held_out[1])}
            else:
                found = judge(problem, predict)
            found |= predict.facts
    except FAILURES as error:
        found, seconds = {"nll": math.inf, "failed": str(error)}, time.process_time() - began
    finally:
        torch.set_flush_denormal(False)
    if not math.isfinite(found["nll"]):
        found = {"nll": math.inf, "failed": found.get("failed", "the prediction is not finite")}
    return found | {"seconds": seconds}


def _by(found: Found) -> dict[str, Any]:
    """Return the commit and the machine of a run: a study that goes on may be another's."""
    last = (found.get("environments") or [{}])[-1]
    return {name: last[name] for name in ("commit", "machine") if name in last}


STUDY = Study("peers", {scale: lambda where, scale=scale: cells(scale, where) for scale in PLANS}, pack, findings)
