"""Theorems 1 and 2 where the answer is known: exactness of the sampler on a double well, and the rates of its averages."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report import theorem
from ctld_lab.report.plots import BLACK, COLOURS, Key, Panel, Plot, no_data
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table, value_cell
from ctld_lab.report.statistics import Estimate
from ctld_lab.report.tables import Row, final_table, rows_as_csv
from ctld_lab.report.temperature import UNIFORM_SHARE
from ctld_lab.report.wording import listed, show, show_estimate

RATE = "crossings per 100,000 steps"
KEYS = {
    "tempered": Key("tempered, as the paper has it", COLOURS["ctld"], marker="o", line=False),
    "untempered": Key("untempered Langevin dynamics", BLACK, marker="s", line=False),
}


def content(study: StudyRecord) -> Content:
    rows = [row for row in final_table(study) if row.method.startswith("d = ")]
    done = [row for row in rows if row.done]
    found = Content()
    if done:
        found.summary.append(_summary(study, done))
        panels = [
            Panel(
                "Kinetic temperature at g = 1", _against_dimension(done, "kinetic_temperature", _target(study), "exact")
            ),
            Panel("Second moment ⟨x²⟩ at g = 1", _against_dimension(done, "mean_square", _exact(study), "exact")),
            Panel("Crossings between the wells", _against_dimension(done, RATE, None, "per 100,000 steps")),
        ]
        caption = (
            "Means over seeds with 95 % intervals against the number of dimensions; dotted: the exact value. The first two "
            "should lie on the line; more crossings are more exploration."
        )
        found.plots.append(Plot("exactness", caption, panels, list(KEYS.values())))
    elif not any(run.kind == "theorem" and run.state == "done" for run in study.finals):
        found.summary.append("No run is finished, so nothing can be said yet.")
    if rows:
        found.tables.append(_table(study, rows))
    theorem.add(study, found)
    return found


def _value(study: StudyRecord, name: str) -> float:
    return next((number(run.result[name]) for run in study.finals if name in run.result), math.nan)


def _target(study: StudyRecord) -> float:
    return _value(study, "kinetic_target")


def _exact(study: StudyRecord) -> float:
    return _value(study, "mean_square_exact")


def _summary(study: StudyRecord, rows: Sequence[Row]) -> str:
    """Off by chance or not, by dimension; and how much more often the wells are crossed."""
    sentences = []
    tempered = [row for row in rows if row.variant == "tempered"]
    for metric, words, exact in (
        ("kinetic_temperature", "kinetic temperature at g = 1", _target(study)),
        ("mean_square", "⟨x²⟩ at g = 1", _exact(study)),
    ):
        wrong = [row for row in tempered if _differs(row.estimate(metric), exact)]
        known = [row for row in tempered if row.estimate(metric).half_width is not None]
        if wrong:
            values = [f"{show_estimate(row.estimate(metric))} at {row.title}" for row in wrong]
            sentences.append(
                f"Under the paper's tempering the {words} is not the exact {show(exact)}: it is {listed(values)}."
            )
        elif known:
            dimensions = listed([row.title for row in known])
            sentences.append(
                f"Under the paper's tempering the {words} agrees with the exact {show(exact)} at {dimensions}."
            )
        elif tempered:
            values = [f"{show(row.estimate(metric).mean)} at {row.title}" for row in tempered]
            sentences.append(
                f"With one seed, the {words} is {listed(values)} (exact: {show(exact)}); chance is not known."
            )
    rates = []
    for row in tempered:
        other = next((each for each in rows if each.method == row.method and each.variant == "untempered"), None)
        if other and other.estimate(RATE).mean > 0:
            rates.append(f"{show(row.estimate(RATE).mean / other.estimate(RATE).mean, 2)} at {row.title}")
    if rates:
        sentences.append(f"Tempering multiplies the rate of crossings between the wells by {listed(rates)}.")
    return " ".join(sentences)


def _differs(found: Estimate, exact: float) -> bool:
    return found.low is not None and found.high is not None and not found.low <= exact <= found.high


def _dimensions(row: Row) -> int:
    return int(row.method.removeprefix("d = ").replace(",", ""))


def _against_dimension(rows: Sequence[Row], metric: str, exact: float | None, ylabel: str) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        sizes = sorted({_dimensions(row) for row in rows})
        if not sizes:
            return no_data(axes, "not measured yet")
        for variant, key in KEYS.items():
            for row in rows:
                if row.variant != variant:
                    continue
                found = row.estimate(metric)
                place = sizes.index(_dimensions(row)) + (-0.1 if variant == "tempered" else 0.1)
                ends = None if found.half_width is None else [found.half_width]
                style: dict[str, Any] = {"marker": key.marker, "markersize": 4.5, "color": key.colour, "linewidth": 1.2}
                axes.errorbar([place], [found.mean], yerr=ends, **style)
        if exact is not None and math.isfinite(exact):
            axes.axhline(exact, color="0.4", linewidth=0.8, linestyle=":")
        axes.set_xticks(range(len(sizes)), [f"{size:,}" for size in sizes])
        axes.set_xlim(-0.5, len(sizes) - 0.5)
        axes.set(
            xlabel="dimensions d", ylabel={"kinetic_temperature": "rᵀr/d", "mean_square": "⟨x²⟩"}.get(metric, ylabel)
        )
        axes.margins(y=0.12)
        if metric == RATE:
            axes.set_ylim(bottom=-0.04 * axes.get_ylim()[1])
        return None

    return draw


def _table(study: StudyRecord, rows: Sequence[Row]) -> Table:
    columns = [
        "Dimensions",
        "Tempering",
        "Kinetic temperature",
        "⟨x²⟩",
        "TV of α",
        "Share at g = 1",
        "Crossings",
        "Steps",
        "Runs",
    ]
    metrics = ("kinetic_temperature", "mean_square", "total_variation", "cold_share", "crossings")
    body = []
    for row in sorted(rows, key=lambda row: (_dimensions(row), row.variant)):
        cells = [value_cell(row, metric).text for metric in metrics]
        if row.variant == "untempered":
            cells[2] = cells[3] = "–"  # there is no α
        steps = next(
            (run.config.get("steps") for run in study.finals if run.config.get("dimensions") == _dimensions(row)), None
        )
        cells.append(f"{steps:,}" if isinstance(steps, int) else "–")
        body.append([Cell(f"{_dimensions(row):,}"), Cell(row.variant), *map(Cell, cells), Cell(row.state)])
    ideal = [show(_target(study)), show(_exact(study)), "0", show(UNIFORM_SHARE, 3)]
    body.append([Cell("exact"), Cell(""), *map(Cell, ideal), Cell(""), Cell(""), Cell("")])
    notes = [
        "± is the half width of a 95 % interval over seeds (Student's t). At g = 1 rᵀr/d should read 2/(1 + momentum) and ⟨x²⟩ "
        "its quadrature value. TV is the total variation between the histogram of α and the uniform law.",
    ]
    return Table("exactness", "Exactness and exploration by dimension", columns, body, rows_as_csv(rows), notes)
