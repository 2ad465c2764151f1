"""Outliers: samples that predict nothing like the others and silently spoil an average.

Two signs, read from what each sample predicts for the first inputs. A sample is *dead* if its prediction does not depend on
the input, while another's does. It is *far* if it differs from the median of the living ones several times more than they
usually do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

# How many numbers of each sample are held back for the comparison: the first inputs' predictions, 0.8 MB.
HELD_BACK = 100_000
DEAD = 0.02  # of the most telling sample's dependence on the input
FAR = 4.0  # times the median distance
LEAST_INPUTS = 10  # fewer say nothing about a sample
LEAST_DIVERGENCE = 0.1  # nats, Jensen-Shannon, of at most log 2: below, nobody would call it an outlier
LEAST_DISTANCE = 0.1  # of the spread of the predicted values, likewise


class Sketch:
    """Predictions of the samples for the first inputs, one sample after the other."""

    def __init__(self) -> None:
        self._rows: list[list[Tensor]] = []
        self._room = 0

    def begin(self) -> None:
        self._rows.append([])
        self._room = HELD_BACK

    def add(self, predicted: Tensor) -> None:
        """Hold back as many of the first predictions as there is room for, copied."""
        if self._room <= 0 or predicted.numel() == 0:
            return
        width = max(predicted[0].numel(), 1)
        rows = predicted[: max(self._room // width, 0 if self._rows[-1] else 1)].clone()
        self._room = self._room - rows.numel() if len(rows) == len(predicted) else 0
        if len(rows):
            self._rows[-1].append(rows)

    def samples(self) -> list[Tensor]:
        return [torch.cat(rows) for rows in self._rows]


def outlying_classifiers(samples: list[Tensor]) -> dict[int, str]:
    """Returns, by the sample's number, what is wrong; from logarithms of probabilities, classes in the last dimension."""
    if not samples or len(samples[0]) < LEAST_INPUTS:
        return {}
    probabilities = [sample.exp().reshape(-1, sample.shape[-1]) for sample in samples]
    information = [_entropy(p.mean(0)) - float(torch.special.entr(p).sum(-1).mean()) for p in probabilities]
    # Where hardly any prediction depends on the input, as before training, none is dead for it.
    dead = _dead(information, least=0.05)
    return dead | _far(probabilities, dead, _divergence, least=LEAST_DIVERGENCE)


def outlying_regressors(samples: list[Tensor]) -> dict[int, str]:
    """Returns, by the sample's number, what is wrong; from predicted means, inputs in the first dimension."""
    if not samples or len(samples[0]) < LEAST_INPUTS:
        return {}
    values = [sample.reshape(len(sample), -1) for sample in samples]
    dependence = [_spread(value) for value in values]
    dead = _dead(dependence, least=0.0)
    return dead | _far(values, dead, _distance, least=LEAST_DISTANCE * median(dependence))


def _dead(dependence: list[float], *, least: float) -> dict[int, str]:
    broken = {
        index: "predicts what is not finite" for index, value in enumerate(dependence) if not math.isfinite(value)
    }
    most = max((value for value in dependence if math.isfinite(value)), default=0.0)
    if most <= least:
        return broken
    return broken | {
        index: "predicts the same for every input" for index, value in enumerate(dependence) if value < DEAD * most
    }


def _far(
    samples: list[Tensor], dead: dict[int, str], measure: Callable[[Tensor, Tensor], float], *, least: float
) -> dict[int, str]:
    living = [index for index in range(len(samples)) if index not in dead]
    if len(living) < 3:
        return {}  # of two that differ neither is the outlier
    middle = torch.stack([samples[index] for index in living]).median(0).values
    distances = {index: measure(samples[index], middle) for index in living}
    usual = median(distances.values())
    return {
        index: "is far from the others" for index, value in distances.items() if value > least and value > FAR * usual
    }


def _divergence(one: Tensor, other: Tensor) -> float:
    """Return the mean Jensen-Shannon divergence, in nats; medians do not quite add up to 1."""
    other = other / other.sum(-1, keepdim=True)
    entropies = (torch.special.entr(one) + torch.special.entr(other)).sum(-1) / 2
    return float((torch.special.entr((one + other) / 2).sum(-1) - entropies).mean())


def _distance(one: Tensor, other: Tensor) -> float:
    return math.sqrt(float((one - other).square().mean()))


def _spread(value: Tensor) -> float:
    return math.sqrt(float(value.var(0, unbiased=False).mean()))


def _entropy(p: Tensor) -> float:
    return float(torch.special.entr(p).sum())
