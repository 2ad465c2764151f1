"""Metrics against another implementation, torchmetrics, and what it does with numbers that it should not meet."""

import math

import pytest
import torch
import torchmetrics.functional.classification as other

from ctld.ensembles.metrics import classification_metrics


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_the_same_as_torchmetrics(num_bins):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(500, 6, generator=generator, dtype=torch.float64)
    labels = torch.where(torch.rand(500, generator=generator) < 0.6, logits.argmax(-1), torch.randint(6, (500,)))
    found = classification_metrics(logits.log_softmax(-1), labels, num_bins=num_bins)
    probabilities = logits.softmax(-1)
    calibration = other.multiclass_calibration_error(probabilities, labels, 6, n_bins=num_bins, norm="l1")
    assert found["ece"] == pytest.approx(float(calibration), rel=1e-5)
    accuracy = other.multiclass_accuracy(probabilities, labels, 6, average="micro")
    assert found["error"] == pytest.approx(1 - float(accuracy))
    assert found["nll"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)))
    truth = torch.nn.functional.one_hot(labels, 6)
    assert found["brier"] == pytest.approx(float((probabilities - truth).square().sum(-1).mean()))


def test_a_bin_has_its_upper_end():
    """Of two bins, a confidence of one half is in the first: ½·|0.5 − 1| + ½·|0.9 − 0|."""
    probabilities = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    found = classification_metrics(probabilities.log(), torch.tensor([0, 1]), num_bins=2)
    assert found["ece"] == pytest.approx(0.7)


def test_certainty_is_in_the_last_bin():
    sure = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]], dtype=torch.float64)
    found = classification_metrics(sure, torch.tensor([0, 1]))
    assert found == {"nll": math.inf, "error": 0.5, "brier": 1.0, "ece": 0.5}


def test_what_is_not_a_number_stays_so():
    found = classification_metrics(torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]))
    assert math.isnan(found["nll"])
    assert math.isnan(found["ece"])
