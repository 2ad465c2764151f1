"""Temperings compared where the answer is known: what is sampled at g = 1, and how often barriers are crossed."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from ctld_lab.report import tempering_targets
from ctld_lab.report.plots import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Key, Panel, Plot, powers
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table
from ctld_lab.report.tables import as_csv
from ctld_lab.report.tempering_records import (
    CONFIGURATIONAL,
    KINETIC,
    Found,
    Group,
    absent,
    found_in,
    groups,
    rank,
    special,
    title,
)
from ctld_lab.report.tempering_verdicts import RULE, others, required, square_ratio, twin
from ctld_lab.report.wording import listed, show


def content(study: StudyRecord) -> Content:
    everything = groups(study)
    wells = [group for group in everything if group.target == "double-well"]
    rate = found_in(special(study, "rate").get("crossing_rate"))
    found = Content()
    said = (required(wells, rate, absent(study, "rate")), twin(wells), others(wells))
    found.summary += [sentence for sentence in said if sentence]
    if any(group.done for group in wells):
        found.plots.append(_plot(wells, rate))
    if wells:
        found.tables.append(_table(wells, rate))
    tempering_targets.add(study, [group for group in everything if group.target != "double-well"], found)
    failed = [run.name for run in study.finals if run.kind == "tempering" and run.state == "failed"]
    if failed:
        found.summary.append(f"Failed, and in none of these numbers: {listed(failed)}.")
    if not found.summary:
        found.summary.append("No run is finished, so nothing can be said yet.")
    return found


# ---- figure and table ----

_COLOURS = {"calibrated": BLUE, "calibrated auto": SKY, "half-the-force": BLACK, "paper": VERMILION}
_MARKERS = {"calibrated": "o", "calibrated auto": "D", "half-the-force": "x", "paper": "s"}
_DRIVEN = (GREEN, ORANGE, PURPLE)


def _plot(wells: Sequence[Group], rate: Found) -> Plot:
    labels = sorted({group.tempering for group in wells}, key=rank)
    driven = [label for label in labels if label.startswith("driven")]
    colours = _COLOURS | {label: _DRIVEN[place % len(_DRIVEN)] for place, label in enumerate(driven)}
    keys = {
        label: Key(title(label), colours.get(label, BLACK), marker=_MARKERS.get(label, "^"), line=False)
        for label in labels
    }
    kinetic = _against(wells, keys, lambda group: group.mean(KINETIC), "in units of T", 1.0)
    square = _against(wells, keys, square_ratio, "⟨x²⟩/exact", 1.0)
    crossings = _against(wells, keys, Group.crossing_rate, "per 400,000 steps", rate.mean, log=True)
    panels = [
        Panel("Kinetic temperature at g = 1", kinetic),
        Panel("Second moment at g = 1", square),
        Panel("Crossings of the barrier", crossings),
    ]
    caption = (
        "The double well against the number of dimensions, by tempering; bars are two standard errors. Dotted: exact, and "
        "the rate of crossings without tempering, which is the same in any number of dimensions."
    )
    return Plot("wells", caption, panels, list(keys.values()))


def _against(
    wells: Sequence[Group],
    keys: dict[str, Key],
    value: Callable[[Group], Found],
    ylabel: str,
    line: float,
    *,
    log: bool = False,
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        sizes = sorted({group.dimensions for group in wells})
        if log:
            powers(axes, "y")
        for group in wells:
            found = value(group)
            if not math.isfinite(found.mean) or (log and found.mean <= 0):
                continue
            key = keys[group.tempering]
            shift = 0.09 * (list(keys).index(group.tempering) - 0.5 * (len(keys) - 1))
            bar = [2 * found.error] if math.isfinite(found.error) else None
            style: dict[str, Any] = {"marker": key.marker, "markersize": 4, "color": key.colour, "linewidth": 1.0}
            style |= {"markerfacecolor": "white"} if key.marker == "D" else {}  # as in the legend
            axes.errorbar([sizes.index(group.dimensions) + shift], [found.mean], yerr=bar, **style)
        if math.isfinite(line) and (line > 0 or not log):
            axes.axhline(line, color="0.4", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set(xlabel="dimensions d", ylabel=ylabel)

    return draw


def _table(wells: Sequence[Group], rate: Found) -> Table:
    columns = ["d", "Tempering", "Kinetic temperature", "Configurational", "⟨x²⟩/exact", "TV of |α|", "Half-trips"]
    columns += ["Crossings", "× untempered", "Steps", "Runs"]
    body, lines = [], []
    for group in wells:
        values = {
            "kinetic_temperature": group.mean(KINETIC),
            "configurational_temperature": group.mean(CONFIGURATIONAL),
            "mean_square_ratio": square_ratio(group),
            "crossing_rate": group.crossing_rate(),
            "crossing_ratio": group.crossing_rate().over(rate),
        }
        variations, trips = group.numbers("total_variation"), group.numbers("half_trips")
        depths = group.numbers("depth") if group.tempering.endswith("auto") else []
        name = f"{group.title} ({show(sum(depths) / len(depths), 2)})" if depths else group.title
        texts = list(map(str, values.values()))
        texts[3:3] = [show(max(variations), 2) if variations else "–", _range(trips)]
        body.append(list(map(Cell, [f"{group.dimensions:,}", name, *texts, f"{group.steps:,}", group.state])))
        numbers = [number for found in values.values() for number in (found.mean, found.error)]
        scatter = [_scatter(group, KINETIC), _scatter(group, "x²")]
        worst = [max(variations, default=math.nan), min(trips, default=math.nan)]
        lines.append([group.dimensions, group.tempering, *numbers, *scatter, *worst, group.steps, len(group.done)])
    untempered = ["any", "none", "–", "–", "–", "–", "–", str(rate), "1", "–", "–"]
    body.append(list(map(Cell, untempered if math.isfinite(rate.mean) else untempered[:7] + ["–"] * 4)))
    lines.append(["any", "none", *[""] * 6, rate.mean, rate.error, *[""] * 8])
    header = ["dimensions", "tempering"] + [f"{name}{end}" for name in values for end in ("", "_error")]
    header += ["kinetic_scatter", "square_scatter", "largest_total_variation", "fewest_half_trips", "steps", "runs"]
    notes = [
        "± is one standard error, from batch means of each run, put together over seeds. Averages are over the steps with "
        "|α| ≤ 0.4, the first tenth of a run left out. Kinetic and configurational temperature are in units of T: 1 is right. "
        "TV is the total variation of |α| from uniform over 15 bins, the largest of the runs; half-trips are those of a run. "
        "Crossings are per 400,000 steps. Without tempering, and under a driven temperature, dimensions do not see each other: "
        "without tempering crossings are counted in one dimension, and driven x moves alike in any number of them. The paper's "
        "tempering has the paper's step, Euler's; the others BAOAB.",
        RULE,
    ]
    return Table("wells", "The double well by dimension and tempering", columns, body, as_csv(header, lines), notes)


def _scatter(group: Group, name: str) -> float:
    """Between seeds, as a standard error of the mean: beside the one from batch means it shows whether that is honest."""
    means = [found_in((run.result.get("means") or {}).get(name)).mean for run in group.done]
    if len(means) < 2:
        return math.nan
    middle = sum(means) / len(means)
    return math.sqrt(sum((mean - middle) ** 2 for mean in means) / (len(means) - 1) / len(means))


def _range(values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, high = f"{min(values):,.0f}", f"{max(values):,.0f}"
    return low if low == high else f"{low} to {high}"
