"""What a section of the report is made of, and its prose: one template per study, whose blocks are rendered by name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from ctld_lab.report import wording
from ctld_lab.report.plots import Plot
from ctld_lab.report.statistics import BEST, TIE, UNDECIDED
from ctld_lab.report.tables import Row
from ctld_lab.report.wording import show_estimate

TEMPLATES = Path(__file__).parent / "templates"
# Words, not markup: what comes out is escaped where the page takes it in.
WORDS = jinja2.Environment(
    loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    autoescape=False,
)  # fmt: skip
WORDS.filters |= {name.removeprefix("show_"): getattr(wording, name) for name in wording.FILTERS}


@dataclass(frozen=True)
class Cell:
    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """`frame` is what goes into tables/NAME.csv, with all digits; `rows` are what is shown of it."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    frame: pd.DataFrame
    notes: Sequence[str] = ()

    @property
    def csv(self) -> bytes:
        return str(self.frame.to_csv(index=False, lineterminator="\n")).encode()


@dataclass(frozen=True)
class Standing:
    """One comparison of many, for the matrix on top of the page: who is ahead, who ties with it, and so on, by title."""

    question: str
    groups: dict[str, list[str]]


COLUMNS = {BEST: "Ahead", TIE: "Tied with it", UNDECIDED: "Undecided", "": "Behind", "diverged": "Diverged"}


@dataclass
class Content:
    """What a study's own file adds to its section. `data` are tables that are stored and not shown."""

    summary: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    data: dict[str, pd.DataFrame] = field(default_factory=dict)
    standings: list[Standing] = field(default_factory=list)


class Prose:
    """The template of a study, with what it speaks of."""

    def __init__(self, name: str, **context: Any) -> None:
        self._template = WORDS.get_template(f"{name}.txt")
        self._context = context

    def paragraphs(self, block: str, **more: Any) -> list[str]:
        context = self._template.new_context({**self._context, **more})
        text = "".join(self._template.blocks[block](context))
        parts = (re.sub(r"[ \n]+", " ", part).strip() for part in re.split(r"\n[ ]*\n", text))
        return [part for part in parts if part]

    def __call__(self, block: str, **more: Any) -> str:
        return " ".join(self.paragraphs(block, **more))


def cells(*texts: Any) -> list[Cell]:
    return [text if isinstance(text, Cell) else Cell(str(text)) for text in texts]


def value_cell(row: Row, metric: str, *, marked: bool = True) -> Cell:
    found = row.estimate(metric)
    if not found.count and row.diverged:
        return Cell("diverged")
    if row.diverged:
        return Cell(f"{show_estimate(found)} ({found.count} of {row.done})")  # those that are left
    return Cell(show_estimate(found), row.marks.get(metric, "") if marked else "")


def standing(question: str, rows: Sequence[Row], metric: str) -> list[Standing]:
    """None where no best could be named."""
    groups: dict[str, list[str]] = {column: [] for column in COLUMNS.values()}
    for row in rows:
        if row.diverged or row.estimate(metric).count:
            mark = "diverged" if row.diverged else row.marks.get(metric, "")
            groups[COLUMNS.get(mark, COLUMNS[UNDECIDED])].append(row.title)
    return [Standing(question, groups)] if groups[COLUMNS[BEST]] else []


def marks_note(rows: Sequence[Row]) -> list[str]:
    """The sentence that explains the marks, or why there are none."""
    marked = any(BEST in row.marks.values() for row in rows)
    unpaired = marked and not any(row.values for row in rows)
    if marked or any(row.done for row in rows):
        return Prose("common").paragraphs("marks", marked=marked, unpaired=unpaired)
    return []


def variant_title(variant: str) -> str:
    return {"tuned": "Tuned at equal cost", "paper": "With the paper's learning rates"}.get(
        variant, variant or "All runs"
    )
