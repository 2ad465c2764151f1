"""Three-point noise: 0 with probability 2/3 and ±√3 with 1/6 each, and what a sampler makes of it.

A Langevin step on a Gaussian is linear, θ = Σ a_j ε_j over past steps, so every stationary cumulant of θ is exact:

    κ_n(θ) = κ_n(ε) Σ a_jⁿ.     κ₂ = 1, κ₄ = −10⁻⁴ (nearly the Gaussian's 0), κ₆ = −6 (the Gaussian's is 0)

The variance obeys the laws of test_laws.py at any step, the kurtosis is the Gaussian's, and the sixth moment approaches the
Gaussian's 15 as steps become small and many of them share in θ. Each check has a twin that is wrong on purpose and must fail.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from test_laws import BURN_IN, ELEMENTS, LR, NUM_DATA, STEPS, laws, scores
from torch import nn

from ctld import CTLD, SGLD, Langevin, Tempering, noise
from ctld.noise.gaussian import three_point

# Some 50 comparisons at fixed seeds: a sound generator or sampler fails one of them with a chance of about 1 %. (The errors
# of the laws are batch means of 10 batches, with wider tails than a normal's; all else is nearly normal.)
THRESHOLD = 4.5


# ---- the noise ----


def every_half():
    """What each of the 65,536 halves of a word becomes."""
    low = torch.arange(2**16)
    return three_point(low | low.flip(0) << 16).view(-1, 2, 16)[:, 0].flatten().double().numpy()


class TestMoments:
    """By counting; nothing is random."""

    def test_halves(self):
        values, counts = np.unique(every_half(), return_counts=True)
        assert counts.tolist() == [10_923, 43_690, 10_923]
        assert values[1] == 0.0
        assert values[2] == -values[0] == pytest.approx(math.sqrt(3.0), rel=2e-5)

    def test_moments(self):
        x = every_half()
        assert x.sum() == 0.0
        assert (x**3).sum() == 0.0
        assert (x**5).sum() == 0.0
        assert np.mean(x**2) == pytest.approx(1.0, abs=2.0**-23)  # the value is rounded to float32
        assert np.mean(x**4) == pytest.approx(2.9999, abs=5e-5)
        assert np.mean(x**6) == pytest.approx(9.0, rel=1e-3)


SAMPLES = 2_000_000


def draw(**options):
    arguments = {"seed": 11, "step": 5, "stream": 2} | options
    return noise.numbers("three_point", *arguments.values(), SAMPLES).double().numpy()


@pytest.fixture(scope="module")
def sample():
    return draw()


def count_score(x):
    """χ² of the three counts, as a normal score."""
    counts = np.array([(x < 0).sum(), (x == 0).sum(), (x > 0).sum()])
    return stats.norm.isf(stats.chisquare(counts, x.size * np.array([10_923, 43_690, 10_923]) / 2**16).pvalue)


def pair_score(x, y):
    """χ² of the 3 × 3 table of two samples against independence with the right margins, as a normal score."""
    margin = np.array([10_923, 43_690, 10_923]) / 2**16
    code = 3 * np.sign(x).astype(int) + np.sign(y).astype(int) + 4
    return stats.norm.isf(
        stats.chisquare(np.bincount(code, minlength=9), x.size * np.outer(margin, margin).ravel()).pvalue
    )


class TestIndependence:
    def test_counts(self, sample):
        assert count_score(sample) < THRESHOLD

    def test_counts_twin(self, sample):
        lost = sample.copy()
        lost[::200] = 0.0  # half a percent of them
        assert count_score(lost) > THRESHOLD

    @pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 15, 16, 17, 32, 128, 4096])
    def test_neighbours(self, sample, lag):
        """All of their joint law, at the lags of halves (16), words (1), blocks (4) and groups (32)."""
        assert pair_score(sample[:-lag], sample[lag:]) < THRESHOLD

    def test_neighbours_twin(self, sample):
        copied = sample.copy()
        copied[1::100] = copied[0:-1:100]  # one in a hundred is its neighbour's
        assert pair_score(copied[:-1], copied[1:]) > THRESHOLD

    @pytest.mark.parametrize("other", [{"step": 6}, {"stream": 3}, {"seed": 12}, {"seed": 11 + 2**32}])
    def test_steps_streams_and_seeds(self, sample, other):
        assert pair_score(sample, draw(**other)) < THRESHOLD


# ---- the laws ----

CURVATURE = 20.0  # x = lr·k = 0.8: far from small steps


def distances(create, momentum, noise_factor):
    """Of ⟨θ²⟩ and, of CTLD, the thermometer from their laws, in standard errors; elements are independent chains."""
    square_law, _, thermometer_law, _ = laws(CURVATURE, momentum, 1.0, 0.0)
    generator = torch.Generator().manual_seed(1)
    theta = nn.Parameter(math.sqrt(square_law) * torch.randn(ELEMENTS, generator=generator, dtype=torch.float64))
    optimizer = create([theta], momentum, noise_factor)
    squares, temperatures = [], []
    for _ in range(BURN_IN + STEPS):
        theta.grad = CURVATURE * theta.detach()
        optimizer.step(loss=0.5 * CURVATURE * theta.detach().square().sum().item())
        squares.append(theta.detach().square().mean().item())
        if isinstance(optimizer, CTLD):
            temperatures.append(optimizer.last.kinetic_temperature)
    if not temperatures:
        return scores([squares[BURN_IN:]], [square_law])
    return scores([squares[BURN_IN:], temperatures[BURN_IN:]], [square_law, thermometer_law])


def ctld(params, momentum, temperature):
    return CTLD(
        params,
        LR,
        momentum,
        num_data=NUM_DATA,
        exploration_steps=BURN_IN + STEPS,
        temperature=temperature,
        tempering=Tempering(alpha=0.0, alpha_momentum=0.0, mass=1e30),  # too heavy to move: no tempering
        noise="three_point",
        seed=1,
    )


def langevin(params, momentum, temperature):
    return Langevin(params, LR, momentum, num_data=NUM_DATA, temperature=temperature, noise="three_point", seed=1)


def sgld(params, momentum, temperature):
    """The law at momentum 0."""
    return SGLD(params, LR, num_data=NUM_DATA, temperature=temperature, noise="three_point", seed=1)


CASES = pytest.mark.parametrize(
    ("create", "momentum"), [(ctld, 0.0), (ctld, 0.9), (langevin, 0.0), (langevin, 0.8), (sgld, 0.0)]
)


@CASES
def test_discrete_law(create, momentum):
    assert max(distances(create, momentum, 1.0)) < THRESHOLD


@CASES
def test_discrete_law_twin(create, momentum):
    """1.1 times the noise variance."""
    assert min(distances(create, momentum, 1.1)) > THRESHOLD


# ---- higher moments ----

CHAINS = 300_000


def final(lr, kind, burn_in):
    """θ/σ of many chains after `burn_in` steps of SGLD from zero, and a_j/σ; x = lr·k = lr."""
    theta = nn.Parameter(torch.zeros(CHAINS))
    optimizer = SGLD([theta], lr, num_data=1.0, noise=kind, seed=4)
    for _ in range(burn_in):
        theta.grad = theta.detach().clone()
        optimizer.step()
    weights = math.sqrt(2.0 * lr) * (1.0 - lr) ** np.arange(burn_in)
    deviation = np.linalg.norm(weights)
    return theta.detach().double().numpy() / deviation, weights / deviation


def moment_score(x, power, law):
    """Distance of a moment from its law; chains are independent, so the standard error is that of a mean."""
    powers = x**power
    return (powers.mean() - law) / (powers.std() / math.sqrt(x.size))


# x = 0.5, where three quarters of θ's variance are the last step's noise, and x = 0.05, where ten steps share in it; of the
# start at zero e⁻⁷ and less is left.
COARSE, FINE = (0.5, 15), (0.05, 150)
STEP_SIZES = pytest.mark.parametrize(("lr", "steps"), [COARSE, FINE])


@STEP_SIZES
def test_kurtosis_is_the_gaussians(lr, steps):
    x, _ = final(lr, "three_point", steps)
    assert abs(moment_score(x, 4, 3.0)) < THRESHOLD


def test_kurtosis_twin():
    """Noise of two values ±1 has the right variance, too."""
    _, weights = final(COARSE[0], "three_point", COARSE[1])
    signs = np.random.default_rng(3).choice([-1.0, 1.0], size=(COARSE[1], 20_000))
    assert abs(moment_score(weights @ signs, 4, 3.0)) > THRESHOLD


@STEP_SIZES
def test_sixth_moment(lr, steps):
    """15 + 15 κ₄ + κ₆ of θ/σ."""
    x, weights = final(lr, "three_point", steps)
    assert abs(moment_score(x, 6, 15.0 - 6.0 * (weights**6).sum())) < THRESHOLD


def test_sixth_moment_tends_to_the_gaussians():
    x, _ = final(FINE[0], "three_point", FINE[1])
    assert abs(moment_score(x, 6, 15.0)) < THRESHOLD


def test_sixth_moment_of_coarse_steps_is_another():
    """By 17 %: the twin of the test above, and why three-point noise is no Gaussian noise."""
    x, _ = final(COARSE[0], "three_point", COARSE[1])
    assert moment_score(x, 6, 15.0) < -THRESHOLD


@STEP_SIZES
def test_gaussian_noise_has_fifteen_at_any_step(lr, steps):
    x, _ = final(lr, "gaussian", steps)
    assert abs(moment_score(x, 6, 15.0)) < THRESHOLD
