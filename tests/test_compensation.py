"""Noise compensation: the minibatch variance of the loss, and of H as the tempering hears it."""

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD
from ctld.compensation import MEMORY, LossVariance, NoiseCompensation
from ctld.tempering import TemperatureControl


def test_half_the_squared_difference_of_successive_losses():
    """½(x_t − x_{t−1})², averaged: of 1, 3, 2 it is first 2, then (2 + ½)/2."""
    variance = LossVariance()
    assert [variance.update(loss) for loss in (1.0, 3.0, 2.0)] == [0.0, 2.0, pytest.approx(1.25)]


def test_it_is_the_variance_of_white_noise_and_not_of_a_drift():
    """Of 4,000 losses with variance 0.09, on a slow slope. A mean over the last 100 squares scatters by √(3/100) = 17 %."""
    variance = LossVariance()
    losses = 5.0 - 1e-3 * np.arange(4000) + 0.3 * np.random.default_rng(0).standard_normal(4000)
    found = [variance.update(float(loss)) for loss in losses]
    assert np.mean(found[MEMORY:]) == pytest.approx(0.09, rel=0.1)
    assert found[-1] == pytest.approx(0.09, rel=4 * 0.17)
    assert np.var(losses) > 1.0  # the twin: a running variance would see the slope


def test_the_state_goes_on():
    one, other = NoiseCompensation(active=True), NoiseCompensation(active=True)
    for loss in (1.0, 3.0, 2.0):
        one.loss.update(loss)
    other.load_state_dict(one.state_dict())
    assert other.loss.update(5.0) == one.loss.update(5.0)


def test_no_difference_spans_a_gap():
    variance = LossVariance()
    for loss in (1.0, 1.0, 1.0):
        variance.update(loss)
    variance.interrupt()
    assert [variance.update(loss) for loss in (1e3, 1e3)] == [0.0, 0.0]


class Heard(TemperatureControl):
    """Keeps what it is told."""

    def __init__(self):
        self.variances = []

    @property
    def temperature_ratio(self):
        return 1.0

    def end(self, hamiltonian, normal, hamiltonian_variance=0.0):
        self.variances.append(hamiltonian_variance)


@pytest.mark.parametrize(("num_data", "temperature"), [(50.0, 0.5), (10.0, 2.0)])
def test_the_tempering_hears_the_variance_of_h(num_data, temperature):
    """H is N·loss/T, so its variance is (N/T)² that of the mean loss."""
    heard = Heard()
    theta = nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = CTLD(
        [theta], 0.01, num_data=num_data, exploration_steps=5, temperature=temperature, tempering=heard,
        noise_compensation=True, seed=0,
    )  # fmt: skip
    losses = (1.0, 1.4, 1.1)
    for loss in losses:
        theta.grad = torch.zeros_like(theta)
        optimizer.step(loss=loss)
    halves = [0.5 * 0.4**2, 0.5 * 0.3**2]
    scale = (num_data / temperature) ** 2
    assert heard.variances == pytest.approx([0.0, scale * halves[0], scale * sum(halves) / 2])
