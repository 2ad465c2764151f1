"""SGLD held by a spring: `SGLD(localization=κ)`."""

import math

import pytest
import torch
from torch import nn

from ctld import PSGLD, SGLD

K, M, START, KAPPA, N, LR, T = 2.0, 1.5, -1.0, 3.0, 50.0, 0.1, 0.5
CHAINS = 40_000  # independent: the standard error of their variance is √(2/40,000) = 0.7 % of it


def sampled(temperature=T, localization=KAPPA, lr=LR):
    """Chains of the mean loss K(θ − M)²/2, after 60 steps: from START they forget by (1 − 0.5)⁶⁰."""
    theta = nn.Parameter(torch.full((CHAINS,), START, dtype=torch.float64))
    optimizer = SGLD([theta], lr, num_data=N, temperature=temperature, localization=localization, seed=3)
    for _ in range(60):
        theta.grad = K * (theta.detach() - M)
        optimizer.step()
    return theta.detach()


def scores(theta):
    """Distances of mean and variance from the law, in standard errors.

    The spring makes the curvature K + κ, and the mean that of M and θ₀, weighted by K and κ.
    """
    curvature = K + KAPPA
    mean, variance = (K * M + KAPPA * START) / curvature, T / (N * curvature) / (1 - LR * curvature / 2)
    errors = math.sqrt(variance / CHAINS), variance * math.sqrt(2 / CHAINS)
    return (theta.mean().item() - mean) / errors[0], (theta.var().item() - variance) / errors[1]


def test_the_law_on_a_gaussian():
    assert max(map(abs, scores(sampled()))) < 4


def test_wrong_twins_fail():
    assert abs(scores(sampled(temperature=1.1 * T))[1]) > 8
    assert abs(scores(sampled(localization=1.1 * KAPPA))[0]) > 8


def test_without_a_spring_nothing_is_kept():
    theta = nn.Parameter(torch.ones(3))
    assert SGLD([theta], LR, num_data=N).state[theta] == {}


def test_it_resumes_to_the_same_spring():
    def steps(theta, optimizer, count):
        for _ in range(count):
            theta.grad = K * (theta.detach() - M)
            optimizer.step()

    def build(values, **options):
        theta = nn.Parameter(values.clone())
        return theta, SGLD([theta], LR, num_data=N, **({"localization": KAPPA, "seed": 1} | options))

    whole, optimizer = build(torch.full((4,), START))
    steps(whole, optimizer, 5)
    state = optimizer.state_dict()
    resumed, again = build(whole.detach())  # it would be held to where the first run stopped
    again.load_state_dict(state)
    assert torch.equal(again.state[resumed]["center"], torch.full((4,), START))
    for pair in ((whole, optimizer), (resumed, again)):
        steps(*pair, 5)
    assert torch.equal(whole, resumed)
    with pytest.raises(ValueError, match=r"localization = 3.0"):
        build(whole.detach(), localization=1.0)[1].load_state_dict(state)


def test_what_is_refused():
    parameters = [nn.Parameter(torch.ones(3))]
    with pytest.raises(ValueError, match="localization = -1"):
        SGLD(parameters, LR, num_data=N, localization=-1)
    with pytest.raises(ValueError, match="take SGLD"):
        PSGLD(parameters, LR, num_data=N, localization=1.0)
