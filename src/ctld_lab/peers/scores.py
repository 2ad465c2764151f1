"""How good a prediction is, and what it knows about not knowing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from scipy.optimize import minimize_scalar
from scipy.stats import rankdata
from torch import Tensor

from ctld.ensembles.averages import entropy
from ctld.ensembles.metrics import classification_metrics
from ctld_lab.peers.problems import Problem
from ctld_lab.peers.training import Predict

PART = 2**18  # numbers, which a processor's cache holds


def averaged(members: Tensor) -> Tensor:
    """The logarithm of the mean of the members' probabilities, in double precision."""
    if len(members) == 1:
        return members[0].double()
    count = torch.tensor(float(len(members))).log().double()
    return torch.cat([part.double().logsumexp(dim=0) - count for part in _parts(members, dim=1)])


def nll(log_probabilities: Tensor, labels: Tensor) -> float:
    return float(-log_probabilities.gather(-1, labels[..., None]).mean())


def fitted_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    """The one by which log-probabilities are divided so that nll is least."""
    true = float(log_probabilities.gather(-1, labels[..., None]).sum())

    def worse(log_temperature: float) -> float:
        scale: float = 10.0**-log_temperature
        whole = math.fsum(float((part * scale).logsumexp(dim=-1).sum()) for part in _parts(log_probabilities))
        return (whole - scale * true) / labels.numel()

    return float(10.0 ** minimize_scalar(worse, bounds=(-1.0, 1.0), method="bounded").x)


def auroc(known: Tensor, strange: Tensor) -> float:
    """How often something strange is more uncertain than something known; a tie is half."""
    ranks = rankdata(torch.cat([strange, known]).numpy())
    above = float(ranks[: len(strange)].sum()) - len(strange) * (len(strange) + 1) / 2
    return above / (len(strange) * len(known))


def judge(problem: Problem, predict: Predict) -> dict[str, Any]:
    """Of a final run: on held-out data, scaled by a temperature that validation data chose, and beside strange inputs."""
    inputs, labels = problem.held_out
    members = predict(inputs)
    mean = averaged(members)
    temperature = fitted_temperature(averaged(predict(problem.valid[0])), problem.valid[1])
    scaled = (mean / temperature).log_softmax(dim=-1)
    found: dict[str, Any] = classification_metrics(mean, labels)
    found |= {"scaled_nll": nll(scaled, labels), "scale": temperature, "members": len(members)}
    if problem.strange:
        total, disagreement = _uncertainty(members)
    for kind, strange in problem.strange.items():
        their_total, their_disagreement = _uncertainty(predict(strange))
        found[f"{kind}, entropy"] = auroc(total, their_total)
        if len(members) > 1:
            found[f"{kind}, mutual information"] = auroc(disagreement, their_disagreement)
    return found


def _uncertainty(members: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy of the averaged prediction, and the part of it that members disagree about."""
    total = entropy(averaged(members))
    own = torch.cat([entropy(part.double()).mean(dim=0) for part in _parts(members, dim=1)])
    return total, (total - own).clamp(min=0.0)


def _parts(values: Tensor, dim: int = 0) -> Iterator[Tensor]:
    """Some rows at a time: twenty networks' distributions over the characters of a text are gigabytes in double precision."""
    rows = max(1, PART * values.shape[dim] // max(1, values.numel()))
    return iter(torch.split(values, rows, dim))


def nested(predictions: Sequence[Predict], problem: Problem) -> list[dict[str, float]]:
    """The first one, two, three ... of several networks together: plain and scaled nll."""
    inputs, labels = problem.held_out
    members = torch.cat([predict(inputs) for predict in predictions])
    valid = torch.cat([predict(problem.valid[0]) for predict in predictions])
    found = []
    for count in range(1, len(members) + 1):
        mean = averaged(members[:count])
        temperature = fitted_temperature(averaged(valid[:count]), problem.valid[1])
        scaled = (mean / temperature).log_softmax(dim=-1)
        found.append({"nll": nll(mean, labels), "scaled_nll": nll(scaled, labels)})
    return found


def equivalent(value: float, curve: Sequence[Mapping[str, float]], metric: str = "scaled_nll") -> float:
    """How many networks of a deep ensemble, each with all the gradients, are as good; between 0 (none is as bad) and the last.

    Of a curve that goes up and down, the smallest number that reaches the value.
    """
    best = [min(point[metric] for point in curve[: place + 1]) for place in range(len(curve))]
    if value > best[0]:
        return 0.0
    for place in range(1, len(best)):
        if value >= best[place] and best[place - 1] > best[place]:
            return place + (best[place - 1] - value) / (best[place - 1] - best[place])
    return float(len(best))
