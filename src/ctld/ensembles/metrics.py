"""How good predicted probabilities are, summed up batch by batch: what a long text's predictions take does not have to fit."""

from __future__ import annotations

import torch
from torch import Tensor

from ctld.checks import integer


class Metrics:
    """Mean nll (nats), error, Brier score (sum over classes, 0 to 2) and expected calibration error (top label, l1).

    >>> metrics = Metrics()
    >>> metrics.add(torch.tensor([[0.0, -40.0], [0.0, -40.0]]), torch.tensor([0, 1]))
    >>> metrics.compute()["error"]
    0.5
    """

    def __init__(self, *, num_bins: int = 15) -> None:
        self.num_bins = integer("num_bins", num_bins, at_least=1)
        self._count = 0
        self._nll = self._wrong = self._brier = 0.0
        # How many predictions each bin of confidence has, their confidence, and how many of them are right.
        self._bins = torch.zeros(3, self.num_bins, dtype=torch.float64)

    def add(self, log_probabilities: Tensor, labels: Tensor) -> None:
        """A batch: logarithms of probabilities of shape (n, classes), as log_softmax gives them, and n labels."""
        log_probabilities, labels = log_probabilities.detach().to("cpu", torch.float64), labels.detach().cpu()
        if log_probabilities.ndim != 2 or labels.shape != log_probabilities.shape[:1]:
            raise ValueError(
                f"log_probabilities have shape {tuple(log_probabilities.shape)} and labels {tuple(labels.shape)}; give "
                "(n, classes) and (n,)"
            )
        probabilities = log_probabilities.exp()
        confidence, guess = probabilities.max(-1)
        right = (guess == labels).double()
        truth = probabilities.gather(-1, labels[:, None]).squeeze(-1)
        self._count += len(labels)
        self._nll -= float(log_probabilities.gather(-1, labels[:, None]).sum())
        self._wrong += float((1.0 - right).sum())
        self._brier += float((probabilities.square().sum(-1) - 2.0 * truth + 1.0).sum())
        # Bins are open below and closed above, as torchmetrics has them.
        place = (confidence * self.num_bins).ceil().long().sub_(1).clamp_(0, self.num_bins - 1)
        for row, values in enumerate((torch.ones_like(right), confidence, right)):
            self._bins[row].index_add_(0, place, values)

    def compute(self) -> dict[str, float]:
        """Of all that was added, under the names of `Prediction.metrics`."""
        if not self._count:
            raise ValueError("there are no predictions to judge; call add first")
        _, confidence, right = self._bins
        return {
            "nll": self._nll / self._count,
            "error": self._wrong / self._count,
            "brier": self._brier / self._count,
            "ece": float((confidence - right).abs().sum()) / self._count,
        }
