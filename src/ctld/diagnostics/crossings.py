"""Barrier crossings of a one-dimensional series."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctld.diagnostics.errors import as_series


def crossings(position: ArrayLike, *, threshold: float = 0.5, center: float = 0.0) -> int:
    """Number of barrier crossings: from beyond ``center ± threshold`` to beyond ``center ∓ threshold``.

    The strip ``|position − center| ≤ threshold`` belongs to neither side, so rattling on top of the barrier
    does not count. Crossings of all chains are added up.

    Parameters
    ----------
    position
        Shape ``(steps,)`` or ``(chains, steps)``.
    threshold, center
        In the unit of `position`; the default is the barrier of the double well ``(x² − 1)²``.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise ValueError(f"threshold must be finite and not negative; got {threshold}")
    if not math.isfinite(center):
        raise ValueError(f"center must be finite; got {center}")
    offset = as_series(position, "position") - center
    return journeys(below=offset < -threshold, above=offset > threshold)


def journeys(*, below: NDArray[np.bool_], above: NDArray[np.bool_]) -> int:
    """Changes between two disjoint regions, whatever happens in between; masks of shape ``(chains, steps)``."""
    sides = above.astype(np.int8) - below.astype(np.int8)
    visits = (chain[chain != 0] for chain in sides)
    return sum(int(np.count_nonzero(visit[1:] != visit[:-1])) for visit in visits)
