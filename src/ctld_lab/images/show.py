"""Tables and the figure of the study of images, from its stored runs and the pictures."""

import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure

from ctld_lab.files import MissingRecord, read_json, write_bytes
from ctld_lab.images import gaussians, pictures
from ctld_lab.images.methods import EVERY_METHOD, LEVELS, LRS, METHODS, Method
from ctld_lab.images.methods import LATER as LATER_METHODS
from ctld_lab.report.markdown import table
from ctld_lab.report.plots import STYLE
from ctld_lab.report.statistics import Estimate, estimate, holm
from ctld_lab.traps.study import cell_path

MARGIN = 0.25
"""dB: differences that lie within are of no consequence."""
PAIRS = (
    *(("ctld-falling", other) for other in ("adam", "ctld-zero", "relocation", "ctld-constant")),
    *(("noisy-adam", other) for other in ("adam", "relocation")),
    ("relocation", "adam"),
)
LATER = (256,)
"""Numbers of Gaussians that were planned when the others had been read: their comparisons are corrected by themselves."""
ADDED = (
    *(("low-falling", other) for other in ("low-zero", "adam")),
    *(("mass-falling", other) for other in ("mass-zero", "adam", "relocation")),
)
"""Likewise, of methods."""
SHOWN = ("adam", "ctld-falling", "relocation")
Results = dict[int, dict[str, dict[str, Any]]]
"""Cells by number of Gaussians and method; complete numbers alone."""


def load(directory: Path, methods: Iterable[str] = METHODS) -> Results:
    """Returns what is complete of these methods."""
    results: Results = {}
    for count in sorted(int(path.name[1:]) for path in directory.glob("k*")):
        try:
            cells = {method: read_json(cell_path(directory, f"k{count}", method)) for method in methods}
        except MissingRecord:
            continue
        if all("final" in cell for cell in cells.values()):
            results[count] = cells
    return results


def decibels(cell: Mapping[str, Any]) -> dict[str, float]:
    """Returns the mean over starts, by picture."""
    return {name: statistics.fmean(values) for name, values in cell["final"]["db"].items()}


def compare(
    results: Results, pairs: Sequence[tuple[str, str]] = PAIRS
) -> dict[tuple[int, str, str], tuple[Estimate, float, str]]:
    """Returns each paired difference over pictures, its p corrected over all that were planned together, and the verdict."""
    found, places = {}, [(count, *pair) for count in results for pair in pairs]
    for count, one, other in places:
        mine, others = decibels(results[count][one]), decibels(results[count][other])
        found[count, one, other] = estimate([mine[name] - others[name] for name in mine])
    corrected: dict[tuple[int, str, str], float] = {}
    for later in (False, True):
        family = [place for place in places if (place[0] in LATER) == later]
        corrected |= holm({place: found[place].probability for place in family})
    return {place: (found[place], corrected[place], _verdict(found[place], corrected[place])) for place in places}


def _verdict(difference: Estimate, p: float) -> str:
    if p < 0.05:
        return "ahead" if difference.mean > 0 else "behind"
    return "tie" if difference.ends[0] > -MARGIN and difference.ends[1] < MARGIN else "undecided"


def texts(results: Results, added: Results | None = None) -> dict[str, str]:
    """Returns the tables of docs/images.md by name; `added` are the numbers that have the methods planned later, too."""
    made = _texts(results, METHODS, PAIRS)
    if added:
        shown = {count: {name: cells[name] for name in LATER_METHODS} for count, cells in added.items()}
        made |= {f"{name}-added": text for name, text in _texts(added, LATER_METHODS, ADDED, shown).items()}
    return made


def _texts(
    results: Results, methods: Mapping[str, Method], pairs: Sequence[tuple[str, str]], shown: Results | None = None
) -> dict[str, str]:
    found, chosen, names = [], [], list(decibels(next(iter(results.values()))["adam"]))
    for count, cells in (shown or results).items():
        best = {name: max(decibels(cell)[name] for cell in cells.values()) for name in names}
        for method, cell in cells.items():
            mine, head = decibels(cell), [str(count), methods[method].title]
            entries = [f"**{mine[name]:.2f}**" if mine[name] == best[name] else f"{mine[name]:.2f}" for name in names]
            found.append([*head, *entries, f"{statistics.fmean(mine.values()):.2f}"])
            tuned = max(statistics.fmean(trial["db"]) for trial in cell["tuning"]["trials"])
            chosen.append([*head, _chosen(cell["tuning"]["chosen"]), f"{tuned:.2f}"])
    compared = []
    for (count, *pair), (difference, p, verdict) in compare(results, pairs).items():
        interval = "{:+.2f} ({:+.2f} to {:+.2f})".format(difference.mean, *difference.ends)
        compared.append([str(count), *(EVERY_METHOD[name].title for name in pair), interval, f"{p:.2g}", verdict])
    return {
        "psnr": table(["k", "method", *names, "mean"], found),
        "compared": table(["k", "method", "against", "dB (95 %)", "p", "verdict"], compared),
        "chosen": table(["k", "method", "chosen", "dB in tuning"], chosen),
    }


def _chosen(chosen: Mapping[str, Any]) -> str:
    """Returns the point; with a star if it lies at an end of what was tried."""
    point, rate, level = chosen["setting"], chosen["rate"], chosen["level"]
    more = f", T {point['temperature']:.2g}" if point["temperature"] else ""
    more += f", {point['moved']:.0%} moved" if point["moved"] else ""
    ends = [(0, 0), (len(LRS) - 1, LEVELS - 1)]  # of the learning rate, where it is all that there is
    edge = rate in (0, len(LRS) - 1) or level in (0, LEVELS - 1) if more else (rate, level) in ends
    return f"lr {point['lr']:.2g}{more}" + ("\\*" if edge else "")


def figure(cells: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Returns a PNG: each picture, what three methods make of it from the first start, and their errors."""
    shown = cells[SHOWN[0]]["final"]["theta"]
    titles = ["original", *(METHODS[method].title.replace(", ", ",\n", 1) for method in SHOWN)]
    with matplotlib.rc_context(STYLE):
        sheet = Figure(figsize=(8.4, 1.42 * len(shown)), layout="constrained")
        axes = sheet.subplots(len(shown), 7, squeeze=False)
        for row, name in zip(axes, shown, strict=True):
            original = pictures.load(name)
            target, deviation = gaussians.normalised(original)
            _image(row[0], original, name)
            for place, method in enumerate(SHOWN):
                error = deviation * (gaussians.draw(torch.tensor(cells[method]["final"]["theta"][name])) - target)
                _image(row[1 + place], original + error, f"{-10 * np.log10(error.square().mean().item()):.1f} dB")
                _image(row[4 + place], 4 * error.abs().mean(dim=0, keepdim=True), "", cmap="inferno")
        for place, title in enumerate(
            [*titles, *("4 × error:\n" + title.split(", then")[0].replace("\n", " ") for title in titles[1:])]
        ):
            axes[0, place].set_title(title, loc="center", fontsize=7)
        made = io.BytesIO()
        sheet.savefig(made, format="png", dpi=110)
    return made.getvalue()


def _image(axes: Any, values: torch.Tensor, label: str, **options: Any) -> None:
    pixels = values.clamp(0, 1).T.reshape(pictures.SIDE, pictures.SIDE, -1).numpy()
    axes.imshow(pixels, vmin=0, vmax=1, interpolation="nearest", **options)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], xlabel=label)


def write(directory: Path) -> dict[str, str]:
    """Writes the figure beside the runs; returns the tables as text."""
    results = load(directory)
    if not results:
        raise MissingRecord(f"no number of Gaussians is complete in {directory}; run all methods first")
    write_bytes(directory / "pictures.png", figure(results[max(results)]))
    return texts(results, load(directory, EVERY_METHOD))
