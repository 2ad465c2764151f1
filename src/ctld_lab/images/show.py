"""Tables and the figure of the study of images, from its stored runs and the pictures."""

import io
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from ctld_lab.files import MissingRecord, read_json, write_bytes
from ctld_lab.images import gaussians, pictures
from ctld_lab.images.methods import LEVELS, LRS, METHODS
from ctld_lab.report.plots import STYLE
from ctld_lab.report.statistics import estimate, holm
from ctld_lab.traps.study import cell_path

MARGIN = 0.25
"""dB: differences that lie within are of no consequence."""
PAIRS = (
    ("ctld-falling", "adam"),
    ("ctld-falling", "ctld-zero"),
    ("ctld-falling", "relocation"),
    ("ctld-falling", "ctld-constant"),
    ("noisy-adam", "adam"),
    ("noisy-adam", "relocation"),
    ("relocation", "adam"),
)
SHOWN = ("adam", "ctld-falling", "relocation")

Results = dict[int, dict[str, dict[str, Any]]]
"""Cells by number of Gaussians and method; complete numbers alone."""


def load(directory: Path) -> Results:
    """Returns what is complete."""
    results: Results = {}
    for count in sorted(int(path.name[1:]) for path in directory.glob("k*") if path.name[1:].isdigit()):
        try:
            cells = {method: read_json(cell_path(directory, f"k{count}", method)) for method in METHODS}
        except MissingRecord:
            continue
        if all("final" in cell for cell in cells.values()):
            results[count] = cells
    return results


def decibels(cell: Mapping[str, Any]) -> dict[str, float]:
    """Returns the mean over starts, by picture."""
    return {name: statistics.fmean(values) for name, values in cell["final"]["db"].items()}


def compare(results: Results) -> pd.DataFrame:
    """Returns paired differences over pictures with Student's intervals, p corrected over the whole table."""
    rows = []
    for count, cells in results.items():
        for one, other in PAIRS:
            mine, others = decibels(cells[one]), decibels(cells[other])
            found = estimate([mine[name] - others[name] for name in mine])
            rows.append([count, one, other, found.mean, *found.ends, found.probability])
    frame = pd.DataFrame(rows, columns=["count", "method", "against", "difference", "low", "high", "p"])
    corrected = holm({str(place): p for place, p in enumerate(frame["p"].tolist())})
    frame["corrected_p"] = [corrected[str(place)] for place in range(len(frame))]
    frame["verdict"] = [_verdict(row) for row in frame.to_dict("records")]
    return frame


def _verdict(row: Mapping[Any, Any]) -> str:
    if row["corrected_p"] < 0.05:
        return "ahead" if row["difference"] > 0 else "behind"
    return "tie" if row["low"] > -MARGIN and row["high"] < MARGIN else "undecided"


# ---- as text ----


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join([f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows)])


def texts(results: Results) -> dict[str, str]:
    """Returns the tables of docs/images.md by name."""
    found, names = [], list(next(iter(next(iter(results.values())).values()))["final"]["db"])
    for count, cells in results.items():
        for method, cell in cells.items():
            mine = decibels(cell)
            best = {name: max(decibels(other)[name] for other in cells.values()) for name in mine}
            entries = [f"**{mine[name]:.2f}**" if mine[name] == best[name] else f"{mine[name]:.2f}" for name in names]
            found.append([str(count), METHODS[method].title, *entries, f"{statistics.fmean(mine.values()):.2f}"])
    compared = [
        [
            *(str(row["count"]), METHODS[row["method"]].title, METHODS[row["against"]].title),
            *(f"{row['difference']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})", f"{row['corrected_p']:.2g}"),
            row["verdict"],
        ]
        for row in compare(results).to_dict("records")
    ]
    chosen = [
        [str(count), METHODS[method].title, _chosen(cell["tuning"]["chosen"])]
        for count, cells in results.items()
        for method, cell in cells.items()
    ]
    return {
        "psnr": _markdown(["k", "method", *names, "mean"], found),
        "compared": _markdown(["k", "method", "against", "dB (95 %)", "p", "verdict"], compared),
        "chosen": _markdown(["k", "method", "chosen"], chosen),
    }


def _chosen(chosen: Mapping[str, Any]) -> str:
    point = chosen["setting"]
    more = f", T {point['temperature']:.2g}" if point["temperature"] else ""
    more += f", {point['moved']:.0%} moved" if point["moved"] else ""
    finer = not more
    place, places = (
        (chosen["rate"] * LEVELS + chosen["level"], LEVELS * len(LRS)) if finer else (chosen["level"], LEVELS)
    )
    edge = place in (0, places - 1) or (not finer and chosen["rate"] in (0, len(LRS) - 1))
    return f"lr {point['lr']:.2g}{more}" + ("\\*" if edge else "")


# ---- as a picture ----


def figure(cells: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Returns a PNG: each picture, what three methods make of it from the first start, and their errors."""
    names = list(cells[SHOWN[0]]["final"]["theta"])
    with matplotlib.rc_context(STYLE):
        sheet = Figure(figsize=(8.4, 1.36 * len(names)), layout="constrained")
        axes = sheet.subplots(len(names), 7, squeeze=False)
        for row, name in zip(axes, names, strict=True):
            target, deviation = gaussians.normalised(pictures.load(name))
            _image(row[0], pictures.load(name).T.numpy(), name)
            for place, method in enumerate(SHOWN):
                theta = np.array(cells[method]["final"]["theta"][name], dtype=np.float32)
                error = deviation * (gaussians.draw(torch.from_numpy(theta)) - target).T.numpy()
                seen = -10.0 * np.log10(np.mean(error**2))
                _image(row[1 + place], pictures.load(name).T.numpy() + error, f"{seen:.1f} dB")
                _image(row[4 + place], 4.0 * np.abs(error).mean(axis=1), "", cmap="inferno")
        titles = ["", *(METHODS[method].title.split(", then")[0] for method in SHOWN)]
        for place, title in enumerate([*titles, *(f"error × 4:\n{title}" for title in titles[1:])]):
            axes[0, place].set_title(title.replace(", ", ",\n"), loc="center", fontsize=7)
        made = io.BytesIO()
        sheet.savefig(made, format="png", dpi=150)
    return made.getvalue()


def _image(axes: Any, values: Any, label: str, **options: Any) -> None:
    axes.imshow(np.clip(values, 0, 1).reshape(pictures.SIDE, pictures.SIDE, -1), vmin=0, vmax=1, **options)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlabel(label, labelpad=2)


def write(directory: Path) -> dict[str, str]:
    """Writes tables and the figure beside the runs; returns the tables as text."""
    results = load(directory)
    if not results:
        raise ValueError(f"no number of Gaussians is complete in {directory}; run all methods first")
    frame = compare(results)
    write_bytes(directory / "compared.csv", frame.to_csv(index=False, float_format="%.5g").encode())
    write_bytes(directory / "pictures.png", figure(results[max(results)]))
    return texts(results)
