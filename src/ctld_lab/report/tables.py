"""Results of a study, as rows: for the report, for the command line and for `ctld compare`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctld_lab.records import StudyDirectory
from ctld_lab.report import tidy
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.wording import counted
from ctld_lab.statistics import NOTHING, Estimate, estimate, marks, paired_difference, unpaired_difference, word


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


def final_table(study: StudyRecord | StudyDirectory | Path) -> list[Row]:
    """One row per method and variant (and point), in the order in which the study names its methods."""
    study = study if isinstance(study, StudyRecord) else read_study(study)
    table = study.table[study.table["variant"] != tidy.TRIAL]
    table = table[table["at"].isin(["", "run"]) | table["at"].str.startswith("stage=")]
    groups = table.groupby(["method", "variant", "point"], sort=False)
    rows = [_row(study, str(method), str(variant), str(point), part) for (method, variant, point), part in groups]
    seen = {row.method for row in rows}
    if not any(row.unit == "round" for row in rows):
        first = "tuned" if not rows or "tuned" in {row.variant for row in rows} else min(row.variant for row in rows)
        seeds = len(study.seeds)
        rows += [Row(x, study.title(x), first, {}, seeds, 0, 0, 0) for x in study.methods if x not in seen]
    order = {method: place for place, method in enumerate(study.methods)}
    variants = list(dict.fromkeys(row.variant for row in rows))
    variants.sort(key=lambda variant: ("tuned", "paper", "tempered", "untempered", variant).index(variant))
    rows.sort(key=lambda row: (variants.index(row.variant), order.get(row.method, len(order))))
    for variant in variants:
        mark([row for row in rows if row.variant == variant])
    return rows


def _row(study: StudyRecord, method: str, variant: str, point: str, part: Any) -> Row:
    title = study.title(method).replace("d = ", "d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    values: dict[str, dict[int, float]] = {}
    for metric, seed, value in part.loc[part["at"] == "", ["metric", "seed", "value"]].itertuples(
        index=False, name=None
    ):
        if not metric.endswith(tidy.SE):
            values.setdefault(metric, {})[int(seed.split()[0]) if seed else 0] = value
    diverged, failed, _ = (values.pop(name, {}) for name in (tidy.DIVERGED, tidy.FAILED, tidy.UNFINISHED))
    if "rounds" in values:
        return Row(method, title, variant, {}, 1, 1, 0, 0, given=_rounds(values), unit="round")
    for seed in (
        seed for seed, lost in diverged.items() if lost
    ):  # its numbers mean nothing, and it must count all the same
        for by_seed in values.values():
            by_seed[seed] = math.nan
    seeds = len(study.seeds)
    planned = min(seeds, study.settings.get("grid_seeds", seeds)) if variant == "grid" else seeds
    begun = set(" ".join(part["seed"]).split())
    counts = max(planned, len(begun)), len(diverged), len(failed), int(sum(diverged.values()))
    return Row(
        method,
        title,
        variant,
        tidy.parts(point),
        *counts,
        {name: dict(sorted(x.items())) for name, x in values.items()},
    )


def _rounds(values: dict[str, dict[int, float]]) -> dict[str, Estimate]:
    """Estimates that a run made over its rounds."""
    found = {name: next(iter(by_seed.values())) for name, by_seed in values.items()}
    rounds = int(found.get("rounds", 0))
    ratio = Estimate(found.get("ratio", math.nan), found.get("ratio low"), found.get("ratio high"), rounds)
    return {"seconds per epoch": Estimate(found.get("seconds per epoch", math.nan), None, None, rounds), "ratio": ratio}


def mark(rows: Sequence[Row]) -> None:
    """Say of each metric who is best, and how the others stand to it."""
    entered = [(str(place), row) for place, row in enumerate(rows) if not row.diverged]
    for metric in dict.fromkeys(metric for row in rows for metric in row.metrics):
        if metric.split()[0] not in ("train", "test", "valid"):  # lower is better of these alone
            continue
        means = {name: row.estimate(metric) for name, row in entered if row.estimate(metric).count}
        found = marks(means, {name: row.values.get(metric, {}) for name, row in entered})
        for place, row in enumerate(rows):
            row.marks[metric] = found.get(str(place), "")
