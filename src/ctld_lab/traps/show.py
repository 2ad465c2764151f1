"""Tables and figures of the study of traps, from its stored runs alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ctld_lab.files import write_bytes
from ctld_lab.traps import tables
from ctld_lab.traps.methods import LEVELS, METHODS, NOISY, ONE_PASS
from ctld_lab.traps.tables import Results

STYLES: dict[str, dict[str, Any]] = {
    "sgd": {"color": "0.65"},
    "restarts": {"color": "black"},
    "adam": {"color": "#8c564b", "linestyle": ":"},
    "constant": {"color": "#1f77b4"},
    "falling": {"color": "#ff7f0e"},
    "driven": {"color": "#2ca02c"},
    "paper": {"color": "#d62728"},
    "calibrated": {"color": "#9467bd"},
    "cycles-state-constant": {"color": "#1f77b4"},
    "cycles-state-falling": {"color": "#1f77b4", "linestyle": "--"},
    "cycles-best-constant": {"color": "#2ca02c"},
    "cycles-best-falling": {"color": "#2ca02c", "linestyle": "--"},
    "cycles-new-constant": {"color": "#d62728"},
    "cycles-new-falling": {"color": "#d62728", "linestyle": "--"},
}
SINGLE = ("sgd", "restarts", "adam", *ONE_PASS)
CYCLES = ("restarts", *(name for name in METHODS if name.startswith("cycles")))
FAMILIES = {"rbf": "RBF: centres", "relu": "Teacher-student: ReLUs"}


def _panels(results: Results, draw: Callable[[Axes, str], None], label: str) -> tuple[Figure, Any]:
    """One panel for each problem, the share solved upwards."""
    columns = min(4, len(results))
    rows = -(-len(results) // columns)
    figure = Figure(figsize=(3.1 * columns, 2.5 * rows + 1.1), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axis, problem in zip(axes.flat, results, strict=False):
        draw(axis, problem)
        axis.set(title=problem, xlabel=label, ylim=(-0.03, 1.03))
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(results) :]:
        axis.set_axis_off()
    for axis in axes[:, 0]:
        axis.set_ylabel("solved")
    return figure, axes


def _legend(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small", frameon=False)


def within(results: Results, methods: Sequence[str]) -> Figure:
    """Share solved within t gradients."""

    def draw(axis: Axes, problem: str) -> None:
        for method in methods:
            cell = results[problem][method]
            times = np.sort(cell.solved_at[cell.solved])
            heights = np.arange(len(times) + 2) / len(cell.solved_at)
            heights[-1] = heights[-2]
            axis.step([0, *times, cell.budget], heights, where="post", label=METHODS[method].title, **STYLES[method])

    figure, axes = _panels(results, draw, "gradients")
    _legend(figure, axes.flat[0])
    return figure


def against_temperature(results: Results, methods: Sequence[str]) -> Figure:
    """Share solved at each T of the scan, at the tuned lr and momentum; restarts as a line."""

    def draw(axis: Axes, problem: str) -> None:
        for method in methods:
            cell = results[problem][method]
            if cell.scan is None:
                axis.axhline(cell.success, label=METHODS[method].title, **STYLES[method])
                continue
            coldest = cell.chosen["setting"]["temperature"] / 10.0 ** (cell.chosen["level"] / 4.0)
            temperatures = coldest * 10.0 ** (np.arange(LEVELS) / 4.0)
            axis.plot(temperatures, cell.scan, marker=".", label=METHODS[method].title, **STYLES[method])
        axis.set_xscale("log")

    figure, axes = _panels(results, draw, "T/N, in units of the loss")
    _legend(figure, axes.flat[0])
    return figure


def against_size(results: Results) -> Figure | None:
    """Share solved against k, with 95 % intervals; methods stand beside each other."""
    frame = tables.success(results)
    families = {name: [p for p in results if p.startswith(name) and p[len(name) :].isdigit()] for name in FAMILIES}
    families = {
        name: sorted(found, key=lambda p: int(p.strip("rbfelu"))) for name, found in families.items() if len(found) > 1
    }
    if not families:
        return None
    groups = (SINGLE, CYCLES)
    figure = Figure(figsize=(4.2 * len(families) + 2.2, 3.0 * len(groups)), layout="constrained")
    axes = figure.subplots(len(groups), len(families), squeeze=False, sharey=True)
    for row, methods in zip(axes, groups, strict=True):
        for axis, (family, problems) in zip(row, families.items(), strict=True):
            sizes = [int(problem[len(family) :]) for problem in problems]
            for place, method in enumerate(methods):
                beside = np.array(sizes) * 1.02 ** (place - len(methods) / 2)
                mine = frame[frame["method"] == method].set_index("problem").loc[problems]
                error = [mine["solved"] - mine["low"], mine["high"] - mine["solved"]]
                axis.errorbar(beside, mine["solved"], error, capsize=2, label=METHODS[method].title, **STYLES[method])
            axis.set_xscale("log")
            axis.set(xlabel=FAMILIES[family], ylim=(-0.03, 1.03))
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
        row[0].set_ylabel("solved")
        row[-1].legend(fontsize="x-small", frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def write(directory: Path, problems: Sequence[str]) -> Results:
    """Writes tables and figures beside the runs; returns what is complete."""
    results, missing = tables.load(directory, problems)
    if not results:
        raise ValueError(f"no problem is complete in {directory} (missing: {', '.join(missing)}); run the study first")
    frames = {
        "success": tables.success(results),
        "against-restarts": tables.compare(results, NOISY, "restarts"),
        "against-constant": tables.compare(results, ONE_PASS[1:], "constant"),
        "ranges": tables.ranges(results),
    }
    figures = {
        "within": within(results, SINGLE),
        "within-cycles": within(results, CYCLES),
        "temperature": against_temperature(results, ("restarts", *ONE_PASS)),
    }
    if (by_size := against_size(results)) is not None:
        figures["size"] = by_size
    for folder in ("tables", "figures"):
        (directory / folder).mkdir(exist_ok=True)
    for name, frame in frames.items():
        write_bytes(directory / "tables" / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g").encode())
    for name, figure in figures.items():
        figure.savefig(directory / "figures" / f"{name}.png", dpi=110, metadata={"Software": None})
    return results
