"""Laws of TACT-HMC and replica exchange on Gaussians (research/methods/README.md), each with a twin that is wrong."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld.diagnostics import estimate
from methods import TACTHMC, ReSGLD
from methods.resgld import Exchange
from methods.tact_hmc import AlphaWithThermostat

N, T, K = 50.0, 1.3, 0.8


def sampled(build, d, steps, *, gradient_noise=0.0, read=lambda optimizer: 0.0):
    """Returns ⟨θ²⟩·NK/T over the d elements, the ratio of temperatures and what is read, after each call."""
    theta = nn.Parameter(torch.zeros(d, dtype=torch.float64))
    optimizer, generator = build([theta]), torch.Generator().manual_seed(1)
    rows = np.empty((steps, 3))
    for step in range(steps):
        square = float(theta.detach().square().sum())
        theta.grad = K * theta.detach()
        if gradient_noise:
            theta.grad += gradient_noise * torch.randn(d, dtype=torch.float64, generator=generator)
        optimizer.step(loss=K * square / 2)
        square = float(theta.detach().square().sum())
        rows[step] = square * N * K / (T * d), optimizer.temperature_ratio, read(optimizer)
    return rows


def thermostat_of(optimizer):
    return float(optimizer.param_groups[0]["thermostat"])


class TestTACTHMC:
    LR, MOMENTUM = 0.2, 0.8

    def build(self, **options):
        given = {"num_data": N, "temperature": T, "seed": 3, "inertia": 0.02} | options
        return lambda params: TACTHMC(params, self.LR, self.MOMENTUM, **given)

    def law(self, sigma=0.0):
        """Returns the exact ⟨θ²⟩·NK/T and ⟨z⟩ at ratio 1; the midstep thermostat takes up noise of deviation σ."""
        z = 1 - self.MOMENTUM + self.LR * N * sigma**2 / (2 * T)
        return 1 / (1 - self.LR * K / (2 * (2 - z))), z

    @pytest.mark.parametrize("sigma", [0.0, 0.1])
    def test_midstep_thermostat(self, sigma):
        """2,000 elements; correlated over about (1 − μ)/(lr·k) < 5 steps: 4,000 steps leave an error of 0.1 %."""
        rows = sampled(
            self.build(hottest=1.0, thermostat="midstep"), 2000, 4600, gradient_noise=sigma, read=thermostat_of
        )
        square, friction = (estimate(rows[600:, column]) for column in (0, 2))
        expected, z = self.law(sigma)
        assert square.standard_error < 0.005
        assert square.mean == pytest.approx(expected, abs=4 * square.standard_error + 0.003)
        assert friction.mean == pytest.approx(z, rel=0.02)

    def test_thermostat_of_the_paper_cools(self):
        rows = sampled(self.build(hottest=1.0), 2000, 3600, read=thermostat_of)
        square, friction = (estimate(rows[600:, column]) for column in (0, 2))
        expected = (1 + 1 - friction.mean) / 2
        assert square.mean == pytest.approx(expected, abs=4 * square.standard_error + 0.003)
        assert square.mean < 0.93  # which is the bias that the midstep thermostat does not have

    def tempered(self, steps=40_000, **options):
        """Returns ⟨θ²⟩ where the ratio of temperatures is 1, and how often it is; d = 3, up to 6 T."""
        given = {"thermostat": "midstep", "inertia": 0.01, "alpha_step": 0.03} | options
        rows = sampled(self.build(**given), 3, steps)[2000:]
        return estimate(rows[:, 0], selected=rows[:, 1] == 1), (rows[:, 1] == 1).mean()

    def test_at_ratio_one_the_law_is_that_of_the_posterior(self):
        found, share = self.tempered()
        assert 0.07 < share < 0.14  # a tenth, if α is uniform
        assert found.standard_error < 0.03
        assert found.mean == pytest.approx(self.law()[0], abs=4 * found.standard_error)

    def test_a_variance_larger_by_a_fifth_would_be_seen(self):
        found, _ = self.tempered(temperature=1.2 * T)
        assert found.mean - self.law()[0] > 4 * found.standard_error

    def test_without_its_bias_alpha_leaves_the_plateau(self, monkeypatch):
        """The twin of a uniform α: Z(g) ∝ g^(−3/2) makes the hot end 15 times as likely as the cold one."""
        move = AlphaWithThermostat.move

        def unbiased(self, potential, normal):
            self.means, self.counts = [0.0] * 30, [10**9] * 30
            move(self, potential, normal)

        monkeypatch.setattr(AlphaWithThermostat, "move", unbiased)
        assert self.tempered(20_000)[1] < 0.06


class TestReplicaExchange:
    LR, MOMENTUM, D = 0.05, 0.9, 4

    def cold(self, calls=20_000):
        rows = sampled(
            lambda params: ReSGLD(params, self.LR, self.MOMENTUM, num_data=N, temperature=T, ratio=2.0, seed=3),
            self.D,
            calls,
            read=lambda optimizer: optimizer.swaps,
        )
        chosen = rows[2001::2]
        assert (chosen[:, 1] == 1).all()
        return estimate(chosen[:, 0]), rows[-1, 2]

    def test_cold_chain_keeps_its_law_under_swaps(self):
        """Its own Euler law, exact: 1/(1 − lr·k/(2(1 + μ)))."""
        found, swaps = self.cold()
        assert swaps > 500
        assert found.standard_error < 0.03
        assert found.mean == pytest.approx(
            1 / (1 - self.LR * K / (2 * (1 + self.MOMENTUM))), abs=4 * found.standard_error
        )

    def test_swaps_at_any_price_would_be_seen(self, monkeypatch):
        monkeypatch.setattr(Exchange, "decide", lambda self, *_: math.isfinite(self.cold))
        found, _ = self.cold(10_000)
        assert found.mean > 1.2
