"""Figure 4: test loss over CTLD's own constants: w × σ, S, and beyond the paper T and the length of the exploration."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from ctld_lab.records import number
from ctld_lab.report import paper
from ctld_lab.report.plots import BLACK, COLOURS, VERMILION, Key, Panel, Plot, no_data
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.scale import scale_notes
from ctld_lab.report.sections import Cell, Content, Table, value_cell
from ctld_lab.report.statistics import spread
from ctld_lab.report.tables import Row, final_table, rows_as_csv
from ctld_lab.report.wording import counted, listed, show, show_setting

METRIC = "test nats"
# variant → title, label of the axis, name in `point`
CURVES: dict[str, tuple[str, str, str]] = {
    "depth": ("Depth S of the tempering", "depth S", "S"),
    "temperature": ("Temperature T", "temperature T", "T"),
    "exploration": ("Length of the exploration", "share of the steps", "share"),
}
SYMBOLS = {"w": "w", "sigma": "σ", "S": "S", "T": "T", "share": "L_s/L"}
CROSS: dict[str, Any] = {
    "marker": "x",
    "color": VERMILION,
    "markersize": 6,
    "markeredgewidth": 1.4,
    "linestyle": "none",
}
# White to CTLD's blue, of which the light part is used: black figures stay legible on it.
BLUES = LinearSegmentedColormap.from_list("blues", ["#FFFFFF", COLOURS["ctld"]])


def content(study: StudyRecord) -> Content:
    rows = final_table(study)
    defaults = _defaults(study)
    found, sentences = Content(), []
    if not any(row.done for row in rows):
        sentences.append("No run is finished, so nothing can be said yet.")
    for variant, name in (
        ("grid", "w and σ"),
        ("depth", "S"),
        ("temperature", "T"),
        ("exploration", "the length of the exploration"),
    ):
        points = [row for row in rows if row.variant == variant]
        if any(row.done for row in points):
            sentences.append(_sentence(name, points))
    found.summary.append(" ".join(sentences))
    panels = [Panel("Hill height w and width σ", lambda axes: draw_grid(axes, _of(rows, "grid"), defaults))]
    for variant, (title, words, name) in CURVES.items():
        panels.append(Panel(title, _curve(_of(rows, variant), words, name, defaults.get(name))))
    diverged = any(row.diverged for row in rows)
    caption = (
        "Test nats per character. Over w and σ: the mean over seeds, darker is lower. Elsewhere: the mean with its 95 % "
        "interval, and grey lines that join runs of the same seed. Framed or ringed: the paper's value of the constant."
    )
    if diverged:
        caption += " A cross stands where a seed diverged: there is no mean over seeds."
    keys = [
        Key("mean and 95 % interval", COLOURS["ctld"], marker="o", line=False),
        Key("no exploration: SGD-M", BLACK, marker="s", line=False),
        Key("one seed", "#AAAAAA"),
        *([Key("a seed diverged", VERMILION, marker="x", line=False)] if diverged else []),
    ]
    if any(row.done for row in rows):
        found.plots.append(Plot("surface", caption, panels, keys, columns=2))
    found.tables.append(_table(study, rows))
    return found


def _of(rows: Sequence[Row], variant: str) -> list[Row]:
    return [row for row in rows if row.variant == variant]


def _defaults(study: StudyRecord) -> dict[str, float]:
    """The paper's values of the constants, by their names in `point`; those that the record has."""
    found = (study.description.get("paper") or {}).get("defaults") or {}
    return {str(name): number(value) for name, value in found.items()}


def _sentence(name: str, points: Sequence[Row]) -> str:
    """The range of the means beside what chance alone would give; what can diverge is not called harmless."""
    finished = [row for row in points if row.done and not row.diverged]
    lost = [f"{_point(row)} ({row.diverged} of {counted(row.done, 'seed')})" for row in points if row.diverged]
    verb = "do" if " and " in name else "does"
    diverged = f"Training diverged at {listed(lost)}: it cannot be said that {name} {verb} not matter. " if lost else ""
    means = [row.estimate(METRIC).mean for row in finished]
    if len(means) < 2:
        left = "other point" if lost else "point"
        return f"{diverged}Over {name}: {counted(len(means), left)} finished, nothing to compare."
    width = max(means) - min(means)
    found = spread([row.values[METRIC] for row in finished])
    lead = (
        f"{diverged}Over {'the other ' if lost else ''}{counted(len(means), 'value')} of {name}, the test loss ranges over "
        f"{show(width, 3)} nats per character"
    )
    if found is None:
        return f"{lead}; without two seeds at every point it is not known what chance alone would give."
    probability = show(found.probability, 2)
    chance = f"{show(found.chance, 3)} (95 % of shuffles within {counted(found.seeds, 'seed')}; p = {probability})"
    if found.exceeds_chance:
        return f"{lead}, more than seeds explain, {chance}: it matters here."
    if lost:
        return f"{lead}, no more than seeds explain, {chance}."
    return f"{lead}, no more than seeds explain, {chance}: no effect can be told from chance."


# ---- figure ----


def draw_grid(axes: Axes, rows: Sequence[Row], defaults: Mapping[str, float]) -> None:
    """Means printed in cells; darker is lower, which is better."""
    heights = sorted({float(row.point.get("w", math.nan)) for row in rows})
    widths = sorted({float(row.point.get("sigma", math.nan)) for row in rows})
    table = np.full((len(widths), len(heights)), np.nan)
    crosses = set()
    for row in rows:
        place = widths.index(float(row.point["sigma"])), heights.index(float(row.point["w"]))
        table[place] = row.estimate(METRIC).mean if not row.diverged else np.nan
        if row.diverged:
            crosses.add(place)
    if not any(row.done for row in rows):
        return no_data(axes, "no point of the grid is finished")
    finite = table[np.isfinite(table)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    shade = np.where(np.isfinite(table), (high - table) / max(high - low, 1e-12), 0.0)
    axes.pcolormesh(0.05 + 0.55 * shade, cmap=BLUES, vmin=0.0, vmax=1.0, edgecolors="white", linewidth=1.0)
    decimals = max(2, 1 - math.floor(math.log10(high - low))) if high > low else 3
    for (row_place, column), value in np.ndenumerate(table):
        if (row_place, column) in crosses:
            axes.plot([column + 0.5], [row_place + 0.5], **CROSS)
            continue
        text = f"{value:.{min(decimals, 4)}f}" if np.isfinite(value) else "–"
        axes.text(column + 0.5, row_place + 0.5, text, ha="center", va="center", fontsize=7)
    axes.set_xticks(np.arange(len(heights)) + 0.5, [f"{height:g}" for height in heights])
    axes.set_yticks(np.arange(len(widths)) + 0.5, [f"{width:g}" for width in widths])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="hill height, w", ylabel="hill width, σ")
    if defaults.get("w") in heights and defaults.get("sigma") in widths:
        corner = heights.index(defaults["w"]), widths.index(defaults["sigma"])
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=BLACK, linewidth=1.2, clip_on=False, zorder=5))
    return None


def _curve(rows: Sequence[Row], words: str, name: str, default: float | None) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        points = sorted((row for row in rows if row.done), key=lambda row: _order(row.point, name))
        if not points:
            return no_data(axes, "no point is finished")
        labels = []
        for seed in sorted({seed for row in points for seed in row.values.get(METRIC, {})}):
            line = [row.values.get(METRIC, {}).get(seed, math.nan) for row in points]
            axes.plot(range(len(points)), line, color="#AAAAAA", linewidth=0.7, marker=".", markersize=3, zorder=1)
        for place, row in enumerate(points):
            value = row.point.get(name)
            unexplored = name == "share" and value == 0
            labels.append("0: SGD-M" if unexplored else _setting(value))
            if row.diverged:
                # At the top, whatever the scale: a loss that is no number is above all others.
                axes.plot([place], [0.96], transform=axes.get_xaxis_transform(), **CROSS)
                continue
            colour = BLACK if unexplored else COLOURS["ctld"]
            found = row.estimate(METRIC)
            marker: dict[str, Any] = {
                "marker": "s" if unexplored else "o",
                "markersize": 4.5,
                "color": colour,
                "capsize": 0,
                "linewidth": 1.2,
            }
            axes.errorbar(
                [place], [found.mean], yerr=None if found.half_width is None else [found.half_width], **marker
            )
            if value == default:
                ring: dict[str, Any] = {
                    "markersize": 9,
                    "markerfacecolor": "none",
                    "markeredgecolor": "0.3",
                    "markeredgewidth": 0.8,
                }
                axes.plot([place], [found.mean], "o", **ring)
        axes.set_xticks(range(len(points)), labels)
        axes.set_xlim(-0.5, len(points) - 0.5)
        axes.margins(y=0.12)
        axes.set(xlabel=words, ylabel="test nats per character")
        return None

    return draw


def _order(point: Mapping[str, Any], name: str) -> tuple[bool, float]:
    """Numbers in order, "auto" first."""
    value = point.get(name)
    return (not isinstance(value, str), 0.0 if isinstance(value, str) or value is None else float(value))


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else show_setting(float(value))


def _point(row: Row) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} = {_setting(value)}" for key, value in row.point.items())


def _table(study: StudyRecord, rows: Sequence[Row]) -> Table:
    body = []
    order = ["grid", *CURVES]
    for row in sorted(rows, key=lambda row: [*order, row.variant].index(row.variant)):
        point = _point(row)
        if row.point.get("share") == 0:
            point += " (SGD-M)"
        cells = [value_cell(row, metric) for metric in (METRIC, "train nats", "test perplexity")]
        body.append([Cell(point), *(Cell(cell.text) for cell in cells), Cell(row.state)])
    columns = ["Point", "Test nats/char", "Train nats/char", "Test perplexity", "Runs"]
    printed = [f"The paper, over S: {paper.values(study)['S']}."] if "S" in paper.values(study) else []
    interval = "± is the half width of a 95 % interval over seeds (Student's t)."
    notes = [interval, *printed, *paper.note(study), *scale_notes(study)]
    return Table("points", "All points", columns, body, rows_as_csv(rows), notes)
