"""Strong order: how fast paths under one Brownian motion converge as the step shrinks. UBU's is two, Euler's and BAOAB's one.

The recursions are written here once more, in physical units (γ = N = T = 1, time step h), and held to the optimizer's own
steps; so what is measured is what `CTLD(integrator=...)` does. The well is θ²/2 + cos 2θ, with curvatures from −3 to 5.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import CTLD, Tempering, noise

DURATION, PATHS = 2.0, 4000
STEPS = (0.2, 0.1, 0.05, 0.025)
FINEST = 0.2 / 2**6  # of the reference, eight times finer than the finest step
SECOND_NOISE = 1 << 61  # UBU's second number is that of another seed


def gradient(theta):
    return theta - 2.0 * np.sin(2.0 * theta)


def free_noise(h):
    """Variances of θ and u and their covariance after free motion for h from rest: dθ = u dt, du = −u dt + √2 dW."""
    mu = math.exp(-h)
    return 2.0 * h - 3.0 + 4.0 * mu - mu**2, 1.0 - mu**2, (1.0 - mu) ** 2


class Two:
    """Free motion for h by two normal numbers, as the step does it: noise, drift, friction and noise, drift."""

    def __init__(self, h):
        wander, lost, together = free_noise(h)
        self.mu = mu = math.exp(-h)
        reach = 1.0 - mu
        spread = wander * mu**2 + reach**2 * lost - 2.0 * together * reach * mu
        first = (wander * lost - together**2) / spread
        second = lost - mu**2 * first
        self.first, self.second = math.sqrt(first), math.sqrt(second)
        self.late = (together - reach * mu * first) / second
        self.early = reach - self.late * mu

    def move(self, theta, u, one, two):
        u = u + self.first * one
        theta = theta + self.early * u
        u = self.mu * u + self.second * two
        return theta + self.late * u, u

    def numbers(self, wander, kick):
        """The two normal numbers by which free motion from rest ends in (wander, kick)."""
        one = (wander - self.late * kick) / (self.early * self.first)
        return one, (kick - self.mu * self.first * one) / self.second


def ubu(theta, u, h, one, two):
    return Two(h).move(theta, u - h * gradient(theta), one, two)


def euler(theta, u, h, number):
    mu = math.exp(-h)
    u = mu * u - h * gradient(theta) + math.sqrt(2.0 * (1.0 - mu)) * number
    return theta + h * u, u


def baoab(theta, u, h, number):
    u = u - h * gradient(theta)
    theta = theta + 0.5 * h * u
    u = math.exp(-h) * u + math.sqrt(1.0 - math.exp(-2.0 * h)) * number
    return theta + 0.5 * h * u, u


@pytest.mark.parametrize("integrator", ["euler", "baoab", "ubu"])
def test_these_are_the_optimizers_steps(integrator):
    h, seed, size = 0.2, 3, 50
    mu = math.exp(-h)
    lr = {"euler": h**2, "baoab": h**2 * (1 + mu) / 2, "ubu": h * (1 - mu)}[integrator]
    start = torch.linspace(-2.0, 2.0, size, dtype=torch.float64)
    parameter = nn.Parameter(start.clone())
    optimizer = CTLD(
        [parameter], lr, mu, num_data=1.0, exploration_steps=20, temperature=1.0, tempering=Tempering.constant(),
        integrator=integrator, seed=seed,
    )  # fmt: skip

    def number(step, seed):
        return noise.normal(seed, step, noise.parameter_stream(0), size, dtype=torch.float64).numpy()

    theta, u = start.numpy(), noise.normal(seed, 0, noise.INITIAL_MOMENTA, size, dtype=torch.float64).numpy()
    for step in range(20):
        parameter.grad = torch.from_numpy(gradient(parameter.detach().numpy()))
        optimizer.step(loss=0.0)
        if integrator == "ubu":
            theta, u = ubu(theta, u, h, number(step, seed), number(step, seed ^ SECOND_NOISE))
        else:
            theta, u = {"euler": euler, "baoab": baoab}[integrator](theta, u, h, number(step, seed))
        np.testing.assert_allclose(parameter.detach().numpy(), theta, rtol=1e-12, atol=1e-12)


def brownian_motion():
    """Noise of θ and u over intervals of FINEST/2: arrays of shape (intervals, paths)."""
    wander, lost, together = free_noise(FINEST / 2)
    root = np.linalg.cholesky(np.array([[wander, together], [together, lost]]))
    numbers = np.random.default_rng(7).standard_normal((round(2 * DURATION / FINEST), PATHS, 2))
    return np.moveaxis(numbers @ root.T, -1, 0)


def gather(wander, kick, duration):
    """Noise of free motion for `duration`, from that of the short intervals it is made of."""
    theta, u = np.zeros_like(wander[0]), np.zeros_like(wander[0])
    mu = math.exp(-duration / len(wander))
    for more, push in zip(wander, kick, strict=True):
        theta, u = theta + (1.0 - mu) * u + more, mu * u + push
    return theta, u


def ends(scheme, h, motion, *, correlated=True):
    """θ at DURATION of every path, driven by the motion."""
    wander, kick = motion
    half = round(h / FINEST)  # short intervals in half a step
    theta, u = np.full(PATHS, 0.5), np.zeros(PATHS)
    mu = math.exp(-h / 2)
    if scheme == "ubu":  # free motion for half a step, then kicks and whole steps: the parameters rest in the middle
        more, push = gather(wander[:half], kick[:half], h / 2)
        theta, u = theta + (1.0 - mu) * u + more, mu * u + push
    count = round(DURATION / h)
    for step in range(count):
        offset = 2 * half * step + (half if scheme == "ubu" else 0)
        if scheme == "ubu" and step == count - 1:
            break
        more, push = gather(wander[offset : offset + 2 * half], kick[offset : offset + 2 * half], h)
        if scheme != "ubu":
            theta, u = {"euler": euler, "baoab": baoab}[scheme](theta, u, h, push / math.sqrt(free_noise(h)[1]))
            continue
        motion_of_step = Two(h)
        one, two = motion_of_step.numbers(more, push)
        if not correlated:
            one = one * 0.0
        theta, u = motion_of_step.move(theta, u - h * gradient(theta), one, two)
    if scheme == "ubu":
        u = u - h * gradient(theta)
        more, push = gather(wander[-half:], kick[-half:], h / 2)
        theta, u = theta + (1.0 - mu) * u + more, mu * u + push
    return theta


def order(scheme, motion, exact, **options):
    """Least-squares slope of log RMS error against log h."""
    errors = [np.sqrt(np.mean((ends(scheme, h, motion, **options) - exact) ** 2)) for h in STEPS]
    return np.polyfit(np.log(STEPS), np.log(errors), 1)[0], errors


def test_the_gathered_numbers_are_standard_normal():
    """What the short intervals add up to has the law of the two numbers that a step draws."""
    wander, kick = brownian_motion()
    length = round(2 * 0.2 / FINEST)
    one, two = Two(0.2).numbers(*gather(wander[:length], kick[:length], 0.2))
    covariance = np.cov(one, two)
    # Of 4,000 pairs: a variance has standard error √(2/4000) = 0.022, a covariance 0.016.
    np.testing.assert_allclose(covariance, np.eye(2), atol=4 * 0.022)


def test_orders():
    """Slopes over a factor of eight in h. A twin of UBU that goes without its first number does not converge at all."""
    motion = brownian_motion()
    exact = ends("ubu", FINEST, motion)
    found = {scheme: order(scheme, motion, exact) for scheme in ("euler", "baoab", "ubu")}
    twin, _ = order("ubu", motion, exact, correlated=False)
    assert found["ubu"][0] == pytest.approx(2.0, abs=0.15), found
    assert found["euler"][0] == pytest.approx(1.0, abs=0.15), found
    assert found["baoab"][0] == pytest.approx(1.0, abs=0.15), found
    assert twin < 0.5
    assert found["ubu"][1][0] < min(found["euler"][1][0], found["baoab"][1][0]) / 5
