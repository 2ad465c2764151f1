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


@dataclass(frozen=True)
class Tempering:
    """One variant in one stage, over seeds."""

    variant: str
    stage: int
    temperatures: Sequence[float]
    cold: float
    outside: float
    highest: float


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
            )
        )
    return made


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


def _percent(share: float) -> str:
    return f"{100.0 * share:.0f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else "–"


def _table(temperings: Sequence[Tempering], *, layered: bool) -> Table:
    body, lines = [], []
    for each in temperings:
        where = [each.variant, *([str(each.stage)] if layered else [])]
        fixed = len(set(each.temperatures)) == 1
        shown = [show_setting(each.temperatures[0]) if fixed else show_estimate(estimate(each.temperatures))]
        shown += map(_percent, (each.cold, each.outside))
        body.append([Cell(text) for text in (*where, *shown, show(each.highest, 3), str(len(each.temperatures)))])
        mean = estimate(each.temperatures).mean
        numbers = [mean, each.cold, each.outside, each.highest]
        texts = [repr(value) if math.isfinite(value) else "" for value in numbers]
        lines.append([each.variant, each.stage, *texts, len(each.temperatures)])
    header = ["variant", "stage", "temperature", "cold_share", "share_outside", "highest_ratio", "seeds"]
    columns = [
        "Setting",
        *(["Layer"] if layered else []),
        "T",
        "Exploration at g = 1",
        f"Outside, |α| > {EDGE:g}",
        "Highest 1/g",
        "Seeds",
    ]
    notes = [
        f"Means over {counted(max(len(each.temperatures) for each in temperings), 'seed')}, the highest 1/g over all of them. "
        f"Were α uniform within ±{EDGE:g}, {_percent(UNIFORM_SHARE)} of the exploration would be at g = 1, where the "
        "temperature is T itself."
    ]
    return Table("temperature", "CTLD's temperature", columns, body, as_csv(header, lines), notes)
