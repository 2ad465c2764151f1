"""What a study came to, as rows: for the report, for the command line and for `ctld compare`; and rows as tables on disk."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.records import StudyDirectory
from ctld_lab.report.reading import RunRecord, StudyRecord, read_study
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.wording import counted
from ctld_lab.statistics import (
    NOTHING,
    Estimate,
    estimate,
    marks,
    paired_difference,
    unpaired_difference,
    word,
)

# Fields of a double-well result that say how it was made, not what came out.
NOT_MEASURED = {"dimensions", "steps", "seed", "tempered", "seconds", "diverged", "format"}
FINAL, SEEDS = TABLES["final"], TABLES["seeds"]
Point = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Row:
    """A method (or a point that was varied) in one variant, over its seeds."""

    method: str
    title: str
    variant: str
    point: dict[str, Any]
    planned: int
    done: int
    failed: int
    diverged: int
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    """metric → seed → value; "test mse", "test mse of layer 1", "ratio", …"""
    given: dict[str, Estimate] = field(default_factory=dict)
    """Estimates without values by seed: those that a run made over its rounds, or a table that was published."""
    marks: dict[str, str] = field(default_factory=dict)
    """metric → best, tie, undecided, too few seeds, or nothing for what is worse; `statistics.marks`."""
    unit: str = "seed"

    def estimate(self, metric: str) -> Estimate:
        if metric in self.values:
            return estimate(list(self.values[metric].values()))
        return self.given.get(metric, NOTHING)

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys([*self.given, *self.values]))

    @property
    def state(self) -> str:
        """3 seeds; 2 of 3 seeds, 1 failed; 3 seeds, 1 diverged; 100 rounds."""
        if self.unit == "round":
            return counted(max(found.count for found in self.given.values()), "round")
        parts = [counted(max(self.planned, self.done), "seed")]
        if self.done < self.planned:
            parts[0] = f"{self.done} of {parts[0]}"
        parts += [f"{count} {word}" for count, word in ((self.failed, "failed"), (self.diverged, "diverged")) if count]
        return ", ".join(parts)


def difference(one: Row, other: Row, metric: str) -> Estimate:
    """one − other: seed by seed where both have values by seed, else unpaired. Unknown where either diverged."""
    if one.diverged or other.diverged:
        return NOTHING
    if one.values.get(metric) and other.values.get(metric):
        return paired_difference(one.values[metric], other.values[metric])
    return unpaired_difference(one.estimate(metric), other.estimate(metric))


def said(one: Row | None, other: Row | None, metric: str) -> str:
    """lower, tie, higher or undecided; "" where that is unknown."""
    if one is None or other is None:
        return ""
    return word(difference(one, other, metric), other.estimate(metric).mean)


# ---- from records ----


def final_table(study: StudyRecord | StudyDirectory | Path) -> list[Row]:
    """One row per method and variant (and point), in the order in which the study names its methods."""
    study = study if isinstance(study, StudyRecord) else read_study(study)
    if study.published:
        rows = _published(study)
    else:
        rows = [row for run in study.finals if run.kind == "timing" for row in _timing_rows(study, run)]
        groups: dict[tuple[str, str, Point], list[RunRecord]] = {}
        for run in study.finals:
            if run.kind in ("train", "double_well"):
                groups.setdefault((_label(run), run.variant, tuple(run.point.items())), []).append(run)
        for method in study.methods:
            if not rows and not any(label == method for label, _, _ in groups):
                groups[method, _first_variant(study), ()] = []
        rows += [_row(study, *key, runs) for key, runs in groups.items()]
    order = {method: place for place, method in enumerate(study.methods)}
    variants = list(dict.fromkeys(row.variant for row in rows))
    variants.sort(key=lambda variant: ("tuned", "paper", "tempered", "untempered", variant).index(variant))
    rows.sort(key=lambda row: (variants.index(row.variant), order.get(row.method, len(order))))
    for variant in variants:  # where lower is better: neither of a timing nor of exactness
        mark(
            [row for row in rows if row.variant == variant and row.unit == "seed" and not row.method.startswith("d = ")]
        )
    return rows


def _label(run: RunRecord) -> str:
    return f"d = {run.config.get('dimensions', 0):,}" if run.kind == "double_well" else run.method


def _first_variant(study: StudyRecord) -> str:
    found = {run.variant for run in study.finals}
    return "tuned" if not found or "tuned" in found else sorted(found)[0]


def _title(study: StudyRecord, label: str) -> str:
    return study.title(label).replace("d = ", "d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _row(study: StudyRecord, label: str, variant: str, point: Point, runs: Sequence[RunRecord]) -> Row:
    done = [run for run in runs if run.state == "done"]
    values: dict[str, dict[int, float]] = {}
    for run in done:
        for metric, value in final_values(run).items():
            values.setdefault(metric, {})[run.seed] = value
    for run in done:
        if run.diverged:  # its numbers, if any, mean nothing; the seed must count all the same
            for by_seed in values.values():
                by_seed[run.seed] = math.nan
    seeds = len(study.seeds)
    planned = min(seeds, study.settings.get("grid_seeds", seeds)) if variant == "grid" else seeds
    failed, diverged = sum(run.state == "failed" for run in runs), sum(run.diverged for run in done)
    title, planned = _title(study, label), max(planned, len(runs))
    return Row(label, title, variant, dict(point), planned, len(done), failed, diverged, values)


def final_values(run: RunRecord) -> dict[str, float]:
    """Everything that a finished run measured, by name."""
    if run.kind == "double_well":
        found = {key: float(value) for key, value in run.result.items() if key not in NOT_MEASURED and _numeric(value)}
        steps = run.result.get("steps", run.config.get("steps", math.nan))
        return found | {"crossings per 100,000 steps": run.result.get("crossings", math.nan) * 1e5 / steps}
    parts = [(run.result, ""), *((x, f" of layer {n}") for n, x in enumerate(run.result.get("stages", []), start=1))]
    return {
        f"{split} {metric}{layer}": value
        for part, layer in parts
        for split in ("train", "test", "valid")
        for metric, value in part.get(split, {}).items()
    }


def _numeric(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf")


def _timing_rows(study: StudyRecord, run: RunRecord) -> list[Row]:
    rows = []
    for method, measured in run.result.get("methods", {}).items():
        # Those kept: rounds that something else disturbed are left out, for each method on its own.
        rounds = measured.get("rounds", run.result.get("rounds", 0))
        middle, low, high, seconds = (
            measured.get(key, math.nan) for key in ("ratio", "low", "high", "seconds_per_epoch")
        )
        # Fewer than six values have no 95 % interval of their median.
        ratio = Estimate(middle, low, high, rounds) if rounds >= 6 else Estimate(middle, None, None, rounds)
        given = {"seconds per epoch": Estimate(seconds, None, None, rounds), "ratio": ratio}
        rows.append(Row(method, study.title(method), "", {}, 1, 1, 0, 0, given=given, unit="round"))
    return rows


def mark(rows: Sequence[Row]) -> None:
    """Say of each metric who is best, and how the others stand to it."""
    entered = [(str(place), row) for place, row in enumerate(rows) if not row.diverged]
    for metric in dict.fromkeys(metric for row in rows for metric in row.metrics):
        means = {name: row.estimate(metric) for name, row in entered if row.estimate(metric).count}
        found = marks(means, {name: row.values.get(metric, {}) for name, row in entered})
        for place, row in enumerate(rows):
            row.marks[metric] = found.get(str(place), "")


# ---- from tables that were published ----


def _published(study: StudyRecord) -> list[Row]:
    """Of every table of final results, and of the values by seed, where those are there."""
    values: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    seeds = study.tables.get("seeds")
    if seeds is not None:
        for method, variant, point, metric, seed, value in seeds[SEEDS].itertuples(index=False):
            by_metric = values.setdefault((method, variant, point), {})
            by_metric.setdefault(metric, {})[int(seed)] = float(value)
    rows = []
    for name, frame in study.tables.items():
        if name == "layers" or not set(FINAL) <= set(frame.columns):
            continue
        for key, part in frame.groupby(FINAL[:3], sort=False):
            method, variant, point = map(str, key)
            first = part.iloc[0]
            given = {line["metric"]: _estimate(line) for _, line in part.iterrows() if line["metric"]}
            counts = [int(first[column]) for column in ("planned", "failed", "diverged")]
            planned, failed, diverged = counts
            done = max((each.count for each in given.values()), default=0) + diverged
            unit = "round" if "seconds per epoch" in given else "seed"
            row = Row(method, _title(study, method), variant, _point(point), planned, done, failed, diverged, unit=unit)
            rows.append(replace(row, values=values.get((method, variant, point), {}), given=given))
    return rows


def _estimate(line: Mapping[str, Any]) -> Estimate:
    low, high = (None if math.isnan(line[end]) else float(line[end]) for end in ("low", "high"))
    return Estimate(float(line["mean"]), low, high, int(line["count"]))


def _point(text: str) -> dict[str, Any]:
    """ "w=1.0 sigma=0.04" or "T=auto"."""
    found: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = value
    return found


# ---- to tables ----


def final_frame(
    rows: Iterable[Row], paper: Mapping[str, Mapping[str, str]] | None = None, *, only: Sequence[str] | None = None
) -> pd.DataFrame:
    """One line per row and metric, with all digits. `paper`: metric → method → what the paper has. `only`: these metrics."""
    lines = []
    for row in rows:
        for metric in row.metrics or [""]:
            if only is None or metric in only:
                found = row.estimate(metric)
                numbers = [found.mean, *found.ends, found.count, row.planned, row.failed, row.diverged]
                printed = (paper or {}).get(metric, {}).get(row.method, "")
                names = [row.method, row.variant, point_text(row), metric]
                lines.append([*names, *numbers, row.marks.get(metric, ""), printed])
    return pd.DataFrame(lines, columns=FINAL)


def seeds_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """The values by seed, from which every interval and verdict can be computed again."""
    lines = [
        [row.method, row.variant, point_text(row), metric, seed, value]
        for row in rows
        for metric, by_seed in row.values.items()
        for seed, value in sorted(by_seed.items())
    ]
    return pd.DataFrame(lines, columns=SEEDS)


def point_text(row: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in row.point.items())
