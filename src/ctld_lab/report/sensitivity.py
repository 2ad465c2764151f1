"""Figure 4: test loss over CTLD's own constants: w × σ, S, and beyond the paper T and the length of the exploration."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ctld_lab.report.plots import BLACK, BLUE, GREEN, NAMES, ORANGE, PURPLE, SKY, VERMILION, Key, Panel, Plot, Series
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, paper_note, printed_values, value_cell
from ctld_lab.report.tables import Row, final_table
from ctld_lab.report.wording import counted, show_setting
from ctld_lab.statistics import Spread, spread

METRIC = "test nats"
CURVES = {  # variant → title, label of the axis, name in `point`
    "depth": ("Depth S of the tempering", "depth S", "S"),
    "temperature": ("Temperature T", "temperature T", "T"),
    "exploration": ("Length of the exploration", "share of the steps", "share"),
}
WORDS = {"grid": "w and σ", "depth": "S", "temperature": "T", "exploration": "the length of the exploration"}
SYMBOLS = {"w": "w", "sigma": "σ", "S": "S", "T": "T", "share": "L_s/L"}
MEAN = Key("mean and 95 % interval", BLUE, marker="o", line=False)
PAPER = Key("the paper's value", BLACK, marker="D", line=False)
UNEXPLORED = Key("no exploration: SGD-M", BLACK, marker="s", line=False)
LOST = Key("a seed diverged", VERMILION, marker="x", line=False)
WIDTHS = (SKY, BLUE, GREEN, ORANGE, PURPLE, VERMILION)


@dataclass(frozen=True)
class Effect:
    """Effect of one constant: the range of the means beside that of chance alone. One that can diverge is not harmless."""

    name: str
    lost: list[str]
    points: int
    width: float
    spread: Spread | None

    @property
    def verb(self) -> str:
        return "do" if " and " in self.name else "does"


def content(study: StudyRecord) -> Content:
    rows, found = final_table(study), Content()
    by_variant = {variant: [row for row in rows if row.variant == variant] for variant in WORDS}
    effects = [_effect(WORDS[variant], own) for variant, own in by_variant.items() if any(row.done for row in own)]
    prose = Prose("sensitivity", effects=effects, diverged=any(row.diverged for row in rows))
    found.summary += prose.paragraphs("summary")
    if effects:
        found.plots.append(_plot(study, rows, prose("caption")))
    found.tables.append(_table(study, rows, prose))
    return found


def _effect(name: str, points: Sequence[Row]) -> Effect:
    finished = [row for row in points if row.done and not row.diverged]
    lost = [f"{_point(row)} ({row.diverged} of {counted(row.done, 'seed')})" for row in points if row.diverged]
    means = [row.estimate(METRIC).mean for row in finished]
    width = max(means) - min(means) if means else math.nan
    return Effect(name, lost, len(means), width, spread([row.values.get(METRIC, {}) for row in finished]))


def _plot(study: StudyRecord, rows: Sequence[Row], caption: str) -> Plot:
    defaults = study.paper.get("defaults", {})
    grid = [row for row in rows if row.variant == "grid" and {"w", "sigma"} <= row.point.keys()]
    heights = sorted({row.point["w"] for row in grid})
    keys, panels = [], []
    series = []
    for place, width in enumerate(sorted({row.point["sigma"] for row in grid})):
        key = Key(f"σ = {width:g}", WIDTHS[place % len(WIDTHS)], marker="o")
        keys.append(key)
        own = sorted((row for row in grid if row.point["sigma"] == width), key=lambda row: row.point["w"])
        series += _series(own, [heights.index(row.point["w"]) for row in own], key)
    title, names = "Hill height w and width σ", [f"{height:g}" for height in heights]
    panels.append(Panel(title, series, "hill height w", "test nats per character", x=NAMES, names=names))
    for variant, (title, words, name) in CURVES.items():
        points = [row for row in rows if row.variant == variant and row.done and name in row.point]
        points = sorted(points, key=partial(_order, name))
        places = list(range(len(points)))
        plain = [p for p in places if not (name == "share" and points[p].point[name] == 0)]
        series = _series([points[p] for p in plain], plain, MEAN)
        series += _series(
            [points[p] for p in places if p not in plain], [p for p in places if p not in plain], UNEXPLORED
        )
        theirs = [p for p in places if points[p].point[name] == defaults.get(name)]
        if theirs:
            series += [replace(each, low=(), high=()) for each in _series([points[p] for p in theirs], theirs, PAPER)]
        labels = ["0: SGD-M" if p not in plain else _setting(points[p].point[name]) for p in places]
        panels.append(Panel(title, series, words, "test nats per character", x=NAMES, names=labels))
    keys += [MEAN, PAPER, UNEXPLORED, *([LOST] if any(row.diverged for row in rows) else [])]
    return Plot("surface", caption, panels, keys, columns=2)


def _series(rows: Sequence[Row], places: Sequence[int], key: Key) -> list[Series]:
    """Means with their intervals; where a seed diverged there is no mean, and a cross stands at the mean of the others."""
    pairs = list(zip(map(float, places), rows, strict=True))
    sound, lost = (
        [(p, row.estimate(METRIC)) for p, row in pairs if bool(row.diverged) == wrong] for wrong in (False, True)
    )
    return [
        Series.of(key, [p for p, _ in sound], [found for _, found in sound]),
        Series(LOST, [p for p, _ in lost], [found.mean for _, found in lost]),
    ]


def _order(name: str, row: Row) -> tuple[bool, float]:
    """Numbers in order, "auto" first."""
    value = row.point[name]
    return (not isinstance(value, str), 0.0 if isinstance(value, str) else float(value))


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else show_setting(float(value))


def _point(row: Row) -> str:
    return ", ".join(f"{SYMBOLS.get(key, key)} = {_setting(value)}" for key, value in row.point.items())


def _table(study: StudyRecord, rows: Sequence[Row], prose: Prose) -> Table:
    order, body = ["grid", *CURVES], []
    for row in sorted(rows, key=lambda row: [*order, row.variant].index(row.variant)):
        point = _point(row) + (" (SGD-M)" if row.point.get("share") == 0 else "")
        numbers = (value_cell(row, metric, marked=False) for metric in (METRIC, "train nats", "test perplexity"))
        body.append(cells(point, *numbers, row.state))
    columns = ["Point", "Test nats/char", "Train nats/char", "Test perplexity", "Runs"]
    notes = [*prose.paragraphs("notes", printed=printed_values(study).get("S")), *paper_note(study)]
    return Table("points", "All points", columns, body, notes)
