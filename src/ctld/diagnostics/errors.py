"""Standard errors of autocorrelated series: batch means and effective sample size.

Successive draws of a sampler resemble each other, so sd/√n is too small, by √((1 + ρ)/(1 − ρ)) for a first-order
autoregression. The mean of a batch much longer than the correlation time hardly depends on its neighbours, so the
scatter of the batch means gives an honest error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

MINIMUM_DRAWS = 50
MINIMUM_SELECTED_BATCHES = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its autocorrelation-aware standard error, both in the unit of the series."""

    mean: float
    standard_error: float

    @property
    def band(self) -> tuple[float, float]:
        """``mean ± 2 standard errors``: about 95 % of such bands hold the truth."""
        return self.mean - 2 * self.standard_error, self.mean + 2 * self.standard_error


def estimate(series: ArrayLike, *, selected: ArrayLike | None = None, num_batches: int | None = None) -> Estimate:
    """Mean of `series` with its batch-means error, or of the draws that the mask `selected` marks.

    The error of a selection is that of a ratio, batched by position in the whole series. The other arguments are those
    of `batch_means_error`.
    """
    draws = as_series(series, "series")
    if selected is None:
        return selected_estimate(draws, np.ones(draws.shape, dtype=np.bool_), num_batches=num_batches)
    mask = np.atleast_2d(np.asarray(selected, dtype=np.bool_))
    if mask.shape != draws.shape or not mask.any():
        raise ValueError(
            f"selected has shape {mask.shape} and marks {mask.sum()} draws of a series of shape {draws.shape}"
        )
    return selected_estimate(draws, mask, num_batches=num_batches)


def batch_means_error(series: ArrayLike, *, num_batches: int | None = None) -> float:
    """Standard error of the mean of an autocorrelated series, by non-overlapping batch means.

    With ``a`` batches and batch means ``ȳ_b``, ``se² = Σ_b (ȳ_b − ȳ)² / (a (a − 1))``; batches whose lengths differ
    by one are weighted accordingly, so every draw counts. The unit is that of the series.

    Parameters
    ----------
    series
        Shape ``(draws,)`` or ``(chains, draws)``. The batches of all chains are pooled about the common mean, so chains
        that disagree widen the error.
    num_batches
        Batches in all, rounded up to the same number in every chain. By default ``n^(1/3)`` within [10, 50], ``n``
        counting all draws. The classical ``√n`` leaves batches of ``√n`` draws, and a batch ``b`` times the correlation
        time understates se² by about ``1/b``: a bias nobody sees. Longer batches cost only scatter, which is known:
        the error itself has a relative error of ``1/√(2(a − 1))``, 24 % at 10 batches and 10 % at 50, where
        more batches would add little. ``num_batches=n`` is the error of independent draws.

    Returns
    -------
    float
        Zero for a series that never changes, which shows that it did not move, not that it is exact.
    """
    return estimate(series, num_batches=num_batches).standard_error


def effective_sample_size(series: ArrayLike) -> float:
    """Number of independent draws whose mean would be as precise: ``n/τ``, ``τ = 1 + 2 Σ_t ρ_t``.

    The autocorrelations ``ρ_t`` are summed in pairs ``ρ_{2k} + ρ_{2k+1}`` while these are positive, each no larger than
    the one before: Geyer's initial monotone sequence (Statist. Sci. 7, 1992). It is less noisy than variance
    over squared batch-means error. A series that oscillates, as θ does at low friction, reads too low: the sum stops
    where the correlation turns negative.

    Parameters
    ----------
    series
        Shape ``(draws,)`` or ``(chains, draws)``. Deviations are taken from the mean over all chains, so chains that
        disagree count as correlated.

    Returns
    -------
    float
        At most ``n log₁₀ n`` (Stan's cap): alternating draws may beat independent ones, but not without bound.
    """
    draws = as_series(series, "series")
    if draws.size < MINIMUM_DRAWS:
        raise ValueError(f"series has {draws.size} draws: record at least {MINIMUM_DRAWS}")
    if draws.shape[1] < 4:
        raise ValueError(f"chains have {draws.shape[1]} draws: autocorrelations need at least 4 in each")
    if np.ptp(draws) == 0:
        raise ValueError(f"series is constant at {draws.flat[0]}: its effective sample size is undefined")

    correlation = _autocovariance(draws)
    correlation /= correlation[0]
    even = correlation.size // 2 * 2
    pairs = correlation[:even:2] + correlation[1:even:2]
    negative = np.flatnonzero(pairs <= 0)
    pairs = np.minimum.accumulate(pairs[: negative[0] if negative.size else None])
    correlation_time = max(2 * float(pairs.sum()) - 1, 1 / math.log10(draws.size))
    return draws.size / correlation_time


def _autocovariance(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Autocovariance at every lag, averaged over chains, with the divisor n at every lag (Geyer's choice)."""
    deviations = draws - draws.mean()
    length = draws.shape[1]
    # Twice the length, padded with zeros, keeps the circular transform from wrapping around.
    transform = np.fft.rfft(deviations, n=2 * length, axis=1)
    covariance = np.fft.irfft(np.abs(transform) ** 2, n=2 * length, axis=1)[:, :length]
    return np.asarray(covariance.mean(axis=0) / length, dtype=np.float64)


def selected_estimate(
    draws: NDArray[np.float64], selected: NDArray[np.bool_], *, num_batches: int | None = None
) -> Estimate:
    """Mean of the selected draws of a ``(chains, draws)`` array, with the batch-means error of a ratio.

    Batches are cut by position in the whole series, because draws that are neighbours in the selection may be far apart
    in time. With ``n_b`` of the ``n`` selected draws in batch ``b``, ``z_b = Σ_{selected in b} (y − ȳ)`` and

        se² = Σ_b z_b² / n² / (1 − Σ_b (n_b/n)²),

    unbiased for independent draws, and plain batch means when everything is selected.
    """
    chains, length = draws.shape
    count = int(np.count_nonzero(selected))
    if num_batches is None:
        if count < MINIMUM_DRAWS:
            raise ValueError(
                f"{count} draws are too few for a standard error: record at least {MINIMUM_DRAWS}, or give num_batches "
                "if the draws are known to be independent"
            )
        num_batches = min(max(round(draws.size ** (1 / 3)), 10), 50)
    if not 2 <= num_batches <= draws.size:
        raise ValueError(f"num_batches must lie between 2 and the number of draws, {draws.size}; got {num_batches}")
    batches_per_chain = -(-num_batches // chains)
    starts = np.arange(batches_per_chain) * length // batches_per_chain

    mean = float(draws[selected].mean())
    sums = np.add.reduceat(np.where(selected, draws - mean, 0.0), starts, axis=1)
    shares = np.add.reduceat(selected.astype(np.float64), starts, axis=1) / count
    concentration = float((shares**2).sum())
    if count < draws.size and concentration * MINIMUM_SELECTED_BATCHES > 1:
        raise ValueError(
            f"the {count} selected draws lie in about {1 / concentration:.1f} of {shares.size} batches, too few for a "
            f"standard error: record a longer run, so that they spread over at least {MINIMUM_SELECTED_BATCHES}"
        )
    return Estimate(mean, math.sqrt(float((sums**2).sum()) / (1 - concentration)) / count)


def as_series(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """`values` as a finite float64 array of shape ``(chains, draws)``; `name` is how errors call it."""
    return np.atleast_2d(finite_array(values, name, dimensions=(1, 2), shapes="(draws,) or (chains, draws)"))


def finite_array(values: ArrayLike, name: str, *, dimensions: tuple[int, ...], shapes: str) -> NDArray[np.float64]:
    """`values` as float64, refused if empty, not finite, or of another number of dimensions; `shapes` says which."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in dimensions:
        raise ValueError(f"{name} must have shape {shapes}; got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}): record at least one step")
    infinite = np.argwhere(~np.isfinite(array))
    if len(infinite):
        place = tuple(int(index) for index in infinite[0])
        raise ValueError(
            f"{name} has {len(infinite)} values that are not finite, the first {array[place]} at index {place}: "
            "drop these steps, or look at why the run diverged"
        )
    return array
