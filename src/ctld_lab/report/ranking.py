"""Who is best, how the others stand to it, whether that is the paper's order, and what is smaller here."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Prose
from ctld_lab.report.statistics import BEST, HIGHER, LOWER, TIE, UNDECIDED, UNKNOWN
from ctld_lab.report.tables import Row, difference, said
from ctld_lab.report.wording import show_setting

NEGLIGIBLE = 0.01  # of the number of data


def verdict(rows: Sequence[Row], metric: str, *, name: str, unit: str = "", brief: bool = False) -> str:
    """Of rows that compete; `name` is the metric in words. Brief: without what is the same for every metric."""
    finished = [row for row in rows if row.estimate(metric).count and not row.diverged]
    best = next((row for row in finished if row.marks.get(metric) == BEST), None)
    tempered = next((row for row in finished if row.method == "ctld"), None)
    behind = difference(tempered, best, metric) if best and tempered and tempered.marks.get(metric) == "" else None

    def titles(mark: str) -> list[str]:
        return [row.title for row in finished if row.marks.get(metric) == mark]

    return Prose("common")(
        "verdict", best=best, metric=metric, name=name, unit=f" {unit}" if unit else "", brief=brief, finished=finished,
        lowest=min(finished, key=lambda row: row.estimate(metric).mean, default=None), ties=titles(TIE),
        undecided=titles(UNDECIDED), few=titles(UNKNOWN), ctld_behind=behind, diverged=[row for row in rows if row.diverged],
        missing=[row.title for row in rows if not row.done],
    )  # fmt: skip


def agreement(rows: Sequence[Row], metric: str, printed: Mapping[str, str], *, name: str = "") -> str:
    """How many of the paper's ordered pairs come out the same way here; `name` is the metric, where it needs saying."""
    by_method = {row.method: row for row in rows if row.done}
    pairs = ordered_pairs(printed, list(by_method))
    found = {pair: _order(by_method[pair[0]], by_method[pair[1]], metric) for pair in pairs}
    words = list(found.values())
    if all(word == "" for word in words):
        return ""
    around = [
        f"{by_method[worse].title} before {by_method[better].title}"
        for (better, worse), word in found.items()
        if word == HIGHER
    ]
    return Prose("common")(
        "agreement", pairs=len(pairs), same=words.count(LOWER), reversed=around, name=name,
        open=words.count(TIE) + words.count(UNDECIDED), unknown=words.count(""),
    )  # fmt: skip


def _order(one: Row, other: Row, metric: str) -> str:
    """Whoever diverged lost; two that did say nothing."""
    if one.diverged or other.diverged:
        return "" if one.diverged and other.diverged else HIGHER if one.diverged else LOWER
    return said(one, other, metric)


# ---- what the paper reports, as the study's record has it ----


def printed_values(study: StudyRecord, place: int | None = None, *, key: str = "values") -> dict[str, str]:
    """method → the paper's number as text. "1.99 / 1.91" holds two; `place` takes one of them, "–" is none."""
    texts = {method: str(value) for method, value in study.paper.get(key, {}).items()}
    if place is None:
        return texts
    both = {method: [part.strip() for part in text.split("/")] for method, text in texts.items()}
    taken = {method: parts[min(place, len(parts) - 1)] for method, parts in both.items()}
    return {method: text for method, text in taken.items() if text not in ("", "-", "–", "—")}


def paper_split(study: StudyRecord) -> str:
    """Of which data the paper's numbers are: train or test."""
    return "train" if study.paper.get("split") == "train" else "test"


def paper_note(study: StudyRecord) -> list[str]:
    """The study's remark on these numbers, as a sentence."""
    text = study.paper.get("note", "").strip()
    return [f"The paper's values: {text.rstrip('.')}."] if text else []


def bounds(text: Any) -> tuple[float, float] | None:
    """Between which numbers "0.03–0.05", "above 3.1" or "≈ 0.02" lies; None for what holds no number."""
    found = [float(digits) for digits in re.findall(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", str(text))]
    if not found:
        return None
    return (found[0], math.inf) if re.search(r">|above", str(text)) else (min(found), max(found))


def ordered_pairs(printed: Mapping[str, str], methods: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs (better, worse) that the paper's numbers tell apart, of the methods at hand; lower is better."""
    pairs = []
    for one, other in combinations([method for method in methods if method in printed], 2):
        first, second = bounds(printed[one]), bounds(printed[other])
        if first and second:
            pairs += [(one, other)] if first[1] < second[0] else [(other, one)] if second[1] < first[0] else []
    return pairs


def scale_notes(study: StudyRecord) -> list[str]:
    """How much smaller the experiment is than the paper's."""
    stages = next((run.stages for run in study.finals if isinstance(run.config.get("steps"), list)), [])
    return Prose("common").paragraphs(
        "scale", smaller=study.description.get("scale") != "paper", ours=sum(stages), layers=len(stages),
        theirs=study.paper.get("steps") if stages else None, noise=_noise(study),
    )  # fmt: skip


def _noise(study: StudyRecord) -> dict[str, Any] | None:
    """CTLD's noise has variance ∝ T/N at a given learning rate: fewer data are more noise, unless T is automatic."""
    theirs = study.paper.get("num_data", math.nan)
    found = set()
    for run in study.finals:
        temperature = run.config.get("optimizer", {}).get("temperature")
        count = run.result.get("num_data", run.config.get("num_data", math.nan))
        if run.method == "ctld" and isinstance(temperature, int | float) and count > 0:
            found.add((float(temperature), count))
    if not found or not theirs >= (1.0 + NEGLIGIBLE) * min(count for _, count in found):
        return None
    temperatures = {temperature for temperature, _ in found}
    given = f"T = {show_setting(temperatures.pop())}" if len(temperatures) == 1 else "a given T"
    return {"ours": min(count for _, count in found), "theirs": theirs, "given": given}
