"""`ctld report`, `compare` and what `--tensorboard` writes: what came out. Records only, no torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.commands.options import plain_table, say
from ctld_lab.records import RecordError, StudyDirectory, find_studies


def study_in(path: Path) -> StudyDirectory:
    """The study that this directory holds."""
    if (path / "study.json").exists():
        return StudyDirectory(path)
    below = ", ".join(str(study.path) for study in find_studies(path))
    hint = f"; below it: {below}" if below else '; "ctld run" makes one, "ctld list" finds them'
    raise Refusal(f"{path} holds no study (no study.json){hint}")


def write_report(path: Path, console: Console, output: Path | None = None, *, add: bool = False) -> None:
    """The report's files, then its tables in short."""
    studies = find_studies(path) or [study_in(path)]
    from ctld_lab import report

    if add and output is not None:
        written, studies = report.add(path, output), find_studies(output)
    else:
        written = report.build(path, output)
    for study in studies:
        if len(studies) > 1:
            say(console, f"{study.path}")
        try:
            results = _results(study.path)
        except report.BROKEN as error:
            results = Text(f"a record is broken: {report.told(error)}", style="red")
        console.print(results, soft_wrap=isinstance(results, Text))
    say(console, f"report: {written}")


def shown(metrics: Iterable[str]) -> list[str]:
    """Few enough for a terminal: those of the test data and of the whole network, where there are such."""
    whole = [metric for metric in dict.fromkeys(metrics) if " of layer " not in metric]
    whole.sort(key=lambda metric: "image" not in metric)  # what the autoencoder's tuning judged by comes first
    return ([metric for metric in whole if metric.startswith("test")] or whole)[:3]


def _results(path: Path) -> Table | Text:
    """Return the test metrics of each method's final runs, over seeds; a text if the study compares no methods."""
    from ctld_lab.report.tables import final_table
    from ctld_lab.report.wording import show_estimate

    rows = final_table(path)
    if not rows:
        return Text("its tables are in the report")
    metrics = shown(metric for row in rows for metric in row.metrics)
    table = plain_table("method", *map(_heading, metrics), "runs", numeric=[*map(_heading, metrics)])
    for row in rows:
        cells = [f"{show_estimate(row.estimate(metric))} {_mark(row.marks.get(metric))}" for metric in metrics]
        table.add_row(_label(row.title, row.variant, row.point), *cells, row.state)
    if any(row.marks.get(metric) in _MARKS for row in rows for metric in metrics):
        table.caption = "* best, = within 5 % of it, ? undecided; ± 95 %"
    return table


_MARKS = {"best": "*", "tie": "=", "undecided": "?"}


def _mark(mark: str | None) -> str:
    """One character wide, so that numbers stay below each other; rich would strip a plain space."""
    return _MARKS.get(mark or "", "\N{NO-BREAK SPACE}")


def _heading(metric: str) -> str:
    return metric.replace("_", " ") if len(metric) <= 12 else metric.replace("_", " ").replace(" ", "\n")


def _label(title: str, variant: str, point: dict[str, Any]) -> str:
    """In one column: what does not vary must not take the width of what does."""
    values = (
        f"{key} = {value:.4g}" if isinstance(value, float) else f"{key} = {value}" for key, value in point.items()
    )
    return ", ".join(filter(None, (title, variant, *values)))


def print_comparison(paths: Sequence[Path], console: Console) -> None:
    """Rows that at least two of the directories have; over the seeds that both have, against the first."""
    from ctld_lab.report.tables import difference, final_table
    from ctld_lab.report.wording import show_estimate
    from ctld_lab.statistics import NOTHING, word

    if len(paths) < 2:
        raise Refusal("give at least two directories to compare")
    descriptions = [study_in(path).description() for path in paths]
    for description in descriptions:  # a text of the user's may lie elsewhere; its digest says what it is
        description["data"] = {name: x for name, x in (description.get("data") or {}).items() if name != "path"}
    first, keys = descriptions[0], ("study", "scale", "data", "settings")
    differing = [key for key in keys if any(each.get(key) != first.get(key) for each in descriptions)]
    if "study" in differing:
        names = " against ".join(str(description.get("study")) for description in descriptions)
        raise Refusal(f"{' and '.join(map(str, paths))} hold different studies: {names}")
    tables = [{_label(row.title, row.variant, row.point): row for row in final_table(path)} for path in paths]
    shared = [x for x in dict.fromkeys(x for rows in tables for x in rows) if sum(x in rows for rows in tables) > 1]
    if not shared:
        raise RecordError(f"{' and '.join(map(str, paths))} have no finished method in common")
    metrics = shown(metric for rows in tables for row in rows.values() for metric in row.metrics)
    headings = [f"({index})" for index in range(1, len(paths) + 1)]
    table = plain_table("method", "metric", *headings, numeric=headings)
    for label in shared:
        rows = [each.get(label) for each in tables]
        for metric in metrics:
            estimates = [row.estimate(metric) if row else NOTHING for row in rows]
            cells = [show_estimate(estimate) for estimate in estimates]
            for index, row in enumerate(() if differing else rows[1:], start=1):
                change = difference(row, rows[0], metric) if row and rows[0] else NOTHING
                cells[index] += f" {word(change, estimates[0].mean) or '?'}"
            table.add_row(label, metric, *cells)
    if not differing:
        table.caption = (
            "lower, higher: against (1) over the seeds that both have, at 95 %; tie: within 5 % of (1); undecided: neither; "
            "?: fewer than two such seeds"
        )
    console.print(table)
    for heading, path in zip(headings, paths, strict=True):
        say(console, f"{heading} {path}")
    if differing:
        say(
            console,
            f"These are not the same experiment: they differ in {', '.join(differing)}, so nothing is said of lower or higher",
        )


def write_tensorboard(study: StudyDirectory, console: Console) -> None:
    from ctld_lab.tensorboard import export

    written = export(study)
    say(console, f"to see the curves: tensorboard --logdir {written}")
