"""TACT-HMC and replica exchange beside their rules, written out in numpy with the same noise (research/methods/README.md)."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import SGHMC, SGNHT, noise
from methods import TACTHMC, ReSGLD
from methods.resgld import Exchange

LR, MOMENTUM, N, T, DECAY, SEED, STEPS = 0.04, 0.6, 30.0, 0.7, 0.1, 9, 60
SHAPES = [(3, 2), (4,)]
START = np.linspace(-1.0, 1.5, 10)
PARTS = [slice(0, 6), slice(6, 10)]
COMMON = {"num_data": N, "weight_decay": DECAY, "temperature": T, "seed": SEED}


def mean_loss(theta):
    return float((theta**4 / 4 - theta**2 / 2).sum())


def gradient(theta):
    return theta**3 - theta


def z(step, stream=lambda index: noise.parameter_stream(index)):
    parts = [noise.normal(SEED, step, stream(i), math.prod(s), dtype=torch.float64) for i, s in enumerate(SHAPES)]
    return torch.cat(parts).numpy()


def z_start(first=0):
    parts = [
        noise.normal(SEED, first + i, noise.INITIAL_MOMENTA, math.prod(s), dtype=torch.float64)
        for i, s in enumerate(SHAPES)
    ]
    return torch.cat(parts).numpy()


def path(optimizer_of, steps=STEPS):
    """Returns θ after each call, and the optimizer."""
    tensors = [
        nn.Parameter(torch.tensor(START[part]).reshape(shape)) for part, shape in zip(PARTS, SHAPES, strict=True)
    ]
    optimizer, seen = optimizer_of(tensors), []
    for _ in range(steps):
        flat = torch.cat([p.detach().reshape(-1) for p in tensors]).numpy()
        kept = [gradient(p.detach()) for p in tensors]
        for p, own in zip(tensors, kept, strict=True):
            p.grad = own
        optimizer.step(loss=mean_loss(flat))
        assert all(p.grad is own for p, own in zip(tensors, kept, strict=True))
        seen.append(torch.cat([p.detach().reshape(-1) for p in tensors]).numpy())
    return np.array(seen), optimizer


def tact_hmc(tilt, *, midstep=False, steps=STEPS):
    hottest, s, c_alpha, c, nu = 6.0, 0.05, 0.2, 1 - MOMENTUM, 0.1
    theta, v, friction = START.copy(), math.sqrt(T * LR / N) * z_start(), c
    alpha, p, z_alpha = 0.0, s * noise.scalar_normal(SEED, noise.ALPHA, 0), c_alpha
    means, counts, seen = np.zeros(30), np.zeros(30), []
    for t in range(steps):
        w = max(abs(alpha) - 0.1, 0) / 0.9
        g = 1 / (1 + (hottest - 1) * w**3)
        slope = -np.sign(alpha) * 3 * (hottest - 1) * w**2 / 0.9 * g**2
        potential = N * (mean_loss(theta) + DECAY * (theta**2).sum() / 2) / T
        b = min(int(abs(alpha) * 30), 29)
        counts[b] += 1
        means[b] += (potential - means[b]) / counts[b]
        z_alpha += slope**2 * (c_alpha / 10) ** 2 * (p**2 / s**2 - 1)
        epsilon = noise.scalar_normal(SEED, noise.ALPHA, 1 + t)
        p += -(slope**2) * z_alpha * p - s**2 * slope * (potential - means[b])
        p += slope * s * math.sqrt(2 * c_alpha) * epsilon
        if abs(p) >= 25 * s:
            p = s * epsilon
        alpha += p
        while abs(alpha) > 1:
            alpha, p = np.sign(alpha) * 2 - alpha, -p
        before = v
        v = v - g**2 * friction * v - LR * g * (gradient(theta) + DECAY * theta)
        v = v + tilt * g * math.sqrt(2 * c * LR * T / N) * z(t)
        theta = theta + v
        held = (v + before) / 2 if midstep else v
        friction += g**2 * nu**2 * ((held**2).mean() * N / (LR * T) - 1)
        seen.append(np.append(theta, alpha))
    own = {"alpha_step": s, "alpha_friction": c_alpha, "inertia": nu, "thermostat": "midstep" if midstep else "step"}
    ours, optimizer = path(lambda tensors: TACTHMC(tensors, LR, MOMENTUM, **own, **COMMON), steps)
    assert float(optimizer.param_groups[0]["thermostat"]) == pytest.approx(friction, rel=1e-9 if tilt == 1 else 1)
    return np.column_stack([ours, np.full(steps, optimizer.alpha)]), np.array([[*row[:-1], alpha] for row in seen])


def resgld(tilt, calls=300):
    ratio, c = 1.2, 1 - MOMENTUM
    thetas = [START.copy(), START.copy()]  # cold, hot
    size = math.sqrt(T * LR / N)
    v = [size * z_start(), math.sqrt(ratio) * size * z_start(1 << 31)]
    history, variance, terms, swaps, seen = [], 0.0, 0, 0, []
    for t in range(1, calls, 2):
        seen.append(thetas[1])  # after the first call the model shows the hot chain
        energies = [N * (mean_loss(theta) + DECAY * (theta**2).sum() / 2) / T for theta in thetas]
        gradients = [gradient(theta) + DECAY * theta for theta in thetas]
        history = [energies[0] - energies[1], *history]
        if len(history) > 2:
            terms += 1
            variance += ((history[0] - 2 * history[1] + history[2]) ** 2 / 6 - variance) / terms
        factor = 1 - 1 / ratio
        u = 0.5 * math.erfc(-noise.scalar_normal(SEED, noise.ALPHA, t) / math.sqrt(2))
        order = [0, 1]
        if terms >= 10 and math.log(u) < factor * history[0] - factor**2 * variance / 2:
            order, history, swaps = [1, 0], [-told for told in history], swaps + 1
            v = [v[0] * math.sqrt(ratio), v[1] / math.sqrt(ratio)]
        moved = []
        for role, which in enumerate(order):  # the chain that is cold from now on comes first
            temperature = T * (ratio if role else 1.0)
            kick = tilt * math.sqrt(2 * c * LR * temperature / N) * z(t - 1 + role)
            velocity = MOMENTUM * v[which] - LR * gradients[which] + kick
            moved.append((thetas[which] + velocity, velocity))
        thetas, v = [pair[0] for pair in moved], [pair[1] for pair in moved]
        seen.append(thetas[0])
    ours, optimizer = path(lambda tensors: ReSGLD(tensors, LR, MOMENTUM, ratio=ratio, **COMMON), calls)
    if tilt == 1:
        assert optimizer.swaps == swaps > 3
    return ours, np.array(seen)


RULES = {
    "tact_hmc": tact_hmc,
    "tact_hmc_midstep": lambda tilt: tact_hmc(tilt, midstep=True),
    "resgld": resgld,
}


@pytest.mark.parametrize("method", RULES)
def test_rule(method):
    ours, theirs = RULES[method](1.0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", RULES)
def test_rule_with_other_noise_would_be_seen(method):
    """The twin: a variance larger by 0.2 %."""
    ours, theirs = RULES[method](1.001)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


def test_tact_hmc_without_tempering_is_sgnht():
    inertia = math.sqrt(LR * T / N)
    ours, _ = path(lambda tensors: TACTHMC(tensors, LR, MOMENTUM, hottest=1.0, inertia=inertia, **COMMON))
    theirs, _ = path(lambda tensors: SGNHT(tensors, LR, MOMENTUM, **COMMON))
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_replica_exchange_without_swaps_is_two_chains():
    """Of which the cold one is SGHMC with every second step's noise: a ratio of 1 never asks for a swap."""
    ours, optimizer = path(lambda tensors: ReSGLD(tensors, LR, MOMENTUM, ratio=1.0, **COMMON), 80)
    assert optimizer.swaps == optimizer.exchange.tries == 0
    theta, v = START, math.sqrt(T * LR / N) * z_start()
    for step in range(40):
        kick = math.sqrt(2 * (1 - MOMENTUM) * LR * T / N) * z(2 * step)
        v = MOMENTUM * v - LR * (gradient(theta) + DECAY * theta) + kick
        theta = theta + v
        np.testing.assert_allclose(ours[2 * step + 1], theta, rtol=1e-10, atol=1e-12)
    first, _ = path(lambda tensors: SGHMC(tensors, LR, MOMENTUM, **COMMON), 1)
    np.testing.assert_allclose(ours[1], first[0], rtol=1e-12)


def test_replica_exchange_shows_the_cold_chain_after_every_second_call():
    _, optimizer = path(lambda tensors: ReSGLD(tensors, LR, MOMENTUM, **COMMON), 7)
    assert optimizer.temperature_ratio == 2.0
    _, optimizer = path(lambda tensors: ReSGLD(tensors, LR, MOMENTUM, **COMMON), 8)
    assert optimizer.temperature_ratio == 1.0


def test_no_noise_and_no_swap_at_temperature_zero():
    options = COMMON | {"temperature": 0.0}
    ends = [
        path(lambda tensors: ReSGLD(tensors, LR, MOMENTUM, **options), 80)[0][-1],
        path(lambda tensors: TACTHMC(tensors, LR, MOMENTUM, **options), 40)[0][-1],
        path(lambda tensors: SGHMC(tensors, LR, MOMENTUM, **options), 40)[0][-1],
    ]
    np.testing.assert_allclose(ends[0], ends[2], rtol=1e-12)
    np.testing.assert_allclose(ends[1], ends[2], rtol=1e-12)


def test_a_group_that_ascends_alone_is_refused():
    for cls in (TACTHMC, ReSGLD):
        with pytest.raises(ValueError, match="share one potential"):
            cls([{"params": [nn.Parameter(torch.ones(2))], "maximize": True}], LR, num_data=N)


# ---- the exchange alone: energies drawn from their law, U_i/T_i ~ Gamma(d/2) for a quadratic potential ----


def exchanged(d, ratio, *, deviation=0.0, divisor=1.0, known=None, tries=40_000):
    """Returns the share of swaps, the mean energy of the cold chain afterwards, and its standard error."""
    generator = np.random.default_rng(5)
    factor = 1 - 1 / ratio
    cold, hot = generator.gamma(d / 2, size=tries), ratio * generator.gamma(d / 2, size=tries)
    told = cold - hot + deviation / factor * generator.standard_normal(tries)
    uniform, swapped = generator.random(tries), np.zeros(tries, bool)
    for number in range(tries):
        exchange = Exchange()
        exchange.terms, exchange.variance = 1000, ((deviation if known is None else known) / factor) ** 2
        swapped[number] = exchange.decide(told[number], 0.0, factor, uniform[number], divisor)
    after = np.where(swapped, hot, cold)
    return swapped.mean(), after.mean(), after.std() / math.sqrt(tries)


@pytest.mark.parametrize("d", [1, 10, 100])
def test_share_of_swaps_is_that_of_kofke(d):
    """2·I(d/2, d/2) at 1/(1 + ratio); 40,000 independent tries: a standard error of 0.0025 at most."""
    from scipy.special import betainc

    ratio = 1.3
    share, energy, error = exchanged(d, ratio)
    assert share == pytest.approx(2 * betainc(d / 2, d / 2, 1 / (1 + ratio)), abs=0.01)
    assert abs(energy - d / 2) < 4 * error


@pytest.mark.parametrize("deviation", [0.5, 2.0])
def test_noise_of_known_variance_keeps_the_law(deviation):
    """And its price is the acceptance 2·E Φ(δ/s − s/2)."""
    from scipy.stats import norm

    share, energy, error = exchanged(10, 1.3, deviation=deviation)
    generator = np.random.default_rng(6)
    delta = (1 - 1 / 1.3) * (generator.gamma(5, size=10**6) - 1.3 * generator.gamma(5, size=10**6))
    assert share == pytest.approx(2 * norm.cdf(delta / deviation - deviation / 2).mean(), abs=0.01)
    assert abs(energy - 5) < 4 * error


@pytest.mark.parametrize("wrong", [{"known": 0.0}, {"divisor": 10.0}])
def test_without_the_correction_the_cold_chain_is_too_hot(wrong):
    _, energy, error = exchanged(10, 1.3, deviation=2.0, **wrong)
    assert energy - 5 > 6 * error
