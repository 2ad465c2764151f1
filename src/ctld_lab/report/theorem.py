"""Theorem 2 measured: how the error of the sample average falls with the number of steps, and with the step size."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.report.plots import BLACK, BLUE, GREY, LOG, VERMILION, Key, Panel, Plot, Series
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.wording import PLUS_MINUS, show, show_setting

TEMPERINGS = {
    "none": Key("no tempering", BLACK, marker="s"),
    "paper": Key("the paper's tempering", BLUE, marker="o"),
    "fixed": Key("tempering of the largest η", VERMILION, marker="^"),
}
NAMED = {"none": "no tempering", "paper": "the paper's tempering", "fixed": "one tempering at all step sizes"}
BOUND = Key("rate of the bound: 1/(Lη), or η", GREY, dashes=(3.0, 2.0))
LARGEST_MISFIT = 4.0  # χ² per degree of freedom; above it there is no such law
SLOPES, POINTS = TABLES["theorem"], TABLES["theorem-points"]
QUANTITIES = {
    "decaying_bias": "decaying bias", "decaying_mse": "decaying MSE", "decaying_variance": "decaying variance",
    "limit": "bias left", "cold_limit": "bias left at g = 1",
}  # fmt: skip
PANELS = {
    "decaying_bias": ("Bias: the part that decays", "number of steps L", "|bias|"),
    "decaying_mse": ("MSE: the part that decays", "number of steps L", "mean square error"),
    "limit": ("Bias of sampling that stays", "step size η", "|bias|"),
    "cold_limit": ("The same at g = 1 alone", "step size η", "|bias|"),
}


def add(study: StudyRecord, found: Content) -> None:
    """Sentences, a figure and a table, if the study has such runs."""
    runs = [run for run in study.finals if run.kind == "theorem"]
    slopes, points, last = _frames(study)
    if not runs and slopes.empty:
        return
    laws, limits = _laws(slopes)
    missing = sum(run.state != "done" for run in runs)
    prose = Prose(
        "double_well",
        laws=laws,
        limits=limits,
        last=last,
        measured=not points.empty,
        missing=missing,
        planned=len(runs),
    )
    found.summary += prose.paragraphs("theorem")
    found.plots += _plots(study, points, prose("theorem_caption"))
    found.data["theorem-points"] = points
    if not (slopes.empty and points.empty):
        found.tables.append(_table(slopes, prose))


def _frames(study: StudyRecord) -> tuple[pd.DataFrame, pd.DataFrame, list[Mapping[str, float]]]:
    """Slopes, points, and the last line of each series against L that says what remains."""
    if study.published:
        empty = pd.DataFrame(columns=SLOPES), pd.DataFrame(columns=POINTS)
        return study.tables.get("theorem", empty[0]), study.tables.get("theorem-points", empty[1]), []
    slopes: list[list[Any]] = []
    points: list[list[Any]] = []
    last = []
    runs = [
        run for run in study.finals if run.kind == "theorem" and run.state == "done" and run.result.get("step_sizes")
    ]
    for variant, variable in (("steps", "L"), ("step_size", "η")):
        own = [run for run in runs if run.variant == variant]
        for run in sorted(
            own, key=lambda run: [*TEMPERINGS, run.config.get("tempering")].index(run.config.get("tempering"))
        ):
            tempering, sizes = str(run.config.get("tempering", "none")), run.result["step_sizes"]
            fits = run.result.get("slopes", {}) if variable == "η" else sizes[0].get("slopes", {})
            numbers = ("slope", "error", "bound", "from", "to", "misfit")
            slopes += [
                [tempering, name, variable, *(fit.get(x, math.nan) for x in numbers)] for name, fit in fits.items()
            ]
            lines = sizes if variable == "η" else sizes[0].get("lengths", [])
            at, names = (
                ("step_size", ("limit", "cold_limit"))
                if variable == "η"
                else ("steps", ("decaying_bias", "decaying_mse"))
            )
            points += [
                [tempering, name, variable, line.get(at), line.get(name), line.get(f"{name}_error")]
                for name in names
                for line in lines
                if name in line
            ]
            if variable == "L" and lines and {"constant", "sampling_error", "steps", "bias"} <= lines[-1].keys():
                last.append(lines[-1])
    return pd.DataFrame(slopes, columns=SLOPES), pd.DataFrame(points, columns=POINTS), last


def _plots(study: StudyRecord, points: pd.DataFrame, caption: str) -> list[Plot]:
    picture = study.directory.path.parent / "figures" / f"{study.directory.path.resolve().name}-theorem.png"
    if points.empty and study.published and picture.is_file():
        return [Plot("theorem", f"{caption} {Prose('common')('picture')}", (), image=picture.read_bytes())]
    if points.empty:
        return []
    keys = [_key(tempering) for tempering in dict.fromkeys(points["tempering"])]
    panels = []
    for quantity, (title, xlabel, ylabel) in PANELS.items():
        chosen = points[points["quantity"] == quantity].dropna(subset=["at", "value"])
        series = []
        for tempering, part in chosen.groupby("tempering", sort=False):
            own = part.sort_values("at")
            value, half = own["value"].abs(), 1.96 * own["standard_error"]
            low, high = (value - half).tolist(), (value + half).tolist()
            series.append(Series(_key(str(tempering)), own["at"].tolist(), value.tolist(), low, high, width=0.8))
        series += _rate(chosen, -1.0 if "steps" in xlabel else 1.0)
        words = "no such run is finished"
        panels.append(Panel(title, series, xlabel, ylabel, x=LOG, y=LOG, words=words))
    return [Plot("theorem", caption, panels, [*keys, BOUND], columns=2)]


def _key(tempering: str) -> Key:
    return TEMPERINGS.get(tempering, Key(tempering, GREY, marker="x"))


def _rate(points: pd.DataFrame, exponent: float) -> list[Series]:
    """A line of the theorem's slope; the factor of a bound is unknown.

    Against L it lies above all points, as a bound must. Against η it starts above the largest step size: a bias that stays
    when η becomes small then crosses it.
    """
    if points.empty:
        return []
    x = np.array(sorted(set(points["at"])))
    anchors = points if exponent < 0 else points[points["at"] == x[-1]]
    factor = 1.4 * float((anchors["value"].abs() / anchors["at"] ** exponent).max())
    return [Series(BOUND, x.tolist(), (factor * x**exponent).tolist(), width=1.0)]


# ---- words and numbers ----


def _laws(slopes: pd.DataFrame) -> tuple[list[tuple[str, list[str]]], list[str]]:
    words = {
        "decaying_bias": "the decaying part of the bias",
        "decaying_mse": "the decaying part of the mean square error",
    }
    laws: dict[str, list[str]] = {}
    limits = []
    for _, line in slopes.iterrows():
        name = NAMED.get(line["tempering"], line["tempering"])
        if line["quantity"] in words:
            laws.setdefault(name, []).append(f"{words[line['quantity']]} {law(line, 'L')}")
        elif line["quantity"] == "limit":
            limits.append(f"{law(line, 'η')} with {name}")
    return list(laws.items()), limits


def law(slope: Mapping[str, Any], variable: str) -> str:
    """In words: the exponent, and whether its interval holds that of the bound."""
    value, error, bound = slope["slope"], slope["standard_error"], slope["bound"]
    if not math.isfinite(value) or slope["misfit"] > LARGEST_MISFIT:
        return f"follows no power of {variable}"
    if abs(value - bound) <= 1.96 * error:
        beside = "as in the bound"
    elif value * bound < 0:
        beside = f"so it grows{f' as {variable} becomes smaller' if bound > 0 else ''} where the bound falls"
    else:
        beside = "faster than in the bound" if abs(value) > abs(bound) else "more slowly than in the bound"
    return f"goes as {variable} to the power {_power(slope)}, {beside}"


def _power(slope: Mapping[str, Any]) -> str:
    if not math.isfinite(slope["slope"]):
        return "none found"
    return f"{slope['slope']:.2f}{PLUS_MINUS}{1.96 * slope['standard_error']:.2f}".replace("-", "−")


def _table(slopes: pd.DataFrame, prose: Prose) -> Table:
    body = []
    for _, line in slopes.iterrows():
        limits = f"{show_setting(line['from'])} to {show_setting(line['to'])}"
        bound = f"{line['bound']:g}".replace("-", "−")
        names = [NAMED.get(line["tempering"], line["tempering"]), QUANTITIES.get(line["quantity"], line["quantity"])]
        body.append(cells(*names, line["variable"], _power(line), bound, limits, show(line["misfit"], 2)))
    columns = ["Tempering", "Quantity", "Against", "Exponent", "Theorem", "Fitted over", "χ² per degree"]
    return Table("theorem", "Exponents of Theorem 2", columns, body, slopes, prose.paragraphs("theorem_notes"))
