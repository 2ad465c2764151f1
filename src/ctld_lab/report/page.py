"""The report: one page that needs nothing else, with its figures and tables as files beside it."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jinja2
from markupsafe import Markup

from ctld_lab.records import RecordError, find_studies, write_bytes, write_json
from ctld_lab.report import double_well, ensemble, flatness, methods, sensitivity, temperings, timing
from ctld_lab.report.plots import Plot, as_data, render
from ctld_lab.report.provenance import Provenance, provenance, run_states
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.sections import (
    COLUMNS,
    TEMPLATES,
    Content,
    Prose,
    Table,
    cells,
    standing,
    value_cell,
)
from ctld_lab.report.shapes import printable
from ctld_lab.report.tables import final_frame, final_table, seeds_frame
from ctld_lab.report.wording import counted, shortened

CONTENTS: dict[str, Callable[[StudyRecord], Content]] = {  # in the order of the page
    "sda": methods.autoencoder,
    "charrnn": methods.lstm,
    "sensitivity": sensitivity.content,
    "timing": timing.content,
    "double-well": double_well.content,
    "tempering": temperings.content,
    "ensemble": ensemble.content,
}
BROKEN = (RecordError, OSError)  # what a record or a disk can do to us; anything else is a bug, and raises as one


@dataclass
class Section:
    id: str
    title: str
    figure: str
    scale: str
    states: str
    problem: str | None = None
    content: Content = field(default_factory=Content)
    provenance: Provenance | None = None
    settings: str = ""

    def stem(self, name: str) -> str:
        """Of the files of a table or plot."""
        return f"{self.id}-{_slug(name)}"


def build(root: Path, output: Path | None = None) -> Path:
    """Write report.html, figures/ and tables/ into `output` (by default `root`) from the studies in `root`.

    Reads records alone, and the same records make the same bytes. Another directory than `root` can be published: it holds what
    each study was as well, and a report of it is made from its tables. Returns the path of the page.
    """
    output = root if output is None else output
    for folder in (output, output / "figures", output / "tables"):
        folder.mkdir(parents=True, exist_ok=True)
    order = list(CONTENTS)
    studies = [read_study(directory) for directory in find_studies(root)]
    studies.sort(key=lambda study: order.index(study.name) if study.name in order else len(order))
    sections = [_section(study, name, output) for study, name in zip(studies, _names(studies), strict=True)]
    for study, section in zip(studies, sections, strict=True):
        if output.resolve() != root.resolve() and section.provenance and not (output / section.id / "runs").exists():
            _publish(study, section.provenance, output / section.id)
    sections += _flatness(studies, [section.id for section in sections], output)
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"panels": _panels, "picture": _picture}
    page = environment.get_template("page.html").render(
        sections=sections, columns=list(COLUMNS.values()), matrix_note=Prose("common")("matrix"),
        standings=[(section.id, each) for section in sections for each in section.content.standings],
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")), script=Markup(script),  # both are our own
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )  # fmt: skip
    path = output / "report.html"
    write_bytes(path, page.encode())
    return path


def _names(studies: Sequence[StudyRecord]) -> list[str]:
    """For files and anchors: the study's name, or that of its directory where several directories hold the same study."""
    counts = Counter(study.name for study in studies)
    names: list[str] = []
    for study in studies:
        name = _slug(study.name if counts[study.name] == 1 else study.directory.path.resolve().name)
        while name in names:
            name += "-again"
        names.append(name)
    return names


def _slug(text: str) -> str:
    """What is safe as a file's name: records may say anything."""
    return re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-") or "study"


def _section(study: StudyRecord, name: str, output: Path) -> Section:
    """A study whose description is broken costs its own section, not the page."""
    description = study.description
    section = Section(
        name,
        study.heading,
        description.get("figure", ""),
        description.get("scale", ""),
        "" if study.problem else run_states(study),
    )
    if study.problem:
        section.problem = f"This study cannot be read: {study.problem}"
        return section
    try:
        section.content = CONTENTS.get(study.name, _plain)(study)
    except RecordError as error:
        section.problem = f"This study cannot be shown: {told(error)}"
        return section
    section.provenance = provenance(study)
    _store(section, output)
    if study.settings:
        section.settings = json.dumps(study.settings, indent=1, ensure_ascii=False)
    return section


def _publish(study: StudyRecord, source: Provenance, folder: Path) -> None:
    """What a report of the tables needs to know, with commit, machine and command."""
    made = {"published": run_states(study), "machine": " | ".join(source.environments), "commands": source.commands}
    data = {name: value for name, value in study.description.get("data", {}).items() if name != "path"}
    folder.mkdir(exist_ok=True)
    write_json(folder / "study.json", {**study.description, **made, "data": data})


def _flatness(studies: Sequence[StudyRecord], names: Sequence[str], output: Path) -> list[Section]:
    """One section for all studies of whose runs it was measured; none, if of none."""
    parts: list[flatness.Part] = []
    problems: list[tuple[str, str]] = []
    for study, name in zip(studies, names, strict=True):
        try:
            part = flatness.read_flatness(study, name)
        except BROKEN as error:
            problems.append((str(study.directory.path), told(error)))
            continue
        problems += part.problems
        parts += [] if part.frames["values"].empty else [part]
    if not parts and not problems:
        return []
    count = sum(part.runs for part in parts)
    states = f"{counted(count, 'run')} measured" if count else "published tables"
    section = Section("flat-minima", "Flat minima", "Section 3", "", states)
    while section.id in names:
        section.id += "-again"
    section.content, section.provenance = flatness.content(parts), flatness.provenance(parts, problems)
    _store(section, output)
    return [section]


def _store(section: Section, output: Path) -> None:
    """The files beside the page."""
    content, source = section.content, section.provenance
    tuning = source.tuning if source else []
    shown = {table.name: table.csv for table in (*content.tables, *tuning)}
    kept = {name: Table(name, "", [], [], frame).csv for name, frame in content.data.items() if not frame.empty}
    for name, text in (shown | kept).items():
        write_bytes(output / "tables" / f"{section.stem(name)}.csv", text)
    for plot in content.plots:
        path = output / "figures" / f"{section.stem(plot.name)}.png"
        png, pdf = (plot.image, b"") if plot.image else render(plot)
        write_bytes(path, png)
        if pdf:
            write_bytes(path.with_suffix(".pdf"), pdf)


def _panels(plot: Plot) -> str:
    return json.dumps(as_data(plot), ensure_ascii=False, separators=(",", ":"))


def _picture(plot: Plot) -> str:
    return "data:image/png;base64," + base64.b64encode(plot.image).decode()


def told(error: BaseException) -> str:
    return shortened(printable(str(error))) or type(error).__name__


def _plain(study: StudyRecord) -> Content:
    """A study that has no page of its own here: all its numbers, no words."""
    rows = final_table(study)
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    body = [cells(row.title, row.variant, *(value_cell(row, metric) for metric in metrics), row.state) for row in rows]
    table = Table("final", "Results", ["Method", "Setting", *metrics, "Runs"], body, final_frame(rows))
    judged = next((metric for metric in metrics if metric.startswith("test")), "")
    question = f"{study.heading}: {judged}"
    ranked = [
        x
        for v in dict.fromkeys(row.variant for row in rows)
        for x in standing(question, [r for r in rows if r.variant == v], judged)
    ]
    return Content(tables=[table], data={"seeds": seeds_frame(rows)}, standings=ranked)
