"""Cycles, averaged, beside single models and other ensembles: the answer to the protocol's question, and all numbers."""

import math
from collections.abc import Sequence
from typing import Any

from ctld_lab.report.plots import BLACK, BLUE, GREEN, LOG, ORANGE, VERMILION, Key, Panel, Plot, Series
from ctld_lab.report.provenance import searches
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, marks_note, standing, value_cell, verdict
from ctld_lab.report.tables import Row, difference, final_table
from ctld_lab.report.wording import show, show_estimate, show_setting
from ctld_lab.statistics import HIGHER, LOWER, NOTHING, TIE, UNDECIDED, Estimate, word

CURVE = "curve"  # the variant of the runs against T
NLL = "test nll"
DRIVEN, CONSTANT, COLD = "cycles_driven", "cycles_constant", "cycles_cold"
PRIMARY = ((DRIVEN, CONSTANT), (DRIVEN, COLD), (CONSTANT, COLD))
SECONDARY = (("cycles_paper", CONSTANT), ("cycles_calibrated", CONSTANT), (CONSTANT, "sgd"), (COLD, "snapshot"))
JUDGED = {NLL: "Test nll", "test error": "Error, %", "test ece": "ECE, %", "test brier": "Brier score"}
BESIDE = {
    "test last_nll": "Nll of the last member alone",
    "train nll": "Its training nll",
    "train nats": "Its training nll",
}
STYLES = {"cycles_paper": (GREEN, "s"), DRIVEN: (BLUE, "o"), CONSTANT: (ORANGE, "^")}
LINES: dict[str, tuple[str, tuple[float, ...]]] = {COLD: (VERMILION, (4.0, 1.5)), "sgd": (BLACK, (1.5, 1.0))}
Differences = dict[tuple[str, str, str, str], tuple[Estimate, str]]


def content(study: StudyRecord) -> Content:
    rows = [row for row in final_table(study) if row.done or row.failed or row.variant != CURVE]
    workloads = {name: _of_method(study, rows, name) for name in _workloads(study, rows)}
    found = Content()
    differences = _differences(study, workloads)
    words = {name: differences.get((name, DRIVEN, CONSTANT, NLL), (NOTHING, ""))[1] for name in workloads}
    prose = Prose(
        "ensemble",
        answers={
            kind: [study.title(name) for name in words if words[name] == kind]
            for kind in (LOWER, TIE, HIGHER, UNDECIDED)
        },
        unknown=[study.title(name) for name in words if not words[name]],
    )
    found.summary += prose.paragraphs("answer")
    for name, of_method in workloads.items():
        competing = list(of_method.values())
        title = study.title(name)
        if any(row.done for row in competing):
            pairs = [
                differences.get((name, *pair, NLL), (NOTHING, "")) for pair in ((DRIVEN, CONSTANT), (CONSTANT, COLD))
            ]
            best = verdict(competing, NLL, name="test nll")
            found.summary += prose.paragraphs("credit", title=title, verdict=best, tempering=pairs[0], noise=pairs[1])
        found.standings += standing(f"Ensembles, {title}: test nll", competing, NLL)
        found.tables.append(_final(study, name, competing, prose))
    found.tables.append(_difference_table(study, list(workloads), differences, prose))
    _add_curve(study, [row for row in rows if row.variant == CURVE], prose, found)
    return found


def _workloads(study: StudyRecord, rows: Sequence[Row]) -> list[str]:
    """In the order of the settings; and those that only runs have."""
    asked = study.settings.get("workloads", {})
    return list(dict.fromkeys([*asked, *(row.variant for row in rows if row.variant != CURVE)]))


def _of_method(study: StudyRecord, rows: Sequence[Row], name: str) -> dict[str, Row]:
    """All methods that were asked for; those without a run on this workload have empty rows."""
    own = {row.method: row for row in rows if row.variant == name}
    seeds = len(study.seeds)
    return {x: own.get(x) or Row(x, study.title(x), name, {}, seeds, 0, 0, 0) for x in study.methods}


# ---- tables ----


def _final(study: StudyRecord, name: str, rows: Sequence[Row], prose: Prose) -> Table:
    own = study.table[(study.table["metric"] == "members") & (study.table["variant"] == name)]
    members = {method: int(count) for method, count in zip(own["method"], own["value"], strict=True)}
    beside = {metric: title for metric, title in BESIDE.items() if any(metric in row.metrics for row in rows)}
    body = [
        cells(
            row.title, members.get(row.method, "–"), row.state, *(value_cell(row, metric) for metric in JUDGED),
            *(value_cell(row, metric, marked=False) for metric in beside),
        )
        for row in rows
    ]  # fmt: skip
    columns = ["Method", "Members", "Runs", *JUDGED.values(), *beside.values()]
    text = "text" in study.settings.get("workloads", {}).get(name, {})
    more = prose.paragraphs("final_notes", text=text, heats=_heats(study, name), edges=_edges(study, name))
    caption = f"{study.title(name)}: the averaged prediction"
    return Table(f"final-{name}", caption, columns, body, [*marks_note(rows), *more])


def _heats(study: StudyRecord, name: str) -> list[str]:
    """Return the mean temperature of each method's runs, beside T: an α that moves freely need not be uniform."""
    rows = study.table[study.table["metric"].isin(["temperature", "mean_ratio"]) & (study.table["variant"] == name)]
    means = rows.pivot_table(index="method", columns="metric", values="value").reindex(
        columns=["temperature", "mean_ratio"]
    )
    means = means[means["temperature"] > 0]
    return [
        f"{study.title(method)} {show(means.at[method, 'mean_ratio'], 3)} (T = {show(means.at[method, 'temperature'], 3)})"
        for method in study.methods
        if method in means.index
    ]


def _edges(study: StudyRecord, name: str) -> list[str]:
    """A choice that is the lowest or the highest of what was tried may not be the best there is."""
    at_edge, found = [], {search.name: search for search in searches(study)}
    for method in study.methods:
        search = found.get(f"{name}-{method}")
        if search is None or len(search.trials) < 3:
            continue
        for option, value in (search.chosen or {}).items():
            tried = [trial.parameters.get(option, math.nan) for trial in search.trials]
            if value in (min(tried), max(tried)):
                at_edge.append(f"{study.title(method)} ({'lowest' if value == min(tried) else 'highest'} {option})")
    return at_edge


def _differences(study: StudyRecord, workloads: dict[str, dict[str, Row]]) -> Differences:
    """(workload, one, other, metric) → the difference and its word."""
    found: Differences = {}
    for name, rows in workloads.items():
        for one, other in (*PRIMARY, *SECONDARY):
            for metric in JUDGED if {one, other} <= rows.keys() else ():
                key = name, one, other, metric
                each = difference(rows[one], rows[other], metric)
                found[key] = each, word(each, rows[other].estimate(metric).mean)
    return found


def _difference_table(study: StudyRecord, workloads: Sequence[str], differences: Differences, prose: Prose) -> Table:
    body = []
    for name in workloads:
        for pair in (*PRIMARY, *SECONDARY):
            found = {metric: differences.get((name, *pair, metric), (NOTHING, "")) for metric in JUDGED}
            role = "primary" if pair in PRIMARY else "secondary"
            title = " − ".join(study.title(method) for method in pair)
            estimates = [show_estimate(each) for each, _ in found.values()]
            body.append(cells(study.title(name), title, role, found[NLL][1] or "–", *estimates))
    columns = ["Workload", "Difference", "Planned as", "By nll", *JUDGED.values()]
    return Table(
        "differences", "The comparisons that were planned", columns, body, prose.paragraphs("difference_notes")
    )


# ---- against T ----


def _temperature(row: Row) -> float:
    return float(row.point.get("T", math.nan))


def _add_curve(study: StudyRecord, rows: Sequence[Row], prose: Prose, found: Content) -> None:
    """Figure, sentences and table, if any point of the curve is there."""
    if not rows:
        return
    by_method = {x: sorted((r for r in rows if r.method == x and r.point), key=_temperature) for x in STYLES}
    curves = {method: points for method, points in by_method.items() if points}
    references = {row.method: row for row in rows if row.method in LINES and not row.point}
    cold = references.get(COLD)
    seeds = max((row.estimate(NLL).count for row in rows), default=0)
    panels = [_panel(study, curves, references)]
    paired = cold is not None and seeds > 1
    if cold is not None and paired:
        panels.append(_difference_panel(study, curves, cold))
    keys = [_key(study, method) for method in (*curves, *references)]
    caption = prose("curve_caption", seeds=seeds, paired=paired)
    found.plots.append(Plot("temperature-curve", caption, panels, keys, columns=2, size=(3.8, 2.9)))
    found.tables.append(_curve_table(rows))


def _key(study: StudyRecord, method: str) -> Key:
    if method in LINES:
        return Key(study.title(method), LINES[method][0], LINES[method][1])
    return Key(study.title(method), STYLES[method][0], marker=STYLES[method][1])


def _across(rows: Sequence[Row], place: int) -> list[float]:
    """T, a little beside it for each curve, lest their bars lie on each other."""
    return [_temperature(row) * 1.07 ** (place - 1) for row in rows]


def _panel(study: StudyRecord, curves: dict[str, list[Row]], references: dict[str, Row]) -> Panel:
    """On logarithmic axes: at T = 1 the nll can be ten times the best."""
    series = []
    for place, (method, points) in enumerate(curves.items()):
        kept = [row for row in points if not row.diverged]
        series.append(Series.of(_key(study, method), _across(kept, place), [row.estimate(NLL) for row in kept]))
    ends = [_temperature(row) for points in curves.values() for row in points] or [1.0]
    for method, row in references.items():
        mean = row.estimate(NLL).mean
        series.append(Series(_key(study, method), [min(ends), max(ends)], [mean, mean]))
    return Panel("Test nll against T", series, "temperature T", "test nll", x=LOG, y=LOG, words="no point is finished")


def _difference_panel(study: StudyRecord, curves: dict[str, list[Row]], cold: Row) -> Panel:
    """Below zero noise helps."""
    series = []
    for place, (method, points) in enumerate(curves.items()):
        kept = [row for row in points if not row.diverged]
        series.append(
            Series.of(_key(study, method), _across(kept, place), [difference(row, cold, NLL) for row in kept])
        )
    shown = [y for each in series for y in each.y if math.isfinite(y)] or [0.0]
    lowest = max(-min(shown), 0.002)
    limits = -1.6 * lowest, min(1.2 * max(*shown, lowest), 4.0 * lowest)
    ylabel = "test nll − that at T = 0"
    return Panel("Difference from T = 0", series, "temperature T", ylabel, x=LOG, lines=[("y", 0.0)], ylim=limits)


def _curve_table(rows: Sequence[Row]) -> Table:
    metrics = {NLL: "Test nll", "test error": "Error, %", "test ece": "ECE, %"}
    ordered = sorted(rows, key=lambda row: ([*STYLES, *LINES, row.method].index(row.method), _temperature(row)))
    body: list[list[Any]] = [
        cells(
            row.title, show_setting(_temperature(row)) if row.point else "–",
            *(value_cell(row, metric, marked=False) for metric in metrics), row.state,
        )
        for row in ordered
    ]  # fmt: skip
    return Table(
        "temperature-curve",
        "Test nll against T",
        ["Method", "T", *metrics.values(), "Runs"],
        body,
    )
