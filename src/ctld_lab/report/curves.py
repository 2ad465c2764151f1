"""Learning curves: the mean over seeds with its 95 % band, one line per method."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ctld_lab.records import number
from ctld_lab.report.plots import Key, method_key, no_data, plain_log, thousands
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.statistics import Estimate, estimate, t_quantile

# Curves that tie lie on each other: SGD-M thin and on top, CTLD broad below it.
WIDTHS: dict[str, dict[str, Any]] = {"sgd": {"linewidth": 0.8, "zorder": 4}, "ctld": {"linewidth": 1.9, "zorder": 3.5}}
Curve = list[tuple[float, Estimate]]


def runs_to_draw(study: StudyRecord, method: str, variant: str) -> list[RunRecord]:
    """Finished runs, or unfinished ones where there are no others: a mean over seeds that come and go would jump."""
    runs = [run for run in study.finals if (run.method, run.variant) == (method, variant) and run.metrics]
    return [run for run in runs if run.state == "done"] or [run for run in runs if run.state == "started"]


def mean_curves(runs: Sequence[RunRecord], split: str, metric: str) -> list[Curve]:
    """One curve per stage: what is measured starts anew with each layer, so no line leads from one to the next.

    They end where the first seed is lost: a mean of those that are left would fall because the worst have gone.
    """
    found: dict[int, dict[float, list[float]]] = {}
    for run in runs:
        for line in run.metrics:
            value = number((line.get(split) or {}).get(metric))
            # What was evaluated on more data than the other points is no point of the same curve.
            if math.isfinite(value) and not line.get("thorough"):
                stage = found.setdefault(int(line.get("stage", 1)), {})
                stage.setdefault(number(line.get("step")), []).append(value)
    curves = []
    for _, stage in sorted(found.items()):
        lost = min((step for step in stage if len(stage[step]) < len(runs)), default=math.inf)
        curves.append([(step, estimate(stage[step])) for step in sorted(stage) if step < lost])
        if lost < math.inf:
            break
    return [curve for curve in curves if curve]


def band_words(study: StudyRecord) -> str:
    """What lines, bands and crosses mean."""
    lost = "; × ends the mean where its first seed diverged" if any(run.diverged for run in study.finals) else ""
    bands = " with 95 % intervals (of two seeds, which have wide ones, the seeds themselves as thin lines)"
    return f"{bands}{lost}; what leaves a panel at the top has exploded"


def keys(study: StudyRecord) -> list[Key]:
    return [method_key(method, study.title(method), study.methods) for method in study.methods]


def draw_curves(axes: Axes, study: StudyRecord, variant: str, split: str, metric: str, ylabel: str) -> None:
    """Logarithmic in y. The axes follow the means: at three seeds a band can be wider than everything."""
    shown: list[float] = []
    starts: list[float] = []
    crosses: list[tuple[float, float, str]] = []
    last_step = 0.0
    for layer, (method, key) in enumerate(zip(study.methods, keys(study), strict=True)):
        runs = runs_to_draw(study, method, variant)
        curves = mean_curves(runs, split, metric)
        for curve in curves:
            steps = np.array([step for step, _ in curve])
            means = np.array([found.mean for _, found in curve])
            half = np.array([np.nan if found.half_width is None else found.half_width for _, found in curve])
            style = WIDTHS.get(method, {"linewidth": 1.3, "zorder": 3 - 0.1 * layer})
            axes.plot(steps, means, color=key.colour, linestyle=(0, key.dashes) if key.dashes else "-", **style)
            if max(found.count for _, found in curve) == 2:
                away = half / t_quantile(1)  # of each seed from the mean
                axes.plot(steps, np.transpose([means - away, means + away]), color=key.colour, linewidth=0.5, alpha=0.6)
            else:
                band = np.maximum(means - half, 1e-3 * means), means + half
                axes.fill_between(steps, *band, color=key.colour, alpha=0.15, linewidth=0)
            shown += means.tolist()
            starts.append(float(means[0]))
            last_step = max(last_step, float(steps[-1]))
        if curves and any(run.diverged for run in runs):
            step, found = curves[-1][-1]
            crosses.append((step, found.mean, key.colour))
    if not shown:
        return no_data(axes, "no run has been evaluated yet")
    positive = [value for value in shown if value > 0] or [1.0]
    # What has exploded leaves the panel: the others would be one line at its foot.
    ceiling = 3.0 * float(np.median(starts))
    low_end, high_end = math.log10(min(positive)), math.log10(min(max(positive), max(ceiling, 3.0 * min(positive))))
    margin = max(0.06 * (high_end - low_end), 0.01)
    plain_log(axes, "y", [10**low_end, 10**high_end])
    axes.set_ylim(10 ** (low_end - margin), 10 ** (high_end + 2.5 * margin))
    for step, value, colour in crosses:
        place = min(value, 10 ** (high_end + margin))
        axes.plot([step], [place], "x", color=colour, markersize=6, zorder=5, clip_on=False)
    axes.set(xlabel="iteration", ylabel=ylabel, xlim=(0, last_step or 1))
    axes.locator_params(axis="x", nbins=5)
    thousands(axes)
    return None


def mark_stages(axes: Axes, study: StudyRecord) -> None:
    """Where the training moves on to the next layer."""
    steps: list[int] = next(
        (run.config["steps"] for run in study.finals if isinstance(run.config.get("steps"), list)), []
    )
    if len(steps) < 2 or not axes.axison:
        return
    ends = np.cumsum(steps)
    axes.set_xticks([0, *ends] if len(ends) <= 5 else [0, ends[-1]])
    for layer, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True), start=1):
        if layer > 1:
            axes.axvline(begin, color="0.6", linewidth=0.6, linestyle="--", zorder=1)
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
        axes.text((begin + end) / 2, 0.985, f"layer {layer}", color="0.35", fontsize=7, **place)
