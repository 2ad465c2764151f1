"""Learning curves: the mean over seeds with its 95 % band, one line per method. First as a table, which is stored."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.report.plots import BLUE, LOG, Key, Panel, Plot, Series, method_key
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Prose, picture, short_title
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.tables import final_table
from ctld_lab.statistics import Estimate, estimate

WIDTHS = {"sgd": 0.9, "ctld": 2.0}  # curves that tie lie on each other
CEILING = 3.0  # times the median start: above it a curve has exploded


def runs_to_draw(study: StudyRecord, method: str, variant: str) -> list[RunRecord]:
    """Finished runs, or unfinished ones where there are no others: a mean over seeds that come and go would jump."""
    runs = [run for run in study.finals if (run.method, run.variant) == (method, variant) and run.metrics]
    return [run for run in runs if run.state == "done"] or [run for run in runs if run.state == "started"]


def mean_curves(runs: Sequence[RunRecord], split: str, metric: str) -> list[list[tuple[float, Estimate]]]:
    """One curve per stage: what is measured starts anew with each layer, so no line leads from one to the next.

    They end where the first seed is lost: a mean of those that are left would fall because the worst have gone.
    """
    found: dict[int, dict[float, list[float]]] = {}
    for run in runs:
        for line in run.metrics:
            value = line.get(split, {}).get(metric, math.nan)
            # What was evaluated on more data than the other points is no point of the same curve.
            if math.isfinite(value) and not line.get("thorough"):
                stage = found.setdefault(line.get("stage", 1), {})
                stage.setdefault(line.get("step", math.nan), []).append(value)
    curves = []
    for _, stage in sorted(found.items()):
        lost = min((step for step in stage if len(stage[step]) < len(runs)), default=math.inf)
        curves.append([(step, estimate(stage[step])) for step in sorted(stage) if step < lost])
        if lost < math.inf:
            break
    return [curve for curve in curves if curve]


def curves_frame(study: StudyRecord, variants: Iterable[str], metrics: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """Of these (split, metric); or as it was published."""
    if study.published:
        return study.table("curves")
    lines = []
    for variant in variants:
        for split, metric in metrics:
            for method in study.methods:
                curves = mean_curves(runs_to_draw(study, method, variant), split, metric)
                for stage, curve in enumerate(curves, start=1):
                    lines += [
                        [variant, split, metric, method, stage, step, x.mean, *x.ends, x.count] for step, x in curve
                    ]
    return pd.DataFrame(lines, columns=TABLES["curves"])


def keys(study: StudyRecord) -> list[Key]:
    return [method_key(method, study.title(method), study.methods) for method in study.methods]


def curve_panel(
    study: StudyRecord, frame: pd.DataFrame, variant: str, split: str, metric: str, title: str, ylabel: str
) -> Panel:
    """Logarithmic in y. The axis follows the means, of three seeds a band can be wider than everything, up to the ceiling."""
    chosen = frame[(frame["variant"] == variant) & (frame["split"] == split) & (frame["metric"] == metric)]
    series, starts = [], []
    for method, key in zip(study.methods, keys(study), strict=True):
        for _, curve in chosen[chosen["method"] == method].groupby("stage"):
            columns = {name: curve[name].astype(float).tolist() for name in ("mean", "low", "high", "step")}
            ends = {"low": columns["low"], "high": columns["high"]}
            series.append(
                Series(key, columns["step"], columns["mean"], **ends, band=True, width=WIDTHS.get(method, 1.3))
            )
            starts.append(columns["mean"][0])
    series.sort(key=lambda each: -each.width)  # the broad ones below
    limits = None
    positive = [value for each in series for value in each.y if value > 0]
    if positive:
        top = min(max(positive), max(CEILING * float(np.median(starts)), CEILING * min(positive)))
        margin = max((top / min(positive)) ** 0.06, 1.02)
        limits = (min(positive) / margin, top * margin)
    # Where the training moves on to the next layer.
    switches = np.cumsum(next((run.stages for run in study.finals), [0]))[:-1]
    lines = [("x", float(end)) for end in switches]
    return Panel(title, series, "iteration", ylabel, y=LOG, lines=lines, ylim=limits)


def curves_plot(
    study: StudyRecord, name: str, caption: str, panels: Sequence[Panel], frame: pd.DataFrame, **more: Any
) -> list[Plot]:
    """Of what was evaluated: no plot before, no empty panel. Of a study published without its curves, the picture of them."""
    if not frame.empty:
        drawn = set(zip(frame["method"], frame["variant"], strict=True))
        methods = {method for method, _ in drawn}
        absent = [study.title(method) for method in study.methods if method not in methods]
        several = len(set(frame["variant"])) > 1
        begun = [
            f"{row.title} ({short_title(row.variant)})" if several else row.title
            for row in final_table(study)
            if not row.done and (row.method, row.variant) in drawn
        ]
        caption = f"{caption} {Prose('common')('so_far', absent=absent, partial=list(dict.fromkeys(begun)))}".strip()
        present = [key for method, key in zip(study.methods, keys(study), strict=True) if method in methods]
        return [Plot(name, caption, [panel for panel in panels if panel.series], present, **more)]
    return picture(study, name, caption)


def traced_run(study: StudyRecord) -> RunRecord | None:
    """The first CTLD run with a trace; finished and tuned ones first."""
    runs = sorted(study.finals, key=lambda run: (run.state != "done", run.variant != "tuned", run.seed))
    return next((run for run in runs if run.method == "ctld" and run.trace), None)


def trace_frame(study: StudyRecord) -> pd.DataFrame:
    """1/g(α) in the last stage that was traced."""
    run = traced_run(study)
    if run is None:
        return study.table("trace")
    stage = max(line.get("stage", 1) for line in run.trace)
    before = sum(run.stages[: stage - 1])
    lines = [line for line in run.trace if line.get("stage", 1) == stage]
    return pd.DataFrame(
        [[stage, x.get("step", math.nan) - before, x.get("temperature_ratio", math.nan)] for x in lines],
        columns=TABLES["trace"],
    )


def ratio_panel(frame: pd.DataFrame, title: str = "Temperature ratio, final layer", of: str = "layer {}") -> Panel:
    """1/g(α) against iterations `of` a stage, or of exploration."""
    series = [Series(Key("CTLD", BLUE), frame["step"].tolist(), frame["temperature_ratio"].tolist(), width=0.8)]
    stage = int(frame["stage"].iloc[0]) if len(frame) else 1
    top = max(7.2, 1.08 * float(frame["temperature_ratio"].max())) if len(frame) else 7.2
    words = "no exploration was traced"
    return Panel(title, series, f"iteration of {of.format(stage)}", "1/g(α)", ylim=(0.5, top), words=words)
