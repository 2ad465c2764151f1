"""The double well: exactness of the paper's sampler by dimension (Theorem 1), and the rates of Theorem 2 measured."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.report import tidy
from ctld_lab.report.plots import BLACK, BLUE, COLOURS, GREY, LOG, NAMES, VERMILION, Key, Panel, Plot, Series
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, value_cell
from ctld_lab.report.tables import Row, final_table
from ctld_lab.report.temperature import UNIFORM_SHARE
from ctld_lab.report.wording import PLUS_MINUS, show, show_setting

RATE = "crossings per 100,000 steps"
KEYS = {
    "tempered": Key("tempered, as the paper has it", COLOURS["ctld"], marker="o", line=False),
    "untempered": Key("untempered Langevin dynamics", BLACK, marker="s", line=False),
}
SHOWN = ("kinetic_temperature", "mean_square", "total_variation", "cold_share", "crossings")
TEMPERINGS = {
    "none": Key("no tempering", BLACK, marker="s"),
    "paper": Key("the paper's tempering", BLUE, marker="o"),
    "fixed": Key("tempering of the largest η", VERMILION, marker="^"),
}
BOUND = Key("rate of the bound: 1/(Lη), or η", GREY, dashes=(3.0, 2.0))
LARGEST_MISFIT = 4.0  # χ² per degree of freedom; above it there is no such law
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


def content(study: StudyRecord) -> Content:
    rows = [row for row in final_table(study) if row.method.startswith("d = ")]
    done = [row for row in rows if row.done]
    exact = {
        "kinetic_temperature": _exact(rows, "kinetic_target"),
        "mean_square": _exact(rows, "mean_square_exact"),
    }
    slopes, points = theorem(study)
    tempered = [row for row in done if row.variant == "tempered"]
    prose = Prose("double_well", rows=tempered, exact=exact, slopes=len(slopes))
    found = Content(summary=prose.paragraphs("summary"))
    if done:
        panels = [
            _panel(done, "Kinetic temperature at g = 1", "kinetic_temperature", "rᵀr/d", exact["kinetic_temperature"]),
            _panel(done, "Second moment ⟨x²⟩ at g = 1", "mean_square", "⟨x²⟩", exact["mean_square"]),
            _panel(done, "Crossings between the wells", RATE, "per 100,000 steps", math.nan),
        ]
        found.plots.append(Plot("exactness", prose("caption"), panels, list(KEYS.values())))
    if rows:
        found.tables.append(_exactness(study, rows, exact, prose))
    if len(points):
        found.plots.append(_theorem_plot(points, prose("theorem_caption")))
    if len(slopes):
        found.tables.append(_theorem_table(slopes, prose))
    return found


# ---- Theorem 1 ----


def dimensions(row: Row) -> int:
    return int(row.method.removeprefix("d = ").replace(",", ""))


def _exact(rows: Sequence[Row], name: str) -> float:
    return next((row.estimate(name).mean for row in rows if name in row.metrics), math.nan)


def _panel(rows: Sequence[Row], title: str, metric: str, ylabel: str, exact: float) -> Panel:
    sizes = sorted({dimensions(row) for row in rows})
    series = []
    for variant, key in KEYS.items():
        own = [row for row in rows if row.variant == variant]
        places = [sizes.index(dimensions(row)) + (-0.1 if variant == "tempered" else 0.1) for row in own]
        series.append(Series.of(key, places, [row.estimate(metric) for row in own]))
    names = [f"{size:,}" for size in sizes]
    return Panel(title, series, "dimensions d", ylabel, x=NAMES, names=names, lines=[("y", exact)])


def _exactness(study: StudyRecord, rows: Sequence[Row], exact: dict[str, float], prose: Prose) -> Table:
    columns = ["Dimensions", "Tempering", "Kinetic temperature", "⟨x²⟩", "TV of α", "Share at g = 1", "Crossings"]
    made = study.table[(study.table["metric"] == "steps") & (study.table["at"] == "run")]
    steps = made.drop_duplicates("method").set_index("method")["value"].to_dict()
    body = []
    for row in sorted(rows, key=lambda row: (dimensions(row), row.variant)):
        texts = [value_cell(row, metric, marked=False).text for metric in SHOWN]
        if row.variant == "untempered":
            texts[2] = texts[3] = "–"  # there is no α
        texts.append(f"{int(steps[row.method]):,}" if row.method in steps else "–")
        body.append(cells(f"{dimensions(row):,}", row.variant, *texts, row.state))
    ideal = [show(exact["kinetic_temperature"]), show(exact["mean_square"]), "0", show(UNIFORM_SHARE, 3)]
    body.append(cells("exact", "", *ideal, "", "", ""))
    caption, notes = "Exactness and exploration by dimension", prose.paragraphs("notes")
    return Table("exactness", caption, [*columns, "Steps", "Runs"], body, notes)


# ---- Theorem 2 ----


def theorem(study: StudyRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the slopes (a column for each of their numbers) and the points that they were fitted to, without noise."""
    table = study.table[(study.table["at"] == "fit") & (study.table["point"] == "")]
    names = table["metric"].str.split(" ", n=1).str
    slopes = table.assign(quantity=names[0], number=names[1]).pivot_table(
        aggfunc="first", index=["method", "variant", "quantity"], columns="number", values="value"
    )
    slopes = slopes.reindex(columns=["slope", f"slope{tidy.SE}", "bound", "from", "to", "misfit"])
    fitted = slopes.rename(columns={f"slope{tidy.SE}": "standard_error"}).reset_index()
    points = study.places([name + more for name in PANELS for more in ("", tidy.SE)])
    points = points[points["at"].str.contains("=") & (points["point"] == "")]
    variable = points["at"].str.split("=").str
    points = points.assign(
        at=pd.to_numeric(variable[1]),
        quantity=points["metric"].str.removesuffix(tidy.SE),
        number=points["metric"].str.endswith(tidy.SE).map({False: "value", True: "standard_error"}),
    ).pivot_table(aggfunc="first", index=["method", "variant", "quantity", "at"], columns="number", values="value")
    points = points.reindex(columns=["value", "standard_error"]).reset_index()
    ranks = {name: place for place, name in enumerate([*TEMPERINGS, *QUANTITIES, "L", "η"])}
    renamed = [frame.rename(columns={"method": "tempering", "variant": "variable"}) for frame in (fitted, points)]
    found = [
        frame.sort_values(
            ["variable", "tempering", "quantity"], key=lambda column: column.map(ranks), ignore_index=True
        )
        for frame in renamed
    ]
    return found[0], found[1]


def _theorem_plot(points: pd.DataFrame, caption: str) -> Plot:
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
    return Plot("theorem", caption, panels, [*keys, BOUND], columns=2)


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


def beside(slope: Mapping[str, Any]) -> str:
    """How an exponent stands to that of the bound."""
    value, error, bound = slope["slope"], slope["standard_error"], slope["bound"]
    if not math.isfinite(value) or slope["misfit"] > LARGEST_MISFIT:
        return "no power"
    if abs(value - bound) <= 1.96 * error:
        return "as in the bound"
    return "the other way" if value * bound < 0 else "faster" if abs(value) > abs(bound) else "more slowly"


def _theorem_table(slopes: pd.DataFrame, prose: Prose) -> Table:
    body = []
    for _, line in slopes.iterrows():
        power = f"{line['slope']:.2f}{PLUS_MINUS}{1.96 * line['standard_error']:.2f}".replace("-", "−")
        power = power if math.isfinite(line["slope"]) else "none found"
        limits = f"{show_setting(line['from'])} to {show_setting(line['to'])}"
        bound = f"{line['bound']:g}".replace("-", "−")
        names = [_key(line["tempering"]).label, QUANTITIES.get(line["quantity"], line["quantity"])]
        body.append(cells(*names, line["variable"], power, bound, beside(line), limits, show(line["misfit"], 2)))
    columns = ["Tempering", "Quantity", "Against", "Exponent", "Theorem", "Falls", "Fitted over", "χ² per degree"]
    return Table("theorem", "Exponents of Theorem 2", columns, body, prose.paragraphs("theorem_notes"))
