"""Parts of one item of the page, and how orders and numbers are compared and shown."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.paper.drawing import Picture
from ctld_lab.paper.printed import ITEMS, Value, ends

SAME, OTHER, NOT_RUN = "same", "other", "not run"
ABSENT, PERCENT = "–", "\N{NO-BREAK SPACE}%"


@dataclass(frozen=True)
class Verdict:
    """`kind` is SAME, OTHER or NOT_RUN; `words` are the badge, and `reason` one sentence of numbers."""

    kind: str
    words: str
    reason: str


@dataclass(frozen=True)
class Item:
    """One screen: pictures, a table, a verdict; `unseen` are pictures of what the paper's figure leaves out."""

    key: str
    pictures: Sequence[Picture]
    rows: Sequence[Sequence[str]]
    scale: str
    share: float
    seeds: str
    verdict: Verdict
    more: Sequence[str] = ()
    unseen: Sequence[Picture] = ()

    @property
    def printed(self) -> dict[str, Any]:
        """Name, title, quotation, command, columns of the table, and notes."""
        return dict(ITEMS[self.key])

    @property
    def columns(self) -> list[str]:
        """Headings of the table."""
        return list(self.printed["columns"])

    @property
    def done(self) -> str:
        """Share of the paper's steps, for a cell."""
        return percent(self.share)


# ---- numbers and orders ----


def percent(share: float) -> str:
    """Return a share for a cell: two digits below ten percent, none above."""
    if not math.isfinite(share):
        return ABSENT
    return (f"{100 * share:.0f}" if share >= 0.1 or share == 0 else f"{100 * share:.2g}") + PERCENT


def signed(value: float, form: str) -> str:
    """Return a number for a cell, with a true minus sign and a short exponent."""
    return f"{value:{form}}".replace("e-0", "e-").replace("-", "−")


def shown(value: Value | None, form: str = "g") -> str:
    """Return a printed value for a cell."""
    return ABSENT if value is None else "–".join(f"{end:{form}}" for end in dict.fromkeys(ends(value)))


def with_interval(row: Mapping[str, Any]) -> str:
    """Return a mean and half the width of its 95 % interval."""
    return f"{row['mean']:.3f} ± {0.5 * (row['high'] - row['low']):.3f}"


def agreement(paper: Mapping[str, Value], ours: Mapping[str, float]) -> tuple[int, int, int]:
    """Count pairs of methods: ordered as in the paper, told apart by both, and told apart by the paper."""
    alike = both = told = 0
    for one, other in itertools.combinations(paper, 2):
        (low, high), (lowest, highest) = ends(paper[one]), ends(paper[other])
        if high < lowest or highest < low:
            told += 1
            if one in ours and other in ours and ours[one] != ours[other]:
                both += 1
                alike += (ours[one] < ours[other]) == (high < lowest)
    return alike, both, told


def order(paper: Mapping[str, Value], ours: Mapping[str, float], of: str) -> Verdict:
    """Compare orders, pair by pair; with fewer than half of the pairs there is no verdict."""
    alike, both, told = agreement(paper, ours)
    kind = NOT_RUN if 2 * both < told else SAME if alike == both else OTHER
    found = f"{alike} of {both} pairs of methods are ordered as in the paper" + (
        f", of {told} there" if both < told else ""
    )
    reason = f"{of}: {found if both else f'none of the {told} pairs of methods can be compared yet'}."
    return Verdict(kind, NOT_RUN if kind == NOT_RUN else f"{kind} order", reason)


def chosen(frame: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    """Return the rows that have these values."""
    return frame[np.logical_and.reduce([frame[name] == value for name, value in wanted.items()])]
