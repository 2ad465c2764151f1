"""What a run of the demo records, and the figure that is drawn from it: learning curves, temperature, α."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ctld import TemperatureScaling
from ctld.diagnostics import occupancy, share_outside

SCALING = TemperatureScaling()  # g(α) as CTLD has it unless told otherwise
HIGHEST_RATIO = 1.0 / SCALING.value(SCALING.edge)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table. Without a temperature it is `torch.optim.SGD`."""

    name: str
    temperature: float | Literal["auto"] | None
    colour: str


METHODS = (  # colours of Okabe and Ito, which the colour-blind tell apart
    Method("SGD-M", None, "#000000"),
    Method("CTLD, T auto", "auto", "#0072B2"),
    Method("CTLD, T = 1", 1.0, "#D55E00"),
)


@dataclass(slots=True)
class Run:
    """What one method did: losses by epoch, from before the first; tempering by step of the exploration."""

    method: str
    temperature: float | None
    epoch: list[int] = field(default_factory=list)
    train_nll: list[float] = field(default_factory=list)
    train_error_percent: list[float] = field(default_factory=list)
    test_nll: list[float] = field(default_factory=list)
    test_error_percent: list[float] = field(default_factory=list)
    alpha: list[float] = field(default_factory=list)
    temperature_ratio: list[float] = field(default_factory=list)
    share_of_steps: dict[str, float] | None = None
    seconds_per_exploring_epoch: float | None = None
    seconds_per_fine_tuning_epoch: float | None = None


def build_figure(runs: Sequence[Run], *, exploration_epochs: int) -> Figure:
    """Learning curves of all methods; temperature and α of the run at the automatic temperature."""
    tempered, colour = next((run, m.colour) for run, m in zip(runs, METHODS, strict=True) if m.temperature == "auto")
    style: dict[Any, Any] = {
        "font.size": 8,
        "axes.titlesize": 8,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(style):
        # No pyplot, which would choose a backend for the whole process.
        figure = Figure(figsize=(7.0, 4.8), layout="constrained")
        (train_axes, test_axes), (ratio_axes, alpha_axes) = figure.subplots(2, 2)
        _draw_curves(train_axes, runs, "train_nll", exploration_epochs)
        _draw_curves(test_axes, runs, "test_nll", exploration_epochs)
        _draw_ratio(ratio_axes, tempered, colour)
        _draw_alpha(alpha_axes, tempered, colour)
        train_axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.92))
        train_axes.set_title("a   Training")
        test_axes.set_title("b   Test")
        ratio_axes.set_title(f"c   Temperature while exploring ({tempered.method})")
        alpha_axes.set_title(f"d   Distribution of α ({tempered.method})")
    return figure


def _draw_curves(axes: Axes, runs: Sequence[Run], series: str, switch: int) -> None:
    for layer, (run, method) in enumerate(zip(runs, METHODS, strict=True)):
        # SGD-M on top and thin: the curves to compare lie on each other.
        axes.plot(
            run.epoch,
            getattr(run, series),
            color=method.colour,
            label=run.method,
            linewidth=1.5 if layer else 0.8,
            zorder=3 - 0.1 * layer,
        )
    last = runs[0].epoch[-1]
    axes.set(xlabel="epoch", ylabel="mean NLL (nats)", yscale="log", xlim=(0, last))
    axes.margins(y=0.1)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axvspan(0, switch, color="0.93", linewidth=0)
    axes.axvline(switch, color="0.4", linewidth=0.8, linestyle="--")
    for middle, phase in ((switch / 2, "exploration"), ((switch + last) / 2, "fine-tuning")):
        axes.text(middle, 0.98, phase, transform=axes.get_xaxis_transform(), ha="center", va="top", color="0.3")


def _draw_ratio(axes: Axes, run: Run, colour: str) -> None:
    steps = len(run.temperature_ratio)
    axes.plot(range(1, steps + 1), run.temperature_ratio, color=colour, linewidth=0.8)
    axes.axhline(HIGHEST_RATIO, color="0.4", linewidth=0.8, linestyle=":")
    axes.text(steps, HIGHEST_RATIO + 0.1, f"highest, {HIGHEST_RATIO:.2f}", ha="right", va="bottom", color="0.3")
    axes.set(
        xlabel="exploration step", ylabel="temperature ratio 1/g(α)", xlim=(0, steps), ylim=(0.5, HIGHEST_RATIO + 0.9)
    )
    axes.set_yticks(range(1, 7))


def _draw_alpha(axes: Axes, run: Run, colour: str) -> None:
    plateau, edge, num_bins = SCALING.plateau, SCALING.edge, 30
    uniform = 1.0 / (2.0 * edge)
    density = occupancy(run.alpha, edge=edge, num_bins=num_bins) * num_bins * uniform
    top = 1.35 * max(density.max(), uniform)
    axes.axvspan(-plateau, plateau, color="0.93", linewidth=0)
    axes.stairs(density, np.linspace(-edge, edge, num_bins + 1), fill=True, color=colour)
    axes.axhline(uniform, color="0.2", linewidth=1.0, linestyle="--")
    axes.text(0.97 * edge, uniform + 0.02 * top, "uniform", ha="right", va="bottom", color="0.3")
    axes.text(0, 0.98 * top, "plateau ±δ,\n1/g(α) = 1", ha="center", va="top", color="0.3")
    outside = 100.0 * share_outside(run.alpha, edge=edge)
    axes.text(0.97 * edge, 0.98 * top, f"beyond ±{edge:g}:\n{outside:.1f} %", ha="right", va="top", color="0.3")
    axes.set(xlabel="tempering variable α", ylabel="probability density", xlim=(-edge, edge), ylim=(0, top))
