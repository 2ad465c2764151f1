"""Do two quantities go together over runs? Spearman's rank correlation, against shuffles of whole methods. No scipy."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctld_lab.report.statistics import LEVEL

EXHAUSTIVE = 8  # methods: 40,320 orders
SHUFFLES = 20_000
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Association:
    rho: float
    probability: float
    """Share of the orders of the methods that have a correlation at least as far from zero."""
    methods: int
    runs: int

    @property
    def beyond_chance(self) -> bool:
        return self.probability < 1.0 - LEVEL


def association(pairs: Sequence[tuple[BySeed, BySeed]]) -> Association | None:
    """Over all runs; each pair is a method's two quantities by seed. None where nothing varies, or of fewer than two methods.

    Runs of one method are alike, and do not count as independent: the shuffles exchange whole methods, their seeds together.
    Only seeds that every method has count. The shuffles are always the same ones.
    """
    finite = [
        {seed: (one[seed], other[seed]) for seed in one.keys() & other.keys() if _finite(one[seed], other[seed])}
        for one, other in pairs
    ]
    finite = [values for values in finite if values]
    shared = sorted(set.intersection(*map(set, finite))) if finite else []
    if len(finite) < 2 or not shared:
        return None
    table = np.array([[values[seed] for seed in shared] for values in finite])
    one, other = (_centred_ranks(table[:, :, column]) for column in (0, 1))
    scale = math.sqrt(float((one**2).sum()) * float((other**2).sum()))
    if scale == 0.0:
        return None
    products = one @ other.T / scale  # of methods; an order of them picks one from each row
    methods = len(finite)
    orders = _orders(methods)
    found = products[np.arange(methods), orders].sum(axis=1)
    rho = float(np.trace(products))
    # The order as it is counts as one of them; 1e-12 is for rounding.
    reached = int((np.abs(found) >= abs(rho) - 1e-12).sum())
    return Association(rho, reached / len(orders), methods, one.size)


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _centred_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - 0.5 * (counts - 1.0))[place].reshape(values.shape)
    centred: NDArray[np.float64] = ranks - ranks.mean()
    return centred


def _orders(methods: int) -> NDArray[np.int64]:
    """All of them, or as many as suffice; the first is the one that was observed."""
    if methods <= EXHAUSTIVE:
        return np.array(list(itertools.permutations(range(methods))))
    generator = np.random.default_rng(0)
    shuffled = generator.permuted(np.tile(np.arange(methods), (SHUFFLES, 1)), axis=1)
    return np.vstack([np.arange(methods), shuffled])
