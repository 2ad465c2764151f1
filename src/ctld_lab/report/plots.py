"""How figures look, and how they reach the disk and the page. No pyplot, which would choose a backend for the process.

A plot has panels. On disk it is one figure, side by side, as PNG and PDF. On the page each panel is an SVG of its own,
so that a narrow screen puts them below each other at a size that can be read, and the legend is text.
"""

import base64
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

# Okabe and Ito, which the colour-blind tell apart. Their yellow is too light for lines on white.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
COLOURS = {
    "sgd": BLACK,
    "ctld": BLUE,
    "rmsprop": GREEN,
    "adam": ORANGE,
    "anneal_sgd": PURPLE,
    "santa": VERMILION,
    "adadelta": SKY,
}
OTHERS = (SKY, GREEN, PURPLE, VERMILION, ORANGE, BLUE, BLACK)  # with dashes, for methods that the paper does not have

STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "ctld",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "text.parse_math": False,  # a dollar sign in a record is no formula
}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PANEL = (3.3, 2.5)  # inches: one column of a paper, and a telephone


@dataclass(frozen=True)
class Key:
    """A line of the legend."""

    label: str
    colour: str
    dashes: tuple[float, ...] = ()
    marker: str = ""
    line: bool = True

    def style(self) -> dict[str, Any]:
        return {
            "color": self.colour,
            "linestyle": (0, self.dashes) if self.dashes else "-" if self.line else "none",
            "marker": self.marker or None,
            "markersize": 4,
            "markerfacecolor": "white" if self.marker == "D" else self.colour,
        }

    @property
    def stroke(self) -> str:
        """Dashes of a line two pixels wide on the page."""
        return " ".join(f"{2 * length:g}" for length in self.dashes)


@dataclass(frozen=True)
class Panel:
    """`draw` draws into axes that have the title already."""

    title: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True)
class Plot:
    name: str
    caption: str
    panels: Sequence[Panel]
    keys: Sequence[Key] = ()
    columns: int = 3
    size: tuple[float, float] = PANEL


@dataclass(frozen=True)
class Rendered:
    """A plot as files and as images for the page."""

    plot: Plot
    png: bytes
    pdf: bytes
    images: list[tuple[str, str]] = field(default_factory=list)
    """Title and data URI of each panel."""


def method_key(method: str, title: str, methods: Sequence[str]) -> Key:
    """The same colour for a method in every figure; others by their place among those that have none of their own."""
    if method in COLOURS:
        return Key(title, COLOURS[method])
    others = [name for name in methods if name not in COLOURS]
    place = others.index(method) if method in others else len(others)
    return Key(title, OTHERS[place % len(OTHERS)], dashes=((4.0, 1.5), (1.5, 1.0))[place // len(OTHERS) % 2])


def render(plot: Plot) -> Rendered:
    with matplotlib.rc_context(STYLE):
        images = []
        for place, panel in enumerate(plot.panels):
            figure = Figure(figsize=plot.size, layout="constrained")
            _draw(figure.add_subplot(), panel, place, len(plot.panels))
            _arrange(figure)
            content = _saved(figure, "svg", metadata={"Date": None})
            images.append((panel.title, "data:image/svg+xml;base64," + base64.b64encode(content).decode()))
        whole = _compose(plot)
        _arrange(whole)
        return Rendered(
            plot, _saved(whole, "png", dpi=200), _saved(whole, "pdf", metadata={"CreationDate": None}), images
        )


def _compose(plot: Plot) -> Figure:
    columns = min(plot.columns, len(plot.panels))
    rows = -(-len(plot.panels) // columns)
    width, height = plot.size
    # A key takes half an inch and 0.07 more for each letter.
    longest = max((0.5 + 0.07 * len(key.label) for key in plot.keys), default=1.0)
    legend_columns = max(1, min(len(plot.keys), int(width * columns / longest)))
    legend_rows = -(-len(plot.keys) // legend_columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.2 * legend_rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, panel in enumerate(plot.panels):
        _draw(grid[place], panel, place, len(plot.panels))
    for axes in grid[len(plot.panels) :]:
        axes.set_axis_off()
    if plot.keys:
        handles = [Line2D([], [], label=key.label, **key.style()) for key in plot.keys]
        figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns)
    return figure


def _draw(axes: Axes, panel: Panel, place: int, count: int) -> None:
    lettered = 1 < count <= 26
    axes.set_title(f"{chr(ord('a') + place)}   {panel.title}" if lettered else panel.title)
    panel.draw(axes)


def _arrange(figure: Figure) -> None:
    """Lay the figure out once, not anew for every format, which would be half of all the time."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    figure.set_layout_engine("none")


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, **options)
    return file.getvalue()


# ---- pieces that several figures share ----


def plain_log(axes: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis with plain numbers; 1, 2, 5 within two decades, powers of ten beyond."""
    finite = np.array([value for value in values if np.isfinite(value) and value > 0])
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    decades = np.log10(finite.max() / finite.min()) if finite.size else 0.0
    if decades > 2.2:
        powers(axes, which)
    else:
        axis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if decades > 0.7 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
        )
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def powers(axes: Axes, which: str) -> None:
    """A logarithmic axis with 10⁻³, 10⁻², … as text: formulas are off, since a record may hold a dollar sign."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(numticks=5))
    axis.set_major_formatter(lambda value, _: _power(value))
    axis.set_minor_formatter(NullFormatter())


def _power(value: float) -> str:
    return "10" + str(round(math.log10(value))).translate(SUPERSCRIPT) if value > 0 else ""


def thousands(axes: Axes) -> None:
    """Steps along x: 2,000, or 20k where numbers are long."""
    longest = axes.get_xlim()[1]
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value / 1000:g}k" if longest >= 20_000 and value else f"{value:,.0f}"
    )


def no_data(axes: Axes, sentence: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, sentence, transform=axes.transAxes, ha="center", va="center", color="0.4")
