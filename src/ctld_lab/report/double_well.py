"""Theorem 1 where the answer is known: exactness of the sampler on a double well. For Theorem 2 see `theorem`."""

import math
from collections.abc import Sequence

from ctld_lab.report import theorem
from ctld_lab.report.plots import BLACK, COLOURS, NAMES, Key, Panel, Plot, Series
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Content, Prose, Table, cells, value_cell
from ctld_lab.report.statistics import Estimate
from ctld_lab.report.tables import Row, final_frame, final_table, seeds_frame
from ctld_lab.report.temperature import UNIFORM_SHARE
from ctld_lab.report.wording import show

RATE = "crossings per 100,000 steps"
KEYS = {
    "tempered": Key("tempered, as the paper has it", COLOURS["ctld"], marker="o", line=False),
    "untempered": Key("untempered Langevin dynamics", BLACK, marker="s", line=False),
}
SHOWN = ("kinetic_temperature", "mean_square", "total_variation", "cold_share", "crossings")


def content(study: StudyRecord) -> Content:
    rows = [row for row in final_table(study) if row.method.startswith("d = ")]
    done = [row for row in rows if row.done]
    found = Content(data={"seeds": seeds_frame(rows)})
    exact = {
        "kinetic_temperature": _exact(study, rows, "kinetic_target"),
        "mean_square": _exact(study, rows, "mean_square_exact"),
    }
    prose = Prose("double_well", claims=_claims(done, exact), rates=_rates(done))
    if done:
        found.summary += prose.paragraphs("summary")
        panels = [
            _panel(done, "Kinetic temperature at g = 1", "kinetic_temperature", "rᵀr/d", exact["kinetic_temperature"]),
            _panel(done, "Second moment ⟨x²⟩ at g = 1", "mean_square", "⟨x²⟩", exact["mean_square"]),
            _panel(done, "Crossings between the wells", RATE, "per 100,000 steps", math.nan),
        ]
        found.plots.append(Plot("exactness", prose("caption"), panels, list(KEYS.values())))
    elif not any(run.kind == "theorem" and run.state == "done" for run in study.finals):
        found.summary += prose.paragraphs("nothing")
    if rows:
        found.tables.append(_table(study, rows, exact, prose))
    theorem.add(study, found)
    return found


def dimensions(row: Row) -> int:
    return int(row.method.removeprefix("d = ").replace(",", ""))


def _exact(study: StudyRecord, rows: Sequence[Row], name: str) -> float:
    known = [float(run.result[name]) for run in study.finals if name in run.result]
    return next(iter(known), next((row.estimate(name).mean for row in rows if name in row.metrics), math.nan))


def _claims(rows: Sequence[Row], exact: dict[str, float]) -> list[dict[str, object]]:
    """Off by chance or not, by dimension, under the paper's tempering."""
    tempered = [row for row in rows if row.variant == "tempered"]
    words = {"kinetic_temperature": "kinetic temperature at g = 1", "mean_square": "⟨x²⟩ at g = 1"}
    return [
        {
            "metric": metric, "words": words[metric], "exact": value, "tempered": tempered,
            "wrong": [row for row in tempered if _differs(row.estimate(metric), value)],
            "known": [row for row in tempered if row.estimate(metric).half_width is not None],
        }
        for metric, value in exact.items()
    ]  # fmt: skip


def _differs(found: Estimate, exact: float) -> bool:
    return found.low is not None and found.high is not None and not found.low <= exact <= found.high


def _rates(rows: Sequence[Row]) -> list[tuple[str, float]]:
    """How much more often the wells are crossed."""
    found = []
    for row in rows:
        other = next((x for x in rows if x.method == row.method and x.variant == "untempered"), None)
        if row.variant == "tempered" and other and other.estimate(RATE).mean > 0:
            found.append((row.title, row.estimate(RATE).mean / other.estimate(RATE).mean))
    return found


def _panel(rows: Sequence[Row], title: str, metric: str, ylabel: str, exact: float) -> Panel:
    sizes = sorted({dimensions(row) for row in rows})
    series = []
    for variant, key in KEYS.items():
        own = [row for row in rows if row.variant == variant]
        places = [sizes.index(dimensions(row)) + (-0.1 if variant == "tempered" else 0.1) for row in own]
        series.append(Series.of(key, places, [row.estimate(metric) for row in own]))
    names = [f"{size:,}" for size in sizes]
    return Panel(title, series, "dimensions d", ylabel, x=NAMES, names=names, lines=[("y", exact)])


def _table(study: StudyRecord, rows: Sequence[Row], exact: dict[str, float], prose: Prose) -> Table:
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
    steps = {run.config.get("dimensions"): run.config.get("steps") for run in study.finals if run.kind == "double_well"}
    body = []
    for row in sorted(rows, key=lambda row: (dimensions(row), row.variant)):
        texts = [value_cell(row, metric, marked=False).text for metric in SHOWN]
        if row.variant == "untempered":
            texts[2] = texts[3] = "–"  # there is no α
        made = steps.get(dimensions(row))
        texts.append(f"{made:,}" if isinstance(made, int) else "–")
        body.append(cells(f"{dimensions(row):,}", row.variant, *texts, row.state))
    ideal = [show(exact["kinetic_temperature"]), show(exact["mean_square"]), "0", show(UNIFORM_SHARE, 3)]
    body.append(cells("exact", "", *ideal, "", "", ""))
    caption = "Exactness and exploration by dimension"
    return Table("exactness", caption, columns, body, final_frame(rows), prose.paragraphs("notes"))
