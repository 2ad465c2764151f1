"""Tuning, equal for all methods: the same number of trials of the same kind of search, judged on validation data.

Quasi-random search (Sobol points, seeded; best a power of two of them): trials do not depend on each other's outcome,
so they can run side by side, and the plan of an interrupted search is the plan of the search.
"""

import math
from collections.abc import Mapping, Sequence

from scipy.stats import qmc

from ctld_lab.records import RunDirectory, StudyDirectory, number, write_json
from ctld_lab.streams import stream_seed

Space = Mapping[str, tuple[float, float]]
"""Option → lowest and highest value, searched on a logarithmic scale. `friction` stands for 1 − momentum."""
SEARCH = "Sobol points over the logarithms, as many for every method, and the same ones of the unit cube"


def propose(space: Space, trials: int) -> list[dict[str, float]]:
    """Options of each trial. Methods that are searched in as many dimensions get the same points of their unit cubes."""
    # `seed`, not the newer `rng`, which scrambles otherwise: stored trials are these points. And one point after the other,
    # since a first draw of another number than a power of two warns.
    sobol = qmc.Sobol(len(space), scramble=True, seed=stream_seed(0, "tuning") % 2**31)
    return [
        {
            name: float(f"{low * (high / low) ** place:.3g}")
            for (name, (low, high)), place in zip(space.items(), sobol.random(1)[0], strict=True)
        }
        for _ in range(trials)
    ]


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
