"""A published report and runs that were made later, or elsewhere: one report of both.

A study at the paper's size takes days, and no machine is there for that long. What is published keeps no runs, so it is
joined by its tables: line by line, by method and setting.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from ctld_lab.records import RecordError, find_studies, write_bytes, write_json
from ctld_lab.report.page import build
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.sections import Table
from ctld_lab.report.tables import Row, final_table, point_text

KEYS = ("method", "variant", "point")
Key = tuple[str, ...]
SAME = ("study", "scale", "data", "settings", "seeds")
"""What both must agree about; else their numbers do not belong into one table."""


def add(root: Path, output: Path) -> Path:
    """Publish the studies of `root` in `output` beside what is there. Returns the path of the page.

    A method and setting that both have is taken from `root`, unless less of it is finished there. What was measured of
    flatness is left as it is: it belongs to the runs, not to their tables.
    """
    for study in map(read_study, find_studies(root)):
        if study.problem:
            raise RecordError(study.problem)
    older = _published(output)
    with TemporaryDirectory() as place:
        build(root, Path(place))
        newer = _published(Path(place))
    joined = {name: _join(older[name], study) if name in older else study for name, study in newer.items()}
    (output / "tables").mkdir(parents=True, exist_ok=True)
    for name, study in joined.items():
        for table, frame in study.tables.items():
            write_bytes(output / "tables" / f"{name}-{table}.csv", Table(table, "", [], [], frame).csv)
        (output / name).mkdir(exist_ok=True)
        write_json(output / name / "study.json", study.description)
    return build(output)


def _published(folder: Path) -> dict[str, StudyRecord]:
    """By the names of their folders."""
    found = {study.directory.path.name: study for study in map(read_study, find_studies(folder))}
    for study in found.values():
        if study.problem:
            raise RecordError(study.problem)
        if not study.published:
            raise RecordError(f"{study.directory.path} holds runs, not a published report; give another --output")
    return found


def _join(old: StudyRecord, new: StudyRecord) -> StudyRecord:
    differing = [name for name in SAME if old.description.get(name) != new.description.get(name)]
    if differing:
        raise RecordError(
            f"{old.directory.path} is another experiment: it differs in {', '.join(differing)}; give another --output"
        )
    kept = _done(old)
    taken = {key for key, done in _done(new).items() if done >= kept.get(key, 0)}
    tables = {**old.tables, **new.tables}
    for name in old.tables.keys() & new.tables.keys():
        if name == "trace":  # of one run: the one that is there stays
            tables[name] = old.tables[name]
        elif "method" in old.tables[name] or "variant" in old.tables[name]:
            tables[name] = _joined(old.tables[name], new.tables[name], taken)
        else:
            raise RecordError(f"{old.directory.path}: its table {name} has no methods, and cannot be added to")
    joined = StudyRecord(old.directory, {**new.description, "published": ""}, tables=tables)
    return replace(joined, description=_described(old.description, new.description, final_table(joined)))


def _done(study: StudyRecord) -> dict[Key, int]:
    """Finished runs of each method, setting and point."""
    return {(row.method, row.variant, point_text(row)): row.done for row in final_table(study)}


def _joined(old: pd.DataFrame, new: pd.DataFrame, taken: set[Key]) -> pd.DataFrame:
    """The lines of `old` but for what `new` has more of, or as much; then those."""
    places = [place for place, key in enumerate(KEYS) if key in old and key in new]
    keys = [KEYS[place] for place in places]
    better = {tuple(key[place] for place in places) for key in taken}
    mine, theirs = (list(frame[keys].itertuples(index=False, name=None)) for frame in (old, new))
    replaced, known = better & set(theirs), set(mine)
    stay, come = [key not in replaced for key in mine], [key in replaced or key not in known for key in theirs]
    return pd.concat([old[stay], new[come]], ignore_index=True)


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
        **{name: list(dict.fromkeys([*old.get(name, ()), *new.get(name, ())])) for name in ("methods", "commands")},
    }
