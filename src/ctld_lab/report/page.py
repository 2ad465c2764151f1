"""The report: one page that needs nothing else, with its figures and tables as files beside it."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2

from ctld_lab.records import RecordError, StudyDirectory, find_studies, write_bytes
from ctld_lab.report import charrnn, double_well, ensemble, flatness, sda, sensitivity, temperings, timing
from ctld_lab.report.flatness_records import read_flatness
from ctld_lab.report.plots import Key, Plot, Rendered, render
from ctld_lab.report.provenance import Provenance, provenance, run_states
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.sections import Cell, Content, Table, value_cell
from ctld_lab.report.tables import final_table, rows_as_csv
from ctld_lab.report.wording import counted, shortened

CONTENTS: dict[str, Callable[[StudyRecord], Content]] = {  # in the order of the page
    "sda": sda.content,
    "charrnn": charrnn.content,
    "sensitivity": sensitivity.content,
    "timing": timing.content,
    "double-well": double_well.content,
    "tempering": temperings.content,
    "ensemble": ensemble.content,
}
PIXELS_PER_INCH = 96
# What code meets in a record that is not as it should be.
BROKEN = (RecordError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, OSError)


@dataclass(frozen=True)
class PlotOnPage:
    caption: str
    href: str
    keys: Sequence[Key]
    images: Sequence[tuple[str, str]]
    kind: str
    """Of the grid: small panels, pairs, or as many beside each other as fit."""
    max_width: int


@dataclass(frozen=True)
class TableOnPage:
    caption: str
    href: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str]


@dataclass
class Section:
    id: str
    title: str
    figure: str
    scale: str
    states: str
    problem: str | None = None
    summary: list[str] = field(default_factory=list)
    plots: list[PlotOnPage] = field(default_factory=list)
    tables: list[TableOnPage] = field(default_factory=list)
    provenance: Provenance | None = None
    tuning_plot: PlotOnPage | None = None
    tuning_tables: list[TableOnPage] = field(default_factory=list)
    settings: str = ""


def build(root: Path, output: Path | None = None) -> Path:
    """Write report.html, figures/ and tables/ into `output` (by default `root`) from the studies in `root`.

    Reads records alone, and the same records make the same bytes. Returns the path of the page.
    """
    output = root if output is None else output
    for folder in (output, output / "figures", output / "tables"):
        folder.mkdir(parents=True, exist_ok=True)
    studies = [_read(directory) for directory in find_studies(root)]
    order = list(CONTENTS)
    studies.sort(key=lambda study: order.index(study.name) if study.name in order else len(order))
    sections = [_section(study, name, output) for study, name in zip(studies, _names(studies), strict=True)]
    sections += _flatness(studies, [section.id for section in sections], output)
    folder = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, undefined=jinja2.StrictUndefined
    )
    style = jinja2.filters.Markup((folder / "page.css").read_text(encoding="utf-8"))
    page = environment.get_template("page.html").render(sections=sections, style=style)
    path = output / "report.html"
    write_bytes(path, page.encode())
    return path


def _read(directory: StudyDirectory) -> StudyRecord:
    try:
        return read_study(directory)
    except BROKEN as error:
        return StudyRecord(directory, {}, problem=told(error))


def _names(studies: Sequence[StudyRecord]) -> list[str]:
    """For files and anchors: the study's name, or that of its directory where several directories hold the same study."""
    counts = Counter(study.name for study in studies)
    names: list[str] = []
    for study in studies:
        name = study.name if counts[study.name] == 1 else study.directory.path.resolve().name
        name = _slug(name)
        while name in names:
            name += "-again"
        names.append(name)
    return names


def _slug(text: str) -> str:
    """What is safe as a file's name: records may say anything."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-") or "study"


def _section(study: StudyRecord, name: str, output: Path) -> Section:
    """A record that is broken beyond what `reading` tells costs its own section, not the page."""
    description = study.description
    section = Section(
        id=name,
        title=str(description.get("title") or study.name),
        figure=str(description.get("figure") or ""),
        scale=str(description.get("scale") or ""),
        states=run_states(study),
    )
    if study.problem:
        section.problem = f"This study cannot be read: {study.problem}"
        return section
    try:
        _fill(section, study, name, output)
    except BROKEN as error:
        section.problem = f"This study cannot be shown: {told(error)}. A record in {study.directory.path} is broken."
    return section


def _flatness(studies: Sequence[StudyRecord], names: Sequence[str], output: Path) -> list[Section]:
    """One section for all studies of whose runs it was measured; none, if of none."""
    parts, problems = [], []
    for study, name in zip(studies, names, strict=True):
        try:
            part = read_flatness(study, name)
        except BROKEN as error:
            problems.append((str(study.directory.path), told(error)))
            continue
        problems += part.problems
        parts += [part] if part.measured else []
    if not parts and not problems:
        return []
    count = sum(len(part.measured) for part in parts)
    section = Section("flat-minima", "Flat minima", "Section 3", "", f"{counted(count, 'run')} measured")
    while section.id in names:
        section.id += "-again"
    try:
        content = flatness.content(parts)
        section.summary = content.summary
        section.plots = [_store_plot(plot, section.id, output) for plot in content.plots]
        section.tables = [_store_table(table, section.id, output) for table in content.tables]
        section.provenance = flatness.provenance(parts, problems)
    except BROKEN as error:
        section.problem = f"Flatness cannot be shown: {told(error)}. A record is broken."
    return [section]


def told(error: BaseException) -> str:
    """With its kind, where its words alone say little: a KeyError has but the key."""
    words = shortened(str(error)) or "no message"
    return words if isinstance(error, RecordError) else f"{type(error).__name__}: {words}"


def _fill(section: Section, study: StudyRecord, name: str, output: Path) -> None:
    description = study.description
    content = CONTENTS.get(study.name, _plain)(study)
    section.summary = content.summary
    section.plots = [_store_plot(plot, name, output) for plot in content.plots]
    section.tables = [_store_table(table, name, output) for table in content.tables]
    section.provenance = provenance(study)
    section.tuning_tables = [_store_table(table, name, output) for table in section.provenance.tuning]
    if section.provenance.tuning_plot:
        section.tuning_plot = _store_plot(section.provenance.tuning_plot, name, output)
    if description.get("settings"):
        section.settings = json.dumps(description["settings"], indent=1, ensure_ascii=False)


def _plain(study: StudyRecord) -> Content:
    """A study that has no page of its own here: all its numbers, no words."""
    rows = final_table(study)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    body = [
        [Cell(row.title), Cell(row.variant), *(value_cell(row, metric) for metric in metrics), Cell(row.state)]
        for row in rows
    ]
    return Content(tables=[Table("final", "Results", ["Method", "Setting", *metrics, "Runs"], body, rows_as_csv(rows))])


def _store_plot(plot: Plot, name: str, output: Path) -> PlotOnPage:
    rendered: Rendered = render(plot)
    stem = f"{name}-{_slug(plot.name)}"
    write_bytes(output / "figures" / f"{stem}.png", rendered.png)
    write_bytes(output / "figures" / f"{stem}.pdf", rendered.pdf)
    width = plot.size[0]
    # Letters at most 1.4 times as large as on paper.
    max_width = round(1.4 * PIXELS_PER_INCH * width)
    kind = "small" if width < 2.5 else "pairs" if plot.columns < 3 else "many"
    return PlotOnPage(plot.caption, f"figures/{stem}", plot.keys, rendered.images, kind, max_width)


def _store_table(table: Table, name: str, output: Path) -> TableOnPage:
    stem = f"{name}-{_slug(table.name)}"
    write_bytes(output / "tables" / f"{stem}.csv", table.csv)
    return TableOnPage(table.caption, f"tables/{stem}.csv", table.columns, table.rows, table.notes)
