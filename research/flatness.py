"""Flat minima: does the paper's explanation hold? `python research/render.py flatness` reads the stored measurements.

The final models are those of `sda`, `charrnn` and `ensemble` at laptop scale. How flatness is measured, and what was
found, is in flatness/README.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.statistics import association, paired_difference

RESULTS = Path(__file__).resolve().parents[1] / "results" / "laptop" / "tables"
SOURCES = {
    "autoencoder": ("sda", "tuned"),
    "char-LSTM": ("charrnn", "tuned"),
    "5,000 digits": ("ensemble", "digits5k"),
    "55,000 digits": ("ensemble", "digits60k"),
}
MEASURES = ("largest eigenvalue", "trace", "sharpness", "rise at 0.01", "rise at 0.03", "rise at 0.1")
QUALITIES = {"test loss": "the test loss", "gap": "the gap between test and training loss"}
BASE = "sgd"
Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""By method, measure and seed."""


def load(results: Path, study: str, variant: str) -> Values:
    """Return what was measured of the final models of a study."""
    rows = pd.read_csv(results / f"{study}.csv", keep_default_na=False, na_values={"value": [""]})
    rows = rows[(rows["at"] == "minimum") & (rows["variant"] == variant)]
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows.itertuples():
        found.setdefault(row.method, {}).setdefault(row.metric, {})[int(float(row.seed))] = row.value
    return found


def tempered(values: Values) -> list[str]:
    """Return CTLD; where a study calls it otherwise, all methods that move the temperature."""
    moving = [method for method, own in values.items() if set(own["tempered"].values()) == {1.0}]
    return ["ctld"] if "ctld" in values else moving


def findings(results: Path) -> dict[str, Any]:
    """Return whether CTLD is flatter than SGD-M, and whether flatter models are better."""
    sources = {title: load(results, *place) for title, place in SOURCES.items()}
    signs = {title: _signs(values) for title, values in sources.items()}
    counts = [sum(own.count(word) for own in signs.values()) for word in ("flatter", "sharper", "undecided")]
    shown = "; ".join(f"{own.count('flatter')} of {len(own)} {title}" for title, own in signs.items())
    verdict = "{} flatter, {} sharper, {} undecided".format(*counts)
    rows = [
        {
            "id": "flatter",
            "problem": "CTLD beside SGD-M, 48 readings",
            "verdict": verdict,
            "numbers": f"flatter: {shown}",
        }
    ]
    body = []
    for quality, title in QUALITIES.items():
        seen = {
            (measure, source): association([(own[measure], own[quality]) for own in values.values()])
            for measure in MEASURES
            for source, values in sources.items()
        }
        known = {place: each for place, each in seen.items() if each is not None}
        strong = {place: each.rho for place, each in known.items() if each.probability < 0.05}
        agree, against = (sum(sign * rho > 0 for rho in strong.values()) for sign in (1, -1))
        verdict = f"{agree} agree, {against} against, {len(seen) - agree - against} undecided"
        numbers = "; ".join(f"{measure}, {source}: {rho:+.2f}" for (measure, source), rho in strong.items())
        problem = f"Flatter models have the lower {title.removeprefix('the ')}, 24 correlations"
        rows.append(
            {"id": quality.replace(" ", "-"), "problem": problem, "verdict": verdict, "numbers": _minus(numbers)}
        )
        for measure in MEASURES:
            cells = [_minus(f"{known[measure, source].rho:+.2f}") for source in sources]
            marked = [
                f"**{x}**" if (measure, source) in strong else x for x, source in zip(cells, sources, strict=True)
            ]
            body.append([measure, quality, *marked])
    table = {"head": ["measure", "correlated with", *sources], "rows": body}
    return {"study": "flatness", "title": "Flat minima", "findings": rows, "tables": {"correlations": table}}


def _signs(values: Values) -> list[str]:
    """Return flatter, sharper or undecided for each tempered method and measure, by the paired difference from SGD-M."""
    found = []
    for method in tempered(values):
        for measure in MEASURES:
            low, high = paired_difference(values[method][measure], values[BASE][measure]).ends
            found.append("flatter" if high < 0 else "sharper" if low > 0 else "undecided")
    return found


def _minus(text: str) -> str:
    return text.replace("-0", "−0")
