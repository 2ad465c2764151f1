"""How hot CTLD was: its temperature T, and where α spent the exploration. A table for studies of methods."""

import math
from itertools import accumulate
from typing import Any

import pandas as pd

from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, setting_title, variant_title
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.wording import show, show_setting

# The paper's tempering, as `ctld.Tempering.paper` has it: g = 1 below the plateau's end, and α belongs within the edge.
PLATEAU, EDGE = 0.4, 1.5
UNIFORM_SHARE = PLATEAU / EDGE  # of time at g = 1, were α uniform
MUCH_OUTSIDE = 0.2
THERMOMETERS = {"kinetic": "Kinetic", "configurational": "Configurational", "minibatch_heat": "Minibatch heat"}
SHARES = ("cold_share", "share_outside", "highest_ratio")
COLUMNS = [*TABLES["temperature"][:-1], *THERMOMETERS, "seeds"]


def frame_of(study: StudyRecord) -> pd.DataFrame:
    """A line for each variant and stage: means over seeds, of 1/g the highest; as published, or from the runs."""
    if study.published:
        return study.table("temperature").reindex(columns=COLUMNS)
    lines = []
    for run in study.finals:
        for stage, record in _stages(run).items() if run.method == "ctld" else ():
            shares = [record["tempering"].get(name, math.nan) for name in SHARES]
            readings = [_reading(record, name) for name in THERMOMETERS]
            lines.append([run.variant, stage, record.get("temperature", math.nan), *shares, *readings, 1])
    frame = pd.DataFrame(lines, columns=COLUMNS)
    frame[COLUMNS[2:-1]] = frame[COLUMNS[2:-1]].map(lambda value: value if math.isfinite(value) else math.nan)
    means = dict.fromkeys(COLUMNS[2:-1], "mean") | {"highest_ratio": "max", "seeds": "sum"}
    found = frame.groupby(["variant", "stage"], as_index=False).agg(means)
    order = found["variant"].map(lambda variant: ["tuned", "paper", variant].index(variant))
    return found.assign(order=order).sort_values(["order", "variant", "stage"]).reindex(columns=COLUMNS)


def add(study: StudyRecord, found: Content) -> None:
    """The table, and a sentence where α was outside too much; nothing if no record has them."""
    frame = frame_of(study)
    if frame.empty:
        return
    layered = frame["stage"].max() > 1
    for variant, own in frame[frame["share_outside"] > MUCH_OUTSIDE].groupby("variant", sort=False):
        shares = [
            f"{_percent(line['share_outside'])} of it" + (f" in layer {line['stage']}" if layered else "")
            for _, line in own.iterrows()
        ]
        found.summary.append(Prose("common")("outside", variant=variant_title(str(variant)), shares=shares))
    measured = [name for name in THERMOMETERS if frame[name].notna().any()]
    body = [
        cells(
            setting_title(x["variant"]), *([x["stage"]] if layered else []), show_setting(x["temperature"]),
            _percent(x["cold_share"]), _percent(x["share_outside"]), show(x["highest_ratio"], 3),
            *(show(x[name], 3) for name in measured), x["seeds"],
        )
        for _, x in frame.iterrows()
    ]  # fmt: skip
    columns = ["Setting", *(["Layer"] if layered else []), "T", "Exploration at g = 1", f"Outside, |α| > {EDGE:g}"]
    columns += ["Highest 1/g", *(THERMOMETERS[name] for name in measured), "Seeds"]
    notes = Prose("common").paragraphs("temperature", seeds=int(frame["seeds"].max()), measured=bool(measured))
    found.tables.append(Table("temperature", "CTLD's temperature", columns, body, frame, notes))


def _reading(record: dict[str, Any], name: str) -> float:
    """Of the first group that has it. NaN where there is none: it was not measured yet, or the run was too short."""
    groups = record.get("thermometers", {}).values()
    return next((group[name].get("mean", math.nan) for group in groups if isinstance(group.get(name), dict)), math.nan)


def _stages(run: RunRecord) -> dict[int, dict[str, Any]]:
    """By number. What stands at the top is of the last stage that was begun."""
    stages = enumerate(run.result.get("stages", []), start=1)
    found = {place: record for place, record in stages if isinstance(record.get("tempering"), dict)}
    if isinstance(run.result.get("tempering"), dict):
        ended = sum(end <= run.result.get("steps", math.nan) for end in accumulate(run.stages))
        found.setdefault(min(ended + 1, len(run.stages)), run.result)
    return found


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else "–"
