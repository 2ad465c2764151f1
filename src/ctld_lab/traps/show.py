"""Tables and figures of the study of traps, from its stored runs alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ctld_lab.files import MissingRecord, write_bytes
from ctld_lab.report.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    LOG,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Key,
    Panel,
    Plot,
    Series,
    render,
)
from ctld_lab.traps import tables
from ctld_lab.traps.methods import LEVELS, METHODS, NOISY, ONE_PASS
from ctld_lab.traps.tables import Cell, Results

SINGLE = ("sgd", "restarts", "adam", *ONE_PASS)
CYCLES = ("restarts", *(name for name in METHODS if name.startswith("cycles")))
COLOURS = dict(zip(SINGLE, (GREY, BLACK, SKY, BLUE, ORANGE, GREEN, VERMILION, PURPLE), strict=True))
OF_CYCLES = {"state": BLUE, "best": GREEN, "new": VERMILION}
FAMILIES = {"rbf": "RBF: centres", "relu": "Teacher-student: ReLUs"}


def _key(name: str, marker: str = "") -> Key:
    """Of cycles the colour says what is kept, and dashes that T falls."""
    _, keep, kind = (*name.split("-"), "", "")[:3]
    return Key(
        METHODS[name].title,
        OF_CYCLES.get(keep, COLOURS.get(name, BLACK)),
        (4.0, 1.5) if kind == "falling" else (),
        marker,
    )


Draw = Callable[[str, dict[str, Cell]], Series]


def _plot(name: str, results: Results, methods: Sequence[str], xlabel: str, draw: Draw, x: str) -> Plot:
    """One panel for each problem, the share solved upwards."""
    panels = [
        Panel(problem, [draw(method, cells) for method in methods], xlabel, "solved", x=x, ylim=(-0.03, 1.03))
        for problem, cells in results.items()
    ]
    return Plot(name, "", panels, [_key(method) for method in methods], columns=4)


def _within(method: str, cells: dict[str, Cell]) -> Series:
    """Share solved within t gradients, as a staircase."""
    cell = cells[method]
    times = np.sort(cell.solved_at[cell.solved])
    heights = np.arange(len(times) + 1) / len(cell.solved_at)
    ends = [0, *times, cell.budget]
    return Series(_key(method), [float(x) for x in np.repeat(ends, 2)[1:-1]], np.repeat(heights, 2).tolist())


def _against_temperature(method: str, cells: dict[str, Cell]) -> Series:
    """Share solved at each T of the scan, at the tuned lr and momentum; restarts, which have none, as a line."""
    cell, tuned = cells[method], cells[method if cells[method].scan is not None else ONE_PASS[0]].chosen
    levels = tuned["setting"]["temperature"] * 10.0 ** ((np.arange(LEVELS) - tuned["level"]) / 4.0)
    if cell.scan is None:
        return Series(_key(method), levels.tolist(), [cell.success] * LEVELS)
    return Series(_key(method, "o"), levels.tolist(), cell.scan.tolist())


def _against_size(results: Results) -> list[Plot]:
    """Share solved against k, with 95 % intervals; methods stand beside each other."""
    frame, panels = tables.success(results), []
    for family, title in FAMILIES.items():
        sizes = sorted(int(p[len(family) :]) for p in results if p.startswith(family) and p[len(family) :].isdigit())
        for words, methods in (("one pass", SINGLE), ("cycles", CYCLES)) if len(sizes) > 1 else ():
            series = []
            for place, method in enumerate(methods):
                own = frame[frame["method"] == method].set_index("problem").loc[[f"{family}{size}" for size in sizes]]
                beside = [size * 1.02 ** (place - len(methods) / 2) for size in sizes]
                numbers = (own[name].tolist() for name in ("solved", "low", "high"))
                series.append(Series(_key(method, "o"), beside, *numbers))
            panels.append(Panel(words, series, title, "solved", x=LOG, ylim=(-0.03, 1.03)))
    keys = [_key(method) for method in dict.fromkeys((*SINGLE, *CYCLES))]
    return [Plot("size", "", panels, keys, columns=2, size=(4.6, 3.0))] if panels else []


def write(directory: Path, problems: Sequence[str]) -> Results:
    """Writes tables and figures beside the runs; returns what is complete."""
    results, missing = tables.load(directory, problems)
    if not results:
        raise MissingRecord(
            f"no problem is complete in {directory} (missing: {', '.join(missing)}); run the study first"
        )
    frames = {
        "success": tables.success(results),
        "against-restarts": tables.compare(results, NOISY, "restarts"),
        "against-constant": tables.compare(results, ONE_PASS[1:], "constant"),
        "ranges": tables.ranges(results),
    }
    scanned = {
        problem: cells for problem, cells in results.items() if all(cells[name].scan is not None for name in NOISY)
    }
    plots = [
        _plot("within", results, SINGLE, "gradients", _within, "linear"),
        _plot("within-cycles", results, CYCLES, "gradients", _within, "linear"),
        _plot("temperature", results, ("restarts", *ONE_PASS), "T/N, in units of the loss", _against_temperature, LOG),
        _plot("temperature-cycles", scanned, CYCLES, "T/N, in units of the loss", _against_temperature, LOG),
        *_against_size(results),
    ]
    for folder in ("tables", "figures"):
        (directory / folder).mkdir(exist_ok=True)
    for name, frame in frames.items():
        write_bytes(directory / "tables" / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g").encode())
    for plot in plots:
        write_bytes(directory / "figures" / f"{plot.name}.png", render(plot)[0])
    return results
