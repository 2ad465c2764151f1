"""Samplers held by a spring to where they started: `localization=κ`."""

import math

import pytest
import torch
from torch import nn

from ctld import CTLD, OPTIMIZERS, SGLD, Tempering, create

K, M, START, KAPPA, N, LR, T = 2.0, 1.5, -1.0, 3.0, 50.0, 0.1, 0.5
CHAINS = 40_000  # independent: the standard error of their variance is √(2/40,000) = 0.7 % of it


def build(name, theta, **options):
    momentum = {} if name in ("sgld", "psgld") else {"momentum": 0.6}
    phases = {"exploration_steps": 10**6, "tempering": Tempering.constant()} if name == "ctld" else {}
    chosen = {"num_data": N, "temperature": T, "localization": KAPPA, "seed": 3} | momentum | phases | options
    return create(name, [theta], lr=LR, **chosen)


def sampled(name="sgld", steps=60, **options):
    """Chains of the mean loss K(θ − M)²/2, after 60 steps: from START they forget by (1 − 0.5)⁶⁰, or 0.6³⁰."""
    theta = nn.Parameter(torch.full((CHAINS,), START, dtype=torch.float64))
    optimizer = build(name, theta, **options)
    for _ in range(steps):
        theta.grad = K * (theta.detach() - M)
        optimizer.step(loss=float(0.5 * K * (theta.detach() - M).square().sum()))
    return theta.detach()


CURVATURE = K + KAPPA
TOO_WIDE = {
    "sgld": 1 / (1 - LR * CURVATURE / 2),
    "sghmc": 1 / (1 - LR * CURVATURE / (2 * 1.6)),
    "langevin": 1 / (1 - LR * CURVATURE / (2 * 1.6)),
    "ctld": 1 / (1 - LR * CURVATURE / (2 * 1.6)),
    "baoab": 1.0,
}
"""By these factors the variance at this step is larger than in the limit of small ones."""


def scores(theta, name="sgld"):
    """Distances of mean and variance from the law, in standard errors.

    The spring makes the curvature K + κ, and the mean that of M and θ₀, weighted by K and κ.
    """
    mean, variance = (K * M + KAPPA * START) / CURVATURE, T / (N * CURVATURE) * TOO_WIDE[name]
    errors = math.sqrt(variance / CHAINS), variance * math.sqrt(2 / CHAINS)
    return (theta.mean().item() - mean) / errors[0], (theta.var().item() - variance) / errors[1]


@pytest.mark.parametrize("name", TOO_WIDE)
def test_the_law_on_a_gaussian(name):
    assert max(map(abs, scores(sampled(name), name))) < 4


@pytest.mark.parametrize("name", TOO_WIDE)
def test_wrong_twins_fail(name):
    assert abs(scores(sampled(name, temperature=1.1 * T), name)[1]) > 8
    assert abs(scores(sampled(name, localization=1.1 * KAPPA), name)[0]) > 8


@pytest.mark.parametrize("name", [name for name, method in OPTIMIZERS.items() if method.samples])
def test_every_sampler_is_held(name):
    """By a strong spring, at T = 0, it comes to rest between the minimum and the start."""
    theta = nn.Parameter(torch.full((4,), START, dtype=torch.float64))
    options = {"num_steps": 400} if name == "csghmc" else {"exploration_steps": 0} if name == "ctld" else {}
    options |= {"adapt": False} if name == "psgld" else {}
    optimizer = create(name, [theta], lr=0.02, num_data=N, temperature=0.0, localization=KAPPA, seed=3, **options)
    if name == "psgld":
        optimizer.state[theta]["square_average"].fill_(1.0)
    for _ in range(400):
        theta.grad = K * (theta.detach() - M)
        own = theta.grad
        optimizer.step(loss=1.0)
        assert theta.grad is own
    resting = (K * M + KAPPA * START) / CURVATURE
    assert theta.detach() == pytest.approx(resting, abs=1e-3)


def test_ctld_counts_the_spring_in_its_energy():
    theta = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = CTLD([theta], LR, num_data=N, exploration_steps=9, temperature=T, localization=KAPPA, seed=1)
    for _ in range(3):
        moved = theta.detach() - torch.tensor([1.0, -2.0], dtype=torch.float64)
        theta.grad = torch.zeros(2, dtype=torch.float64)
        optimizer.step(loss=0.25)
        assert optimizer.last.potential == pytest.approx(N * (0.25 + KAPPA * float(moved.square().sum()) / 2))


def test_a_refused_step_gives_the_gradients_back():
    theta = nn.Parameter(torch.ones(2))
    optimizer = CTLD([theta], LR, num_data=N, exploration_steps=9, temperature=T, localization=KAPPA, seed=1)
    theta.grad = own = torch.full((2,), math.nan)
    with pytest.raises(ValueError, match="NaN"):
        optimizer.step(loss=0.25)
    assert theta.grad is own


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
    with pytest.raises(ValueError, match="localization = -1"):
        SGLD([nn.Parameter(torch.ones(3))], LR, num_data=N, localization=-1)
