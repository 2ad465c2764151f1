"""Temperings compared where the answer is known: what is sampled at g = 1, and how often barriers are crossed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctld_lab.report.plots import (
    BLACK,
    BLUE,
    GREEN,
    LINEAR,
    LOG,
    NAMES,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Key,
    Panel,
    Plot,
    Series,
)
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Prose, Table, cells
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.wells import (
    CONFIGURATIONAL,
    KINETIC,
    NOTHING,
    WELLS,
    Found,
    Group,
    Well,
    found_in,
    groups,
    kinetic_verdict,
    rank,
    requirements,
    title,
    together,
    wells,
)
from ctld_lab.report.wording import show

OFF = 3.0
"""Standard errors from which on an average counts as wrong."""
TWICE_CHANCE = 2.0
"""And how many times what chance gives, of the total variation of modes."""
COLOURS = {"calibrated": BLUE, "calibrated auto": SKY, "half-the-force": BLACK, "paper": VERMILION}
MARKERS = {"calibrated": "o", "calibrated auto": "D", "half-the-force": "x", "paper": "s"}
DRIVEN = (GREEN, ORANGE, PURPLE)
TARGETS = TABLES["targets"]
NAMED = {"funnel": "Funnel", "nine-modes": "Nine modes", "network": "Bayesian network"}
MODES, CHANGES, TRIPS = "total variation of the modes", "changes of mode", "fewest half-trips"


def content(study: StudyRecord) -> Content:
    found = wells(study)
    rate = _rate(study)
    judged = [well for well in found if well.done or well.diverged]
    others = sorted({well.tempering for well in found} - {"calibrated", "half-the-force"}, key=rank)
    targets = _targets(study)
    prose = Prose(
        "tempering", requirements=requirements(found, rate), rated=math.isfinite(rate.mean), absent=_absent(study, "rate"),
        twins=[(well, kinetic_verdict(well)) for well in judged if well.tempering == "half-the-force"],
        others=[[well for well in found if well.tempering == label] for label in others], targets=targets,
        failed=[run.name for run in study.finals if run.kind == "tempering" and run.state == "failed"],
    )  # fmt: skip
    made = Content(summary=prose.paragraphs("summary"))
    if any(well.done for well in found):
        made.plots.append(_plot(found, rate, prose("caption")))
    if found:
        made.tables.append(_wells_table(found, rate, prose))
    frame = _targets_frame(study)
    if targets or not frame.empty:
        made.tables.append(_targets_table(study, frame, prose))
    return made


def special(study: StudyRecord, variant: str) -> dict[str, Any]:
    """The result of the run of this variant, "rate" or "reference"; empty until it is done."""
    return next((run.result for run in study.finals if run.kind == "tempering" and run.variant == variant), {})


def _rate(study: StudyRecord) -> Found:
    """Crossings without tempering."""
    if study.published and "wells" in study.tables:
        frame = study.tables["wells"]
        line = frame[frame["tempering"] == "none"]
        return (
            Found(*(float(line[name].iloc[0]) for name in ("crossing_rate", "crossing_rate_error")))
            if len(line)
            else NOTHING
        )
    return found_in(special(study, "rate").get("crossing_rate", {}))


def _absent(study: StudyRecord, variant: str) -> str:
    """Why there is no result of that run, in words."""
    run = next((run for run in study.finals if run.kind == "tempering" and run.variant == variant), None)
    if run is None:
        return "is missing"
    if run.state == "done":
        return "diverged" if run.result.get("diverged") else "holds no such number"
    return "failed" if run.state == "failed" else "is not finished"


def _plot(found: Sequence[Well], rate: Found, caption: str) -> Plot:
    labels = sorted({well.tempering for well in found}, key=rank)
    driven = [label for label in labels if label.startswith("driven")]
    colours = COLOURS | {label: DRIVEN[place % len(DRIVEN)] for place, label in enumerate(driven)}
    keys = {
        label: Key(title(label), colours.get(label, BLACK), marker=MARKERS.get(label, "^"), line=False)
        for label in labels
    }
    sizes = sorted({well.dimensions for well in found})

    def panel(name: str, value: Callable[[Well], Found], ylabel: str, line: float, y: str = LINEAR) -> Panel:
        series = []
        for place, (label, key) in enumerate(keys.items()):
            own = [well for well in found if well.tempering == label]
            shift = 0.09 * (place - 0.5 * (len(keys) - 1))
            values = [value(well) for well in own]
            low, high = ([each.mean + sign * each.error for each in values] for sign in (-2, 2))
            x = [sizes.index(well.dimensions) + shift for well in own]
            series.append(Series(key, x, [each.mean for each in values], low, high))
        names = [f"{size:,}" for size in sizes]
        return Panel(name, series, "dimensions d", ylabel, x=NAMES, y=y, names=names, lines=[("y", line)])

    panels = [
        panel("Kinetic temperature at g = 1", lambda well: well.kinetic, "in units of T", 1.0),
        panel("Second moment at g = 1", lambda well: well.square, "⟨x²⟩/exact", 1.0),
        panel("Crossings of the barrier", lambda well: well.rate, "per 400,000 steps", rate.mean, LOG),
    ]
    return Plot("wells", caption, panels, list(keys.values()))


def _wells_table(found: Sequence[Well], rate: Found, prose: Prose) -> Table:
    columns = ["d", "Tempering", "Kinetic temperature", "Configurational", "⟨x²⟩/exact", "TV of |α|", "Half-trips"]
    columns += ["Crossings", "× untempered", "Steps", "Runs"]
    body, lines = [], []
    for well in found:
        name = f"{well.title} ({show(well.depth, 2)})" if math.isfinite(well.depth) else well.title
        ends = [f"{trips:,.0f}" for trips in well.trips if math.isfinite(trips)]
        trips = "–" if not ends else ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[1]}"
        numbers = [well.kinetic, well.configurational, well.square, show(well.variation, 2), trips]
        ratio = well.rate.over(rate)
        body.append(cells(f"{well.dimensions:,}", name, *numbers, well.rate, ratio, f"{well.steps:,}", well.state))
        values = [
            x
            for each in (well.kinetic, well.configurational, well.square, well.rate, ratio)
            for x in (each.mean, each.error)
        ]
        lines.append(
            [
                well.dimensions,
                well.tempering,
                *values,
                *well.scatter,
                well.variation,
                well.trips[0],
                well.steps,
                well.done,
            ]
        )
    known = math.isfinite(rate.mean)
    body.append(cells("any", "none", *["–"] * 5, *([rate, "1"] if known else ["–", "–"]), "–", "–"))
    lines.append(["any", "none", *[math.nan] * 6, rate.mean, rate.error, *[math.nan] * 6, "", ""])
    caption = "The double well by dimension and tempering"
    return Table("wells", caption, columns, body, pd.DataFrame(lines, columns=WELLS), prose.paragraphs("wells_notes"))


# ---- targets that are not Gaussian ----


@dataclass(frozen=True)
class Judged:
    """Averages that have an answer: how many agree with it; those that are off, in words; and how many nobody can tell."""

    where: str
    agree: int
    off: list[str]
    unknown: int
    rate: str = ""
    diverged: str = ""
    done: bool = True

    @property
    def count(self) -> int:
        return self.agree + len(self.off)


def _other_groups(study: StudyRecord) -> list[Group]:
    return [group for group in groups(study) if group.target != "double-well"]


def modes(group: Group) -> tuple[float, float] | None:
    """Total variation of the shares of modes from the exact ones, and what chance gives when they are right."""
    rows = [run.result["shares"] for run in group.done if "shares" in run.result]
    if not rows:
        return None
    shares = [together([found_in(share) for share in column]) for column in zip(*rows, strict=True)]
    exact = [share.get("expected", math.nan) for share in rows[0]]
    variation = 0.5 * sum(abs(share.mean - value) for share, value in zip(shares, exact, strict=True))
    # The mean of |z| of a standard normal number is √(2/π).
    return variation, 0.5 * math.sqrt(2.0 / math.pi) * sum(share.error for share in shares)


def _targets_frame(study: StudyRecord) -> pd.DataFrame:
    """One line per target, tempering and average: as it was published, or from the runs."""
    if study.published:
        return study.tables.get("targets", pd.DataFrame(columns=TARGETS))
    reference = special(study, "reference").get("means", {})
    lines: list[list[Any]] = []
    for group in _other_groups(study):
        names = dict.fromkeys(name for run in group.done for name in run.result.get("means", {}))
        first = [name for name in (KINETIC, CONFIGURATIONAL, "U") if name in names]
        for name in [*first, *(name for name in names if name not in first)]:
            found, exact = together(group.each(name)), group.expected(name)
            exact = exact if math.isfinite(exact.mean) else found_in(reference.get(name, {}))
            lines.append(
                [
                    group.target,
                    group.tempering,
                    name,
                    found.mean,
                    found.error,
                    exact.mean,
                    exact.error,
                    found.away(exact),
                ]
            )
        shares, trips = modes(group), group.numbers("half_trips")
        nothing = [math.nan] * 3
        if shares:
            lines.append([group.target, group.tempering, MODES, *shares, 0.0, math.nan, math.nan])
            rate = group.crossing_rate()
            lines.append([group.target, group.tempering, CHANGES, rate.mean, rate.error, *nothing])
        if trips:
            lines.append([group.target, group.tempering, TRIPS, min(trips), math.nan, *nothing])
    return pd.DataFrame(lines, columns=TARGETS)


def _targets(study: StudyRecord) -> list[Judged]:
    frame = _targets_frame(study)
    known = {(group.target, group.tempering): group for group in _other_groups(study)}
    keys = list(known) or list(dict.fromkeys(zip(frame["target"], frame["tempering"], strict=True)))
    found = []
    for key in keys:
        group = known.get(key)
        if group is None or group.done or group.diverged:
            own = frame[(frame["target"] == key[0]) & (frame["tempering"] == key[1])]
            found.append(_judged(key, own, group))
    return found


def _judged(key: tuple[str, str], frame: pd.DataFrame, group: Group | None) -> Judged:
    """Off is three standard errors or more. An error that is not known shows no agreement."""
    agree, off, unknown = 0, [], 0
    for _, line in frame.iterrows():
        name, found, exact = (
            line["average"],
            Found(line["mean"], line["error"]),
            Found(line["expected"], line["expected_error"]),
        )
        if name == MODES:
            beyond = found.mean - TWICE_CHANCE * found.error
            wrong, open_case = beyond > 0, math.isnan(beyond)
            words = f"{MODES} {show(found.mean, 2)} (chance: {show(found.error, 2)})"
        elif math.isnan(exact.mean):
            continue
        else:
            away = abs(found.away(exact))
            wrong, open_case = away >= OFF, math.isnan(away)
            words = f"{_shown(name)} {found} (right: {exact.right})"
        agree, unknown = agree + (not wrong and not open_case), unknown + open_case
        off += [words] if wrong else []
    changes = frame[frame["average"] == CHANGES]
    rate = str(Found(changes["mean"].iloc[0], changes["error"].iloc[0])) if len(changes) else ""
    where = f"{NAMED.get(key[0], key[0])}, {'no' if key[1] == 'constant' else title(key[1])} tempering"
    return Judged(where, agree, off, unknown, rate, group.diverged if group else "", bool(group is None or group.done))


def _shown(name: str) -> str:
    if name in (KINETIC, CONFIGURATIONAL, CHANGES, TRIPS):
        return name
    return "TV of the modes" if name == MODES else f"variance of {name[4:]}" if name.startswith("var ") else f"⟨{name}⟩"


def _targets_table(study: StudyRecord, frame: pd.DataFrame, prose: Prose) -> Table:
    states = {(group.target, group.tempering): group.state for group in _other_groups(study)}
    labels = sorted({*frame["tempering"], *(tempering for _, tempering in states)}, key=rank)
    body = []
    for (target, name), part in frame.groupby(["target", "average"], sort=False):
        by_label = {line["tempering"]: line for _, line in part.iterrows()}
        exact = next(
            (Found(x["expected"], x["expected_error"]) for x in by_label.values() if math.isfinite(x["expected"])),
            NOTHING,
        )
        shown = [_target_cell(str(name), by_label.get(label), exact) for label in labels]
        right = "0" if name == MODES else exact.right
        body.append(cells(NAMED.get(target, target), _shown(str(name)), right, *shown))
    for target in dict.fromkeys(target for target, _ in states):
        texts = [states.get((target, label), "–") for label in labels]
        body.append(cells(NAMED.get(target, target), "runs", "", *texts))
    columns = ["Target", "Average at g = 1", "Right", *(title(label) for label in labels)]
    return Table("targets", "Targets that are not Gaussian", columns, body, frame, prose.paragraphs("targets_notes"))


def _target_cell(name: str, line: Any, exact: Found) -> Cell:
    if line is None:
        return Cell("–")
    found = Found(line["mean"], line["error"])
    if name == MODES:
        return Cell(f"{show(found.mean, 2)} (chance: {show(found.error, 2)})")
    if name == TRIPS:
        return Cell(f"{found.mean:,.0f}")
    away = found.away(exact)
    known = math.isfinite(found.mean) and math.isfinite(exact.mean)
    return Cell(str(found), "off" if abs(away) >= OFF else "not judged" if known and math.isnan(away) else "")
