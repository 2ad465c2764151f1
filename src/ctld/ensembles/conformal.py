"""Conformal sets and intervals: held-out data say how much to allow, so that a share of new data is covered.

Split conformal prediction (Vovk et al. 2005; Lei et al. 2018): of n held-out scores the ⌈(n + 1)·coverage⌉-th is the threshold.
Then a new datum is covered with probability `coverage` or more, whatever the model, if it is exchangeable with those held out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ctld.checks import real
from ctld.ensembles.metrics import as_labels, as_targets
from ctld.ensembles.prediction import Prediction, RegressionPrediction

Score = Literal["absolute", "scaled", "quantile"]


@dataclass(frozen=True)
class ConformalSets:
    """Sets of labels that hold the true one with a given probability. `conformal` makes it."""

    threshold: float
    """Labels of this probability or more are in the set."""
    coverage: float

    def __call__(self, prediction: Prediction) -> Tensor:
        """Return for each input which labels are in its set, as booleans of shape (..., classes)."""
        return prediction.log_probabilities.exp() >= self.threshold


@dataclass(frozen=True)
class ConformalIntervals:
    """Intervals that hold the true value with a given probability. `conformal` makes it."""

    threshold: float
    coverage: float
    score: Score

    def __call__(self, prediction: RegressionPrediction) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends, in the shape of the means."""
        lower, upper, unit = _band(prediction, self.coverage, self.score)
        return lower - self.threshold * unit, upper + self.threshold * unit


@overload
def conformal(prediction: Prediction, targets: Any, *, coverage: float = ..., score: None = ...) -> ConformalSets: ...


@overload
def conformal(
    prediction: RegressionPrediction, targets: Any, *, coverage: float = ..., score: Score | None = ...
) -> ConformalIntervals: ...


def conformal(
    prediction: Prediction | RegressionPrediction, targets: Any, *, coverage: float = 0.9, score: Score | None = None
) -> ConformalSets | ConformalIntervals:
    """Return what makes sets or intervals of later predictions, from the prediction for held-out inputs and their targets.

    >>> sets = conformal(ensemble.predict(held_inputs), held_labels, coverage=0.9)           # doctest: +SKIP
    >>> sets(ensemble.predict(test_inputs))                                                  # doctest: +SKIP

    Parameters
    ----------
    prediction, targets
        Of held-out data, which were neither trained on nor used to weigh members.
    coverage : float
        The probability that a new target is in its set or interval.
    score : "absolute", "scaled" or "quantile"
        For numbers: the distance from the mean, all intervals then having one length; the distance in standard deviations; or
        the distance from the Gaussian's central interval, as in conformalized quantile regression (Romano et al. 2019). Left
        out: "scaled", or "absolute" if all members agree and predict no variance.
    """
    coverage = real("coverage", coverage, above=0, below=1)
    if isinstance(prediction, RegressionPrediction):
        if score is None:
            score = "scaled" if bool((prediction.total > 0).all()) else "absolute"
        if score not in ("absolute", "scaled", "quantile"):
            raise ValueError(f'score must be "absolute", "scaled" or "quantile", got {score!r}')
        lower, upper, unit = _band(prediction, coverage, score)
        values = as_targets(targets, prediction.mean)
        scores = torch.maximum(lower - values, values - upper) / unit
        return ConformalIntervals(_threshold(scores, coverage), coverage, score)
    if score is not None:
        raise ValueError(f"score must be left out for labels, got {score!r}")
    labels = as_labels(targets, prediction.log_probabilities)
    chances = prediction.log_probabilities.exp().gather(-1, labels[..., None])
    return ConformalSets(-_threshold(-chances, coverage), coverage)


def _band(prediction: RegressionPrediction, coverage: float, score: Score) -> tuple[Tensor, Tensor, Tensor]:
    """Return the band to be widened, and the unit in which it is."""
    if score == "quantile":
        lower, upper = prediction.interval(coverage, noise=0.0)
        return lower, upper, torch.ones_like(lower)
    unit = prediction.total.sqrt() if score == "scaled" else torch.ones_like(prediction.mean)
    if score == "scaled" and not bool((unit > 0).all()):
        raise ValueError('score="scaled" needs a positive variance everywhere. Give score="absolute"')
    return prediction.mean, prediction.mean, unit


def _threshold(scores: Tensor, coverage: float) -> float:
    scores = scores.flatten().sort().values
    rank = math.ceil((len(scores) + 1) * coverage - 1e-9)
    if rank > len(scores):
        least = math.ceil(coverage / (1 - coverage) - 1e-9)
        raise ValueError(
            f"a coverage of {coverage:g} needs at least {least} held-out targets, got {len(scores)}. Give more"
        )
    return float(scores[rank - 1])
