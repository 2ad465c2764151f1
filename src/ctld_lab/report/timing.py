"""Table 3: the time of an epoch, and its ratio to that of SGD-M."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report import paper
from ctld_lab.report.plots import BLACK, Key, Panel, Plot, method_key, no_data
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table
from ctld_lab.report.tables import Row, final_table, rows_as_csv
from ctld_lab.report.wording import counted, listed, show, show_range


def content(study: StudyRecord) -> Content:
    order = {method: place for place, method in enumerate(study.methods)}
    rows = [row for row in final_table(study) if row.given]
    rows.sort(key=lambda row: (order.get(_base(row.method), len(order)), row.method))
    printed = paper_ratios(study)
    found = Content(summary=[_summary(rows, printed)])
    if not rows:
        return found
    keys = [
        Key("measured, 95 % interval", BLACK, marker="o", line=False),
        Key("the paper, Table 3", "#777777", marker="D", line=False),
    ]
    caption = "Time of an epoch divided by that of SGD-M, measured side by side in rounds of random order; the paper's ratios."
    size = (4.2, 0.9 + 0.26 * len(rows))
    panel = Panel("Time of an epoch, relative to SGD-M", lambda axes: draw_ratios(axes, study, rows, printed))
    found.plots.append(Plot("ratios", caption, [panel], keys, columns=1, size=size))
    found.tables.append(_table(study, rows, printed, [run.result for run in study.finals if run.kind == "timing"]))
    return found


def paper_ratios(study: StudyRecord) -> dict[str, float]:
    """From the paper's seconds."""
    seconds = {method: paper.bounds(text) for method, text in paper_seconds(study).items()}
    base = seconds.get("sgd")
    return {method: found[0] / base[0] for method, found in seconds.items() if found and base}


def paper_seconds(study: StudyRecord) -> dict[str, str]:
    return paper.values(study, key="seconds_per_epoch")


def _base(method: str) -> str:
    """ "ctld (exploration)" is compared with the paper's CTLD."""
    return method.partition(" (")[0]


def _summary(rows: Sequence[Row], printed: dict[str, float]) -> str:
    tempered = [row for row in rows if _base(row.method) == "ctld"]
    if not tempered:
        return "The timing is not finished, so nothing can be said yet."
    sentences = []
    for row in tempered:
        ratio = row.estimate("ratio")
        if ratio.low is None or ratio.high is None:
            few = counted(ratio.count, "round")
            sentences.append(
                f"{row.title} takes {show(ratio.mean, 3)} times as long as SGD-M; {few} cannot tell chance."
            )
            continue
        if ratio.low > 1.0:
            word = "slower than SGD-M"
        elif ratio.high < 1.0:
            word = "faster than SGD-M"
        else:
            word = "not to be told from SGD-M"
        sentences.append(f"{row.title} takes {show_range(ratio)} times as long as SGD-M per epoch: {word}.")
    slowest = max(rows, key=lambda row: row.estimate("ratio").mean)
    sentences.append(f"The slowest is {slowest.title}, at {show(slowest.estimate('ratio').mean, 3)}.")
    if "ctld" in printed:
        sentences.append(f"The paper has {show(printed['ctld'])} for CTLD, on another machine and another framework.")
    return " ".join(sentences)


def draw_ratios(axes: Axes, study: StudyRecord, rows: Sequence[Row], printed: dict[str, float]) -> None:
    if not rows:
        return no_data(axes, "not measured yet")
    axes.axvline(1.0, color="0.6", linewidth=0.8, linestyle="--", zorder=1)
    for place, row in enumerate(rows):
        ratio = row.estimate("ratio")
        colour = method_key(_base(row.method), row.title, study.methods).colour
        ends = (
            None if ratio.low is None or ratio.high is None else [[ratio.mean - ratio.low], [ratio.high - ratio.mean]]
        )
        axes.errorbar([ratio.mean], [place], xerr=ends, marker="o", markersize=5, color=colour, linewidth=1.4, zorder=3)
        if row.method in printed:
            style: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": "#777777", "markersize": 4.5}
            axes.plot([printed[row.method]], [place + 0.28], "D", zorder=2, **style)
    axes.set_yticks(np.arange(len(rows)), [row.title for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="y", color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.08)
    axes.set_xlabel("ratio to SGD-M")
    return None


def _table(
    study: StudyRecord, rows: Sequence[Row], printed: dict[str, float], results: Sequence[Mapping[str, Any]]
) -> Table:
    seconds = paper_seconds(study)
    made = max((int(result.get("rounds", 0)) for result in results), default=0)
    body = []
    for row in rows:
        ratio = "1" if row.method == "sgd" else show_range(row.estimate("ratio"))
        theirs = [seconds.get(row.method, "–"), show(printed[row.method]) if row.method in printed else "–"]
        kept = row.estimate("ratio").count
        rounds = f"{kept} of {made}" if kept < made else str(kept)
        ours = [show(row.estimate("seconds per epoch").mean), ratio, rounds]
        body.append([Cell(row.title), *map(Cell, ours), *map(Cell, theirs)])
    columns = [
        "Method",
        "Seconds per epoch",
        "Ratio to SGD-M [95 % interval]",
        "Rounds",
        "Paper, seconds",
        "Paper, ratio",
    ]
    notes = [
        "Intervals hold the true median of the ratio within rounds in 95 % of cases. “CTLD” is its two phases together, by "
        "the share of the steps that explore.",
        *_disturbance(results),
        *paper.note(study),
    ]
    unlike = [row.title for row in rows if _base(row.method) not in seconds]
    if unlike:
        notes = [*notes, f"The paper has no time of {listed(unlike)}."]
    csv = rows_as_csv(
        rows, {"seconds per epoch": seconds, "ratio": {key: repr(value) for key, value in printed.items()}}
    )
    return Table("times", "Time of an epoch", columns, body, csv, notes)


def _disturbance(results: Sequence[Mapping[str, Any]]) -> list[str]:
    shares = [number(result.get("undisturbed")) for result in results]
    return [
        f"{100.0 * share:.0f} % of the blocks of batches ran undisturbed: their threads hardly waited for a core. “Rounds” are "
        "those kept for a method: rounds in which it or SGD-M was disturbed are left out, if at least six others remain."
        for share in shares
        if math.isfinite(share)
    ]
