"""Figures as data: panels of series. The page draws them itself, with values under the pointer; files are by matplotlib.

A method that ran away never squeezes the others: an axis spans what most points have; what lies beyond is marked.
No pyplot, which would choose a backend for the process.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter, NullLocator

from ctld_lab.statistics import Estimate

# Okabe and Ito, which the colour-blind tell apart. Their yellow is too light for lines on white.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#777777"
COLOURS = {
    "sgd": BLACK, "ctld": BLUE, "rmsprop": GREEN, "adam": ORANGE, "anneal_sgd": PURPLE, "santa": VERMILION, "adadelta": SKY,
}  # fmt: skip
OTHERS = (SKY, GREEN, PURPLE, VERMILION, ORANGE, BLUE, BLACK)  # with dashes, for methods that the paper does not have
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 8, "axes.titlesize": 8, "axes.titlelocation": "left",
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "legend.frameon": False, "svg.hashsalt": "ctld", "svg.fonttype": "none",
    "text.parse_math": False,  # a dollar sign in a record is no formula
}  # fmt: skip
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PANEL = (3.3, 2.5)  # inches: one column of a paper
LINEAR, LOG, NAMES = "linear", "log", "names"
BEYOND = 8.0
"""Interquartile ranges beyond the quartiles: what lies further is not in the axis."""


@dataclass(frozen=True)
class Key:
    """A line of the legend; on the page it switches its series on and off."""

    label: str
    colour: str
    dashes: tuple[float, ...] = ()
    marker: str = ""
    line: bool = True


@dataclass(frozen=True)
class Series:
    """Points, with their intervals if `low` and `high` are given: as bars, or as a band."""

    key: Key
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    band: bool = False
    width: float = 1.3

    @staticmethod
    def of(key: Key, x: Sequence[float], estimates: Sequence[Estimate], **more: Any) -> "Series":
        """Means with their intervals."""
        low, high = zip(*(found.ends for found in estimates), strict=True) if estimates else ((), ())
        return Series(key, x, [found.mean for found in estimates], low, high, **more)


@dataclass(frozen=True)
class Panel:
    """`lines` are dotted across at a height, or down at a place ("x"); `words` stand where there is nothing to draw."""

    title: str
    series: Sequence[Series]
    xlabel: str
    ylabel: str
    x: str = LINEAR
    y: str = LINEAR
    names: Sequence[str] = ()
    lines: Sequence[tuple[str, float]] = ()
    ylim: tuple[float, float] | None = None
    words: str = "nothing is finished yet"


@dataclass(frozen=True)
class Plot:
    name: str
    caption: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = ()
    columns: int = 3
    size: tuple[float, float] = PANEL


def method_key(method: str, title: str, methods: Sequence[str]) -> Key:
    """The same colour for a method in every figure; others by their place among those that have none of their own."""
    if method in COLOURS:
        return Key(title, COLOURS[method])
    others = [name for name in methods if name not in COLOURS]
    place = others.index(method) if method in others else len(others)
    return Key(title, OTHERS[place % len(OTHERS)], dashes=((4.0, 1.5), (1.5, 1.0))[place // len(OTHERS) % 2])


def inner(values: Sequence[float], *, log: bool = False) -> tuple[float, float] | None:
    """The limits of an axis: all finite values, but for those far beyond the quartiles."""
    finite = np.array([value for value in values if math.isfinite(value) and (value > 0 or not log)])
    if not finite.size:
        return None
    scaled = np.log10(finite) if log else finite
    first, third = np.quantile(scaled, [0.25, 0.75])
    reach = BEYOND * max(third - first, 1e-9 * max(abs(third), 1e-300))
    kept = scaled[(scaled >= first - reach) & (scaled <= third + reach)]
    kept = kept if kept.size > scaled.size // 2 and third > first else scaled
    margin = 0.08 * (kept.max() - kept.min()) or (0.05 if log else 0.05 * abs(float(kept.max())) or 1.0)
    low, high = float(kept.min() - margin), float(kept.max() + margin)
    return (10**low, 10**high) if log else (low, high)


def settled(panel: Panel) -> Panel:
    """With limits, and without points that an axis cannot show."""
    series = []
    for each in panel.series:
        shown = [
            place
            for place, (x, y) in enumerate(zip(each.x, each.y, strict=True))
            if math.isfinite(x) and math.isfinite(y) and (x > 0 or panel.x != LOG) and (y > 0 or panel.y != LOG)
        ]
        names = [name for name in ("x", "y", "low", "high") if len(getattr(each, name))]
        picked: dict[str, Any] = {name: [float(getattr(each, name)[p]) for p in shown] for name in names}
        if shown:
            series.append(replace(each, **picked))
    heights = [y for each in series for y in each.y]
    heights += [value for axis, value in panel.lines if axis == "y" and math.isfinite(value)]
    limits = panel.ylim or inner(heights, log=panel.y == LOG)
    if limits and not panel.ylim:
        limits = _with_bars(limits, series, log=panel.y == LOG)
    return replace(panel, series=series, ylim=limits)


def _with_bars(limits: tuple[float, float], series: Sequence[Series], *, log: bool) -> tuple[float, float]:
    """Wider, to hold the intervals of the points within; one that is far longer than the others is cut off."""
    bars = np.array(
        [bar for each in series for bar in zip(each.y, each.low, each.high, strict=False) if np.isfinite(bar).all()]
    )
    bars = bars[(bars[:, 0] >= limits[0]) & (bars[:, 0] <= limits[1])] if bars.size else bars
    if not bars.size:
        return limits
    longest = 2.0 * float(np.median(bars[:, 2] - bars[:, 1]))
    low = float(np.maximum(bars[:, 1], bars[:, 0] - longest).min())
    high = float(np.minimum(bars[:, 2], bars[:, 0] + longest).max())
    margin = 0.04 * (high - low)
    return (limits[0] if log and low <= margin else min(limits[0], low - margin)), max(limits[1], high + margin)


def as_data(plot: Plot) -> list[dict[str, Any]]:
    """Return the data that the page's script draws: each panel, with its series by the number of their key."""
    labels = [key.label for key in plot.keys]

    def numbers(values: Sequence[float]) -> list[float | None]:
        """So many digits as can be seen: the last ones are not the same on all processors."""
        return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values]

    panels = []
    for place, panel in enumerate(map(settled, plot.panels)):
        series = [
            {
                "key": labels.index(each.key.label) if each.key.label in labels else -1,
                "colour": each.key.colour, "dashes": list(each.key.dashes), "marker": each.key.marker, "line": each.key.line,
                "label": each.key.label, "band": each.band, "width": each.width,
                "x": numbers(each.x), "y": numbers(each.y), "low": numbers(each.low), "high": numbers(each.high),
            }
            for each in panel.series
        ]  # fmt: skip
        lines = [[axis, *numbers([value])] for axis, value in panel.lines if math.isfinite(value)]
        panels.append({
            "title": lettered(plot, place), "xlabel": panel.xlabel, "ylabel": panel.ylabel, "x": panel.x, "y": panel.y,
            "names": list(panel.names), "lines": lines, "ylim": panel.ylim and numbers(panel.ylim), "words": panel.words,
            "series": series,
        })  # fmt: skip
    return panels


def lettered(plot: Plot, place: int) -> str:
    title = plot.panels[place].title
    return f"{chr(ord('a') + place)}   {title}" if 1 < len(plot.panels) <= 26 else title


def render(plot: Plot) -> bytes:
    """As SVG: all panels in one figure."""
    with matplotlib.rc_context(STYLE):
        columns = min(plot.columns, len(plot.panels))
        rows = -(-len(plot.panels) // columns)
        width, height = plot.size
        # A key takes half an inch and 0.07 more for each letter.
        longest = max((0.5 + 0.07 * len(key.label) for key in plot.keys), default=1.0)
        legend_columns = max(1, min(len(plot.keys), int(width * columns / longest)))
        legend_rows = -(-len(plot.keys) // legend_columns)
        figure = Figure(figsize=(width * columns, height * rows + 0.2 * legend_rows), layout="constrained")
        grid = figure.add_gridspec(rows, columns)
        for place, panel in enumerate(plot.panels):
            row, column = divmod(place, columns)
            last = place == len(plot.panels) - 1  # takes what is left of its row
            _draw(
                figure.add_subplot(grid[row, column:] if last else grid[row, column]),
                settled(panel),
                lettered(plot, place),
            )
        if plot.keys:
            handles = [Line2D([], [], label=key.label, **_style(key)) for key in plot.keys]
            figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()


def _style(key: Key, width: float = 1.3) -> dict[str, Any]:
    return {
        "color": key.colour, "linestyle": ((0, key.dashes) if key.dashes else "-") if key.line else "none", "linewidth": width,
        "marker": key.marker or None, "markersize": 4, "markerfacecolor": "white" if key.marker == "D" else key.colour,
    }  # fmt: skip


def _draw(axes: Axes, panel: Panel, title: str) -> None:
    axes.set_title(title)
    if not panel.series or panel.ylim is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, panel.words, transform=axes.transAxes, ha="center", va="center", color="0.4")
        return
    for each in panel.series:
        style = _style(each.key, each.width)
        if each.band:
            axes.fill_between(each.x, each.low, each.high, color=each.key.colour, alpha=0.15, linewidth=0)
        elif len(each.low):
            ends = np.abs(np.array([each.low, each.high]) - np.array(each.y))
            axes.errorbar(each.x, each.y, yerr=np.nan_to_num(ends), fmt="none", ecolor=each.key.colour, elinewidth=0.9)
        axes.plot(each.x, each.y, **style)
        above = [x for x, y in zip(each.x, each.y, strict=True) if y > panel.ylim[1]]
        below = [x for x, y in zip(each.x, each.y, strict=True) if y < panel.ylim[0]]
        for beyond, edge, arrow in ((above, 1.0, "^"), (below, 0.0, "v")):
            if beyond and (each.key.marker or len(beyond) == len(each.x)):
                place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": "none"}
                axes.plot(beyond, [edge] * len(beyond), arrow, color=each.key.colour, markersize=4, **place)
    for axis, value in panel.lines:
        (axes.axvline if axis == "x" else axes.axhline)(value, color="0.5", linewidth=0.8, linestyle=":", zorder=1)
    if panel.y == LOG:
        _log(axes, "y", panel.ylim)
    axes.set_ylim(*panel.ylim)
    if panel.x == LOG:
        _log(axes, "x", (min(min(each.x) for each in panel.series), max(max(each.x) for each in panel.series)))
    elif panel.x == NAMES:
        axes.set_xticks(range(len(panel.names)), panel.names)
        axes.set_xlim(-0.5, len(panel.names) - 0.5)
    else:
        axes.locator_params(axis="x", nbins=5)
        longest = max(max(each.x) for each in panel.series)
        axes.xaxis.set_major_formatter(
            lambda value, _: f"{value / 1000:g}k" if longest >= 20_000 and value else f"{value:,g}"
        )
    axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)


def _log(axes: Axes, which: str, limits: tuple[float, float]) -> None:
    """A logarithmic axis: plain numbers within two decades, powers of ten as text beyond (formulas are off)."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    decades = math.log10(limits[1] / limits[0])
    if decades > 2.2:
        axis.set_major_locator(LogLocator(numticks=5))
        axis.set_major_formatter(lambda value, _: "10" + str(round(math.log10(value))).translate(SUPERSCRIPT))
        axis.set_minor_formatter(NullFormatter())
    elif decades < 0.3 and which == "y":
        axis.set_major_locator(FixedLocator([float(f"{x:.3g}") for x in np.linspace(*limits, 6)[1:-1]]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
    else:
        axis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if decades > 0.7 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")
