"""The noise is Gaussian and independent: distribution, tails, neighbours, steps, streams, seeds.

Each check returns a z-score or p-value and is run on a twin that is wrong on purpose, which must fail it. Seeds are fixed.
With about 40 checks, a threshold of 4.5 standard errors (p = 7e-6) leaves a chance of 3e-4 that a sound generator fails.
"""

import numpy as np
import pytest
from scipy import stats

from ctld import noise

THRESHOLD = 4.5
P_VALUE = 7e-6
SAMPLES = 2_000_000


def draw(**options):
    """Float32 numbers: those of other dtypes are made from them."""
    arguments = {"seed": 11, "step": 5, "stream": 2} | options
    return noise.normal(*arguments.values(), SAMPLES).double().numpy()


@pytest.fixture(scope="module")
def sample():
    return draw()


def moment_scores(x):
    """z-scores of the first four moments; Var(xᵏ) of a standard normal is 1, 2, 15, 96."""
    n = x.size
    exact, variance = (0.0, 1.0, 0.0, 3.0), (1.0, 2.0, 15.0, 96.0)
    return [(np.mean(x**k) - m) / np.sqrt(v / n) for k, m, v in zip((1, 2, 3, 4), exact, variance, strict=True)]


def correlation_score(x, y):
    return np.mean(x * y) * np.sqrt(x.size)


class TestDistribution:
    def test_moments(self, sample):
        assert np.abs(moment_scores(sample)).max() < THRESHOLD

    def test_moments_twin(self, sample):
        assert np.abs(moment_scores(sample * np.sqrt(1.01))).max() > THRESHOLD

    def test_kolmogorov_smirnov(self, sample):
        assert stats.kstest(sample, "norm").pvalue > P_VALUE

    def test_kolmogorov_smirnov_twin(self, sample):
        # A shift by 0.01 moves the distribution function by 0.004, 5.6/√n; a sound sample's own 1/√n cannot hide that from a
        # threshold of 2.5/√n.
        assert stats.kstest(sample + 0.01, "norm").pvalue < P_VALUE

    def test_anderson_darling(self, sample):
        assert anderson_darling(sample[:500_000]) < 11.0

    def test_anderson_darling_twin(self):
        # Student's t with 50 degrees of freedom has the right middle and tails that are too heavy.
        heavy = stats.t(50).rvs(500_000, random_state=1) * np.sqrt(48 / 50)
        assert anderson_darling(heavy) > 11.0

    def test_tails(self):
        assert tail_scores(self.tail_counts(scale=1.0)).max() < THRESHOLD

    def test_tails_twin(self):
        assert tail_scores(self.tail_counts(scale=1.1)).max() > THRESHOLD

    @staticmethod
    def tail_counts(scale):
        """How many of 2e7 numbers lie beyond ±4.5: 68 expected on either side."""
        counts = np.zeros(2)
        for step in range(10):
            x = noise.normal(11, step, 2, SAMPLES).mul_(scale)
            counts += (x > 4.5).sum().item(), (x < -4.5).sum().item()
        return counts


def tail_scores(counts):
    expected = 10 * SAMPLES * stats.norm.sf(4.5)
    return np.abs(counts - expected) / np.sqrt(expected)


def anderson_darling(x):
    """A² against the standard normal, nothing estimated.

    P(A² > 3.86) = 0.01 and P(A² > 5.97) = 0.001; the tail is exponential, so P(A² > 11) is about 4e-6.
    """
    x = np.sort(x)
    n = x.size
    log_below, log_above = stats.norm.logcdf(x), stats.norm.logsf(x)
    odd = 2.0 * np.arange(1, n + 1) - 1.0
    return -n - np.mean(odd * (log_below + log_above[::-1]))


def pair_scores(x):
    """Of the pairs that one radius and one angle make: χ² of angle and radius together, and of the angle alone.

    As distances from their means in standard deviations, √(2·degrees of freedom); with 1023 and 63 of them χ² is near
    enough to normal (P(χ²₆₃ > 63 + 4.5·√126) = 1e-4).
    """
    first, second = x.reshape(-1, 2, 16).transpose(1, 0, 2).reshape(2, -1)
    turn = np.arctan2(second, first) / (2.0 * np.pi) % 1.0
    uniform = np.exp(-0.5 * (first**2 + second**2))
    counts, _, _ = np.histogram2d(turn, uniform, bins=(64, 16), range=((0, 1), (0, 1)))
    for observed in (counts, counts.sum(1)):
        expected = first.size / observed.size
        chi_square = ((observed - expected) ** 2 / expected).sum()
        yield (chi_square - observed.size + 1) / np.sqrt(2 * (observed.size - 1))


class TestIndependence:
    @pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 15, 16, 17, 32, 128, 4096])
    def test_neighbours(self, sample, lag):
        assert abs(correlation_score(sample[:-lag], sample[lag:])) < THRESHOLD
        # Box-Muller pairs, 16 apart, share a radius: squares must not be correlated either.
        squares = (sample**2 - 1) / np.sqrt(2)
        assert abs(correlation_score(squares[:-lag], squares[lag:])) < THRESHOLD

    def test_neighbours_twin(self, sample):
        smoothed = (sample[1:] + 0.01 * sample[:-1]) / np.sqrt(1 + 1e-4)
        assert abs(correlation_score(smoothed[:-1], smoothed[1:])) > THRESHOLD

    def test_pairs(self, sample):
        assert max(pair_scores(sample)) < THRESHOLD

    def test_pairs_twin(self, sample):
        """With 1 % of a pair's first number in its second, the circle is an ellipse."""
        skew = sample.copy().reshape(-1, 2, 16)
        skew[:, 1] += 0.01 * skew[:, 0]
        assert max(pair_scores(skew)) > THRESHOLD

    @pytest.mark.parametrize("other", [{"step": 6}, {"stream": 3}, {"seed": 12}, {"seed": 11 + 2**32}, {"step": 2**31}])
    def test_steps_streams_and_seeds(self, sample, other):
        partner = draw(**other)
        assert abs(correlation_score(sample, partner)) < THRESHOLD
        assert abs(correlation_score((sample**2 - 1) / np.sqrt(2), (partner**2 - 1) / np.sqrt(2))) < THRESHOLD

    def test_one_stream_for_two_parameters_would_be_seen(self, sample):
        assert abs(correlation_score(sample, sample)) > THRESHOLD

    def test_first_elements_over_steps(self):
        """What a small parameter sees: a few elements, many steps."""
        series = np.stack([noise.normal(3, step, 2, 4).double().numpy() for step in range(3000)])
        assert abs(correlation_score(series[1:], series[:-1])) < THRESHOLD
        assert np.abs(moment_scores(series.reshape(-1))).max() < THRESHOLD
