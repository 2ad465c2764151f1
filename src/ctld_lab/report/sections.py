"""What a section of the report is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ctld_lab.report.plots import Plot
from ctld_lab.report.statistics import BEST
from ctld_lab.report.tables import Row
from ctld_lab.report.wording import show_estimate


@dataclass(frozen=True)
class Cell:
    text: str
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """`csv` is what goes into tables/NAME.csv, with all digits."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    csv: bytes
    notes: Sequence[str] = ()


@dataclass
class Content:
    """What a study's own file adds to its section."""

    summary: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


MARKS_NOTE = (
    "± is the half width of a 95 % interval over seeds (Student's t). “best” has the lowest mean; “tie” means that the 95 % "
    "interval of the paired difference from the best, seed by seed, holds zero, and “unclear” that it does so because it is "
    "wider than half of the best's mean. No correction for several comparisons."
)
ONE_SEED_NOTE = "One seed: no intervals, and no claim of a best or of ties."


def value_cell(row: Row, metric: str) -> Cell:
    found = row.estimate(metric)
    if not found.count and row.diverged:
        return Cell("diverged")
    if row.diverged:
        return Cell(f"{show_estimate(found)} ({found.count} of {row.done})")  # those that are left
    return Cell(show_estimate(found), row.marks.get(metric, ""))


def marks_note(rows: Sequence[Row]) -> list[str]:
    """The sentence that explains the marks, or why there are none."""
    if any(BEST in row.marks.values() for row in rows):
        return [MARKS_NOTE]
    return [ONE_SEED_NOTE] if any(row.done for row in rows) else []


def variant_title(variant: str) -> str:
    return {"tuned": "Tuned at equal cost", "paper": "With the paper's learning rates"}.get(
        variant, variant or "All runs"
    )
