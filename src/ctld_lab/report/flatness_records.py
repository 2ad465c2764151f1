"""What `ctld flatness` left beside the runs of a study, read as data: by measure, method and seed."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ctld_lab.records import RecordError
from ctld_lab.report.reading import RunRecord, StudyRecord, read_flat, read_tables
from ctld_lab.report.shapes import printable
from ctld_lab.report.statistics import Estimate, estimate
from ctld_lab.report.wording import shortened, show_setting

TEST, LOSS, GAP, GRADIENT = "test loss", "training loss", "gap", "gradient norm"
EIGENVALUE, TRACE, SHARPNESS = "largest eigenvalue", "trace", "sharpness"
NEEDED = (
    "eigenvalues",
    "residuals",
    "trace",
    "sharpness",
    "rises",
    "loss",
    "gradient_norm",
    "metric",
    "what",
    "settings",
)
ALTERED = "was measured with other settings than most; measure all alike, with --again"


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
        options = config.get("optimizer", {})
        tempering = options.get("tempering")
        constant = isinstance(tempering, dict) and tempering.get("kind") == "constant"
        return bool(config.get("algorithm", self.method) == "ctld" and options.get("temperature") != 0 and not constant)

    @property
    def weight_decay(self) -> float:
        found = self.runs[0].run.config.get("optimizer", {}).get("weight_decay", 0.0)
        return float(found) if isinstance(found, int | float) else math.nan


@dataclass(frozen=True)
class Flatness:
    """Of one study; `problems` are records that are left out, and why."""

    study: StudyRecord
    measured: list[Measured]
    problems: list[tuple[str, str]]
    label: str
    """Tells it from the others of a page, and names its files."""
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    """As they were published."""

    @property
    def measures(self) -> list[str]:
        if self.tables:
            names = dict.fromkeys(self.tables["values"]["measure"])
            return [name for name in names if name not in (TEST, LOSS, GAP, GRADIENT)]
        return list(dict.fromkeys(name for measured in self.measured for name in measured.measures))

    @property
    def comparable(self) -> bool:
        """All runs are of one network and measure the same of it. Stages are models after one another, not another network."""
        kinds = set()
        for measured in self.measured:
            workload = measured.run.config.get("workload")
            network = {key: x for key, x in workload.items() if key != "stages"} if isinstance(workload, dict) else {}
            kinds.add((measured.what, json.dumps(network, sort_keys=True)))
        return len(kinds) == 1

    @property
    def groups(self) -> list[Group]:
        """In the order of the study's methods, variant by variant."""
        methods = self.study.methods
        found: dict[tuple[str, str], list[Measured]] = {}
        for measured in self.measured:
            run = measured.run
            point = ", ".join(f"{key} = {value}" for key, value in run.point.items())
            found.setdefault((" ".join(filter(None, (run.variant, point))), run.method), []).append(measured)
        variants = list(dict.fromkeys(variant for variant, _ in found))
        variants.sort(key=lambda variant: ("tuned", "paper", variant).index(variant))
        ordered = sorted(found, key=lambda key: (variants.index(key[0]), [*methods, key[1]].index(key[1])))
        return [
            Group(
                method,
                self.study.title(method),
                variant,
                sorted(found[variant, method], key=lambda each: each.run.seed),
            )
            for variant, method in ordered
        ]


def read_flatness(study: StudyRecord, label: str = "") -> Flatness:
    """Of final runs that are done. A record that is broken, or was made with other settings than most, is told."""
    if study.published:
        folder, name = study.directory.path.parent / "tables", study.directory.path.resolve().name
        return Flatness(study, [], [], label, read_tables(folder, f"flat-minima-{name}-", "flat-"))
    found: list[Measured] = []
    problems: list[tuple[str, str]] = []
    for run in study.finals:
        if run.state != "done" or run.diverged:
            continue
        try:
            record = read_flat(run.directory)
            if record:
                found.append(_measured(run, record))
        except (RecordError, OSError) as error:
            problems.append((run.name, shortened(printable(str(error)))))
    keys = {each.run.name: json.dumps([each.settings, each.what], sort_keys=True) for each in found}
    for variant in {each.run.variant for each in found}:  # each with a workload of its own, perhaps
        own = [each.run.name for each in found if each.run.variant == variant]
        usual = Counter(keys[name] for name in own).most_common(1)[0][0]
        problems += [(name, ALTERED) for name in own if keys[name] != usual]
    wrong = {name for name, _ in problems}
    return Flatness(study, [measured for measured in found if measured.run.name not in wrong], problems, label)


def _measured(run: RunRecord, record: dict[str, Any]) -> Measured:
    missing = [name for name in NEEDED if name not in record or record[name] == []]
    if missing:
        path = run.directory.path / "flatness.json"
        raise RecordError(f"{path} is not as it should be (without {', '.join(missing)}); measure it with --again")
    largest = record["eigenvalues"][0]
    flat = {EIGENVALUE: largest, TRACE: record["trace"].get("mean", math.nan), SHARPNESS: record["sharpness"]}
    for part in record["rises"]:
        flat[f"rise at {show_setting(part.get('size', math.nan))}"] = part.get("mean", math.nan)
    loss, test = record["loss"], _test_loss(run, record["metric"])
    return Measured(
        run=run,
        values=flat | {TEST: test, LOSS: loss, GAP: test - loss, GRADIENT: record["gradient_norm"]},
        measures=tuple(flat),
        converged=record["residuals"][0] <= 0.01 * abs(largest),
        what=shortened(record["what"]),
        settings=record["settings"],
        made=f"torch {record.get('torch')}, threads: {record.get('threads')}",
    )


def _test_loss(run: RunRecord, metric: str) -> float:
    """Of the model that was kept: where a run judged several together, it is the last of them."""
    found = run.result.get("test", {})
    return next((float(found[key]) for key in (f"last_{metric}", "last_nll", metric) if key in found), math.nan)
