"""Tempering variable α: where it was, and how often it travelled between cold and hot.

`alpha` has shape ``(steps,)`` or ``(chains, steps)``; chains are pooled. `plateau` is δ, the |α| up to which g(α) = 1,
and `edge` is δ′, the end of the range over which the paper wants α to be uniform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctld.diagnostics.crossings import journeys
from ctld.diagnostics.errors import as_series, batch_means_error


@dataclass(frozen=True, slots=True)
class ColdShare:
    """Share of steps at g = 1, its standard error, and what a uniform α would give."""

    share: float
    standard_error: float
    expected: float


@dataclass(frozen=True, slots=True)
class HalfTrips:
    """Completed journeys of α between cold and hot; `steps_per_half_trip` is infinite when there is none."""

    count: int
    steps_per_half_trip: float


def occupancy(alpha: ArrayLike, *, edge: float = 1.5, num_bins: int = 30) -> NDArray[np.float64]:
    """Share of all steps in each of `num_bins` equal bins of ``[−edge, edge]``; sums to ``1 − share_outside``."""
    _check_range(edge)
    return _occupancy(as_series(alpha, "alpha"), -edge, edge, num_bins)


def total_variation(alpha: ArrayLike, *, edge: float = 1.5, num_bins: int = 30, folded: bool = False) -> float:
    """Total variation of α from uniform: ``½ Σ_k |p_k − 1/K|``, from 0 (uniform) to ``1 − 1/K`` (one bin).

    ``p_k`` is the share of the steps inside ``[−edge, edge]`` that fall into bin ``k`` of ``K``. A finite series never
    reads 0: n independent uniform draws read ``√((K − 1)/(2πn))`` on average, n being the effective sample size if they
    are correlated.

    Parameters
    ----------
    folded
        Compare |α| over ``[0, edge]`` instead, with `num_bins` bins there. g depends on |α| alone, so this is what the
        temperature sees; it does not notice an α that stays on one side.
    """
    _check_range(edge)
    series = as_series(alpha, "alpha")
    shares = _occupancy(np.abs(series), 0.0, edge, num_bins) if folded else _occupancy(series, -edge, edge, num_bins)
    inside = float(shares.sum())
    if inside == 0:
        raise ValueError(f"all {series.size} steps of alpha lie outside ±edge = ±{edge}: is this the edge of the run?")
    return 0.5 * float(np.abs(shares / inside - 1 / num_bins).sum())


def share_outside(alpha: ArrayLike, *, edge: float = 1.5) -> float:
    """Share of steps with ``|α| > edge``, where no hill is deposited and only the confining well acts."""
    _check_range(edge)
    return float(np.mean(np.abs(as_series(alpha, "alpha")) > edge))


def cold_share(alpha: ArrayLike, *, plateau: float = 0.4, edge: float = 1.5) -> ColdShare:
    """Share of all steps with ``|α| ≤ plateau``, where g = 1 and θ is sampled at the posterior temperature.

    `expected` is ``plateau/edge``, the share under a uniform α: 0.267 in the paper. The standard error is by batch
    means; it is zero when α never left, or never entered, the plateau.
    """
    _check_range(edge, plateau)
    cold = np.abs(as_series(alpha, "alpha")) <= plateau
    return ColdShare(float(cold.mean()), batch_means_error(cold), plateau / edge)


def half_trips(
    alpha: ArrayLike, *, plateau: float = 0.4, edge: float = 1.5, hot_threshold: float | None = None
) -> HalfTrips:
    """Completed journeys between the cold plateau ``|α| ≤ plateau`` and the hot end ``|α| ≥ hot_threshold``.

    Either direction and either sign of α count: cold → hot → cold is two half-trips, and so is −edge → 0 → +edge.
    `steps_per_half_trip` is the number of recorded steps over the count.

    Parameters
    ----------
    hot_threshold
        By default ``plateau + 0.9 (edge − plateau)``, 1.39 in the paper, where its temperature ratio is 5.75 of at most
        6.67. The last tenth of the way is left out because reflecting walls keep α from ever standing at the edge.
    """
    _check_range(edge, plateau)
    if hot_threshold is None:
        hot_threshold = plateau + 0.9 * (edge - plateau)
    elif not plateau < hot_threshold <= edge:
        raise ValueError(
            f"hot_threshold must lie above plateau = {plateau} and not above edge = {edge}; got {hot_threshold}"
        )
    distance = np.abs(as_series(alpha, "alpha"))
    count = journeys(below=distance <= plateau, above=distance >= hot_threshold)
    return HalfTrips(count, distance.size / count if count else math.inf)


def _occupancy(series: NDArray[np.float64], low: float, high: float, num_bins: int) -> NDArray[np.float64]:
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1; got {num_bins}")
    counts, _ = np.histogram(series, bins=num_bins, range=(low, high))
    return np.asarray(counts / series.size, dtype=np.float64)


def _check_range(edge: float, plateau: float = 0.0) -> None:
    if not (math.isfinite(edge) and edge > 0):
        raise ValueError(f"edge must be positive and finite; got {edge}")
    if not 0 <= plateau < edge:
        raise ValueError(f"plateau must lie between 0 and edge = {edge}; got {plateau}")
