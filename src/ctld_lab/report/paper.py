"""What the paper reports, as the study's record has it, and the order in which it puts the methods."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from ctld_lab.report.reading import StudyRecord


def values(study: StudyRecord, place: int | None = None, *, key: str = "values") -> dict[str, str]:
    """method → the paper's number as text. "1.99 / 1.91" holds two; `place` takes one of them, "–" is none."""
    found = (study.description.get("paper") or {}).get(key)
    if not isinstance(found, Mapping):
        return {}
    texts = {str(method): str(value) for method, value in found.items()}
    if place is None:
        return texts
    both = {method: [part.strip() for part in text.split("/")] for method, text in texts.items()}
    taken = {method: parts[min(place, len(parts) - 1)] for method, parts in both.items()}
    return {method: text for method, text in taken.items() if text not in ("", "-", "–", "—")}


def split(study: StudyRecord) -> str:
    """Of which data the paper's numbers are: train or test."""
    return "train" if (study.description.get("paper") or {}).get("split") == "train" else "test"


def note(study: StudyRecord) -> list[str]:
    """The study's remark on these numbers, as a sentence."""
    text = str((study.description.get("paper") or {}).get("note", "")).strip()
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
            if first[1] < second[0]:
                pairs.append((one, other))
            elif second[1] < first[0]:
                pairs.append((other, one))
    return pairs
