"""Tables and the figure of the study of photographs: packed from cells, judged, and summed up as findings.

Each number of Gaussians is one CSV file. A row is one fit: its method, stage, picture, start, point of the design, and PSNR.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from cells import read
from ctld_lab.statistics import estimate
from images import gaussians, pictures
from images.methods import LEVELS, LRS, METHODS, setting
from render import write
from verdicts import counted, judged

MARGIN = 0.25
"""dB: differences that lie within are of no consequence."""
PAIRS = (
    *(("ctld-falling", other) for other in ("adam", "ctld-zero", "relocation", "ctld-constant")),
    *(("noisy-adam", other) for other in ("adam", "relocation")),
    ("relocation", "adam"),
)
ADDED = (
    *(("low-falling", other) for other in ("low-zero", "adam")),
    *(("mass-falling", other) for other in ("mass-zero", "adam", "relocation")),
)
"""Comparisons that were planned when the others had been read; as those with 256 Gaussians, corrected by themselves."""
SHOWN = ("adam", "ctld-falling", "relocation")
"""Methods whose pictures are drawn."""
Results = dict[int, pd.DataFrame]
"""Fits by number of Gaussians."""


# ---- packing and reading ----


def pack(directory: Path, results: Path) -> None:
    """Write the CSV of each number of Gaussians, what made it, and the picture of the largest."""
    runs, stamps = [], []
    for count in sorted(int(path.name[1:]) for path in directory.glob("k*")):
        cells = {method: read(directory, f"k{count}/{method}") for method in METHODS}
        cells = {method: cell for method, cell in cells.items() if cell.get("done")}
        rows = [row for method, cell in cells.items() for row in _rows(method, cell)]
        if not rows:
            continue
        write(results / f"k{count}.csv", pd.DataFrame(rows).to_csv(index=False))
        for method, cell in cells.items():
            stamps += [stamp for stamp in cell["environments"] if stamp not in stamps]
            places = " ".join(str(stamps.index(stamp)) for stamp in cell["environments"])
            size = {"budget": cell["size"]["budget"], "seeds": cell["size"]["seeds"]}
            runs.append(
                {"count": count, "method": method, **size, "seconds": cell.get("seconds"), "environments": places}
            )
        if all("theta" in cells.get(method, {}).get("final", {}) for method in SHOWN):
            shown = {method: cells[method]["final"]["theta"] for method in SHOWN}
            (results / "pictures.jpg").write_bytes(figure(shown))
    if not runs:
        return
    write(results / "runs.csv", pd.DataFrame(runs).to_csv(index=False))
    write(results / "environments.json", json.dumps(stamps, indent=0) + "\n")
    for name, frame in frames(load(results)).items():
        write(results / "tables" / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g"))


def _rows(method: str, cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = [
        {"method": method, "stage": "tuning", "picture": name, "start": 0, **_point(trial), "db": db}
        for trial in cell["tuning"]["trials"]
        for name, db in zip(cell["size"]["tuning"], trial["db"], strict=True)
    ]
    return rows + [
        {
            "method": method,
            "stage": "final",
            "picture": name,
            "start": start,
            **_point(cell["tuning"]["chosen"]),
            "db": db,
        }
        for name, values in cell["final"]["db"].items()
        for start, db in enumerate(values)
    ]


def _point(facts: Mapping[str, Any]) -> dict[str, int]:
    return {"rate": facts["rate"], "level": facts["level"]}


def load(results: Path) -> Results:
    """Return the stored fits."""
    counts = sorted(int(path.stem[1:]) for path in results.glob("k*.csv"))
    return {count: pd.read_csv(results / f"k{count}.csv") for count in counts}


# ---- judging ----


def psnr(results: Results) -> pd.DataFrame:
    """Return the mean over starts by number of Gaussians, method and picture, and the mean over pictures."""
    parts = []
    for count, fits in results.items():
        final = fits[fits["stage"] == "final"]
        frame = final.pivot_table(index="method", columns="picture", values="db", aggfunc="mean", sort=False)
        frame["mean"] = frame.mean(axis=1)
        parts.append(frame.reset_index().assign(k=count))
    made = pd.concat(parts, ignore_index=True)
    return made[["k", *made.columns.drop("k")]].rename_axis(columns=None)


def compare(results: Results) -> pd.DataFrame:
    """Judge each planned pair, paired over pictures."""
    rows = []
    for _, own in psnr(results).groupby("k"):
        values = own.set_index("method").drop(columns=["k", "mean"]).dropna(axis=1)
        for pair in (*PAIRS, *ADDED):
            if values.index.isin(pair).sum() == 2:
                found = estimate((values.loc[pair[0]] - values.loc[pair[1]]).tolist())
                row = {"k": own["k"].iloc[0], "method": pair[0], "against": pair[1], "difference": found.mean}
                family = "added" if pair in ADDED else "k = 256" if row["k"] == 256 else "first"
                rows.append(
                    row | {"low": found.ends[0], "high": found.ends[1], "p": found.probability, "family": family}
                )
    frame = pd.DataFrame(rows)
    return judged(frame, MARGIN, frame["family"])


def chosen(results: Results) -> pd.DataFrame:
    """Return the tuned point of each method, whether it lies at an end of what was tried, and its PSNR in tuning."""
    rows = []
    for count, fits in results.items():
        for method, own in fits.groupby("method", sort=False):
            final = own[own["stage"] == "final"].iloc[0]
            rate, level = int(final["rate"]), int(final["level"])
            point = setting(str(method), rate, level)
            ends = [(0, 0), (len(LRS) - 1, LEVELS - 1)]  # of the learning rate, where it is all that there is
            edge = (rate, level) in ends
            if point.temperature or point.moved:
                edge = rate in (0, len(LRS) - 1) or level in (0, LEVELS - 1)
            tuning = own[own["stage"] == "tuning"].groupby(["rate", "level"])["db"].mean()
            row = {"k": count, "method": method, "lr": point.lr, "temperature": point.temperature, "moved": point.moved}
            rows.append(row | {"at_edge": edge, "tuning_db": tuning.max()})
    return pd.DataFrame(rows)


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """Return the published tables by name."""
    return {"psnr": psnr(results), "compared": compare(results), "chosen": chosen(results)}


# ---- findings ----


def findings(directory: Path) -> dict[str, Any]:
    """Return one finding for each pair of methods, and the mean PSNR of each method."""
    results = load(directory)
    compared, rows = compare(results), []
    for (one, other), own in compared.groupby(["method", "against"], sort=False):
        numbers = ", ".join(f"{difference:+.2f}" for difference in own["difference"]).replace("-", "−") + " dB"
        title = f"{METHODS[one].title} against {METHODS[other].title}"
        rows.append({"id": f"{one}-{other}", "problem": title, "verdict": counted(own["verdict"]), "numbers": numbers})
    means = psnr(results).pivot_table(index="method", columns="k", values="mean", sort=False)
    body = [
        [METHODS[method].title, *("–" if np.isnan(db) else f"{db:.2f}" for db in row)]
        for method, row in zip(means.index, means.to_numpy(), strict=True)
    ]
    table = {"head": ["method", *(f"k = {count}" for count in means.columns)], "rows": body}
    return {"study": "images", "title": "Photographs fitted by Gaussians", "findings": rows, "tables": {"psnr": table}}


# ---- the figure ----


def figure(shown: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return a JPEG: each picture, what the shown methods make of it from the first start, and their errors."""
    names = [*next(iter(shown.values()))]
    titles = [METHODS[method].title.replace(", ", ",\n", 1) for method in shown]
    with rc_context({"font.size": 8}):
        sheet = Figure(figsize=(8.4, 1.42 * len(names)), layout="constrained")
        axes = sheet.subplots(len(names), 7, squeeze=False)
        for row, name in zip(axes, names, strict=True):
            original = pictures.load(name)
            target, deviation = gaussians.normalised(original)
            _image(row[0], original, name)
            for place, theta in enumerate(shown.values()):
                error = deviation * (gaussians.draw(torch.tensor(theta[name]).nan_to_num()) - target)
                _image(row[1 + place], original + error, f"{-10 * np.log10(error.square().mean().item()):.1f} dB")
                _image(row[4 + place], 4 * error.abs().mean(dim=0, keepdim=True), "", cmap="inferno")
        for axis, title in zip(
            axes[0], ["original", *titles, *("4 × error:\n" + each for each in titles)], strict=True
        ):
            axis.set_title(title.split(", then")[0], fontsize=7)
        made = io.BytesIO()
        sheet.savefig(made, format="jpg", dpi=100, pil_kwargs={"quality": 80})
    return made.getvalue()


def _image(axes: Any, values: torch.Tensor, label: str, **options: Any) -> None:
    pixels = values.clamp(0, 1).T.reshape(pictures.SIDE, pictures.SIDE, -1).numpy()
    axes.imshow(pixels, vmin=0, vmax=1, interpolation="nearest", **options)
    axes.spines[:].set_visible(False)
    axes.set(xticks=[], yticks=[], xlabel=label)
