"""How hot CTLD was: its temperature T, and where α spent the exploration. A table for studies of methods."""

import math
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pandas as pd

from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, variant_title
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.statistics import Estimate, estimate
from ctld_lab.report.wording import show, show_estimate, show_setting

# The paper's tempering, as `ctld.Tempering.paper` has it: g = 1 below the plateau's end, and α belongs within the edge.
PLATEAU, EDGE = 0.4, 1.5
UNIFORM_SHARE = PLATEAU / EDGE  # of time at g = 1, were α uniform
MUCH_OUTSIDE = 0.2
THERMOMETERS = {"kinetic": "Kinetic", "configurational": "Configurational", "minibatch_heat": "Minibatch heat"}
SHARES = ("cold_share", "share_outside", "highest_ratio")


@dataclass(frozen=True)
class Tempering:
    """One variant in one stage, over seeds. Readings of thermometers are in units of T at the lowest temperature."""

    variant: str
    stage: int
    temperature: Estimate
    cold: float
    outside: float
    highest: float
    readings: dict[str, Estimate] = field(default_factory=dict)

    @property
    def given(self) -> str:
        """T: a setting where all seeds have the same."""
        fixed = self.temperature.half_width in (None, 0.0)
        return show_setting(self.temperature.mean) if fixed else show_estimate(self.temperature)


def add(study: StudyRecord, found: Content) -> None:
    """The table, and a sentence where α was outside too much; nothing if no record has them."""
    temperings = _published(study) if study.published else _temperings(study)
    if not temperings:
        return
    layered = max(each.stage for each in temperings) > 1
    for variant in dict.fromkeys(each.variant for each in temperings):
        far = [each for each in temperings if each.variant == variant and each.outside > MUCH_OUTSIDE]
        if far:
            shares = [
                f"{_percent(each.outside)} of it" + (f" in layer {each.stage}" if layered else "") for each in far
            ]
            found.summary.append(Prose("common")("outside", variant=variant_title(variant), shares=shares))
    found.tables.append(_table(temperings, layered=layered))


def _temperings(study: StudyRecord) -> list[Tempering]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in study.finals:
        if run.method == "ctld":
            for stage, record in _stages(run).items():
                groups.setdefault((run.variant, stage), []).append(record)
    made = []
    for variant, stage in sorted(groups, key=lambda key: (["tuned", "paper", key[0]].index(key[0]), key)):
        records = groups[variant, stage]
        cold, outside, highest = ([record["tempering"].get(name, math.nan) for record in records] for name in SHARES)
        made.append(
            Tempering(
                variant, stage, estimate([record.get("temperature", math.nan) for record in records]),
                estimate(cold).mean, estimate(outside).mean, max(filter(math.isfinite, highest), default=math.nan),
                {name: estimate([_reading(record, name) for record in records]) for name in THERMOMETERS},
            )
        )  # fmt: skip
    return made


def _published(study: StudyRecord) -> list[Tempering]:
    frame = study.tables.get("temperature", pd.DataFrame())
    return [
        Tempering(
            str(line["variant"]), int(line["stage"]), Estimate(line["temperature"], None, None, int(line["seeds"])),
            line["cold_share"], line["share_outside"], line["highest_ratio"],
            {name: Estimate(line.get(name, math.nan), None, None, 1) for name in THERMOMETERS},
        )
        for _, line in frame.iterrows()
    ]  # fmt: skip


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


def _table(temperings: list[Tempering], *, layered: bool) -> Table:
    measured = [name for name in THERMOMETERS if any(math.isfinite(each.readings[name].mean) for each in temperings)]
    body, lines = [], []
    for each in temperings:
        where = [each.variant, *([str(each.stage)] if layered else [])]
        readings = [show_estimate(each.readings[name]) for name in measured]
        shares = [_percent(each.cold), _percent(each.outside), show(each.highest, 3)]
        body.append(cells(*where, each.given, *shares, *readings, each.temperature.count))
        numbers = [each.temperature.mean, each.cold, each.outside, each.highest]
        numbers += [each.readings[name].mean for name in THERMOMETERS]
        lines.append([each.variant, each.stage, *numbers, each.temperature.count])
    header = [*TABLES["temperature"][:-1], *THERMOMETERS, "seeds"]
    columns = [
        "Setting",
        *(["Layer"] if layered else []),
        "T",
        "Exploration at g = 1",
        f"Outside, |α| > {EDGE:g}",
        "Highest 1/g",
    ]
    columns += [*(THERMOMETERS[name] for name in measured), "Seeds"]
    seeds = max(each.temperature.count for each in temperings)
    notes = Prose("common").paragraphs("temperature", seeds=seeds, measured=bool(measured))
    return Table("temperature", "CTLD's temperature", columns, body, pd.DataFrame(lines, columns=header), notes)
