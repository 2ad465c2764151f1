"""Calibration of members by held-out data: their weights, and one number that scales their certainty."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ctld.ensembles.averages import Calibration
from ctld.ensembles.metrics import as_labels, as_targets
from ctld.ensembles.prediction import Forward, averaged
from ctld.ensembles.samples import Sample
from ctld.ensembles.task import Task

_log = logging.getLogger("ctld")

# Nats that all held-out data together must gain before certainty is scaled: less is within chance for one number.
LEAST_GAIN = 2.0
_ROUNDS = 200


def calibrate(
    model: nn.Module,
    samples: Iterable[Sample],
    inputs: Any,
    targets: Any,
    task: Task,
    batch_size: int | None = None,
    forward: Forward | None = None,
) -> Calibration:
    """Return weights of the samples by expectation maximisation, and the scale of their certainty."""
    rows = [averaged(model, [sample], inputs, task, batch_size, forward) for sample in samples]
    means = [row.means() for row in rows]
    settled = rows[0].task
    if settled.name == "regression":
        return _of_values(torch.stack([m[0] for m in means]), torch.stack([m[2] for m in means]), targets)
    log_probabilities = torch.stack([m[0] for m in means])
    labels = as_labels(targets, log_probabilities[0])
    classes = log_probabilities.shape[-1]
    log_probabilities = log_probabilities.reshape(len(means), -1, classes)
    picked = labels.reshape(1, -1, 1).expand(len(means), -1, 1)

    def likelihood(temperature: float) -> Tensor:
        scaled = log_probabilities if temperature == 1 else (log_probabilities / temperature).log_softmax(-1)
        return scaled.gather(-1, picked).squeeze(-1)

    weights = member_weights(likelihood(1.0))
    return Calibration(tuple(weights.tolist()), _scale(lambda t: mixture_nll(likelihood(t), weights)))


def _of_values(means: Tensor, variances: Tensor, targets: Any) -> Calibration:
    squares = (as_targets(targets, means[0]) - means).reshape(len(means), -1).square()
    variances = variances.reshape(len(means), -1)
    # A model that predicts no variance has that of the average's errors.
    noise = 0.0 if bool((variances > 0).all()) else float(squares.mean())
    if noise == 0.0 and not bool((variances > 0).all()):
        raise ValueError("targets must differ from the means somewhere, or the model must predict a variance")

    def likelihood(scale: float, noise: float) -> Tensor:
        total = (variances + noise) * scale**2
        return -0.5 * (squares / total + (2 * math.pi * total).log())

    weights = torch.full((len(means),), 1.0 / len(means), dtype=torch.float64)
    for _ in range(20 if noise else 1):
        weights = member_weights(likelihood(1.0, noise))
        if noise:
            noise = float((weights[:, None] * squares).sum(0).mean())
    return Calibration(tuple(weights.tolist()), _scale(lambda s: mixture_nll(likelihood(s, noise), weights)), noise)


def member_weights(log_likelihood: Tensor) -> Tensor:
    """Return the weights that maximise the likelihood of a mixture, each member with one pseudo-count.

    `log_likelihood` has a row for each member and a column for each held-out datum. Without data all weights are equal; one
    member alone has the whole weight only if the data are many and all for it.
    """
    members, number = log_likelihood.shape
    weights = torch.full((members,), 1.0 / members, dtype=torch.float64)
    for _ in range(_ROUNDS):
        share = (log_likelihood + weights.log()[:, None]).softmax(0)
        weights = (1.0 + share.sum(1)) / (members + number)
    return weights


def mixture_nll(log_likelihood: Tensor, weights: Tensor) -> float:
    """Return the summed negative log-likelihood of a mixture."""
    return -float((log_likelihood + weights.log()[:, None]).logsumexp(0).sum())


def _scale(nll: Callable[[float], float]) -> float:
    """Return the best scale between a fifth and five by golden sections; 1 where it gains less than chance would."""
    low, high, ratio = math.log(0.2), math.log(5.0), (math.sqrt(5) - 1) / 2
    for _ in range(40):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if nll(math.exp(left)) < nll(math.exp(right)) else (left, high)
    best = math.exp((low + high) / 2)
    gain = nll(1.0) - nll(best)
    _log.info("a scale of %.3g gains %.3g nats on the held-out data", best, gain)
    return best if gain > LEAST_GAIN else 1.0
