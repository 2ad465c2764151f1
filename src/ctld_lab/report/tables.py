"""What a study came to, as rows: for the report, for the command line and for `ctld compare`. Pure functions of records."""

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ctld_lab.records import StudyDirectory, number
from ctld_lab.report.reading import RunRecord, StudyRecord, read_study
from ctld_lab.report.statistics import Estimate, estimate, marks, paired_difference, word
from ctld_lab.report.wording import counted, shortened

# Fields of a double-well result that say how it was made, not what came out.
NOT_MEASURED = {"dimensions", "steps", "seed", "tempered", "seconds", "diverged", "format"}


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
    values: dict[str, dict[int, float]]
    """metric → seed → value; "test mse", "test mse of layer 1", "ratio", …"""
    given: dict[str, Estimate] = field(default_factory=dict)
    """Estimates that the run itself made, over its rounds."""
    marks: dict[str, str] = field(default_factory=dict)
    """metric → best, tie, too few seeds or nothing; `statistics.marks`."""

    def estimate(self, metric: str) -> Estimate:
        if metric in self.given:
            return self.given[metric]
        return estimate(list(self.values.get(metric, {}).values()))

    @property
    def metrics(self) -> list[str]:
        return [*self.given, *self.values]

    @property
    def state(self) -> str:
        """3 seeds; 2 of 3 seeds, 1 failed; 3 seeds, 1 diverged; 100 rounds."""
        if self.given:
            return counted(max(found.count for found in self.given.values()), "round")
        parts = [counted(max(self.planned, self.done), "seed")]
        if self.done < self.planned:
            parts[0] = f"{self.done} of {parts[0]}"
        parts += [f"{count} {word}" for count, word in ((self.failed, "failed"), (self.diverged, "diverged")) if count]
        return ", ".join(parts)


def final_table(study: StudyRecord | StudyDirectory | Path) -> list[Row]:
    """One row per method and variant (and point), in the order in which the study names its methods."""
    study = study if isinstance(study, StudyRecord) else read_study(study)
    rows = []
    for run in study.finals:
        if run.kind == "timing":
            rows += _timing_rows(study, run)
    groups: dict[tuple[str, str, tuple[tuple[str, Any], ...]], list[RunRecord]] = {}
    for run in study.finals:
        if run.kind in ("train", "double_well"):
            groups.setdefault((_label(run), run.variant, tuple(run.point.items())), []).append(run)
    for method in study.methods:
        if not rows and not any(label == method for label, _, _ in groups):
            groups[method, _first_variant(study), ()] = []
    order = {method: place for place, method in enumerate(study.methods)}
    variants = list(dict.fromkeys(variant for _, variant, _ in groups))
    variants.sort(key=lambda variant: ("tuned", "paper", "tempered", "untempered", variant).index(variant))
    for key in sorted(groups, key=lambda key: (variants.index(key[1]), order.get(key[0], len(order)))):
        rows.append(_row(study, *key, groups[key]))
    for variant in dict.fromkeys(row.variant for row in rows):
        if any(run.kind == "train" for run in study.finals):  # where lower is better
            _mark([row for row in rows if row.variant == variant])
    return rows


def _label(run: RunRecord) -> str:
    return f"d = {int(run.config.get('dimensions', 0)):,}" if run.kind == "double_well" else run.method


def _first_variant(study: StudyRecord) -> str:
    found = {run.variant for run in study.finals}
    return "tuned" if not found or "tuned" in found else sorted(found)[0]


def _row(
    study: StudyRecord, label: str, variant: str, point: tuple[tuple[str, Any], ...], runs: Sequence[RunRecord]
) -> Row:
    done = [run for run in runs if run.state == "done"]
    values: dict[str, dict[int, float]] = {}
    for run in done:
        for metric, value in final_values(run).items():
            values.setdefault(metric, {})[run.seed] = value
    for run in done:
        if run.diverged:  # its numbers, if any, mean nothing; the seed must count all the same
            for by_seed in values.values():
                by_seed[run.seed] = math.nan
    return Row(
        method=label,
        title=study.title(label).replace("d = ", "d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"),
        variant=variant,
        point=dict(point),
        planned=max(_planned(study, variant), len(runs)),
        done=len(done),
        failed=sum(run.state == "failed" for run in runs),
        diverged=sum(run.diverged for run in done),
        values=values,
    )


def _planned(study: StudyRecord, variant: str) -> int:
    """Seeds of each row; a grid may have fewer."""
    seeds = len(study.seeds)
    settings = study.description.get("settings") or {}
    return min(seeds, int(settings.get("grid_seeds", seeds))) if variant == "grid" else seeds


def final_values(run: RunRecord) -> dict[str, float]:
    """Everything that a finished run measured, by name."""
    if run.kind == "double_well":
        skipped = NOT_MEASURED
        found = {key: number(value) for key, value in run.result.items() if key not in skipped and _numeric(value)}
        steps = number(run.result.get("steps", run.config.get("steps")))
        found["crossings per 100,000 steps"] = number(run.result.get("crossings")) * 1e5 / steps
        return found
    values = {}
    for split in ("train", "test", "valid"):
        for metric, value in (run.result.get(split) or {}).items():
            values[f"{split} {metric}"] = number(value)
    for layer, stage in enumerate(run.result.get("stages") or (), start=1):
        for split in ("train", "test", "valid"):
            for metric, value in (stage.get(split) or {}).items():
                values[f"{split} {metric} of layer {layer}"] = number(value)
    return values


def _numeric(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in ("nan", "inf", "-inf")


def _timing_rows(study: StudyRecord, run: RunRecord) -> list[Row]:
    rows = []
    for method, measured in (run.result.get("methods") or {}).items():
        # Those kept: rounds that something else disturbed are left out, for each method on its own.
        rounds = int(measured.get("rounds", run.result.get("rounds", 0)))
        middle, low, high = (number(measured.get(key)) for key in ("ratio", "low", "high"))
        # Fewer than six values have no 95 % interval of their median.
        ratio = Estimate(middle, low, high, rounds) if rounds >= 6 else Estimate(middle, None, None, rounds)
        seconds = Estimate(number(measured.get("seconds_per_epoch")), None, None, rounds)
        given = {"seconds per epoch": seconds, "ratio": ratio}
        rows.append(Row(method, study.title(method), "", {}, 1, 1, 0, 0, {}, given))
    return rows


def _mark(rows: Sequence[Row]) -> None:
    for metric in dict.fromkeys(metric for row in rows for metric in row.values):
        found = marks({str(place): row.values.get(metric, {}) for place, row in enumerate(rows)})
        for place, row in enumerate(rows):
            row.marks[metric] = found[str(place)]


# ---- the same method in several directories ----


@dataclass(frozen=True)
class Comparison:
    """One metric of one method and variant in every directory, and what changed against the first."""

    method: str
    title: str
    variant: str
    point: dict[str, Any]
    metric: str
    estimates: list[Estimate]
    differences: list[Estimate]
    """Of each directory after the first from the first, over the seeds that both have."""

    @property
    def verdicts(self) -> list[str]:
        """lower, higher, tie, unclear, or unknown where fewer than two seeds match."""
        return [word(difference, self.estimates[0].mean) or "unknown" for difference in self.differences]


def compare(directories: Sequence[Path]) -> list[Comparison]:
    """Rows that at least two of the studies share, in the order of the first that has them."""
    tables = [{_key(row): row for row in final_table(directory)} for directory in directories]
    comparisons = []
    for key in dict.fromkeys(key for table in tables for key in table):
        rows = [table.get(key) for table in tables]
        present = [row for row in rows if row is not None]
        if len(present) < 2:
            continue
        for metric in dict.fromkeys(metric for row in present for metric in row.metrics):
            values = [row.values.get(metric, {}) if row else {} for row in rows]
            estimates = [row.estimate(metric) if row else Estimate(math.nan, None, None, 0) for row in rows]
            differences = [paired_difference(later, values[0]) for later in values[1:]]
            first = present[0]
            comparisons.append(
                Comparison(first.method, first.title, first.variant, first.point, metric, estimates, differences)
            )
    return comparisons


def unlike(directories: Sequence[Path]) -> dict[str, str]:
    """In what the studies differ, of study, scale, data and settings; empty where their numbers can be compared."""
    descriptions = [StudyDirectory(directory).description() for directory in directories]
    found = {}
    for key in ("study", "scale", "data", "settings"):
        values = [_comparable(description.get(key)) for description in descriptions]
        if any(value != values[0] for value in values):
            if all(isinstance(value, dict) for value in values):
                names = dict.fromkeys(name for value in values for name in value)
                differing = [name for name in names if any(value.get(name) != values[0].get(name) for value in values)]
                parts = [f"{name} {_against([value.get(name) for value in values])}" for name in differing]
                found[key] = "; ".join(parts)
            else:
                found[key] = _against(values)
    return found


def _comparable(value: Any) -> Any:
    """A text of the user's may lie elsewhere; its digest says what it is."""
    return {name: item for name, item in value.items() if name != "path"} if isinstance(value, dict) else value


def _against(values: Sequence[Any]) -> str:
    return " against ".join(shortened(value if isinstance(value, str) else json.dumps(value), 40) for value in values)


def _key(row: Row) -> tuple[str, str, str]:
    return row.method, row.variant, repr(sorted(row.point.items()))


# ---- as files ----


def rows_as_csv(
    rows: Iterable[Row], paper: dict[str, dict[str, str]] | None = None, *, only: Sequence[str] | None = None
) -> bytes:
    """One line per row and metric, with all digits. `paper`: metric → method → what the paper has. `only`: these metrics."""
    header = ["method", "variant", "point", "metric", "mean", "low", "high", "count", "planned", "failed", "diverged"]
    lines: list[list[Any]] = []
    for row in rows:
        for metric in row.metrics or [""]:
            if only is not None and metric not in only:
                continue
            found = row.estimate(metric)
            point = " ".join(f"{name}={value}" for name, value in row.point.items())
            numbers = [
                "" if x is None or not math.isfinite(x) else repr(x) for x in (found.mean, found.low, found.high)
            ]
            counts = [found.count, row.planned, row.failed, row.diverged]
            printed = (paper or {}).get(metric, {}).get(row.method, "")
            lines.append(
                [row.method, row.variant, point, metric, *numbers, *counts, row.marks.get(metric, ""), printed]
            )
    return as_csv([*header, "mark", "paper"], lines)


def as_csv(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return text.getvalue().encode()
