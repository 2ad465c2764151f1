"""How hot CTLD was: its temperature T, and where α spent the exploration. A table for studies of methods."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ctld_lab.records import number
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Cell, Content, Table, variant_title
from ctld_lab.report.statistics import estimate
from ctld_lab.report.tables import as_csv
from ctld_lab.report.wording import counted, listed, show, show_estimate, show_setting

# The paper's tempering, as `ctld.Tempering.paper` has it: g = 1 below the plateau's end, and α belongs within the edge.
PLATEAU, EDGE = 0.4, 1.5
UNIFORM_SHARE = PLATEAU / EDGE  # of time at g = 1, were α uniform
MUCH_OUTSIDE = 0.2
THERMOMETERS = {"kinetic": "Kinetic", "configurational": "Configurational", "minibatch_heat": "Minibatch heat"}


@dataclass(frozen=True)
class Tempering:
    """One variant in one stage, over seeds."""

    variant: str
    stage: int
    temperatures: Sequence[float]
    cold: float
    outside: float
    highest: float
    measured: dict[str, Sequence[float]]
    """By thermometer, in units of T at the lowest temperature, run by run; of the first group that has it."""


def add(study: StudyRecord, found: Content) -> None:
    """The table, and a sentence where α was outside too much; nothing if no record has them."""
    temperings = _temperings(study)
    if not temperings:
        return
    layered = max(each.stage for each in temperings) > 1
    for variant in dict.fromkeys(each.variant for each in temperings):
        far = [each for each in temperings if each.variant == variant and each.outside > MUCH_OUTSIDE]
        if far:
            shares = [
                f"{_percent(each.outside)} of it" + (f" in layer {each.stage}" if layered else "") for each in far
            ]
            found.summary.append(
                f"{variant_title(variant)}, more than {_percent(MUCH_OUTSIDE)} of CTLD's exploration was beyond |α| = {EDGE:g} "
                f"({listed(shares)}): there the temperature stays at its highest, and is not under control."
            )
    found.tables.append(_table(temperings, layered=layered))


def _temperings(study: StudyRecord) -> list[Tempering]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for run in study.finals:
        if run.method == "ctld":
            for stage, record in _stages(run).items():
                groups.setdefault((run.variant, stage), []).append(record)
    order = ["tuned", "paper"]
    made = []
    for variant, stage in sorted(groups, key=lambda key: ([*order, key[0]].index(key[0]), key)):
        records = groups[variant, stage]
        shares = {name: [number(record["tempering"].get(name)) for record in records] for name in _SHARES}
        made.append(
            Tempering(
                variant,
                stage,
                [number(record.get("temperature")) for record in records],
                estimate(shares["cold_share"]).mean,
                estimate(shares["share_outside"]).mean,
                max((value for value in shares["highest_ratio"] if math.isfinite(value)), default=math.nan),
                {name: [_reading(record, name) for record in records] for name in THERMOMETERS},
            )
        )
    return made


def _reading(record: dict[str, Any], name: str) -> float:
    """NaN where there is none: the run is from before they were measured, or was too short."""
    groups = record.get("thermometers")
    for group in groups.values() if isinstance(groups, dict) else ():
        if isinstance(group.get(name), dict):
            return number(group[name].get("mean"))
    return math.nan


_SHARES = ("cold_share", "share_outside", "highest_ratio")


def _stages(run: RunRecord) -> dict[int, dict[str, Any]]:
    """By number. What stands at the top is of the last stage that was begun."""
    stages = enumerate(run.result.get("stages") or (), start=1)
    found = {place: record for place, record in stages if isinstance(record.get("tempering"), dict)}
    if isinstance(run.result.get("tempering"), dict):
        steps = run.config.get("steps")
        planned = steps if isinstance(steps, list) and steps else [0]
        ended = sum(end <= number(run.result.get("steps")) for end in accumulate(planned))
        found.setdefault(min(ended + 1, len(planned)), run.result)
    return found


def _all(temperings: Sequence[Tempering], name: str) -> list[float]:
    return [value for each in temperings for value in each.measured[name]]


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else "–"


def _table(temperings: Sequence[Tempering], *, layered: bool) -> Table:
    measured = [name for name in THERMOMETERS if any(map(math.isfinite, _all(temperings, name)))]
    body, lines = [], []
    for each in temperings:
        where = [each.variant, *([str(each.stage)] if layered else [])]
        fixed = len(set(each.temperatures)) == 1
        shown = [show_setting(each.temperatures[0]) if fixed else show_estimate(estimate(each.temperatures))]
        shown += map(_percent, (each.cold, each.outside))
        shown += [show(each.highest, 3), *(show_estimate(estimate(each.measured[name])) for name in measured)]
        body.append([Cell(text) for text in (*where, *shown, str(len(each.temperatures)))])
        mean = estimate(each.temperatures).mean
        numbers = [mean, each.cold, each.outside, each.highest]
        numbers += [estimate(each.measured[name]).mean for name in THERMOMETERS]
        texts = [repr(value) if math.isfinite(value) else "" for value in numbers]
        lines.append([each.variant, each.stage, *texts, len(each.temperatures)])
    header = ["variant", "stage", "temperature", "cold_share", "share_outside", "highest_ratio", *THERMOMETERS, "seeds"]
    columns = [
        "Setting",
        *(["Layer"] if layered else []),
        "T",
        "Exploration at g = 1",
        f"Outside, |α| > {EDGE:g}",
        "Highest 1/g",
        *(THERMOMETERS[name] for name in measured),
        "Seeds",
    ]
    notes = [
        f"Means over {counted(max(len(each.temperatures) for each in temperings), 'seed')}, the highest 1/g over all of them. "
        f"Were α uniform within ±{EDGE:g}, {_percent(UNIFORM_SHARE)} of the exploration would be at g = 1, where the "
        "temperature is T itself."
    ]
    if measured:
        notes.append(
            "Measured temperatures are in units of T, at g = 1, by the run's own thermometers: 1 is right. Kinetic: of the "
            "momenta, which feel minibatch noise and an α that moves too fast. Configurational: of the parameters, far off "
            "where they have not settled. Minibatch heat: what the noise of the gradients adds."
        )
    return Table("temperature", "CTLD's temperature", columns, body, as_csv(header, lines), notes)
