"""Figures of runs and predictions, by matplotlib (extra `plot`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from ctld.ensembles.history import History
from ctld.ensembles.metrics import as_labels, as_targets
from ctld.ensembles.samples import SampleRecord

if TYPE_CHECKING:
    from ctld.ensembles.prediction import Prediction, RegressionPrediction

_BINS = 10


def plot_cycles(history: History, records: list[SampleRecord], factors: list[float]) -> Any:
    """Return a figure of the loss by step, the share of lr below it, and a dot for each member."""
    figure, (above, below) = _figure(2, 1, sharex=True, height_ratios=[3, 1])
    above.plot(history.steps, history.losses, color="tab:blue", label="training loss")
    kept = [(record.step, record.loss) for record in records if record.loss is not None]
    if kept:
        steps, losses = zip(*kept, strict=True)
        above.plot(steps, losses, "o", color="tab:red", label="members")
    for record in records:
        above.axvline(record.step, color="0.85", zorder=0)
    above.set_ylabel("loss")
    above.legend()
    below.plot(range(len(factors)), factors, color="tab:green")
    below.set(xlabel="step", ylabel="lr, share")
    return figure


def plot_classification(prediction: Prediction, labels: Any) -> Any:
    """Return a figure of how often labels are right by confidence, and of risk against coverage."""
    figure, (left, right) = _figure(1, 2)
    confidence, guess = prediction.log_probabilities.exp().max(-1)
    hits = (guess == as_labels(labels, prediction.log_probabilities)).double().flatten()
    confidence = confidence.flatten()
    place = (confidence * _BINS).long().clamp(max=_BINS - 1)
    found = [(confidence[place == b].mean(), hits[place == b].mean()) for b in range(_BINS) if (place == b).any()]
    left.plot([0, 1], [0, 1], color="0.7")
    left.plot([float(c) for c, _ in found], [float(r) for _, r in found], "o-")
    left.set(xlabel="confidence", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1))
    curve = prediction.risk_coverage(labels)
    right.plot(curve["coverage"].tolist(), curve["risk"].tolist())
    right.set(xlabel="share of inputs, surest first", ylabel="error among them", ylim=(0, None))
    return figure


def plot_regression(prediction: RegressionPrediction, inputs: Any, targets: Any, *, coverage: float) -> Any:
    """Return a figure of the mean and the central predictive band along one input."""
    x = torch.as_tensor(inputs).detach().double().cpu().flatten()
    mean = prediction.mean.flatten()
    if len(x) != len(mean):
        raise ValueError(
            f"inputs must be one number for each prediction, got {len(x)} for {len(mean)}. Give one column"
        )
    order = x.argsort()
    lower, upper = (end.flatten()[order].tolist() for end in prediction.interval(coverage, noise=0.0))
    figure, axes = _figure(1, 1)
    along = x[order].tolist()
    axes.fill_between(along, lower, upper, alpha=0.3, label=f"{100 * coverage:g} % of new values")
    axes.plot(along, mean[order].tolist(), label="mean")
    if targets is not None:
        values = as_targets(targets, prediction.mean).flatten()
        axes.plot(x.tolist(), values.tolist(), ".", color="0.3", label="targets")
    axes.legend()
    return figure


def _figure(rows: int, columns: int, **options: Any) -> Any:
    try:
        library = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError("figures need matplotlib; python -m pip install matplotlib") from error
    figure = library.Figure(figsize=(4.5 * columns + 1, 4.0), layout="constrained")
    return figure, figure.subplots(rows, columns, **options)
