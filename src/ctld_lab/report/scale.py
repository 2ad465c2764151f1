"""How far the experiment is from the paper's: notes that stand below results at a smaller scale."""

import math
from typing import Any

from ctld_lab.records import number
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.wording import show, show_setting

NEGLIGIBLE = 0.01  # of the number of data


def scale_notes(study: StudyRecord) -> list[str]:
    return [*_smaller(study), *_noise(study)]


def _smaller(study: StudyRecord) -> list[str]:
    """Steps beside the paper's, where both are recorded."""
    if study.description.get("scale") == "paper":
        return []
    stages: list[int] = next(
        (run.config["steps"] for run in study.finals if isinstance(run.config.get("steps"), list)), []
    )
    theirs = _paper(study).get("steps")
    beside = ""
    if stages and isinstance(theirs, int):
        beside = f" ({sum(stages):,} steps{' over all layers' if len(stages) > 1 else ''}; the paper takes {theirs:,})"
    return [f"At this scale the experiment is smaller than the paper's{beside}: compare orders, not values."]


def _noise(study: StudyRecord) -> list[str]:
    """CTLD's noise has variance ∝ T/N at a given learning rate: fewer data are more noise, unless T is automatic."""
    theirs = number(_paper(study).get("num_data"))
    temperatures, counts = set(), set()
    for run in study.finals:
        temperature = (run.config.get("optimizer") or {}).get("temperature")
        if run.method == "ctld" and isinstance(temperature, int | float):
            ours = number(run.result.get("num_data", run.config.get("num_data")))
            if ours > 0:
                temperatures.add(float(temperature))
                counts.add(ours)
    if not counts or not math.isfinite(theirs):
        return []
    ours = min(counts)
    if theirs < (1.0 + NEGLIGIBLE) * ours:
        return []
    given = f"T = {show_setting(temperatures.pop())}" if len(temperatures) == 1 else "a given T"
    return [
        f"The noise of CTLD has a variance in proportion to T/N. With N = {ours:,.0f} data instead of the paper's "
        f"{theirs:,.0f}, {given} injects {show(theirs / ours, 2)} times the noise variance of the paper's run at the same "
        "learning rate."
    ]


def _paper(study: StudyRecord) -> dict[str, Any]:
    return dict(study.description.get("paper") or {})
