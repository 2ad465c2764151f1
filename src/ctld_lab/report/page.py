"""The report: one page that needs nothing else, with its figures and tables as files beside it."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from ctld_lab.files import printable
from ctld_lab.records import RecordError, find_studies, write_bytes, write_json
from ctld_lab.report import double_well, flatness, methods, sensitivity, tidy, timing
from ctld_lab.report.plots import Plot, as_data, render
from ctld_lab.report.provenance import Provenance, provenance, run_states
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.sections import COLUMNS, TEMPLATES, Content, Prose, Table, cells, marks_note, standing, value_cell
from ctld_lab.report.tables import final_table
from ctld_lab.report.wording import counted, shortened

CONTENTS: dict[str, Callable[[StudyRecord], Content]] = {  # in the order of the page
    "sda": methods.autoencoder,
    "charrnn": methods.lstm,
    "sensitivity": sensitivity.content,
    "timing": timing.content,
    "double-well": double_well.content,
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
    table: bool = True
    """Its numbers lie in tables/ID.csv."""

    def stem(self, name: str) -> str:
        """The name of a figure's file."""
        return f"{self.id}-{_slug(name)}"


def build(root: Path, output: Path | None = None) -> Path:
    """Write report.html, figures/ and tables/ into `output` (by default `root`) from the studies in `root`.

    Reads records alone, and the same records make the same bytes. Another directory than `root` can be published: it holds what
    each study was as well, and a report of it is made from its tables. Returns the path of the page.
    """
    output = root if output is None else output
    order = list(CONTENTS)
    studies = [read_study(directory) for directory in find_studies(root)]
    studies.sort(key=lambda study: order.index(study.name) if study.name in order else len(order))
    named = dict(zip(_names(studies), studies, strict=True))
    if output.resolve() != root.resolve():
        for name, study in named.items():
            if not study.problem and not (output / name / "runs").exists():
                (output / name).mkdir(parents=True, exist_ok=True)
                write_json(output / name / "study.json", published(study))
    return write_page(named, output)


def write_page(studies: Mapping[str, StudyRecord], output: Path) -> Path:
    """Write the page of these studies, their tables and their figures."""
    for folder in (output, output / "figures", output / "tables"):
        folder.mkdir(parents=True, exist_ok=True)
    sections = [_section(study, name, output) for name, study in studies.items()]
    sections += _flatness(studies, output)
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["panels"] = _panels
    page = environment.get_template("page.html").render(
        sections=sections, columns=list(COLUMNS.values()), matrix_note=Prose("common")("matrix"),
        standings=[(section.id, each) for section in sections for each in section.content.standings],
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")), script=Markup(script),  # both are our own
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )  # fmt: skip
    path = output / "report.html"
    write_bytes(path, page.encode())
    return path


def published(study: StudyRecord) -> dict[str, Any]:
    """Return the description with what a report of the table alone needs to know: commit, machine and command."""
    source = provenance(study)
    made = {"published": run_states(study), "machine": " | ".join(source.environments), "commands": source.commands}
    data = {name: value for name, value in study.description.get("data", {}).items() if name != "path"}
    return {**study.description, **made, "data": data}


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
    """Return the text as a safe file name: records may contain any text."""
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
    tidy.write(output / "tables" / f"{name}.csv", study.table)
    _draw(section, output)
    if study.settings:
        section.settings = json.dumps(study.settings, indent=1, ensure_ascii=False)
    return section


def _flatness(studies: Mapping[str, StudyRecord], output: Path) -> list[Section]:
    """One section for all studies of whose runs it was measured; none, if of none."""
    parts = [part for name, study in studies.items() if (part := flatness.Part(study, name)).values]
    problems = [x for study in studies.values() for x in study.broken if x[0].endswith("/flatness.json")]
    if not parts and not problems:
        return []
    count = sum(part.facts.get("runs", 0) for part in parts)
    states = f"{counted(count, 'run')} measured" if count else "published tables"
    section = Section("flat-minima", "Flat minima", "Section 3", "", states, table=False)
    while section.id in studies:
        section.id += "-again"
    section.content, section.provenance = flatness.content(parts), flatness.provenance(parts, problems)
    _draw(section, output)
    return [section]


def _draw(section: Section, output: Path) -> None:
    """The figures beside the page."""
    for plot in section.content.plots:
        write_bytes(output / "figures" / f"{section.stem(plot.name)}.svg", render(plot))


def _panels(plot: Plot) -> str:
    return json.dumps(as_data(plot), ensure_ascii=False, separators=(",", ":"))


def told(error: BaseException) -> str:
    return shortened(printable(str(error))) or type(error).__name__


def _plain(study: StudyRecord) -> Content:
    """A study that has no page of its own here: all its numbers, a table for each setting, no words."""
    rows, found = final_table(study), Content()
    for variant in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == variant]
        metrics = list(dict.fromkeys(metric for row in own for metric in row.metrics))
        judged = next((metric for metric in metrics if metric.startswith("test")), "")
        if metrics:
            body = [
                cells(row.title, tidy.point_text(row.point) or "–", *(value_cell(row, x) for x in metrics), row.state)
                for row in own
            ]
            name = study.title(variant) or "Results"
            columns = ["Method", "Point", *metrics, "Runs"]
            found.tables.append(Table(f"final-{variant}", name, columns, body, marks_note(own)))
        if judged and not any(row.point for row in own):
            found.standings += standing(
                f"{study.heading}, {study.title(variant)}: {judged}".replace(", :", ":"), own, judged
            )
    return found
