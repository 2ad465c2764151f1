"""What `ctld flatness` left beside the runs of a study, read as data: by measure, method and seed."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctld_lab.records import RecordError, number
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.statistics import Estimate, estimate
from ctld_lab.report.wording import shortened, show_setting

TEST, LOSS, GAP, GRADIENT = "test loss", "training loss", "gap", "gradient norm"
EIGENVALUE, TRACE, SHARPNESS = "largest eigenvalue", "trace", "sharpness"


def rise(size: float) -> str:
    return f"rise at {show_setting(size)}"


@dataclass(frozen=True)
class Measured:
    """One run: its measures by name, and beside them TEST, LOSS, GAP and GRADIENT."""

    run: RunRecord
    values: dict[str, float]
    measures: tuple[str, ...]
    """Those of flatness, for which lower is flatter."""
    converged: bool
    """The largest eigenvalue lies within 1 %."""
    what: str
    settings: dict[str, Any]
    made: str
    """By which torch, on how many threads."""


@dataclass(frozen=True)
class Group:
    """A method in one variant, over its seeds."""

    method: str
    title: str
    variant: str
    runs: Sequence[Measured]

    def by_seed(self, name: str) -> dict[int, float]:
        return {measured.run.seed: measured.values[name] for measured in self.runs if name in measured.values}

    def estimate(self, name: str) -> Estimate:
        return estimate(list(self.by_seed(name).values()))

    @property
    def tempered(self) -> bool:
        """By the paper's algorithm, whatever a study calls it; at T = 0 it would be SGD-M, at a constant T plain noise."""
        config = self.runs[0].run.config
        tempering = self._options.get("tempering")
        constant = isinstance(tempering, dict) and tempering.get("kind") == "constant"
        return config.get("algorithm", self.method) == "ctld" and self._options.get("temperature") != 0 and not constant

    @property
    def weight_decay(self) -> float:
        found = self._options.get("weight_decay", 0.0)
        return float(found) if isinstance(found, int | float) else math.nan

    @property
    def _options(self) -> dict[str, Any]:
        options = self.runs[0].run.config.get("optimizer")
        return options if isinstance(options, dict) else {}


@dataclass(frozen=True)
class Flatness:
    """Of one study; `problems` are records that are left out, and why."""

    study: StudyRecord
    measured: list[Measured]
    problems: list[tuple[str, str]]
    label: str
    """Tells it from the others of a page, and names its files."""

    @property
    def title(self) -> str:
        return str(self.study.description.get("title") or self.study.name)

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(name for measured in self.measured for name in measured.measures))

    @property
    def comparable(self) -> bool:
        """All runs are of one network and measure the same of it. Stages are models after one another, not another network."""
        kinds = set()
        for measured in self.measured:
            workload = measured.run.config.get("workload")
            network = (
                {key: value for key, value in workload.items() if key != "stages"} if isinstance(workload, dict) else {}
            )
            kinds.add((measured.what, json.dumps(network, sort_keys=True)))
        return len(kinds) == 1

    @property
    def groups(self) -> list[Group]:
        """In the order of the study's methods, variant by variant."""
        methods = self.study.methods
        found: dict[tuple[str, str, str], list[Measured]] = {}
        for measured in self.measured:
            run = measured.run
            point = ", ".join(f"{key} = {value}" for key, value in run.point.items())
            found.setdefault((" ".join(filter(None, (run.variant, point))), run.method, point), []).append(measured)
        variants = list(dict.fromkeys(variant for variant, _, _ in found))
        variants.sort(key=lambda variant: ("tuned", "paper", variant).index(variant))
        ordered = sorted(
            found, key=lambda key: (variants.index(key[0]), methods.index(key[1]) if key[1] in methods else 0)
        )
        return [
            Group(method, self.study.title(method), variant, sorted(found[key], key=lambda measured: measured.run.seed))
            for key in ordered
            for variant, method, _ in [key]
        ]


def read_flatness(study: StudyRecord, label: str = "") -> Flatness:
    """Of final runs that are done. A record that is broken, or was made with other settings than most, is told."""
    found: list[Measured] = []
    problems: list[tuple[str, str]] = []
    for run in study.finals:
        if run.state != "done" or run.diverged:
            continue
        try:
            record = run.directory.flatness()
            if record:
                found.append(_read(run, record))
        except RecordError as error:
            problems.append((run.name, shortened(str(error))))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            path = run.directory.path / "flatness.json"
            words = f"{path} is not as it should be ({type(error).__name__}: {error}); measure it with --again"
            problems.append((run.name, shortened(words)))
    keys = [json.dumps([measured.settings, measured.what], sort_keys=True) for measured in found]
    for variant in {measured.run.variant for measured in found}:  # each with a workload of its own, perhaps
        counts = Counter(key for key, measured in zip(keys, found, strict=True) if measured.run.variant == variant)
        usual = counts.most_common(1)[0][0]
        for key, measured in zip(keys, found, strict=True):
            if measured.run.variant == variant and key != usual:
                problems.append(
                    (measured.run.name, "was measured with other settings than most; measure all alike, with --again")
                )
    wrong = {name for name, _ in problems}
    return Flatness(study, [measured for measured in found if measured.run.name not in wrong], problems, label)


def _read(run: RunRecord, record: dict[str, Any]) -> Measured:
    eigenvalues = [number(value) for value in record["eigenvalues"]]
    residuals = [number(value) for value in record["residuals"]]
    flat = {EIGENVALUE: eigenvalues[0], TRACE: number(record["trace"]["mean"]), SHARPNESS: number(record["sharpness"])}
    flat |= {rise(number(part["size"])): number(part["mean"]) for part in record["rises"]}
    loss, test = number(record["loss"]), _test_loss(run, str(record["metric"]))
    settings = record["settings"]
    if not isinstance(settings, dict):
        raise TypeError("settings are no object")
    return Measured(
        run=run,
        values=flat | {TEST: test, LOSS: loss, GAP: test - loss, GRADIENT: number(record["gradient_norm"])},
        measures=tuple(flat),
        converged=residuals[0] <= 0.01 * abs(eigenvalues[0]),
        what=shortened("".join(filter(str.isprintable, str(record["what"])))),  # a terminal shows it too
        settings=settings,
        made=f"torch {record.get('torch')}, threads: {record.get('threads')}",
    )


def _test_loss(run: RunRecord, metric: str) -> float:
    """Of the model that was kept: where a run judged several together, it is the last of them."""
    found = run.result.get("test") or {}
    return next((number(found[key]) for key in (f"last_{metric}", "last_nll", metric) if key in found), number(None))
