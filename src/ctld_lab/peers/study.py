"""Trials, then final runs: a file for each problem and method, written after each run, so that a stopped study goes on."""

import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch.linalg import LinAlgError

from ctld import NonFiniteError
from ctld_lab.files import read_json, read_of, write_cell
from ctld_lab.peers.methods import EVERY, METHODS, sgd
from ctld_lab.peers.problems import Problem, Size, load
from ctld_lab.peers.scores import averaged, judge, nested, nll
from ctld_lab.peers.training import Noted
from ctld_lab.traps.study import cell_path
from ctld_lab.tuning import propose

TUNING_SEED = 1000  # far from the seeds of the runs that count
REFERENCE = "reference"
"""The deep ensemble of networks that have all the gradients each: what others are counted in."""

FAILURES = (NonFiniteError, FloatingPointError, LinAlgError, SystemExit)
"""Of a training that diverges; laplace-torch exits where an eigenvalue fails."""
Ends = tuple[float, float]


@dataclass(frozen=True)
class Plan:
    """What is done with a problem."""

    size: Size
    spaces: Mapping[str, Ends]
    """Ends of what is tuned: "lr of sgd", "weight_decay of sgd" and so on, and thirds by their names."""
    trials: int
    seeds: int
    reference: int
    """Networks of the reference."""
    small: bool = False

    def searched(self, method: str) -> dict[str, Ends]:
        """lr, weight decay, and a third thing where a method has one."""
        row = EVERY[method]
        ranges = {name: self.spaces[f"{name} of {row.rates}"] for name in ("lr", "weight_decay")}
        return ranges | ({row.third: self.spaces[row.third]} if row.third else {})

    def trial_options(self, method: str) -> list[dict[str, float]]:
        """For all methods the same points of the unit cube, of which some have no use for the third coordinate."""
        ranges = self.searched(method)
        points = propose(ranges if len(ranges) == 3 else ranges | {"nothing": (1.0, 10.0)}, self.trials)
        return [{name: point[name] for name in ranges} for point in points]


def share_out(directory: Path, name: str, methods: Sequence[str], plan: Plan, environment: dict[str, Any]) -> None:
    """Does what of a problem no other command is at: several with one directory share the work, a file at a time."""
    for method in methods:
        if read(directory, name, method, plan) is not None:
            continue
        with _alone(cell_path(directory, name, method)) as free:
            if not free:
                print(f"{name} {method}: another command is at it", flush=True)
            elif method != REFERENCE:
                carry_out(directory, name, method, plan, environment)
            elif read(directory, name, "sgd", plan) is None:
                print(f"{name} {REFERENCE}: waits for {METHODS['sgd'].title}; give the command again", flush=True)
            else:
                carry_out_reference(directory, name, plan, environment)


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Whether this process has the file to itself; the kernel lets it go when the process dies, however it dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0.25)  # `ctld status` may look at it just now
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def carry_out(directory: Path, name: str, method: str, plan: Plan, environment: dict[str, Any]) -> None:
    """Does what has not been done yet; what was done with another plan is refused."""
    path = cell_path(directory, name, method)
    known = about(name, method, plan)
    cell = {"environment": environment} | read_of(path, known)
    trials, finals = cell.setdefault("trials", []), cell.setdefault("final", [])
    proposed = plan.trial_options(method)
    for options in proposed[len(trials) :]:
        trials.append(
            {"options": options, **_by(environment)}
            | _run(load_for(name, plan, TUNING_SEED, tuning=True), method, options)
        )
        write_cell(path, cell)
    if not finals:
        cell["chosen"] = min(trials, key=lambda trial: _rank(trial["nll"]))["options"]
        write_cell(path, cell)
        print(f"{name} {method}: trials are done, chosen {cell['chosen']}", flush=True)
    for seed in range(len(finals), plan.seeds):
        finals.append(
            {"seed": seed, **_by(environment)}
            | _run(load_for(name, plan, seed, tuning=False), method, cell["chosen"], seed=seed)
        )
        write_cell(path, cell)
        print(f"{name} {method}: seed {seed}, nll {finals[-1]['nll']}", flush=True)


def carry_out_reference(directory: Path, name: str, plan: Plan, environment: dict[str, Any]) -> None:
    """At the settings that SGD-M's trials chose."""
    path = cell_path(directory, name, REFERENCE)
    cell = {"environment": environment} | read_of(path, about(name, REFERENCE, plan))
    finals = cell.setdefault("final", [])
    cell["chosen"] = read_json(cell_path(directory, name, "sgd"))["chosen"]
    for seed in range(len(finals), plan.seeds):
        problem = load_for(name, plan, seed, tuning=False)
        began = time.process_time()
        models = [sgd(problem, cell["chosen"], seed, member) for member in range(plan.reference)]
        curve = nested(models, problem)
        seconds = time.process_time() - began
        finals.append({"seed": seed, **_by(environment), "curve": curve, "seconds": seconds})
        write_cell(path, cell)
        print(f"{name} {REFERENCE}: seed {seed} is done", flush=True)


def load_for(name: str, plan: Plan, seed: int, *, tuning: bool) -> Problem:
    return load(name, plan.size, seed, tuning=tuning, small=plan.small)


def about(name: str, method: str, plan: Plan) -> dict[str, Any]:
    """Returns what a file says first of all, as it has it."""
    planned = asdict(plan) | {"spaces": plan.searched(method) if method in EVERY else {}}
    said: dict[str, Any] = json.loads(json.dumps({"problem": name, "method": method, "plan": planned}))
    return said


@dataclass(frozen=True)
class Progress:
    """How far a file is."""

    problem: str
    method: str
    done: int
    planned: int
    networks: int
    """That a run trains one after the other."""
    seconds: float
    """Of training one of them, on average; NaN before the first run."""
    live: bool
    """A command is at it."""

    @property
    def left(self) -> int:
        return self.planned - self.done


def progress(directory: Path, plans: Mapping[str, Plan]) -> list[Progress]:
    """Of every file that the plans ask for, in their order."""
    found = []
    for name, plan in plans.items():
        for method in (*EVERY, REFERENCE):
            if method == REFERENCE or name not in EVERY[method].not_for:
                path = cell_path(directory, name, method)
                cell = read_of(path, about(name, method, plan))
                runs = [*cell.get("trials", ()), *cell.get("final", ())]
                planned, networks = (
                    (plan.seeds, plan.reference) if method == REFERENCE else (plan.seeds + plan.trials, 1)
                )
                timed = [run["seconds"] for run in runs if "seconds" in run]
                seconds = statistics.fmean(timed) / networks if timed else math.nan
                found.append(Progress(name, method, len(runs), planned, networks, seconds, _held(path)))
    return found


def _held(path: Path) -> bool:
    if not path.with_name(f".{path.name}.lock").exists():
        return False
    with _alone(path) as free:
        return not free


def read(directory: Path, name: str, method: str, plan: Plan) -> dict[str, Any] | None:
    """A complete file; None, if there is none. One of another plan is refused."""
    cell = read_of(cell_path(directory, name, method), about(name, method, plan))
    return cell if len(cell.get("final", ())) == plan.seeds else None


def _run(problem: Problem, method: str, options: dict[str, float], seed: int = TUNING_SEED) -> dict[str, Any]:
    """Scores and the processor's seconds of training; a run that diverges has an infinite nll, which is its result."""
    began = time.process_time()
    # Adam's moments of a weight that decays without a gradient: no bit of the result, and three quarters of the time.
    torch.set_flush_denormal(True)
    try:
        with warnings.catch_warnings():  # what a setting is bad for is seen in its nll
            warnings.simplefilter("ignore")
            predict = EVERY[method].train(problem, options, seed)
            seconds = time.process_time() - began
            if problem.held_out is problem.valid:
                found: dict[str, Any] = {"nll": nll(averaged(predict(problem.held_out[0])), problem.held_out[1])}
            else:
                found = judge(problem, predict)
            if isinstance(predict, Noted):
                found |= predict.facts
    except FAILURES as error:
        found, seconds = {"nll": math.inf, "failed": str(error)}, time.process_time() - began
    finally:
        torch.set_flush_denormal(False)
    if not math.isfinite(found["nll"]):
        found = {"nll": math.inf, "failed": found.get("failed", "the prediction is not finite")}
    return found | {"seconds": seconds}


def _by(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Which commit made a run, and on what machine: a study that goes on may be another's."""
    return {name: environment[name] for name in ("commit", "machine") if name in environment}


def _rank(value: float | str) -> float:
    return float(value) if math.isfinite(float(value)) else math.inf
