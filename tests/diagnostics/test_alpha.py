"""Where α was and how it travelled: closed forms of simple laws, and journeys counted by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ctld.diagnostics import (
    cold_share,
    crossings,
    half_trips,
    occupancy,
    share_outside,
    total_variation,
)


def uniform(size: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).uniform(-1.5, 1.5, size)


def tilted(size: int, slope: float) -> NDArray[np.float64]:
    """Quantiles of the density (1 + slope · α/1.5)/3 on [−1.5, 1.5]: no randomness, shares exact to 1/size."""
    level = (np.arange(size) + 0.5) / size
    return np.asarray(1.5 * (np.sqrt((1 - slope) ** 2 + 4 * slope * level) - 1) / slope, dtype=np.float64)


def reflected_walk(steps: int, *, chains: int, step_size: float = 0.3, seed: int = 0) -> NDArray[np.float64]:
    """A random walk reflected at ±1.5: autocorrelated, and uniform there."""
    increments = step_size * np.random.default_rng(seed).standard_normal((chains, steps))
    path = uniform(chains, seed=seed + 1)[:, None] + np.cumsum(increments, axis=1)
    return np.asarray(np.abs((path + 1.5) % 6 - 3) - 1.5, dtype=np.float64)


# Occupancy and total variation


def test_occupancy_by_hand() -> None:
    alpha = [-1.5, -0.1, 0.1, 0.2, 1.5, 1.6, -9.0, 0.3]
    np.testing.assert_array_equal(occupancy(alpha, num_bins=2), [2 / 8, 4 / 8])
    assert share_outside(alpha) == 2 / 8
    np.testing.assert_array_equal(occupancy(alpha, edge=0.2, num_bins=2), [1 / 8, 2 / 8])


def test_occupancy_and_share_outside_add_up_to_one() -> None:
    alpha = 2 * uniform(1_000)
    assert occupancy(alpha).shape == (30,)
    assert occupancy(alpha).sum() + share_outside(alpha) == pytest.approx(1)


@pytest.mark.parametrize("num_bins", [2, 30, 60])
def test_total_variation_of_a_tilted_law(num_bins: int) -> None:
    alpha = tilted(60_000, slope=0.8)
    # ½ ∫ |slope · α/1.5|/3 dα = slope/4; the bins of an even number lie on one side of 0 each, so binning is exact.
    # Every share is exact to 1/60000. |α| is uniform.
    assert total_variation(alpha, num_bins=num_bins) == pytest.approx(0.2, abs=num_bins / 60_000)
    assert total_variation(alpha, num_bins=num_bins, folded=True) == pytest.approx(0, abs=num_bins / 60_000)


def test_total_variation_of_one_bin() -> None:
    assert total_variation(np.full(10, 0.05)) == pytest.approx(1 - 1 / 30)
    assert total_variation([-0.7, 0.7], num_bins=2) == 0
    assert total_variation([-0.7, 0.7], num_bins=2, folded=True) == 0.5


def test_total_variation_leaves_out_what_is_outside() -> None:
    alpha = uniform(1_000)
    assert total_variation(np.append(alpha, [2.0] * 500)) == pytest.approx(total_variation(alpha))


def total_variation_excess(alpha: NDArray[np.float64]) -> float:
    """Deviation from what independent uniform draws read, in standard deviations.

    A share has variance (1 − 1/K)/(K n), so the mean of ½ Σ |p_k − 1/K| is sqrt((K − 1)/(2πn)), and its variance about
    (1 − 2/π)/(4n): 0.0068 ± 0.00095 for K = 30, n = 1e5.
    """
    expected = math.sqrt(29 / (2 * math.pi * alpha.size))
    return (total_variation(alpha) - expected) / math.sqrt((1 - 2 / math.pi) / (4 * alpha.size))


def test_total_variation_of_uniform_draws() -> None:
    assert abs(total_variation_excess(uniform(100_000))) < 4


def test_twin_slightly_tilted_draws_fail() -> None:
    alpha = tilted(100_000, slope=0.08)  # a total variation of 0.02
    noise = np.random.default_rng(0).choice(alpha, alpha.size)
    assert abs(total_variation_excess(noise)) > 4


# The cold plateau


def test_cold_share_by_hand() -> None:
    alpha = np.tile([0.0, 0.4, -0.4, 0.41, -1.0, 1.5, 2.0, -0.3], 20)
    result = cold_share(alpha)
    assert result.share == 0.5
    assert result.expected == pytest.approx(0.2667, abs=1e-4)
    assert cold_share(alpha, plateau=0.3, edge=1.0).expected == pytest.approx(0.3)


def cold_share_excess(alpha: NDArray[np.float64]) -> float:
    """Deviation from the share under a uniform α, in standard errors."""
    result = cold_share(alpha)
    return (result.share - result.expected) / result.standard_error


def test_cold_share_of_a_uniform_walk() -> None:
    alpha = reflected_walk(5_000, chains=60)
    # 60 batches, one per chain: a t variable with 59 degrees of freedom exceeds 4 once in 5,000. The share of
    # independent steps would have an error of 0.0008; the walk's memory makes it 2.6 times as much, below 1 % of 0.267.
    assert abs(cold_share_excess(alpha)) < 4
    assert cold_share(alpha).standard_error < 0.0027


def test_twin_cold_walk_fails() -> None:
    assert abs(cold_share_excess(0.95 * reflected_walk(5_000, chains=60))) > 4


def scatter_over_claim(alpha: NDArray[np.float64], claim: float) -> float:
    shares = np.mean(np.abs(alpha) <= 0.4, axis=1)
    return float(shares.std(ddof=1)) / claim


def test_cold_share_error_is_the_scatter_of_the_share() -> None:
    alpha = reflected_walk(8_000, chains=200, seed=3)
    claim = math.sqrt(np.mean([cold_share(chain).standard_error ** 2 for chain in alpha]))
    # A standard deviation from 200 chains has an error of 1/sqrt(2 × 199) = 5 %, the claim one of 1.6 % (20 batches,
    # 200 chains) and a bias of 3 % or less: 4 × 5.3 % + 3 % = 24 %.
    assert abs(scatter_over_claim(alpha, claim) - 1) < 0.24
    # Twin: the error of independent steps.
    independent = math.sqrt(0.267 * 0.733 / 8_000)
    assert abs(scatter_over_claim(alpha, independent) - 1) > 0.24


def test_cold_share_of_an_alpha_that_stays() -> None:
    result = cold_share(np.zeros(100))
    assert (result.share, result.standard_error) == (1, 0)


# Journeys


@pytest.mark.parametrize(
    ("alpha", "count"),
    [
        ([0.0, 0.5, 1.0, 1.4], 1),
        ([1.4, 1.0, 0.4], 1),
        ([0.0, 1.4, 0.0], 2),
        ([-1.45, 0.0, 1.45], 2),
        ([-1.45, 1.45], 0),
        ([0.0, 1.3, 0.0, 1.3, 0.0], 0),
        ([0.5, 1.0, 1.4, 1.3, 1.5, 2.5, 0.41], 0),
        ([1.0, 1.0], 0),
        ([0.4, 1.391, 0.5, 1.391, -0.4, -1.0, -1.6], 3),
        ([[0.0, 1.4, 1.0], [1.4, 0.7, 0.0]], 2),
        ([[0.0, 0.0], [1.4, 1.4]], 0),
    ],
)
def test_half_trips_by_hand(alpha: Any, count: int) -> None:
    result = half_trips(alpha)
    assert result.count == count
    assert result.steps_per_half_trip == (np.size(alpha) / count if count else math.inf)


def test_half_trips_of_a_wave() -> None:
    # |α| of a triangle wave of amplitude 1.5 goes from cold to hot and back twice per period; it starts and ends at 0.
    phase = np.arange(10_001) / 1_000
    alpha = 1.5 * (2 / math.pi) * np.arcsin(np.sin(2 * math.pi * phase))
    result = half_trips(alpha)
    assert result.count == 40
    assert result.steps_per_half_trip == 10_001 / 40


def test_half_trips_with_other_thresholds() -> None:
    alpha = [0.0, 0.7, 0.0, 0.9, 0.0]
    assert half_trips(alpha, plateau=0.1, edge=1.0).count == 0  # the hot end begins at 0.91
    assert half_trips(alpha, plateau=0.1, edge=1.0, hot_threshold=0.9).count == 2
    assert half_trips(alpha, plateau=0.1, edge=1.0, hot_threshold=0.5).count == 4


@pytest.mark.parametrize(
    ("position", "count"),
    [
        ([-1.0, 1.0], 1),
        ([-1.0, 0.0, 1.0, 0.0, -1.0], 2),
        ([-1.0, 0.4, -0.4, 0.4, -0.4], 0),
        ([-1.0, 0.5, -1.0], 0),
        ([-1.0, 0.51, 0.3, -0.3, 0.9, -0.51], 2),
        ([0.0, 0.0], 0),
        ([3.0], 0),
        ([[-1.0, 1.0, -1.0], [1.0, 1.0, -1.0]], 3),
    ],
)
def test_crossings_by_hand(position: Any, count: int) -> None:
    assert crossings(position) == count
    assert crossings(10 + 2 * np.asarray(position), threshold=1.0, center=10.0) == count


def test_crossings_with_no_strip_are_sign_changes() -> None:
    position = np.random.default_rng(6).standard_normal(20_001)
    # A sign changes with probability ½: 10,000 ± sqrt(20000)/2 = 71.
    assert abs(crossings(position, threshold=0.0) - 10_000) < 4 * 71
    # Twin: steps that tend to keep their sign, with probability 0.52, fail the same check.
    keeps = np.where(np.random.default_rng(7).random(20_001) < 0.52, 1.0, -1.0)
    assert abs(crossings(np.cumprod(keeps), threshold=0.0) - 10_000) > 4 * 71


def test_tensors_and_lists_are_series() -> None:
    alpha = uniform(200)
    for function in (occupancy, total_variation, share_outside, cold_share, half_trips, crossings):
        reference = function(alpha)
        np.testing.assert_equal(function(torch.from_numpy(alpha)), reference)
        np.testing.assert_equal(function(alpha.tolist()), reference)


# Refusals

ALL = (occupancy, total_variation, share_outside, cold_share, half_trips, crossings)


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize(("series", "message"), [([], "empty"), ([0.0, math.nan], "nan"), ([math.inf], "inf")])
def test_bad_series_are_refused(function: Callable[..., Any], series: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(series)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (occupancy, {"edge": 0.0}, "edge.*got 0"),
        (share_outside, {"edge": math.inf}, "edge.*got inf"),
        (total_variation, {"edge": -1.0}, "edge.*got -1"),
        (total_variation, {"num_bins": 0}, "num_bins.*got 0"),
        (total_variation, {"edge": 1e-9}, "outside"),
        (cold_share, {"plateau": 1.5}, r"plateau.*edge = 1\.5; got 1\.5"),
        (half_trips, {"plateau": -0.1}, r"plateau.*got -0\.1"),
        (half_trips, {"hot_threshold": 0.4}, r"hot_threshold.*got 0\.4"),
        (half_trips, {"hot_threshold": 1.6}, r"hot_threshold.*got 1\.6"),
        (half_trips, {"hot_threshold": math.nan}, "hot_threshold.*got nan"),
        (crossings, {"threshold": -0.5}, r"threshold.*got -0\.5"),
        (crossings, {"center": math.nan}, "center.*got nan"),
    ],
)
def test_bad_options_are_refused(function: Callable[..., Any], options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        function(uniform(100), **options)


def test_cold_share_of_a_few_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="3 draws"):
        cold_share([0.0, 1.0, 0.0])
