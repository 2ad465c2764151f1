"""Tuning, equal for all methods: the same number of trials of the same kind of search, judged on validation data.

Quasi-random search (Optuna's Sobol points, seeded): trials do not depend on each other's outcome, so they can run side by side,
and the plan of an interrupted search is the plan of the search.
"""

import math
import warnings
from collections.abc import Mapping, Sequence

import optuna

from ctld_lab.records import RunDirectory, StudyDirectory, number, write_json
from ctld_lab.streams import stream_seed

Space = Mapping[str, tuple[float, float]]
"""Option → lowest and highest value, searched on a logarithmic scale. `friction` stands for 1 − momentum."""
SEARCH = "quasi-random (Sobol) over the logarithms, the same number of trials for every method"


def propose(method: str, space: Space, trials: int) -> list[dict[str, float]]:
    """Options of each trial: a function of the method's name, the space and the number of trials alone."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = stream_seed(0, "tuning", *method.encode()) % 2**31
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=seed)
    study = optuna.create_study(sampler=sampler)
    ranges: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.FloatDistribution(low, high, log=True) for name, (low, high) in space.items()
    }
    proposed = []
    for _ in range(trials):
        trial = study.ask(ranges)
        study.tell(trial, 0.0)  # the outcome does not matter to a quasi-random search
        proposed.append({name: float(f"{value:.3g}") for name, value in trial.params.items()})
    return proposed


def options(parameters: Mapping[str, float]) -> dict[str, float]:
    """What the optimizer is given: momentum in place of friction."""
    given = dict(parameters)
    if "friction" in given:
        given["momentum"] = round(1.0 - given.pop("friction"), 6)
    return given


def choose(
    directory: StudyDirectory,
    method: str,
    space: Space,
    tried: Sequence[tuple[RunDirectory, dict[str, float]]],
    *,
    metric: str,
) -> dict[str, float] | None:
    """The trial with the lowest validation metric; None if all diverged. Stored as tuning/METHOD.json."""
    trials = []
    for run, parameters in tried:
        result = run.result() or {}
        value = number(result.get("valid", {}).get(metric)) if not result.get("diverged") else math.nan
        trials.append(
            {
                "run": run.name,
                "parameters": parameters,
                "value": value,
                "diverged": bool(result.get("diverged")),
                "failed": not result,
                "seconds": sum(result.get("seconds", {}).values()),
            }
        )
    finite = [trial for trial in trials if math.isfinite(trial["value"])]
    best = min(finite, key=lambda trial: float(trial["value"]), default=None)
    path = directory.path / "tuning"
    path.mkdir(exist_ok=True)
    record = {
        "method": method,
        "space": {name: list(limits) for name, limits in space.items()},
        "search": SEARCH,
        "criterion": f"validation {metric} at the end, data that no test touches",
        "trials": trials,
        "chosen": best["parameters"] if best else None,
        "value": best["value"] if best else math.nan,
    }
    write_json(path / f"{method}.json", record)
    return best["parameters"] if best else None
