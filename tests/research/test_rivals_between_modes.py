"""TACT-HMC and replica exchange from mode to mode, beside quadrature and twins that are wrong (research/methods/README.md).

Many chains at once, θ in numpy, one to a row; that they are chains of the library is tested with its noise, step by step.
Batches are chains, so their correlation in time does not matter.
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from ctld import diagnostics
from ctld.noise import ALPHA, INITIAL_MOMENTA, numbers, parameter_stream, scalar_normal
from ctld_lab.sampling.targets import DoubleWell
from methods import TACTHMC, ReSGLD
from methods.resgld import Exchange

N, SEED, EVERY = 50.0, 7, 5
THRESHOLD = 4.0


def estimated(values, chosen=None):
    """Mean and error; one batch per chain."""
    return diagnostics.estimate(values, selected=chosen, num_batches=len(values))


def distance(found, expected):
    """In standard errors."""
    return (found.mean - expected) / found.standard_error


def gaussian(step, stream):
    return numbers("gaussian", SEED, step, stream, 1, dtype=torch.float64).numpy()


# ---- TACT-HMC: the double well, 8 (x² − 1)² at T = 1.25 ----


WELL, T = DoubleWell(1), 1.25
LR, MOMENTUM, ALPHA_STEP, FRICTION = 4e-4 * N, 0.8, 0.03, 0.1


def explore(chains, steps, *, hottest=6.0, force=1.0, power=2, signed=True, draw=None, every=EVERY):
    """Returns α and x, chain by chain, after every fifth step; all start in the right well, with the midstep thermostat.

    Wrong on purpose: another `force` on α, friction g instead of g² (`power` 1), and a bias that is not `signed` by the side of
    α. `draw(step)` gives standard normal numbers for x and α; at step −1, for their momenta.
    """
    generator = np.random.default_rng(1)
    draw = draw or (lambda step: generator.standard_normal((2, chains)))
    lost, heat, rank = 1.0 - MOMENTUM, LR * T / N, np.arange(chains)
    (start, p), x = draw(-1), np.ones(chains)
    v, p, alpha = math.sqrt(heat) * start, ALPHA_STEP * p, np.zeros(chains)
    z, z_alpha = np.full(chains, lost), np.full(chains, FRICTION)
    means, counts, rows = np.zeros((chains, 30)), np.zeros((chains, 30)), np.empty((2, chains, steps // every))
    for step in range(steps):
        potential, gradient = WELL(x[:, None])
        potential, (epsilon, normal) = potential / T, draw(step)
        w = np.maximum(np.abs(alpha) - 0.1, 0.0) / 0.9
        g = 1.0 / (1.0 + (hottest - 1.0) * w * w * w)
        slope = np.copysign(3.0 * (hottest - 1.0) / 0.9 * w * w * g * g, -alpha)
        place = rank, np.minimum((np.abs(alpha) * 30).astype(int), 29)
        counts[place] += 1
        means[place] += (potential - means[place]) / np.minimum(counts[place], 10_000)
        bias = means[place] if signed else np.copysign(means[place], alpha)
        z_alpha += (0.1 * FRICTION * slope) ** 2 * ((p / ALPHA_STEP) ** 2 - 1.0)
        push = ALPHA_STEP * slope * math.sqrt(2.0 * FRICTION) * normal
        p += push - force * ALPHA_STEP**2 * slope * (potential - bias) - slope**2 * z_alpha * p
        alpha += p
        beyond = np.abs(alpha) > 1.0
        alpha[beyond], p[beyond] = np.copysign(2.0, alpha[beyond]) - alpha[beyond], -p[beyond]
        last, retain = v, 1.0 - (g if power == 1 else g * g) * z
        v = retain * v - LR / N * g * gradient[:, 0] + g * math.sqrt(2.0 * lost * heat) * epsilon
        z += (0.1 * lost * g) ** 2 * (np.square(0.5 * (v + last)) / heat - 1.0)
        x = x + v
        if step % every == every - 1:
            rows[:, :, step // every] = alpha, x
    return rows


def test_many_chains_are_chains_of_tact_hmc():
    """With its noise, step by step; slopes and a wall are visited."""
    steps = 800  # then rounding has not yet grown

    def draw(step):
        place = (step, parameter_stream(0)) if step >= 0 else (0, INITIAL_MOMENTA)
        return gaussian(*place), np.array([scalar_normal(SEED, ALPHA, 1 + step)])

    theta = nn.Parameter(torch.ones(1, dtype=torch.float64))
    options = {"alpha_step": ALPHA_STEP, "alpha_friction": FRICTION, "thermostat": "midstep", "seed": SEED}
    optimizer, rows = TACTHMC([theta], LR, MOMENTUM, num_data=N, temperature=T, **options), np.empty((2, steps))
    for step in range(steps):
        potential, gradient = WELL(theta.detach().numpy())
        theta.grad = torch.from_numpy(gradient / N)
        optimizer.step(loss=potential / N)
        rows[:, step] = optimizer.alpha, theta.item()
    np.testing.assert_allclose(explore(1, steps, draw=draw, every=1)[:, 0], rows, rtol=1e-7, atol=1e-8)
    assert np.abs(rows[0]).max() > 0.97
    assert optimizer.tempering.redrawn == 0


def drop(rows):
    """Without the first fifth."""
    return rows[:, :, rows.shape[2] // 5 :]


def rate(x):
    """Crossings in 100,000 steps."""
    return diagnostics.crossings(x) / (EVERY * x.size) * 1e5


def scores(rows):
    """Distances in standard errors: of the draws that count, by quadrature; of α, from uniform. And crossings."""
    alpha, x = drop(rows)
    cold = np.abs(alpha) <= 0.1
    occupation, square = estimated(x > 0, cold), estimated(x**2, cold)
    assert occupation.standard_error < 0.012
    assert square.standard_error < 0.002
    distances = {
        "occupation": distance(occupation, 0.5),
        "square": distance(square, WELL.mean_square(T)),
        "size of α": distance(estimated(np.abs(alpha)), 0.5),
        "sign of α": distance(estimated(alpha > 0), 0.5),
    }
    return distances, rate(x)


def test_tact_hmc_keeps_the_law_of_the_double_well():
    """Standard errors are 0.006 for the occupation and 0.06 % for ⟨x²⟩; of the latter, step and α-step are worth 0.1 %.

    (With α-steps of 0.05 it is 0.2 % too large, as if T were 4 % lower.) Chains cross 72 times in 100,000 steps, 2 untempered.
    """
    distances, crossings = scores(explore(1500, 20_000))
    assert max(map(abs, distances.values())) < THRESHOLD
    assert crossings > 50


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        ("square", {"force": 0.5}),
        ("sign of α", {"signed": False}),
        ("occupation", {"power": 1}),
        ("occupation", {"hottest": 1.0}),
    ],
)
def test_twins_of_tact_hmc_fail(seen, wrong):
    """Half the force on α heats. With friction g momenta are cold where α is hot, so that chains stay where they started; so
    do they without tempering."""
    distances, crossings = scores(explore(1500, 12_000, **wrong))
    assert abs(distances[seen]) > 1.5 * THRESHOLD
    assert (crossings < 20) == (seen == "occupation")


# ---- replica exchange: 0.3·N(−1, σ²) + 0.7·N(1, σ²), whose hot chain is at 4 T ----

SHARE, WIDTH, RATIO = 0.3, 0.25, 4.0
RATE, KEPT = 0.01 * WIDTH**2 * N / T, 0.9  # lr·k = 0.01


def mixture(x):
    """U and its gradient; exp(−U/T) is the mixture."""
    left = math.log(SHARE) - np.square(x + 1.0) / (2.0 * WIDTH**2)
    right = math.log(1.0 - SHARE) - np.square(x - 1.0) / (2.0 * WIDTH**2)
    total = np.logaddexp(left, right)
    return -T * total, T / WIDTH**2 * (x + 1.0 - 2.0 * np.exp(right - total))


QUANTITIES = {
    "occupation": lambda x: x < 0,
    "square": np.square,
    "width": lambda x: np.square(np.abs(x) - 1.0),
}


def quadrature(of):
    x = np.linspace(-4.0, 4.0, 8001)
    density = np.exp(-mixture(x)[0] / T)
    return float((of(x) * density).sum() / density.sum())


def exchange(pairs, steps, *, ratio=RATIO, noise=0.0, draw=None, every=EVERY):
    """Returns x of the cold chains and of the hot ones after every fifth step; all start on the right.

    The decisions are the library's. `noise` is the standard deviation of what they are told of a U/T, as from minibatches.
    """
    generator = np.random.default_rng(1)
    draw = draw or (lambda step: (generator.standard_normal((2, pairs)), generator.random(pairs)))
    exchanges, factor = [Exchange() for _ in range(pairs)], 1.0 - 1.0 / ratio
    heat = RATE * T / N * np.array([[1.0], [ratio]])
    (start, _), x = draw(-1), np.ones((2, pairs))
    v, rows = np.sqrt(heat) * start, np.empty((2, pairs, steps // every))
    for step in range(steps):
        potential, gradient = mixture(x)
        epsilon, uniform = draw(step)
        seen = potential / T + noise * generator.standard_normal((2, pairs)) if noise else potential / T
        told = zip(exchanges, *seen.tolist(), uniform.tolist(), strict=True)
        swap = np.array([pair.decide(cold, hot, factor, number, 1.0) for pair, cold, hot, number in told])
        for values in (x, v, gradient):
            values[:, swap] = values[::-1, swap]
        v[:, swap] *= [[ratio**-0.5], [ratio**0.5]]
        v = KEPT * v - RATE / N * gradient + np.sqrt(2.0 * (1.0 - KEPT) * heat) * epsilon
        x = x + v
        if step % every == every - 1:
            rows[:, :, step // every] = x
    return rows


def test_many_pairs_are_pairs_of_replica_exchange():
    """With the library's noise, step by step; there are swaps."""
    steps = 400

    def draw(step):
        if step < 0:
            return np.array([gaussian(0, INITIAL_MOMENTA), gaussian(1 << 31, INITIAL_MOMENTA)]), None
        normal = scalar_normal(SEED, ALPHA, 2 * step + 1)
        uniform = 0.5 * math.erfc(-normal / math.sqrt(2.0))
        return np.array([gaussian(2 * step + role, parameter_stream(0)) for role in range(2)]), np.array([uniform])

    theta, rows = nn.Parameter(torch.ones(1, dtype=torch.float64)), np.empty((2, steps))
    optimizer = ReSGLD([theta], RATE, KEPT, num_data=N, temperature=T, ratio=RATIO, seed=SEED)
    for call in range(2 * steps):
        potential, gradient = mixture(theta.detach().numpy())
        theta.grad = torch.from_numpy(gradient / N)
        optimizer.step(loss=potential.item() / N)
        if call % 2:
            rows[:, call // 2] = theta.item(), optimizer.state[theta]["other"].item()
    np.testing.assert_allclose(exchange(1, steps, draw=draw, every=1)[:, 0], rows, rtol=1e-9, atol=1e-10)
    assert optimizer.swaps > 10


def cold_scores(rows):
    """Distances of the cold chains from quadrature, in standard errors, and their crossings."""
    x, distances = drop(rows)[0], {}
    for name, of in QUANTITIES.items():
        expected, found = quadrature(of), estimated(of(x))
        assert found.standard_error < 0.02 * expected
        distances[name] = distance(found, expected)
    return distances, rate(x)


def test_replica_exchange_keeps_the_law_of_a_mixture():
    """Standard errors are 1.6 % for the occupation, 0.1 % for ⟨x²⟩ and 0.3 % for the width, of which the step is worth 0.3 %.

    A chain alone crosses once in 100,000 steps, not 3,500 times, and is where it started.
    """
    distances, crossings = cold_scores(exchange(500, 8000))
    assert max(map(abs, distances.values())) < THRESHOLD
    alone = drop(exchange(500, 2000, ratio=1.0))[0]
    assert crossings > 1000 * rate(alone)
    assert (alone < 0).mean() < 0.1


decide = Exchange.decide


def after_the_move(self, cold, hot, *rest):
    """Swaps after a move by the energies from before it, as the authors' code does."""
    swap = getattr(self, "pending", False)
    self.pending = decide(self, *((hot, cold) if swap else (cold, hot)), *rest)
    return swap


def with_swaps_among_its_terms(self, *energies):
    """Takes the jump of U₁ − U₂ at a swap for noise."""
    swap = decide(self, *energies)
    if swap:
        self.before = (-self.before[0], -self.before[1])
    return swap


def without_the_terms_of_swaps(self, *energies):
    """Leaves out of s² what holds a swap, as the first version did; but loud noise is what makes swaps."""
    swap = decide(self, *energies)
    self.known = 0 if swap else self.known
    return swap


@pytest.mark.parametrize("wrong", [after_the_move, with_swaps_among_its_terms])
def test_twins_of_replica_exchange_fail(monkeypatch, wrong):
    """The first heats, the second cools; both are seen in the width first."""
    monkeypatch.setattr(Exchange, "decide", wrong)
    distances, _ = cold_scores(exchange(500, 6000))
    assert distances["width"] * (1 if wrong is after_the_move else -1) > 1.5 * THRESHOLD


def test_noise_on_the_energies_keeps_the_law(monkeypatch):
    """Noise of 2 T on each U: s = 2.1. With the terms of swaps left out of s² the width is 6 % too large."""
    distances, _ = cold_scores(exchange(500, 6000, noise=2.0))
    assert max(map(abs, distances.values())) < THRESHOLD
    monkeypatch.setattr(Exchange, "decide", without_the_terms_of_swaps)
    distances, _ = cold_scores(exchange(500, 6000, noise=2.0))
    assert distances["width"] > 1.5 * THRESHOLD
