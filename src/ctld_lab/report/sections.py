"""Parts of a section of the report, and its prose: one template per study, whose blocks are rendered by name."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from ctld_lab.report import wording
from ctld_lab.report.plots import Plot
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.tables import Row, difference
from ctld_lab.report.wording import show_estimate
from ctld_lab.statistics import BEST, TIE, UNDECIDED, UNKNOWN

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
    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Standing:
    """One comparison of many, for the matrix on top of the page: who is ahead, who ties with it, and so on, by title."""

    question: str
    groups: dict[str, list[str]]


COLUMNS = {BEST: "Ahead", TIE: "Tied with it", UNDECIDED: "Undecided", "": "Behind", "diverged": "Diverged"}


@dataclass
class Content:
    """Content that a study's own file adds to its section."""

    summary: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
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
    known = {
        "tuned": "Tuned at equal cost",
        "paper": "With the paper's learning rates",
        "laptop": "With settings chosen at laptop size",
        "paper-biases-0": "With the paper's learning rates, forget biases at 0",
        "laptop-biases-0": "With settings chosen at laptop size, forget biases at 0",
    }
    return known.get(variant, variant or "All runs")


def short_title(variant: str) -> str:
    return {"paper": "the paper's rates"}.get(variant, setting_title(variant))


def setting_title(variant: str) -> str:
    """As in a column of settings; "laptop" alone would say how large the run was."""
    known = {
        "laptop": "chosen at laptop size",
        "paper-biases-0": "the paper's rates, forget biases at 0",
        "laptop-biases-0": "chosen at laptop size, forget biases at 0",
    }
    return known.get(variant, variant)


def verdict(
    rows: Sequence[Row],
    metric: str,
    *,
    name: str,
    unit: str = "",
    brief: bool = False,
    begun: Collection[tuple[str, str]] = (),
) -> str:
    """Say who is best of rows that compete; `name` is the metric in words. Brief: without what is the same for every metric.

    `begun` are methods and variants that have a curve.
    """
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
        begun=[row.title for row in rows if not row.done and (row.method, row.variant) in begun],
    )  # fmt: skip


def printed_values(study: StudyRecord, place: int | None = None, *, key: str = "values") -> dict[str, str]:
    """method → the paper's number as text. "1.99 / 1.91" holds two; `place` takes one of them, "–" is none."""
    texts = {method: str(value) for method, value in study.paper.get(key, {}).items()}
    if place is None:
        return texts
    both = {method: [part.strip() for part in text.split("/")] for method, text in texts.items()}
    taken = {method: parts[min(place, len(parts) - 1)] for method, parts in both.items()}
    return {method: text for method, text in taken.items() if text not in ("", "-", "–", "—")}


def paper_note(study: StudyRecord) -> list[str]:
    """The study's remark on these numbers, as a sentence; and whether they are those of the same experiment."""
    text = study.paper.get("note", "").strip()
    smaller = "At this scale the experiment is smaller than the paper's: compare orders, not values."
    more = [] if study.description.get("scale") == "paper" else [smaller]
    return [f"The paper's values: {text.rstrip('.')}.", *more] if text else []
