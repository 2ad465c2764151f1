"""A published report and runs that were made later, or elsewhere: one report of both.

A study at the paper's size takes days, and no machine is there for that long. What is published keeps no runs, so the tidy
tables are joined, run by run.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ctld_lab.records import RecordError, find_studies, write_json
from ctld_lab.report import tidy
from ctld_lab.report.page import build, published
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.tables import Row, final_table

SAME = ("study", "scale", "data", "settings", "seeds")
"""What both must agree about; else their numbers do not belong into one table."""


def add(root: Path, output: Path) -> Path:
    """Publish the studies of `root` in `output` beside what is there. Returns the path of the page.

    A run that both have is taken from `root`, unless it is finished in `output` alone.
    """
    older, newer = ([read_study(directory) for directory in find_studies(folder)] for folder in (output, root))
    for study in [*older, *newer]:
        if study.problem:
            raise RecordError(study.problem)
    for study in older:
        if not study.published:
            raise RecordError(f"{study.directory.path} holds runs, not a published report; give another --output")
    known = {study.name: study for study in older}
    # All are joined before anything is written: what is refused leaves the output as it was.
    joined = [_join(known.get(study.name), replace(study, description=published(study), runs=())) for study in newer]
    (output / "tables").mkdir(parents=True, exist_ok=True)
    for study in joined:
        folder = known[study.name].directory.path if study.name in known else output / study.name
        folder.mkdir(exist_ok=True)
        tidy.write(output / "tables" / f"{folder.name}.csv", study.table)
        write_json(folder / "study.json", study.description)
    return build(output)


def _join(old: StudyRecord | None, new: StudyRecord) -> StudyRecord:
    if old is None:
        return new
    differing = [name for name in SAME if old.description.get(name) != new.description.get(name)]
    if differing:
        raise RecordError(
            f"{old.directory.path} is another experiment: it differs in {', '.join(differing)}; give another --output"
        )
    joined = replace(new, table=tidy.join(old.table, new.table))
    return replace(joined, description=_described(old.description, new.description, final_table(joined)))


def _described(old: Mapping[str, Any], new: Mapping[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    done, planned = sum(row.done for row in rows), sum(max(row.planned, row.done) for row in rows)
    machines = [
        re.sub(r" \(\d+ runs?\)$", "", part)
        for each in (old, new)
        for part in each.get("machine", "").split(" | ")
        if part
    ]
    return {
        **new,
        "published": f"{done} of {planned} final runs done" if done < planned else f"{done} final runs done",
        "machine": " | ".join(dict.fromkeys(machines)),
        "searches": {**old.get("searches", {}), **new.get("searches", {})},
        "flatness": new.get("flatness") or old.get("flatness", {}),
        **{name: list(dict.fromkeys([*old.get(name, ()), *new.get(name, ())])) for name in ("methods", "commands")},
    }
