"""Learning curves: the mean over seeds with its 95 % band, one line for each method and stage."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.report import tidy
from ctld_lab.report.plots import BLUE, LOG, Key, Panel, Plot, Series, method_key
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Prose, short_title
from ctld_lab.report.tables import final_table
from ctld_lab.statistics import Estimate, estimate, from_error

WIDTHS = {"sgd": 0.9, "ctld": 2.0}  # curves that tie lie on each other
CEILING = 3.0  # times the median start: above it a curve has exploded


def curves(study: StudyRecord, metric: str) -> pd.DataFrame:
    """Return method, variant, stage, step, mean, low, high and count of a metric.

    Of finished runs, or of unfinished ones where there are no others: a mean over seeds that come and go would jump. A curve
    ends where the first seed is lost: a mean of those that are left would fall because the worst have gone.
    """
    rows = (
        study.places([metric, metric + tidy.SE]).reindex(columns=[*tidy.COLUMNS, "stage", "step"]).dropna(subset="step")
    )
    states = study.table[(study.table["at"] == "") & study.table["metric"].isin([tidy.DIVERGED, tidy.FAILED])]
    finished, failed = (
        set(states.loc[states["metric"] == name, tidy.RUN].itertuples(index=False, name=None))
        for name in (tidy.DIVERGED, tidy.FAILED)
    )
    lines: list[list[Any]] = []
    for (method, variant), own in rows.groupby(["method", "variant"], sort=False):
        keys = list(own[tidy.RUN].itertuples(index=False, name=None))
        whole = [key in finished or " " in key[3] for key in keys]
        own = own[whole if any(whole) else [key not in failed for key in keys]]
        runs = len(set(own[["point", "seed"]].itertuples(index=False, name=None)))
        for stage, part in own.groupby("stage"):
            found = {step: _estimate(here, metric) for step, here in part.groupby("step")}
            lost = min((step for step, (_, count) in found.items() if count < runs), default=np.inf)
            kept = [(step, each) for step, (each, _) in found.items() if step < lost]
            lines += [[method, variant, int(stage), step, each.mean, *each.ends, each.count] for step, each in kept]
            if lost < np.inf:
                break
    return pd.DataFrame(lines, columns=["method", "variant", "stage", "step", "mean", "low", "high", "count"])


def _estimate(here: pd.DataFrame, metric: str) -> tuple[Estimate, int]:
    """The mean at one step, and of how many rows: over seeds, or as it was stored with its standard error."""
    means = here[here["metric"] == metric]
    several = means[means["seed"].str.contains(" ")]
    if several.empty:
        return estimate(means["value"].tolist()), len(means)
    errors = here.loc[here["metric"] != metric, "value"]
    count = len(several["seed"].iloc[0].split())
    return from_error(several["value"].iloc[0], errors.iloc[0] if len(errors) else np.nan, count), 1


def keys(study: StudyRecord) -> list[Key]:
    return [method_key(method, study.title(method), study.methods) for method in study.methods]


def curve_panel(study: StudyRecord, frame: pd.DataFrame, variant: str, title: str, ylabel: str) -> Panel:
    """Logarithmic in y. The axis follows the means: of three seeds a band can be wider than everything."""
    chosen = frame[frame["variant"] == variant]
    lost = study.table[(study.table["metric"] == tidy.DIVERGED) & (study.table["value"] > 0)]
    diverged = set(lost.loc[lost["variant"] == variant, "method"])
    series, starts = [], []
    for method, key in zip(study.methods, keys(study), strict=True):
        for _, curve in chosen[chosen["method"] == method].groupby("stage"):
            columns = {name: curve[name].astype(float).tolist() for name in ("mean", "low", "high", "step")}
            # A band of what diverged covers everything else, and says nothing.
            ends = {} if method in diverged else {"low": columns["low"], "high": columns["high"]}
            width = WIDTHS.get(method, 1.3)
            series.append(Series(key, columns["step"], columns["mean"], **ends, band=bool(ends), width=width))
            starts.append(columns["mean"][0])
    series.sort(key=lambda each: -each.width)  # the broad ones below
    limits = None
    positive = [value for each in series for value in each.y if value > 0]
    if positive:
        top = min(max(positive), max(CEILING * float(np.median(starts)), CEILING * min(positive)))
        margin = max((top / min(positive)) ** 0.06, 1.02)
        limits = (min(positive) / margin, top * margin)
    # Each stage is first evaluated where the training moves on to it.
    switches = sorted(chosen.groupby("stage")["step"].min())[1:]
    lines = [("x", float(step)) for step in switches]
    return Panel(title, series, "iteration", ylabel, y=LOG, lines=lines, ylim=limits)


def curves_plot(
    study: StudyRecord, name: str, caption: str, panels: Sequence[Panel], frame: pd.DataFrame, **more: Any
) -> list[Plot]:
    """Return the plot of what was evaluated, without empty panels; none before."""
    if frame.empty:
        return []
    drawn = shown_in(frame)
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


def shown_in(frame: pd.DataFrame) -> set[tuple[str, str]]:
    """Return the methods and variants that have a curve."""
    return set(zip(frame["method"], frame["variant"], strict=True))


def ratio_panel(study: StudyRecord, title: str, of: str) -> Panel:
    """1/g(α) against iterations `of` a stage, or of exploration, in the last stage of the run that was traced."""
    frame = study.places("temperature_ratio").reindex(columns=["value", "stage", "step"])
    stage = frame["stage"].max() if len(frame) else 1
    frame = frame[frame["stage"] == stage]
    series = (
        [Series(Key("CTLD", BLUE), frame["step"].tolist(), frame["value"].tolist(), width=0.8)] if len(frame) else []
    )
    top = max(7.2, 1.08 * float(frame["value"].max())) if len(frame) else 7.2
    return Panel(title, series, f"iteration of {of.format(int(stage))}", "1/g(α)", ylim=(0.5, top))
