"""How the page's figures look: one panel is one SVG, as wide as a telephone, with its legend below it.

Colours are those of every report. Values of the paper are hollow diamonds; ends of curves stand in a grey margin right of
the axis. No pyplot, which would choose a backend for the process.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ctld_lab.paper.printed import Value, ends
from ctld_lab.report.plots import COLOURS
from ctld_lab.report.reading import TITLES

STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 9.5, "axes.titlesize": 10.5, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "axes.labelsize": 10, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.7, "legend.frameon": False, "legend.fontsize": 9.5, "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2, "legend.handletextpad": 0.5, "svg.fonttype": "path",
}  # fmt: skip
WIDTH, HEIGHT, ROW = 4.2, 2.9, 0.2  # inches: a column of a paper, and a line of a legend
GREY, PALE, BROWN = "#555555", "#f0f0f0", "#8a5a3c"
DASHES = (0, (2.5, 1.5))
STRIP = 0.15  # the margin of the paper's values, as a share of the axis
HOLLOW: dict[str, Any] = {"marker": "D", "ls": "", "ms": 6.5, "mfc": "white", "mew": 1.5, "zorder": 6, "clip_on": False}
Draw = Callable[[Axes], Mapping[str, Any]]


@dataclass(frozen=True)
class Picture:
    """One panel; `alt` says in words what it shows."""

    name: str
    alt: str
    svg: str


def picture(name: str, title: str, draw: Draw, *, share: str = "", height: float = HEIGHT, rows: int = 2) -> Picture:
    """Draw one panel, whose legend `draw` returns; `share` is written across what is smaller than the paper's."""
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(WIDTH, height + ROW * rows), layout="constrained")
        axes = figure.add_subplot()
        legend = draw(axes)
        axes.set_title(title)
        if legend:
            columns = 3 if max(map(len, legend)) < 14 else 2
            figure.legend(list(legend.values()), list(legend), loc="outside lower center", ncols=columns)
        if share:
            look: dict[str, Any] = {"ha": "center", "va": "center", "rotation": 16, "alpha": 0.22, "weight": "bold"}
            axes.text(0.5, 0.55, share, transform=axes.transAxes, fontsize=14, zorder=9, **look)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor="white")
    return Picture(name, f"{title}; ours: {', '.join(legend)}" if legend else title, buffer.getvalue())


def methods_named(methods: Sequence[str]) -> dict[str, Any]:
    """Return a legend of the methods' colours, for those that have no curve yet too."""
    return {TITLES[method]: Line2D([], [], color=COLOURS[method], lw=_width(method)) for method in methods}


def marks_named(ours: str = "ours", paper: str = "paper") -> dict[str, Any]:
    """Return a legend of dots and diamonds, whatever their colour."""
    dot = Line2D([], [], marker="o", ls="", color=GREY, ms=6.5)
    return {ours: dot, paper: Line2D([], [], mec=GREY, **HOLLOW)}


def diamond(axes: Axes, x: float, value: Value, tint: str) -> Any:
    """Mark a value of the paper; a range has a line from end to end."""
    low, high = ends(value)
    middle = math.sqrt(low * high) if axes.get_yscale() == "log" else 0.5 * (low + high)
    axes.plot([x, x], [low, high], color=tint, lw=1.2, zorder=5, clip_on=False, solid_capstyle="butt")
    return axes.plot([x], [middle], mec=tint, **HOLLOW)[0]


def strip(axes: Axes, end: float, values: Mapping[str, Value]) -> None:
    """Put the paper's end values beside the axis, which ends at `end`; neighbours stand side by side."""
    start = axes.get_xlim()[0]
    width = STRIP * (end - start)
    axes.set_xlim(start, end + 1.25 * width)
    axes.axvspan(end + 0.2 * width, end + 1.25 * width, color=PALE, zorder=0, lw=0)
    axes.text(end + 0.72 * width, 1.01, "paper", transform=axes.get_xaxis_transform(), ha="center", fontsize=9)
    for place, method in enumerate(sorted(values, key=lambda method: ends(values[method]))):
        diamond(axes, end + (0.35 + 0.37 * (place % 3)) * width, values[method], COLOURS[method])


def curve(axes: Axes, method: str, x: Sequence[float], y: Sequence[float], *, dashed: bool = False) -> None:
    """Draw a method's curve: CTLD's broad and below, so that one that lies on it can be seen."""
    style: dict[str, Any] = {"ls": DASHES} if dashed else {}
    axes.plot(x, y, color=COLOURS[method], lw=_width(method), zorder=2 if method == "ctld" else 3, **style)


def _width(method: str) -> float:
    return 2.4 if method == "ctld" else 1.4


def interval(axes: Axes, x: float, row: Mapping[str, Any], tint: str, marker: str = "o") -> Any:
    """Draw a mean with its 95 % interval."""
    axes.plot([x, x], [row["low"], row["high"]], color=tint, lw=1.3, zorder=3)
    return axes.plot([x], [row["mean"]], marker=marker, ls="", ms=5.5, zorder=4, color=tint)[0]


def lying(axes: Axes, methods: Sequence[str], ours: Mapping[str, Any], theirs: Mapping[str, Value]) -> None:
    """Draw one line a method, names on the left: (low, mean, high) of ours, and the paper's value."""
    for place, method in enumerate(reversed(methods)):
        if method in ours:
            low, mean, high = ours[method]
            axes.plot([low, high], [place, place], color=COLOURS[method], lw=1.5, alpha=0.5, zorder=3)
            axes.plot([mean], [place], "o", color=COLOURS[method], ms=7, zorder=4)
        axes.plot([theirs[method]], [place], mec=COLOURS[method], **HOLLOW)
    axes.set_yticks(range(len(methods)), [TITLES[method] for method in reversed(methods)])
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.grid(axis="x", color="#e4e4e4", lw=0.6)
    axes.set_axisbelow(True)


def plain_log(axis: Any, ticks: Sequence[float]) -> None:
    """Label a logarithmic axis at these places with plain numbers, whose digits are not small."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}" if x >= 1e-3 else f"{x:.0e}".replace("e-0", "e−")))


def heat(axes: Axes, values: np.ndarray[Any, Any], columns: Sequence[float], rows: Sequence[float]) -> None:
    """Draw a map with its numbers in it, darker where they are higher."""
    axes.imshow(values, cmap="Blues", aspect="auto", origin="lower")
    middle = 0.5 * (np.nanmin(values) + np.nanmax(values))
    for (row, column), value in np.ndenumerate(values):
        tint = "white" if value > middle else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=tint)
    axes.set_xticks(range(len(columns)), [f"{column:g}" for column in columns])
    axes.set_yticks(range(len(rows)), [f"{row:g}" for row in rows])
    axes.tick_params(length=0)
