"""Tuning, equal for all methods: the same number of trials of the same kind of search, judged on validation data.

Quasi-random search (Sobol points, seeded; best a power of two of them): trials do not depend on each other's outcome,
so they can run side by side, and the plan of an interrupted search is the plan of the search.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy.stats import qmc

from ctld_lab.records import RecordError, StudyDirectory, number, write_json
from ctld_lab.streams import stream_seed

if TYPE_CHECKING:
    from ctld_lab.report.provenance import Trial

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
    """Return the optimizer's options: momentum in place of friction."""
    given = dict(parameters)
    if "friction" in given:
        given["momentum"] = round(1.0 - given.pop("friction"), 6)
    return given


class Searches:
    """One search for each name, all of as many trials, all judged by the same metric.

    With trials `stored` by a study that was published, none is run again: they must be the points that would be.
    """

    def __init__(
        self,
        directory: StudyDirectory,
        spaces: Mapping[str, Space],
        trials: int,
        *,
        metric: str,
        stored: "Mapping[str, Sequence[Trial]] | None" = None,
    ) -> None:
        self._directory, self._spaces, self._metric, self._stored = directory, spaces, metric, stored
        self._proposals = {name: propose(space, trials) for name, space in spaces.items()}
        for name, proposed in self._proposals.items():
            if stored is None:
                break
            if proposed != [trial.parameters for trial in stored.get(name, ())]:
                raise RecordError(
                    f"--tuned: the stored trials of {name} are not the {trials} that this version would run; leave --tuned "
                    "out, and they are run"
                )

    def trials(self) -> Iterator[tuple[str, str, int, dict[str, float]]]:
        """Yield the runs to make: search, name of the run, place and options. The order is trial by trial, method by
        method, so an interrupted search has tried the same number of each."""
        if self._stored is None:
            for place in range(max(map(len, self._proposals.values()), default=0)):
                for name, proposed in self._proposals.items():
                    yield name, _run(name, place), place, proposed[place]

    def chosen(self) -> dict[str, dict[str, float]]:
        """The trial of each search with the lowest validation metric, if any did not diverge. All are kept as tuning/NAME.json.

        Where a trial failed its search waits for it to be mended; the others go on.
        """
        best: dict[str, dict[str, float]] = {}
        for name, proposed in self._proposals.items():
            tried = [self._outcome(name, place, parameters) for place, parameters in enumerate(proposed)]
            finished = [trial for trial in tried if trial is not None]
            if finished and len(finished) == len(proposed):
                chosen = self._choose(name, finished)
                best |= {name: chosen} if chosen is not None else {}
        return best

    def _outcome(self, name: str, place: int, parameters: dict[str, float]) -> dict[str, Any] | None:
        told: dict[str, Any] = {"run": _run(name, place), "parameters": parameters}
        if self._stored is not None:
            trial = self._stored[name][place]
            return told | {"value": trial.value, "diverged": trial.state == "diverged", "seconds": trial.seconds}
        result = self._directory.run(told["run"]).result()
        if result is None:
            return None
        diverged = bool(result.get("diverged"))
        value = math.nan if diverged else number(result.get("valid", {}).get(self._metric))
        return told | {"value": value, "diverged": diverged, "seconds": sum(result.get("seconds", {}).values())}

    def _choose(self, name: str, tried: Sequence[dict[str, Any]]) -> dict[str, float] | None:
        finite = [trial for trial in tried if math.isfinite(trial["value"])]
        best = min(finite, key=lambda trial: float(trial["value"]), default=None)
        chosen: dict[str, float] | None = best["parameters"] if best else None
        path = self._directory.path / "tuning"
        path.mkdir(exist_ok=True)
        record = {
            "method": name,
            "space": {option: list(limits) for option, limits in self._spaces[name].items()},
            "search": SEARCH + (", as stored by an earlier run of the study" if self._stored is not None else ""),
            "criterion": f"validation {self._metric} at the end, data that no test touches",
            "trials": tried,
            "chosen": chosen,
            "value": best["value"] if best else math.nan,
        }
        write_json(path / f"{name}.json", record)
        return chosen


def _run(name: str, place: int) -> str:
    return f"tune-{name}-{place:02d}"


def stored_trials(report: Path, study: str, scale: str, data: Mapping[str, Any]) -> "dict[str, list[Trial]]":
    """Return the trials by search that a published report holds of a study of the same size on the same data."""
    from ctld_lab.report.provenance import searches
    from ctld_lab.report.reading import read_study

    record = read_study(report / study)
    if record.problem is not None:
        raise RecordError(f"--tuned {report}: {record.problem}")
    there = record.description.get("scale"), record.description.get("data", {}).get("sha256")
    found = {search.name: search.trials for search in searches(record)}
    if not found or there != (scale, data.get("sha256")):
        raise RecordError(
            f"--tuned {report} holds no trials of the study {study} at the scale {scale} on these data; give a report that was "
            "published with them, or leave --tuned out"
        )
    return found
