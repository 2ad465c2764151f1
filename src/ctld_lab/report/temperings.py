"""Temperings compared where the answer is known: what is sampled at g = 1, and how often barriers are crossed."""

import math
from typing import Any

import pandas as pd

from ctld_lab.report.known_answers import (
    CHANGES,
    CONFIGURATIONAL,
    KINETIC,
    MEASURED,
    MODES,
    NOTHING,
    TRIPS,
    WELLS,
    Found,
    groups,
    rank,
    runs_frame,
    targets_frame,
    wells_frame,
)  # fmt: skip
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
)  # fmt: skip
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Prose, Table, cells
from ctld_lab.report.wording import show

OFF = 3.0
"""Standard errors from which on an average counts as wrong."""
LOOKS = {  # title, colour and marker
    "calibrated": ("calibrated", BLUE, "o"), "calibrated auto": ("calibrated, depth chosen", SKY, "D"),
    "half-the-force": ("twin: half the force", BLACK, "x"), "paper": ("the paper's", VERMILION, "s"),
    "driven": ("driven", GREEN, "^"), "constant": ("none", BLACK, "^"),
}  # fmt: skip
DRIVEN = (GREEN, ORANGE, PURPLE)
NAMED = {"funnel": "Funnel", "nine-modes": "Nine modes", "network": "Bayesian network"}


def content(study: StudyRecord) -> Content:
    wells, targets = wells_frame(study), targets_frame(study)
    chains = wells[wells["dimensions"] != "any"]
    told = [
        (title(str(name)), own["dimensions"].tolist(), *(own[x].astype(float).tolist() for x in MEASURED[0:3:2]))
        for name, own in chains.groupby("tempering", sort=False)
        if own["runs"].astype(float).sum()
    ]
    judged = targets[targets["errors_away"].notna()]
    off = [
        (title(str(name)), int((own["errors_away"].abs() >= OFF).sum()), len(own))
        for name, own in judged.groupby("tempering", sort=False)
    ]
    prose = Prose("tempering", wells=told, off=off)
    made = Content(
        summary=prose.paragraphs("summary"), data={"runs": runs_frame(study), "wells": wells[WELLS], "targets": targets}
    )
    if told:
        made.plots.append(_plot(wells, prose("caption")))
    if len(wells):
        made.tables.append(_wells_table(wells, prose))
    if groups(study, wells=False) or not targets.empty:
        made.tables.append(_targets_table(study, targets, prose))
    return made


def title(label: str) -> str:
    name, _, period = label.partition(" over ")
    return f"driven, {int(period):,} steps" if period else LOOKS.get(name, (name,))[0]


def _found(line: Any, name: str) -> Found:
    return Found(float(line[name]), float(line[f"{name}_error"]))


def _plot(wells: pd.DataFrame, caption: str) -> Plot:
    chains, rate = wells[wells["dimensions"] != "any"], float(wells["crossing_rate"].iloc[-1])
    labels = sorted(set(chains["tempering"]), key=rank)
    driven = [label for label in labels if label.startswith("driven")]
    keys = {}
    for label in labels:
        colour = DRIVEN[driven.index(label) % len(DRIVEN)] if label in driven else BLACK
        _, colour, marker = LOOKS.get(label, ("", colour, "^"))
        keys[label] = Key(title(label), colour, marker=marker, line=False)
    sizes = sorted(set(map(int, chains["dimensions"])))
    panels = []
    for name, column, ylabel, line, y in (
        ("Kinetic temperature at g = 1", "kinetic_temperature", "in units of T", 1.0, LINEAR),
        ("Second moment at g = 1", "mean_square_ratio", "⟨x²⟩/exact", 1.0, LINEAR),
        ("Crossings of the barrier", "crossing_rate", "per 400,000 steps", rate, LOG),
    ):
        series = []
        for place, (label, key) in enumerate(keys.items()):
            own = chains[chains["tempering"] == label]
            mean, half = own[column].astype(float), 2 * own[f"{column}_error"].astype(float)
            x = [sizes.index(int(d)) + 0.09 * (place - 0.5 * (len(keys) - 1)) for d in own["dimensions"]]
            series.append(Series(key, x, mean.tolist(), (mean - half).tolist(), (mean + half).tolist()))
        names = [f"{size:,}" for size in sizes]
        panels.append(Panel(name, series, "dimensions d", ylabel, x=NAMES, y=y, names=names, lines=[("y", line)]))
    return Plot("wells", caption, panels, list(keys.values()))


def _wells_table(wells: pd.DataFrame, prose: Prose) -> Table:
    columns = ["d", "Tempering", "Kinetic temperature", "Configurational", "⟨x²⟩/exact", "TV of |α|", "Half-trips"]
    columns += ["Crossings", "× untempered", "Steps", "Runs"]
    body = []
    for _, line in wells.iterrows():
        alone = line["dimensions"] == "any"
        name = "none" if alone else title(line["tempering"])
        name += f" ({show(line['depth'], 2)})" if math.isfinite(line["depth"]) else ""
        trips = dict.fromkeys(
            f"{line[x]:,.0f}" for x in ("fewest_half_trips", "most_half_trips") if math.isfinite(line[x])
        )
        kinetic, configurational, square, rate, ratio = (_found(line, x) for x in MEASURED)
        numbers = [
            kinetic,
            configurational,
            square,
            show(line["largest_total_variation"], 2),
            " to ".join(trips) or "–",
            rate,
        ]
        steps = "–" if alone else f"{int(float(line['steps'])):,}"
        size = "any" if alone else f"{int(line['dimensions']):,}"
        body.append(cells(size, name, *numbers, "1" if alone else ratio, steps, line["state"] or "–"))
    caption, notes = "The double well by dimension and tempering", prose.paragraphs("wells_notes")
    return Table("wells", caption, columns, body, notes)


def _targets_table(study: StudyRecord, frame: pd.DataFrame, prose: Prose) -> Table:
    states = {(group.target, group.tempering): group.state for group in groups(study, wells=False)}
    labels = sorted({*frame["tempering"], *(tempering for _, tempering in states)}, key=rank)
    body = []
    for (target, name), part in frame.groupby(["target", "average"], sort=False):
        by_label = {line["tempering"]: line for _, line in part.iterrows()}
        known = [_found(line, "expected") for line in by_label.values() if math.isfinite(line["expected"])]
        exact = known[0] if known else NOTHING
        right = "0" if name == MODES else show(exact.mean) if exact.error == 0 else str(exact)
        row = [_target_cell(str(name), by_label.get(label), exact) for label in labels]
        body.append(cells(NAMED.get(target, target), _shown(str(name)), right, *row))
    for target in dict.fromkeys(target for target, _ in states):
        texts = [states.get((target, label), "–") for label in labels]
        body.append(cells(NAMED.get(target, target), "runs", "", *texts))
    columns = ["Target", "Average at g = 1", "Right", *(title(label) for label in labels)]
    return Table("targets", "Targets that are not Gaussian", columns, body, prose.paragraphs("targets_notes"))


def _shown(name: str) -> str:
    if name in (KINETIC, CONFIGURATIONAL, CHANGES, TRIPS):
        return name
    return "TV of the modes" if name == MODES else f"variance of {name[4:]}" if name.startswith("var ") else f"⟨{name}⟩"


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
