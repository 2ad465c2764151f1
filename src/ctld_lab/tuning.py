"""Tuning, equal for all methods: the same number of trials of the same kind of search, judged on validation data.

Quasi-random search (Optuna's Sobol points, seeded; best a power of two of them): trials do not depend on each other's outcome,
so they can run side by side, and the plan of an interrupted search is the plan of the search.
"""

import math
import warnings
from collections.abc import Mapping, Sequence

import optuna

from ctld_lab.records import RunDirectory, StudyDirectory, number, write_json
from ctld_lab.streams import stream_seed

Space = Mapping[str, tuple[float, float]]
"""Option → lowest and highest value, searched on a logarithmic scale. `friction` stands for 1 − momentum."""
SEARCH = "Sobol points over the logarithms, as many for every method, and the same ones of the unit cube"


def propose(space: Space, trials: int) -> list[dict[str, float]]:
    """Options of each trial. Methods that are searched in as many dimensions get the same points of their unit cubes."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(qmc_type="sobol", scramble=True, seed=stream_seed(0, "tuning") % 2**31)
    study = optuna.create_study(sampler=sampler)
    cube: dict[str, optuna.distributions.BaseDistribution] = {
        str(place): optuna.distributions.FloatDistribution(0.0, 1.0) for place in range(len(space))
    }
    # Optuna learns the space from a trial that is done, and draws the first one at random for want of it.
    study.add_trial(optuna.trial.create_trial(params=dict.fromkeys(cube, 0.5), distributions=cube, value=0.0))
    proposed = []
    for _ in range(trials):
        trial = study.ask(cube)
        study.tell(trial, 0.0)  # the outcome does not matter to a quasi-random search
        parameters = {}
        for place, (name, (low, high)) in enumerate(space.items()):
            parameters[name] = float(f"{low * (high / low) ** trial.params[str(place)]:.3g}")
        proposed.append(parameters)
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
        result = run.result() or {"diverged": True}
        value = number(result.get("valid", {}).get(metric)) if not result.get("diverged") else math.nan
        trials.append(
            {
                "run": run.name,
                "parameters": parameters,
                "value": value,
                "diverged": bool(result.get("diverged")),
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
