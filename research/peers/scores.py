"""How good a prediction is, and whether it knows what it does not know."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from scipy.stats import mannwhitneyu
from torch import Tensor

from ctld.ensembles import Metrics

from .problems import Problem
from .training import Predict

PART = 2**18  # numbers at a time: twenty networks' distributions over characters are gigabytes in double precision


def averaged(members: Tensor) -> Tensor:
    """Return the logarithm of the mean of the members' probabilities, in double precision."""
    if len(members) == 1:
        return members[0].double()
    count = torch.tensor(float(len(members))).log().double()
    return torch.cat([part.double().logsumexp(dim=0) - count for part in parts(members, dim=1)])


def nll(log_probabilities: Tensor, labels: Tensor) -> float:
    return float(-log_probabilities.gather(-1, labels[..., None]).mean())


def fitted_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    """Return the temperature by which log-probabilities are divided so that nll is least."""
    true = float(log_probabilities.gather(-1, labels[..., None]).sum())

    def worse(log_temperature: float) -> float:
        scale: float = 10.0**-log_temperature
        whole = math.fsum(float((part * scale).logsumexp(dim=-1).sum()) for part in parts(log_probabilities))
        return (whole - scale * true) / labels.numel()

    return float(10.0 ** minimize_scalar(worse, bounds=(-1.0, 1.0), method="bounded").x)


def auroc(known: Tensor, strange: Tensor) -> float:
    """Return how often something strange is more uncertain than something known; a tie counts half."""
    return float(mannwhitneyu(strange, known).statistic) / (len(strange) * len(known))


def judge(problem: Problem, predict: Predict) -> dict[str, Any]:
    """Return the scores of a final run: plain, scaled by a temperature of validation data, and beside strange inputs."""
    inputs, labels = problem.held_out
    members = predict(inputs)
    mean = averaged(members)
    temperature = fitted_temperature(averaged(predict(problem.valid[0])), problem.valid[1])
    metrics = Metrics()
    metrics.add(mean.flatten(0, -2), labels.flatten())
    found: dict[str, Any] = metrics.compute() | {"scaled_nll": scaled_nll(mean, labels, temperature)}
    found |= {"scale": temperature, "members": len(members)}
    if problem.strange:
        total, disagreement = uncertainty(members)
    for kind, strange in problem.strange.items():
        their_total, their_disagreement = uncertainty(predict(strange))
        found[f"{kind}, entropy"] = auroc(total, their_total)
        if len(members) > 1:
            found[f"{kind}, mutual information"] = auroc(disagreement, their_disagreement)
    return found


def scaled_nll(mean: Tensor, labels: Tensor, temperature: float) -> float:
    return nll((mean / temperature).log_softmax(dim=-1), labels)


def uncertainty(members: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entropy of the averaged prediction, and the part of it that members disagree about."""
    total = entropy(averaged(members))
    own = torch.cat([entropy(part.double()).mean(dim=0) for part in parts(members, dim=1)])
    return total, (total - own).clamp(min=0.0)


def entropy(log_probabilities: Tensor) -> Tensor:
    return torch.special.entr(log_probabilities.exp()).sum(-1)


def parts(values: Tensor, dim: int = 0) -> Iterator[Tensor]:
    rows = max(1, PART * values.shape[dim] // max(1, values.numel()))
    return iter(torch.split(values, rows, dim))


def nested(predictions: Sequence[Predict], problem: Problem) -> list[dict[str, float]]:
    """Return plain and scaled nll of the first one, two, three ... of several networks together."""
    inputs, labels = problem.held_out
    members = torch.cat([predict(inputs) for predict in predictions])
    valid = torch.cat([predict(problem.valid[0]) for predict in predictions])
    found = []
    for count in range(1, len(members) + 1):
        mean = averaged(members[:count])
        temperature = fitted_temperature(averaged(valid[:count]), problem.valid[1])
        found.append({"nll": nll(mean, labels), "scaled_nll": scaled_nll(mean, labels, temperature)})
    return found


def equivalent(value: float, curve: Sequence[float]) -> float:
    """Return how many networks, each with all the gradients, have as low a value; 0 if one network is lower.

    Of a curve that goes up and down, the smallest number that reaches the value counts.
    """
    best = [min(curve[: place + 1]) for place in range(len(curve))]
    if value > best[0]:
        return 0.0
    for place in range(1, len(best)):
        if value >= best[place] and best[place - 1] > best[place]:
            return place + (best[place - 1] - value) / (best[place - 1] - best[place])
    return float(len(best))
