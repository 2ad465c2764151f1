"""Theorem 2 measured: how the error of the sample average falls with the number of steps, and with the step size."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report.plots import BLACK, BLUE, VERMILION, Key, Panel, Plot, no_data, powers
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table
from ctld_lab.report.tables import as_csv
from ctld_lab.report.wording import PLUS_MINUS, listed, show, show_setting

TEMPERINGS = {
    "none": Key("no tempering", BLACK, marker="s"),
    "paper": Key("the paper's tempering", BLUE, marker="o"),
    "fixed": Key("tempering of the largest η", VERMILION, marker="^"),
}
LARGEST_MISFIT = 4.0  # χ² per degree of freedom; above it there is no such law
BOUND = Key("rate of the bound: 1/(Lη), or η", "#777777", dashes=(3.0, 2.0))


@dataclass(frozen=True)
class Series:
    """One tempering; `lines` are those of one step size each."""

    tempering: str
    step_size: float
    lines: Sequence[Mapping[str, Any]]
    slopes: Mapping[str, Mapping[str, Any]]


def add(study: StudyRecord, found: Content) -> None:
    """Sentences, a figure and a table, if the study has such runs."""
    runs = [run for run in study.finals if run.kind == "theorem"]
    if not runs:
        return
    by_steps, by_size = _series(study, "steps"), _series(study, "step_size")
    if by_steps or by_size:
        found.summary.append(_summary(by_steps, by_size))
        found.plots.append(_plot(by_steps, by_size))
        found.tables.append(_table(by_steps, by_size))
    missing = [run for run in runs if run.state != "done"]
    if missing:
        found.summary.append(f"Theorem 2: {len(runs) - len(missing)} of {len(runs)} runs are finished.")


def _series(study: StudyRecord, variant: str) -> list[Series]:
    found = []
    for run in study.finals:
        if run.kind == "theorem" and run.variant == variant and run.state == "done":
            lines = run.result.get("step_sizes") or []
            if lines:
                slopes = run.result.get("slopes") or {} if variant == "step_size" else lines[0].get("slopes") or {}
                tempering = str(run.config.get("tempering", "none"))
                found.append(Series(tempering, number(lines[0].get("step_size")), lines, slopes))
    order = list(TEMPERINGS)
    return sorted(found, key=lambda each: order.index(each.tempering) if each.tempering in order else len(order))


def _key(tempering: str) -> Key:
    return TEMPERINGS.get(tempering, Key(tempering, "#777777", marker="x"))


# ---- figure ----


def _plot(by_steps: Sequence[Series], by_size: Sequence[Series]) -> Plot:
    panels = [
        Panel("Bias: the part that decays", _against_steps(by_steps, "decaying_bias", "|bias|")),
        Panel("MSE: the part that decays", _against_steps(by_steps, "decaying_mse", "mean square error")),
        Panel("Bias of sampling that stays", _against_size(by_size, "limit")),
        Panel("The same at g = 1 alone", _against_size(by_size, "cold_limit")),
    ]
    shown = dict.fromkeys(series.tempering for series in (*by_steps, *by_size))
    caption = (
        "Theorem 2 on the double well; bars are 95 % intervals over independent chains, hollow points have one that holds "
        "zero. a, b: the part of the error of the sample average that decays with the number of steps L, beside the bound's "
        "1/(Lη); dotted: the whole error, with the constant that no number of steps removes. c: the bias of sampling that "
        "stays, against the step size, beside the bound's η (its square enters the mean square error as η²). d: the same over "
        "the steps with g = 1."
    )
    return Plot("theorem", caption, panels, [*(_key(tempering) for tempering in shown), BOUND], columns=2)


def _against_steps(series: Sequence[Series], name: str, ylabel: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        if not series:
            return no_data(axes, "no such run is finished")
        powers(axes, "x")
        powers(axes, "y")
        axes.set(xlabel="number of steps L", ylabel=ylabel)
        shown = []
        for each in series:
            lengths = each.lines[0].get("lengths") or []
            points = [
                (number(line.get("steps")), abs(number(line.get(name))), 1.96 * number(line.get(f"{name}_error")))
                for line in lengths
            ]
            shown += _points(axes, points, _key(each.tempering))
            whole = [
                (number(line.get("steps")), abs(number(line.get(name.removeprefix("decaying_"))))) for line in lengths
            ]
            axes.plot(*zip(*whole, strict=True), color=_key(each.tempering).colour, linestyle=":", linewidth=0.9)
        _rate(axes, shown, -1.0)
        return None

    return draw


def _against_size(series: Sequence[Series], name: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        if not series:
            return no_data(axes, "no such run is finished")
        powers(axes, "x")
        powers(axes, "y")
        axes.set(xlabel="step size η", ylabel="|bias|")
        shown = []
        for each in series:
            points = [
                (number(line.get("step_size")), abs(number(line.get(name))), 1.96 * number(line.get(f"{name}_error")))
                for line in each.lines
            ]
            shown += _points(axes, points, _key(each.tempering))
        _rate(axes, shown, 1.0)
        sizes = sorted({x for x, _ in shown})
        if 1 < len(sizes) <= 8:
            axes.set_xticks(sizes, _labels(sizes))
            axes.set_xticks([], minor=True)
        return None

    return draw


def _labels(sizes: Sequence[float]) -> list[str]:
    """A label for each that is far enough from the last one with a label."""
    labels, last = [], 0.0
    for size in sizes:
        far = size > 1.6 * last
        labels.append(f"{size:g}" if far else "")
        last = size if far else last
    return labels


def _points(axes: Axes, points: Sequence[tuple[float, float, float]], key: Key) -> list[tuple[float, float]]:
    kept = [(x, y, error) for x, y, error in sorted(points) if x > 0 and y > 0 and math.isfinite(y)]
    if not kept:
        return []
    x, y, error = np.array(kept).T
    axes.plot(x, y, color=key.colour, linewidth=0.8, alpha=0.6)
    for place in range(len(x)):
        lost = not error[place] < y[place]
        low = min(error[place], 0.9 * y[place]) if math.isfinite(error[place]) else 0.0
        high = error[place] if math.isfinite(error[place]) else 0.0
        style: dict[str, Any] = {"marker": key.marker, "markersize": 4, "color": key.colour, "linewidth": 0.9}
        style |= {"markerfacecolor": "white"} if lost else {}
        axes.errorbar(x[place : place + 1], y[place : place + 1], yerr=[[low], [high]], **style)
    return [(a, b) for a, b, _ in kept]


def _rate(axes: Axes, points: Sequence[tuple[float, float]], exponent: float) -> None:
    """A line of the theorem's slope; the factor of a bound is unknown.

    Against L it lies above all points, as a bound must. Against η it starts above the largest step size: a bias that stays
    when η becomes small then crosses it.
    """
    if not points:
        return
    x = np.array(sorted({x for x, _ in points}))
    anchors = [(x_value, y) for x_value, y in points if exponent < 0 or x_value == x[-1]]
    factor = 1.4 * max(y / x_value**exponent for x_value, y in anchors)
    axes.plot(x, factor * x**exponent, color=BOUND.colour, linestyle=(0, BOUND.dashes), linewidth=1.0)


# ---- words and numbers ----


def _summary(by_steps: Sequence[Series], by_size: Sequence[Series]) -> str:
    sentences = []
    for each in by_steps:
        parts = [
            f"{words} {_law(each.slopes[name], 'L')}"
            for name, words in (
                ("decaying_bias", "the decaying part of the bias"),
                ("decaying_mse", "the decaying part of the mean square error"),
            )
            if name in each.slopes
        ]
        if parts:
            sentences.append(f"With {_named(each.tempering)}, {listed(parts)}.")
        last = (each.lines[0].get("lengths") or [{}])[-1]
        if "constant" in last and "sampling_error" in last:
            sentences.append(
                f"After {int(last['steps']):,} steps the bias of {show(number(last['bias']), 3)} is "
                f"{show(number(last['constant']), 3)} that no number of steps removes, and a sampling error of "
                f"{show(number(last['sampling_error']), 2)}."
            )
    laws = [
        f"{_law(each.slopes['limit'], 'η')} with {_named(each.tempering)}" for each in by_size if "limit" in each.slopes
    ]
    if laws:
        sentences.append(f"The sampling bias that stays, which the bound lets grow as η, {listed(laws)}.")
    return f"Theorem 2: {' '.join(sentences)}" if sentences else "Theorem 2: measured; too few points for an exponent."


def _law(slope: Mapping[str, Any], variable: str) -> str:
    """In words: the exponent, and whether its interval holds that of the bound."""
    value, error, bound = (number(slope.get(key)) for key in ("slope", "error", "bound"))
    if not math.isfinite(value) or number(slope.get("misfit", 0.0)) > LARGEST_MISFIT:
        return f"follows no power of {variable}"
    if abs(value - bound) <= 1.96 * error:
        beside = "as in the bound"
    elif value * bound < 0:
        smaller = f" as {variable} becomes smaller" if bound > 0 else ""
        beside = f"so it grows{smaller} where the bound falls"
    else:
        beside = "faster than in the bound" if abs(value) > abs(bound) else "more slowly than in the bound"
    return f"goes as {variable} to the power {_power(slope)}, {beside}"


def _named(tempering: str) -> str:
    return {"none": "no tempering", "paper": "the paper's tempering", "fixed": "one tempering at all step sizes"}.get(
        tempering, tempering
    )


def _power(slope: Mapping[str, Any]) -> str:
    value, error = number(slope.get("slope")), 1.96 * number(slope.get("error"))
    if not math.isfinite(value):
        return "none found"
    return f"{value:.2f}{PLUS_MINUS}{error:.2f}".replace("-", "−")


def _table(by_steps: Sequence[Series], by_size: Sequence[Series]) -> Table:
    body, csv_lines = [], []
    names = {"decaying_bias": "decaying bias", "decaying_mse": "decaying MSE", "decaying_variance": "decaying variance"}
    for variable, series in (("L", by_steps), ("η", by_size)):
        for each in series:
            for name, slope in each.slopes.items():
                words = names.get(name, {"limit": "bias left", "cold_limit": "bias left at g = 1"}.get(name, name))
                limits = f"{show_setting(number(slope.get('from')))} to {show_setting(number(slope.get('to')))}"
                bound = f"{number(slope.get('bound')):g}".replace("-", "−")
                misfit = show(number(slope.get("misfit")), 2)
                cells = [_named(each.tempering), words, variable, _power(slope), bound, limits, misfit]
                body.append([Cell(text) for text in cells])
                csv_lines.append(
                    [
                        each.tempering,
                        name,
                        variable,
                        *(slope.get(key) for key in ("slope", "error", "bound", "from", "to", "misfit")),
                    ]
                )
    header = ["tempering", "quantity", "variable", "slope", "standard_error", "bound", "from", "to", "misfit"]
    columns = ["Tempering", "Quantity", "Against", "Exponent", "Theorem", "Fitted over", "χ² per degree"]
    notes = [
        "± is 1.96 standard errors. Exponents of L are fitted over the given times Lη, those of η over the given step sizes. "
        "An error that falls faster is within the bound. χ² far above 1 says that no power fits.",
    ]
    return Table("theorem", "Exponents of Theorem 2", columns, body, as_csv(header, csv_lines), notes)
