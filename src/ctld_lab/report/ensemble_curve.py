"""Test nll of averaged cycles against the temperature T, tempered and constant, beside what needs no T."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report.plots import BLACK, BLUE, GREEN, ORANGE, VERMILION, Key, Panel, Plot, no_data, plain_log, powers
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table, value_cell
from ctld_lab.report.statistics import HIGHER, LOWER, TIE, UNCLEAR, Estimate, paired_difference, word
from ctld_lab.report.tables import Row, rows_as_csv
from ctld_lab.report.wording import counted, listed, show_estimate, show_setting

CURVE = "curve"  # the variant of its runs
NLL = "test nll"
COLD, CONSTANT = "cycles_cold", "cycles_constant"
STYLES: dict[str, tuple[str, str]] = {  # method → colour and marker
    "cycles_paper": (GREEN, "s"),
    "cycles_driven": (BLUE, "o"),
    CONSTANT: (ORANGE, "^"),
}
LINES: dict[str, tuple[str, tuple[float, ...]]] = {COLD: (VERMILION, (4.0, 1.5)), "sgd": (BLACK, (1.5, 1.0))}


def add(study: StudyRecord, rows: Sequence[Row], found: Content) -> None:
    """Figure, sentences and table, if any point of the curve is there."""
    if not rows:
        return
    curves = {method: _points(rows, method) for method in STYLES if _points(rows, method)}
    references = {row.method: row for row in rows if row.method in LINES and not row.point}
    found.summary.append(_words(study, curves, references))
    keys = [Key(study.title(method), *_key(method)) for method in curves]
    keys += [Key(study.title(method), LINES[method][0], LINES[method][1]) for method in references]
    seeds = max((row.estimate(NLL).count for row in rows), default=0)
    caption = (
        f"Test nll of the averaged prediction against T: means over {counted(seeds, 'seed')} with 95 % intervals. lr and "
        "weight decay are fixed, nothing is tuned. The constant temperature is as high as the mean of the driven one."
    )
    panels = [Panel("Test nll against T", lambda axes: draw(axes, curves, references))]
    cold = references.get(COLD)
    if cold is not None and seeds > 1:
        caption += (
            " Beside it the difference from cycles without noise, seed by seed, which what seeds share does not blur; what "
            "leaves that panel at the top is much worse, and bars that leave it at the bottom go on."
        )
        panels.append(Panel("Difference from T = 0, paired", lambda axes: draw_differences(axes, curves, cold)))
    found.plots.append(Plot("temperature-curve", caption, panels, keys, columns=2, size=(3.8, 2.9)))
    found.tables.append(_table(rows))


def _points(rows: Sequence[Row], method: str) -> list[Row]:
    return sorted((row for row in rows if row.method == method and row.point), key=_temperature)


def _temperature(row: Row) -> float:
    return number(row.point.get("T"))


def _key(method: str) -> tuple[str, tuple[float, ...], str]:
    colour, marker = STYLES[method]
    return colour, (), marker


def draw(axes: Axes, curves: dict[str, list[Row]], references: dict[str, Row]) -> None:
    """On logarithmic axes: at T = 1 the nll can be ten times the best."""
    shown: list[float] = []
    for method, points in curves.items():
        finished = _finished(points)
        shown += _draw_points(axes, method, finished, [row.estimate(NLL) for row in finished])
    for method, row in references.items():
        mean = row.estimate(NLL).mean
        if math.isfinite(mean):
            axes.axhline(mean, color=LINES[method][0], linestyle=(0, LINES[method][1]), linewidth=1.2)
            shown.append(mean)
    if not shown:
        return no_data(axes, "no point is finished")
    plain_log(axes, "y", shown)
    powers(axes, "x")
    axes.set(xlabel="temperature T", ylabel="test nll")
    return None


def draw_differences(axes: Axes, curves: dict[str, list[Row]], cold: Row) -> None:
    """Below zero noise helps."""
    shown: list[float] = []
    for method, points in curves.items():
        finished = _finished(points)
        differences = [paired_difference(row.values.get(NLL, {}), cold.values.get(NLL, {})) for row in finished]
        shown += [mean for mean in _draw_points(axes, method, finished, differences) if math.isfinite(mean)]
    if not shown:
        return no_data(axes, "no point is finished")
    axes.axhline(0.0, color=LINES[COLD][0], linestyle=(0, LINES[COLD][1]), linewidth=1.2)
    powers(axes, "x")
    lowest = max(-min(shown), 0.002)
    axes.set_ylim(-1.6 * lowest, min(1.2 * max(*shown, lowest), 4.0 * lowest))
    axes.set(xlabel="temperature T", ylabel="test nll − that at T = 0")
    return None


def _draw_points(axes: Axes, method: str, rows: Sequence[Row], estimates: Sequence[Estimate]) -> list[float]:
    """One curve; returns its means."""
    colour, marker = STYLES[method]
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2, "capsize": 2}
    halves = [math.nan if found.half_width is None else found.half_width for found in estimates]
    means = [found.mean for found in estimates]
    axes.errorbar([_temperature(row) for row in rows], means, yerr=halves, **style)
    return means


def _finished(points: Sequence[Row]) -> list[Row]:
    return [row for row in points if row.estimate(NLL).count and not row.diverged]


def _words(study: StudyRecord, curves: dict[str, list[Row]], references: dict[str, Row]) -> str:
    """How wide the range of good temperatures is, and whether tempering makes it wider."""
    sentences = []
    cold = references.get(COLD)
    for method, points in curves.items():
        finished = _finished(points)
        if not finished:
            continue
        best = min(finished, key=lambda row: row.estimate(NLL).mean)
        value = show_estimate(best.estimate(NLL))
        sentence = f"{study.title(method)}: lowest at T = {show_setting(_temperature(best))}, {value}"
        kinds = [(row, _kind(row, cold)) for row in finished] if cold else []
        if kinds and all(kind for _, kind in kinds):
            good = _at(kinds, LOWER, TIE)
            sentence += f"; not worse than T = 0 at {len(good)} of {counted(len(points), 'temperature')}"
            sentence += f" ({', '.join(good)})" if good else ""
            unclear = _at(kinds, UNCLEAR)
            sentence += f"; unclear, since seeds differ too much, at {', '.join(unclear)}" if unclear else ""
        sentences.append(f"{sentence}.")
    for method, points in curves.items():
        constant = {_temperature(row): row for row in curves.get(CONSTANT, ())}
        kinds = [(row, _kind(row, constant.get(_temperature(row)))) for row in points]
        if method == CONSTANT or not any(kind for _, kind in kinds):
            continue
        parts = [
            f"{kind} at {', '.join(_at(kinds, kind))}" for kind in (LOWER, TIE, HIGHER, UNCLEAR) if _at(kinds, kind)
        ]
        sentences.append(f"At the same T, {study.title(method)} against the constant temperature: {listed(parts)}.")
    return f"Does T have to be tuned? {' '.join(sentences)}" if sentences else "No point of the curve is finished."


def _at(kinds: Sequence[tuple[Row, str]], *wanted: str) -> list[str]:
    """Temperatures of these kinds."""
    return [show_setting(_temperature(row)) for row, kind in kinds if kind in wanted]


def _kind(row: Row, other: Row | None) -> str:
    """lower, tie, higher, unclear; "" where that is unknown. What diverged is higher than what did not."""
    if other is None or not row.done or not other.done:
        return ""
    if row.diverged or other.diverged:
        return "" if row.diverged and other.diverged else HIGHER if row.diverged else LOWER
    return word(paired_difference(row.values.get(NLL, {}), other.values.get(NLL, {})), other.estimate(NLL).mean)


def _table(rows: Sequence[Row]) -> Table:
    metrics = {NLL: "Test nll", "test error": "Error, %", "test ece": "ECE, %"}
    ordered = sorted(rows, key=lambda row: ([*STYLES, *LINES, row.method].index(row.method), _temperature(row)))
    body = [
        [
            Cell(row.title),
            Cell(show_setting(_temperature(row)) if row.point else "–"),
            *(Cell(value_cell(row, metric).text) for metric in metrics),
            Cell(row.state),
        ]
        for row in ordered
    ]
    columns = ["Method", "T", *metrics.values(), "Runs"]
    return Table("temperature-curve", "Test nll against T", columns, body, rows_as_csv(ordered))
