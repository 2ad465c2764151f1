"""Metrics of predictions: how good they are, how well they know it, and how well they tell the strange from the known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctld.checks import integer, real

if TYPE_CHECKING:
    from ctld.ensembles.prediction import RegressionPrediction

COVERAGES = (0.5, 0.9, 0.95)
"""Central intervals whose coverage is counted."""
_MOST_POINTS = 2000  # of the confidences that smooth ECE looks at; more change nothing that one can see


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

    def add(self, log_probabilities: Tensor, labels: Any) -> None:
        """Add a batch: logarithms of probabilities of shape (n, classes), as log_softmax gives them, and n labels."""
        log_probabilities = log_probabilities.detach().to("cpu", torch.float64)
        if log_probabilities.ndim != 2:
            raise ValueError(f"log_probabilities must have shape (n, classes), got {tuple(log_probabilities.shape)}")
        labels = as_labels(labels, log_probabilities)
        probabilities = log_probabilities.exp()
        confidence, guess = probabilities.max(-1)
        right = (guess == labels).double()
        truth = probabilities.gather(-1, labels[:, None]).squeeze(-1)
        self._count += len(labels)
        self._nll -= float(log_probabilities.gather(-1, labels[:, None]).sum())
        self._wrong += float((1.0 - right).sum())
        self._brier += float((probabilities.square().sum(-1) - 2.0 * truth + 1.0).sum())
        # Bins are open below and closed above, as torchmetrics has them.
        place = (confidence.nan_to_num() * self.num_bins).ceil().long().sub_(1).clamp_(0, self.num_bins - 1)
        for row, values in enumerate((torch.ones_like(right), confidence, right)):
            self._bins[row].index_add_(0, place, values)

    def compute(self) -> dict[str, float]:
        """Return the means over all that was added."""
        if not self._count:
            raise ValueError("there are no predictions to judge. Call add first")
        _, confidence, right = self._bins
        return {
            "nll": self._nll / self._count,
            "error": self._wrong / self._count,
            "brier": self._brier / self._count,
            "ece": float((confidence - right).abs().sum()) / self._count,
        }


def classification_metrics(log_probabilities: Tensor, labels: Any, *, num_bins: int = 15) -> dict[str, float]:
    """Return mean nll (nats), error, Brier score (sum over classes, 0 to 2) and ECE (top label, l1, bins of equal width).

    Classes are in the last dimension of `log_probabilities`. The nll comes from the logarithms, so that a probability
    which no float can hold still counts for what it is.
    """
    metrics = Metrics(num_bins=num_bins)
    labels = as_labels(labels, log_probabilities).reshape(-1)
    metrics.add(log_probabilities.reshape(-1, log_probabilities.shape[-1]), labels)
    return metrics.compute()


def as_labels(given: Any, log_probabilities: Tensor) -> Tensor:
    """Return labels as whole numbers on the CPU, one for each prediction; tensors, arrays and lists are taken."""
    labels: Tensor = torch.as_tensor(given).detach().cpu()
    shape, classes = log_probabilities.shape[:-1], log_probabilities.shape[-1]
    if labels.shape != shape and labels.numel() == shape.numel() and labels.shape == (*shape, 1):
        labels = labels.reshape(shape)
    if labels.shape != shape:
        raise ValueError(
            f"labels must have shape {tuple(shape)}, one class for each prediction, got {tuple(labels.shape)}"
        )
    # Yes or no: booleans, and the floats that BCEWithLogitsLoss takes.
    if classes == 2 and (
        labels.dtype == torch.bool or (labels.is_floating_point() and bool((labels.frac() == 0).all()))
    ):
        labels = labels.long()
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    if not whole or labels.numel() == 0 or labels.min() < 0 or labels.max() >= classes:
        found = f"{labels.dtype}" if not whole or not labels.numel() else f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}, at least one, got {found}")
    return labels.long()


def smooth_ece(confidence: Any, right: Any) -> float:
    """Return the smooth calibration error of Błasiok and Nakkiran (2023): no bins, hence no choice of their number.

    A Gaussian kernel, reflected at 0 and 1, smooths the residuals right − confidence. Its width equals the error found.
    """
    confidence = torch.as_tensor(confidence).double().flatten()
    residual = torch.as_tensor(right).double().flatten() - confidence
    if not len(confidence):
        raise ValueError("there are no predictions to judge. Give at least one")
    if bool(confidence.isnan().any()):
        return math.nan
    grid = torch.linspace(0, 1, _MOST_POINTS, dtype=torch.float64)
    place = (confidence.clamp(0, 1) * (_MOST_POINTS - 1)).round().long()
    mass = torch.zeros_like(grid).index_add_(0, place, residual / len(confidence))
    spectrum = torch.fft.rfft(torch.cat([mass, mass.flip(0)]))
    frequency = torch.arange(len(spectrum), dtype=torch.float64) * math.pi * (_MOST_POINTS - 1) / _MOST_POINTS

    def error(width: float) -> float:
        smooth = torch.fft.irfft(spectrum * torch.exp(-0.5 * (width * frequency).square()), n=2 * _MOST_POINTS)
        return float(smooth[:_MOST_POINTS].abs().sum())

    low, high = 0.0, 1.0
    for _ in range(30):  # the error falls with the width
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(high)


def risk_coverage(log_probabilities: Tensor, labels: Any, uncertainty: Tensor) -> dict[str, Any]:
    """Return `coverage` and `risk`, the error of the inputs of least uncertainty, and the `area` below (AURC)."""
    wrong = (log_probabilities.argmax(-1) != as_labels(labels, log_probabilities)).double().flatten()
    wrong = wrong[uncertainty.flatten().argsort(stable=True)]
    number = torch.arange(1, len(wrong) + 1, dtype=torch.float64)
    risk = wrong.cumsum(0) / number
    return {"coverage": number / len(wrong), "risk": risk, "area": float(risk.mean())}


def auroc(known: Any, strange: Any) -> float:
    """Return how often a strange input is more uncertain than a known one; ties count half.

    >>> auroc(known=[0.1, 0.2], strange=[0.2, 0.9])
    0.875
    """
    known, strange = (torch.as_tensor(each).detach().double().flatten().cpu() for each in (known, strange))
    if not len(known) or not len(strange) or known.isnan().any() or strange.isnan().any():
        raise ValueError(f"known and strange must be numbers, at least one each, got {len(known)} and {len(strange)}")
    ranked = known.sort().values
    below = torch.searchsorted(ranked, strange) + torch.searchsorted(ranked, strange, right=True)
    return float(below.double().mean()) / (2 * len(known))


def regression_metrics(
    prediction: RegressionPrediction, targets: Any, *, noise: float | None = None
) -> dict[str, float]:
    """Return rmse and mae; with a variance also nll (nats), CRPS and coverage, by a Gaussian."""
    mean = prediction.mean
    targets = as_targets(targets, mean)
    error = targets - mean
    found = {"rmse": math.sqrt(float(error.square().mean())), "mae": float(error.abs().mean())}
    variance = prediction.total + (0.0 if noise is None else real("noise", noise, at_least=0) ** 2)
    if noise is None and not bool((prediction.aleatoric > 0).all()):
        return found
    if not bool((variance > 0).all()):
        raise ValueError("noise must be positive for a model that predicts no variance, got 0. Give noise=")
    deviation = variance.sqrt()
    z = error / deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    # Gneiting and Raftery (2007), equation 21.
    crps = deviation * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    found["nll"] = float(0.5 * (z.square() + (2 * math.pi * variance).log()).mean())
    found["crps"] = float(crps.mean())
    share = torch.erf(z.abs() / math.sqrt(2))
    return found | {f"coverage_{100 * c:.0f}": float((share <= c).double().mean()) for c in COVERAGES}


def as_targets(given: Any, mean: Tensor) -> Tensor:
    """Return targets as float64 in the shape of the means."""
    targets: Tensor = torch.as_tensor(given).detach().to("cpu", torch.float64)
    trailing = targets.numel() == mean.numel() and targets.squeeze(-1).shape == mean.squeeze(-1).shape
    if targets.shape != mean.shape and not (trailing and targets.ndim and mean.ndim):
        raise ValueError(f"targets must have shape {tuple(mean.shape)}, got {tuple(targets.shape)}")
    return targets.reshape(mean.shape)
