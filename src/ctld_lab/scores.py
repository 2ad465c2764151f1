"""How good predicted probabilities are: nll, error, Brier score and calibration error, summed up batch by batch.

The same numbers as `ctld.ensembles.Prediction.metrics`, which wants all predictions at once: those of a long text, by several
models, would not fit.
"""

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

BINS = 15


class Scores:
    """Of labels, classes in the last dimension; sums in float64."""

    def __init__(self) -> None:
        self._count = 0
        self._nll = self._wrong = self._brier = 0.0
        self._bins = torch.zeros(3, BINS, dtype=torch.float64)  # how many, their confidence, how many of them right

    def add(self, logits: Sequence[Tensor], labels: Tensor) -> None:
        """A batch: what each model says of it, and the truth. The models' probabilities are averaged."""
        each = torch.stack([scores.double().log_softmax(-1) for scores in logits])
        log_probabilities = each.logsumexp(0) - math.log(len(logits))
        probabilities = log_probabilities.exp()
        confidence, guess = probabilities.max(-1)
        right = (guess == labels).double()
        truth = probabilities.gather(-1, labels[:, None]).squeeze(-1)
        self._count += len(labels)
        self._nll -= float(log_probabilities.gather(-1, labels[:, None]).sum())
        self._wrong += float((1.0 - right).sum())
        self._brier += float((probabilities.square().sum(-1) - 2.0 * truth + 1.0).sum())
        # Bins are open below and closed above, as torchmetrics has them.
        place = (confidence * BINS).ceil().long().sub_(1).clamp_(0, BINS - 1)
        for row, values in enumerate((torch.ones_like(right), confidence, right)):
            self._bins[row].index_add_(0, place, values)

    def metrics(self) -> dict[str, float]:
        """nll in nats; error and expected calibration error (top label, 15 bins) in percent; Brier score from 0 to 2."""
        _, confidence, right = self._bins
        return {
            "nll": self._nll / self._count,
            "error": 100.0 * self._wrong / self._count,
            "ece": 100.0 * float((confidence - right).abs().sum()) / self._count,
            "brier": self._brier / self._count,
        }


def copies(model: nn.Module, states: Sequence[Mapping[str, Tensor]]) -> list[nn.Module]:
    """The same network with other parameters, one for each; made to predict."""
    made = []
    for state in states:
        twin = copy.deepcopy(model).eval()
        twin.load_state_dict(state)
        made.append(twin)
    return made
