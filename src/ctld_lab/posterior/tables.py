"""Tables of docs/posterior.md, from the stored cells alone; what is not there is named as missing."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from ctld_lab.data.uci import DATA
from ctld_lab.files import RecordError, read_json, write_bytes
from ctld_lab.posterior.agreement import floor
from ctld_lab.posterior.problems import PROBLEMS
from ctld_lab.posterior.reference import read
from ctld_lab.posterior.regression import METHODS
from ctld_lab.posterior.samplers import SAMPLERS
from ctld_lab.report.markdown import table

Cells = dict[str, dict[str, dict[str, Any]]]
"""Problem or data set → sampler or method → what is stored of it."""
LONG_TIE = 0.05  # nats a row
TITLES = {"sgd": "SGD-M", "ensemble": "`ctld.Ensemble`"} | {name: one.title for name, one in SAMPLERS.items()}


def cells(folder: Path) -> Cells:
    """Returns what is stored in a folder, where the final runs are done."""
    found: Cells = {}
    for path in sorted(folder.glob("*/*.json")):
        cell = read_json(path)
        if "final" in cell:
            found.setdefault(path.parent.name, {})[path.stem] = cell
    return found


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of a few numbers and its standard error."""
    if len(values) < 2 or not np.isfinite(values).all():
        return float(np.mean(values)), math.nan
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def _missing(have: Mapping[str, Any], want: Sequence[str]) -> str:
    absent = [TITLES[name] for name in want if name not in have]
    return f"\n\nPartial: not run yet are {', '.join(absent)}." if absent else ""


def _values(cell: dict[str, Any], name: str) -> list[float]:
    return [float(row[name]) for row in cell["final"] if row.get(name) is not None]


def agreement_text(name: str, found: Mapping[str, dict[str, Any]], references: Path) -> str:
    """Returns the table of one problem, nearest first."""
    problem = PROBLEMS[name]()
    reference, about = read(references, problem)
    rows = []
    for sampler, cell in sorted(found.items(), key=lambda item: np.mean(_values(item[1], "w2"))):
        w2, error = mean_and_error(_values(cell, "w2"))
        shown = "none: too few cold draws in a chain" if math.isinf(w2) else f"{w2:.3f} ± {error:.3f}"
        variation = f"{np.mean(_values(cell, 'total_variation')):.3f}"
        extra = _values(cell, "agreement") if problem.noise is None else _values(cell, "right")
        kept = [f"{value:.2f}" for value in extra]
        more = f"{np.mean(extra):.3f}" if extra and problem.noise is None else " ".join(kept)
        trips = [f"{row[key]}" for row in cell["final"] for key in ("half_trips", "swaps") if row.get(key) is not None]
        draws = f"{np.mean(_values(cell, 'draws')):.0f}"
        tempered = "yes" if SAMPLERS[sampler].tempered else "no"
        columns = [SAMPLERS[sampler].title, tempered, f"{cell['rate']:g}", shown, variation]
        rows.append([*columns, *([more] if problem.noise is None or problem.mirrored else []), draws, " ".join(trips)])
    for number in (100, 1000):
        best = floor(problem, reference, number)
        empty = [""] if problem.noise is None or problem.mirrored else []
        scale = ["", "", f"{best.w2:.3f}", f"{best.total_variation:.3f}"]
        rows.append([f"{number} independent draws", *scale, *empty, f"{number}", ""])
    third = ["agreement"] if problem.noise is None else ["right hat, in each chain"] if problem.mirrored else []
    head = ["sampler", "tempered", "rate", "W2", "total variation", *third, "cold draws", "half-trips or swaps"]
    said = (
        f"\n\nReference: {about['chains']} × {about['draws']:,} draws, R-hat at most {about['worst_r_hat']:.4f}, effective "
        f"sizes from {about['least_ess_bulk']:,.0f} up, {about['gradients']:,.0f} gradients, {100 * about['divergent']:.2g} % "
        f"divergent; commit {about['environment']['commit'][:7]}, seed {about['seed']}."
    )
    return table(head, rows) + said + _missing(found, list(SAMPLERS))


def regression_text(name: str, found: Mapping[str, dict[str, Any]], published: Path) -> str:
    """Returns the table of one data set: log-likelihood, paired difference to SGD-M, and RMSE."""
    base = np.array(_values(found["sgd"], "log_likelihood")) if "sgd" in found else None
    others = [method for method in METHODS if method in found and method != "sgd"]
    pairs = {method: np.array(_values(found[method], "log_likelihood")) - base for method in others if base is not None}
    chances = {method: float(stats.ttest_1samp(pair, 0.0).pvalue) for method, pair in pairs.items()}
    corrected = dict(zip(chances, holm(list(chances.values()), len(METHODS) - 1), strict=True))
    rows = []
    for method in [method for method in METHODS if method in found]:
        likelihood, error = mean_and_error(_values(found[method], "log_likelihood"))
        rmse, rmse_error = mean_and_error(_values(found[method], "rmse"))
        compared = ["", ""]
        if method in pairs:
            mean, deviation = mean_and_error(pairs[method].tolist())
            half = float(stats.t.ppf(0.975, len(pairs[method]) - 1)) * deviation
            verdict = ("ahead" if mean > 0 else "behind") if corrected[method] < 0.05 else "not told apart"
            compared = [f"{mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f})", verdict]
        shown = [f"{likelihood:.3f} ± {error:.3f}", *compared, f"{rmse:.3f} ± {rmse_error:.3f}"]
        if without := [row["draws"] for row in found[method]["final"]].count(0):
            shown = [f"none: no cold draw in {without} of {len(found[method]['final'])} splits", "", "", ""]
        rows.append([TITLES[method], *shown])
    with published.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["data"] == name:
                rows.append([f"{row['method']} ({row['source']})", row["log_likelihood"], "", "", row["rmse"]])
    head = ["method", "test log-likelihood ± standard error", "less that of SGD-M (95 %)", "", "RMSE ± standard error"]
    return table(head, rows) + _missing(found, METHODS)


def long_text(found: Mapping[str, dict[str, Any]]) -> str:
    """Returns the table of part 3: calibrated tempering beside the same sampler without it, where there are many gradients."""
    rows = []
    for method, cell in found.items():
        likelihood, rmse = (mean_and_error(_values(cell, of)) for of in ("log_likelihood", "rmse"))
        trips, promised = (sorted(_values(cell, of)) for of in ("half_trips", "promised_half_trips"))
        travels = ["", "", ""]
        if trips:
            made = f"{np.median(trips):.0f} ({trips[0]:.0f} to {trips[-1]:.0f})"
            travels = [made, f"{np.median(promised):.0f}", f"{sum(_values(cell, 'warned')):.0f} of {len(trips)}"]
        draws = f"{np.mean(_values(cell, 'draws')):.0f}"
        shown = [f"{mean:.3f} ± {error:.3f}" for mean, error in (likelihood, rmse)]
        if without := [row["draws"] for row in cell["final"]].count(0):
            shown = [f"none: no cold draw in {without} of {len(cell['final'])} splits", ""]
        rows.append([TITLES[method], *shown, draws, *travels])
    head = ["sampler", "test log-likelihood ± standard error", "RMSE ± standard error", "cold draws"]
    text = table([*head, "half-trips, median (least to most)", "promised", "splits with a warning"], rows)
    if not {"baoab", "calibrated"} <= set(found):
        return text + "\n\nPartial."
    if not all(row["draws"] for method in ("baoab", "calibrated") for row in found[method]["final"]):
        return text + "\n\nNot compared: some splits have no draw."
    tempered, untempered = (_values(found[method], "log_likelihood") for method in ("calibrated", "baoab"))
    pairs = np.array(tempered) - np.array(untempered)
    mean, error = mean_and_error(pairs.tolist())
    half = float(stats.t.ppf(0.975, len(pairs) - 1)) * error
    tie = "a tie" if max(abs(mean - half), abs(mean + half)) < LONG_TIE else "undecided"
    verdict = ("ahead" if mean > 0 else "behind") if abs(mean) > half else tie
    gradients = found["calibrated"]["size"]["steps"]
    return text + (
        f"\n\nCalibrated less untempered, {gradients:,} gradients: {mean:+.3f} ({mean - half:+.3f} to {mean + half:+.3f}): "
        f"{verdict}."
    )


def holm(chances: Sequence[float], planned: int) -> list[float]:
    """Returns p-values corrected step by step for the number of comparisons that are planned, of which some may be missing."""
    order = np.argsort(chances)
    corrected, largest = [0.0] * len(chances), 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (planned - place) * chances[number]))
        corrected[number] = largest
    return corrected


def write(directory: Path, references: Path) -> dict[str, str]:
    """Writes DIRECTORY/tables.md, and returns the tables by name."""
    near, fits = cells(directory / "agreement"), cells(directory / "regression")
    texts = {name: agreement_text(name, near[name], references) for name in PROBLEMS if name in near}
    published = references.parent / "published.csv"
    if not published.is_file():
        raise RecordError(f"there is no {published}; it comes with the repository, in results/posterior")
    texts |= {name: regression_text(name, fits[name], published) for name in DATA if name in fits}
    texts |= {f"{name}-long": long_text(found) for name, found in cells(directory / "long" / "regression").items()}
    page = "\n\n".join(f"## {name}\n\n{text}" for name, text in texts.items())
    write_bytes(directory / "tables.md", (page + "\n").encode())
    return texts
