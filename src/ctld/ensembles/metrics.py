"""How good predicted probabilities are: nll, error, Brier score and expected calibration error."""

from __future__ import annotations

import torch
from torch import Tensor

from ctld.checks import integer


def classification_metrics(log_probabilities: Tensor, labels: Tensor, *, num_bins: int = 15) -> dict[str, float]:
    """Returns mean nll (nats), error, Brier score (sum over classes, 0 to 2) and ECE (top label, l1, bins of equal width).

    Classes are in the last dimension of `log_probabilities`. The nll comes from the logarithms, so that a probability
    which no float can hold still counts for what it is.
    """
    num_bins = integer("num_bins", num_bins, at_least=1)
    classes = log_probabilities.shape[-1]
    labels = labels.detach().cpu()
    if labels.shape != log_probabilities.shape[:-1]:
        raise ValueError(
            f"labels have shape {tuple(labels.shape)}; one class for each prediction would be "
            f"{tuple(log_probabilities.shape[:-1])}"
        )
    if labels.is_floating_point() or labels.numel() == 0 or labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}, and there must be some")
    labels = labels.reshape(-1, 1).long()
    log_probabilities = log_probabilities.reshape(-1, classes)
    probabilities = log_probabilities.exp()
    confidence, chosen = probabilities.max(-1)
    right = (chosen == labels[:, 0]).to(probabilities)
    # Σ_c (p_c − [c is the label])² = Σ p² − 2 p_label + 1, without a one-hot matrix.
    square_errors = probabilities.square().sum(-1) - 2.0 * probabilities.gather(1, labels)[:, 0] + 1.0
    return {
        "nll": -float(log_probabilities.gather(1, labels).mean()),
        "error": 1.0 - float(right.mean()),
        "brier": float(square_errors.mean()),
        "ece": _calibration_error(confidence, right, num_bins),
    }


def _calibration_error(confidence: Tensor, right: Tensor, num_bins: int) -> float:
    """Returns Σ_bins (share of predictions)·|mean confidence − share of right ones|; the last bin has its upper edge."""
    if not bool(confidence.isfinite().all()):
        return float("nan")
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gaps = torch.zeros(num_bins, dtype=confidence.dtype).index_add_(0, bins, confidence - right)
    return float(gaps.abs().sum() / len(confidence))
