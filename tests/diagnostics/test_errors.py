"""Standard errors against the first-order autoregression, where everything is known in closed form."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from ctld.diagnostics import Estimate, batch_means_error, effective_sample_size, estimate

CORRELATION = 0.9
REPLICAS = 400
DRAWS = 8_000  # the default gives 20 batches of 400


def autoregression(
    replicas: int, draws: int, *, correlation: float = CORRELATION, seed: int = 0
) -> NDArray[np.float64]:
    """Stationary x_{t+1} = ρ x_t + sqrt(1 − ρ²) ε with variance 1, one row per replica."""
    noise = np.random.default_rng(seed).standard_normal((draws, replicas))
    noise[1:] *= math.sqrt(1 - correlation**2)
    for step in range(1, draws):
        noise[step] += correlation * noise[step - 1]
    return noise.T


def variance_of_mean(draws: int, correlation: float) -> float:
    """Exact variance of the mean of `draws` successive values of the autoregression."""
    asymptotic = (1 + correlation) / (1 - correlation)
    return (asymptotic - 2 * correlation * (1 - correlation**draws) / (draws * (1 - correlation) ** 2)) / draws


@pytest.fixture(scope="module")
def replicas() -> NDArray[np.float64]:
    return autoregression(REPLICAS, DRAWS)


def relative_excess(replicas: NDArray[np.float64], *, num_batches: int | None = None) -> float:
    """Mean of se² over replicas, against the exact variance of the mean, minus one."""
    squares = [batch_means_error(series, num_batches=num_batches) ** 2 for series in replicas]
    return float(np.mean(squares)) / variance_of_mean(DRAWS, CORRELATION) - 1


# se² from 20 batches scatters by sqrt(2/19) = 0.32, the mean over 400 replicas by 0.016. Its expectation is
# (V_400 − V_8000)/19 = 0.976 of the exact value: the bias of batches 40 decay times long. 4 × 0.016 + 0.024 = 0.09.
TOLERANCE = 0.09


def test_batch_means_error_is_the_scatter_of_the_mean(replicas: NDArray[np.float64]) -> None:
    assert abs(relative_excess(replicas)) < TOLERANCE


def test_batch_means_error_has_the_expectation_of_its_formula(replicas: NDArray[np.float64]) -> None:
    expected = (variance_of_mean(400, CORRELATION) - variance_of_mean(DRAWS, CORRELATION)) / 19
    assert abs(relative_excess(replicas) + 1 - expected / variance_of_mean(DRAWS, CORRELATION)) < 4 * 0.016


def test_twin_independent_error_fails(replicas: NDArray[np.float64]) -> None:
    assert abs(relative_excess(replicas, num_batches=DRAWS)) > TOLERANCE


def test_twin_short_batches_fail(replicas: NDArray[np.float64]) -> None:
    """200 batches of 40 draws, 4 decay times, understate se² by 2ρ/(40 (1 − ρ²)) = 0.24; √n batches would by 0.11."""
    assert abs(relative_excess(replicas, num_batches=200)) > TOLERANCE


def coverage(replicas: NDArray[np.float64], *, num_batches: int | None = None) -> float:
    bands = [estimate(series, num_batches=num_batches).band for series in replicas]
    return float(np.mean([low <= 0 <= high for low, high in bands]))


# ±2 standard errors of 20 batches are the 94 % band of a t law with 19 degrees of freedom.
# Coverage over 400 replicas scatters by sqrt(0.94 × 0.06/400) = 0.012; four of these are 0.05.


def test_bands_hold_the_truth(replicas: NDArray[np.float64]) -> None:
    assert abs(coverage(replicas) - 0.94) < 0.05


def test_twin_independent_bands_do_not(replicas: NDArray[np.float64]) -> None:
    assert abs(coverage(replicas, num_batches=DRAWS) - 0.94) > 0.05


def test_all_draws_as_batches_is_the_independent_error() -> None:
    series = np.random.default_rng(1).standard_normal(137)
    assert batch_means_error(series, num_batches=137) == pytest.approx(series.std(ddof=1) / math.sqrt(137))


def test_batch_means_by_hand() -> None:
    # Batch means 2, 4, 9; their mean is 5, so se² = (9 + 1 + 16)/(3 × 2).
    assert batch_means_error([1, 3, 4, 4, 8, 10], num_batches=3) == pytest.approx(math.sqrt(26 / 6))


def test_uneven_batches_use_every_draw() -> None:
    series = np.arange(101.0)
    result = estimate(series, num_batches=10)
    assert result.mean == pytest.approx(50)
    assert result.standard_error == pytest.approx(batch_means_error(series[:100], num_batches=10), rel=0.03)


def test_chains_pool_their_batches() -> None:
    chains = autoregression(4, 2_000, seed=2)
    # 20 batches of 400 either way: cutting at the ends of chains changes nothing.
    assert batch_means_error(chains) == pytest.approx(batch_means_error(chains.reshape(-1)))


def test_chains_that_disagree_widen_the_error() -> None:
    chains = autoregression(4, 2_000, seed=2)
    assert batch_means_error(chains + np.array([[-3.0], [-1.0], [1.0], [3.0]])) > 3 * batch_means_error(chains)


def test_many_chains_count_as_one_batch_each() -> None:
    chains = autoregression(60, 50, seed=3)
    expected = chains.mean(axis=1).std(ddof=1) / math.sqrt(60)
    assert batch_means_error(chains) == pytest.approx(expected)


def test_constant_series_has_no_error() -> None:
    assert batch_means_error(np.ones(100)) == 0


def test_estimate_and_band() -> None:
    assert Estimate(1.0, 0.25).band == (0.5, 1.5)
    series = autoregression(1, 500)[0]
    assert estimate(series).mean == pytest.approx(series.mean())
    assert estimate(series).standard_error == batch_means_error(series)
    with pytest.raises(AttributeError):
        estimate(series).mean = 0.0  # type: ignore[misc]


def test_lists_and_tensors_are_series() -> None:
    series = np.random.default_rng(4).standard_normal(200)
    assert estimate(series.tolist()) == estimate(series) == estimate(torch.from_numpy(series))


# The effective sample size of one replica scatters by 3, 6 and 12 % at these correlations, the mean over 400 by
# 0.6 % or less; that the data decide where the sum stops costs up to 2 % besides. 4 × 0.6 % + 2 % < 5 %.
SIZE_TOLERANCE = 0.05


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_effective_sample_size_of_the_autoregression(correlation: float) -> None:
    sizes = [effective_sample_size(series) for series in autoregression(REPLICAS, DRAWS, correlation=correlation)]
    exact = DRAWS * (1 - correlation) / (1 + correlation)
    assert abs(np.mean(sizes) / exact - 1) < SIZE_TOLERANCE
    # Twin: another correlation by 0.05 fails the same check.
    wrong = DRAWS * (1 - (correlation + 0.05)) / (1 + (correlation + 0.05))
    assert abs(np.mean(sizes) / wrong - 1) > SIZE_TOLERANCE


def test_effective_sample_size_agrees_with_batch_means(replicas: NDArray[np.float64]) -> None:
    squares = [batch_means_error(series) ** 2 for series in replicas]
    sizes = [effective_sample_size(series) for series in replicas]
    # Both sides carry the tolerances above.
    assert abs(np.mean(squares) * np.mean(sizes) - 1) < TOLERANCE + SIZE_TOLERANCE


def test_effective_sample_size_of_chains() -> None:
    chains = autoregression(8, 4_000, seed=5)
    # One estimate from 32,000 draws scatters by 6 %; four of these.
    assert abs(effective_sample_size(chains) / (32_000 * 0.1 / 1.9) - 1) < 0.24
    apart = chains + 10 * np.arange(8.0)[:, None]
    assert effective_sample_size(apart) < 30


def test_effective_sample_size_of_alternating_draws_is_capped() -> None:
    assert effective_sample_size(np.tile([1.0, -1.0], 500)) == pytest.approx(1_000 * 3)


BAD_SERIES = {
    "empty": ([], "empty"),
    "not a number": ([1.0, math.nan] * 50, r"50 values.*nan at index \(1,\)"),
    "infinite": ([0.0, 1.0, math.inf] * 50, "inf at index"),
    "number": (3.0, "shape"),
    "three dimensions": (np.zeros((2, 3, 4)), r"\(2, 3, 4\)"),
    "short": (np.arange(49.0), "49 draws.*at least 50"),
}


@pytest.mark.parametrize(("series", "message"), BAD_SERIES.values(), ids=BAD_SERIES.keys())
def test_bad_series_are_refused(series: NDArray[np.float64], message: str) -> None:
    for function in (estimate, batch_means_error, effective_sample_size):
        with pytest.raises(ValueError, match=message):
            function(series)


@pytest.mark.parametrize("num_batches", [0, 1, 101])
def test_bad_num_batches_are_refused(num_batches: int) -> None:
    with pytest.raises(ValueError, match=f"got {num_batches}"):
        batch_means_error(np.arange(100.0), num_batches=num_batches)


def test_effective_sample_size_needs_something_that_moves() -> None:
    with pytest.raises(ValueError, match=r"constant at 2\.0"):
        effective_sample_size(np.full(100, 2.0))
    with pytest.raises(ValueError, match="chains have 2 draws"):
        effective_sample_size(np.arange(100.0).reshape(50, 2))


def test_estimate_of_a_selection_is_the_mean_of_what_is_marked():
    series = np.random.default_rng(8).standard_normal(2000)
    marked = np.arange(2000) % 3 == 0
    result = estimate(series, selected=marked)
    assert result.mean == pytest.approx(series[marked].mean())
    # Independent draws: the error is sd/√n, known within 1/√(2·12) = 20 % from 13 batches.
    assert result.standard_error == pytest.approx(series[marked].std() / np.sqrt(marked.sum()), rel=0.6)


@pytest.mark.parametrize("mask", [np.zeros(100, dtype=bool), np.ones(99, dtype=bool)])
def test_estimate_refuses_a_mask_that_marks_nothing_or_does_not_fit(mask):
    with pytest.raises(ValueError, match="selected has shape"):
        estimate(np.arange(100.0), selected=mask)
