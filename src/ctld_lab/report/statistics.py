"""Every claim about chance that the report makes, written once: intervals, paired differences, verdicts, correlations.

A difference is *lower* or *higher* if its 95 % interval excludes zero, a *tie* if it holds zero and lies within 5 % of what is
compared with, and *undecided* otherwise. Against the best of many, p values are corrected (Holm) before anyone is called worse.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import stats

Name = TypeVar("Name", bound=Hashable)

LEVEL = 0.95
MARGIN = 0.05
"""Of the reference's mean: differences that lie within are of no consequence."""
LOWER, TIE, HIGHER, UNDECIDED = "lower", "tie", "higher", "undecided"
BEST, UNKNOWN = "best", "too few seeds"
EXHAUSTIVE, SHUFFLES = 8, 20_000  # up to 8 methods all 40,320 orders are tried, else so many
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval, whose ends are None where fewer than two values leave it unknown."""

    mean: float
    low: float | None
    high: float | None
    count: int
    degrees: float | None = None
    """Degrees of freedom; one less than the values, unless two estimates were subtracted."""

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else 0.5 * (self.high - self.low)

    @property
    def ends(self) -> tuple[float, float]:
        """The interval; NaN where it is unknown."""
        return (math.nan, math.nan) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def freedom(self) -> float:
        return self.count - 1.0 if self.degrees is None else self.degrees

    @property
    def error(self) -> float:
        """The standard error; NaN where it is unknown."""
        half = self.half_width
        return math.nan if half is None else half / stats.t.ppf(0.5 + LEVEL / 2, self.freedom)

    @property
    def probability(self) -> float:
        """p of a difference, two-sided, that there is none."""
        error = self.error
        if math.isnan(error):
            return math.nan
        return float(2.0 * stats.t.sf(abs(self.mean) / error, self.freedom)) if error else float(self.mean == 0.0)


NOTHING = Estimate(math.nan, None, None, 0)


def from_error(mean: float, error: float, count: int, degrees: float | None = None) -> Estimate:
    """The estimate with Student's interval about `mean`."""
    freedom = count - 1.0 if degrees is None else degrees
    half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * error if freedom > 0 else math.nan
    return Estimate(mean, mean - half, mean + half, count, degrees)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the finite values; NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    count = len(finite)
    if count < 2:
        return Estimate(finite[0] if finite else math.nan, None, None, count)
    mean = math.fsum(finite) / count
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    return from_error(mean, math.sqrt(variance / count), count)


def paired_difference(one: BySeed, other: BySeed) -> Estimate:
    """one − other over the seeds that both have: what the seeds share (data order, initialisation) cancels."""
    return estimate([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


def unpaired_difference(one: Estimate, other: Estimate) -> Estimate:
    """one − other where values by seed were not kept: Welch's, which is wider than a paired one if seeds share anything."""
    first, second = one.error**2, other.error**2
    if math.isnan(first + second):
        return Estimate(one.mean - other.mean, None, None, min(one.count, other.count))
    spread = first**2 / one.freedom + second**2 / other.freedom
    degrees = (first + second) ** 2 / spread if spread else one.freedom + other.freedom
    return from_error(one.mean - other.mean, math.sqrt(first + second), min(one.count, other.count), degrees)


def word(difference: Estimate, reference: float) -> str:
    """LOWER, TIE, HIGHER or UNDECIDED, beside the mean of what was subtracted; "" where the interval is unknown."""
    if difference.low is None or difference.high is None:
        return ""
    if difference.high < 0.0 or difference.low > 0.0:
        return LOWER if difference.mean < 0 else HIGHER
    return within_margin(difference, reference)


def within_margin(difference: Estimate, reference: float) -> str:
    margin = MARGIN * abs(reference)
    assert difference.low is not None
    assert difference.high is not None
    return TIE if -margin <= difference.low and difference.high <= margin else UNDECIDED


def holm(probabilities: Mapping[Name, float]) -> dict[Name, float]:
    """p values, each corrected for how many there are (Holm 1979)."""
    found: dict[Name, float] = {}
    largest = 0.0
    for place, name in enumerate(sorted(probabilities, key=lambda name: probabilities[name])):
        largest = max(largest, (len(probabilities) - place) * probabilities[name])
        found[name] = min(1.0, largest)
    return found


def marks(means: Mapping[str, Estimate], values: Mapping[str, BySeed]) -> dict[str, str]:
    """BEST, TIE, UNDECIDED, UNKNOWN, or "" for what is worse; lower is better. `values` by seed, where they were kept.

    Nothing is claimed where one seed is all there is. What diverged in any seed is not to be handed over.
    """
    found = dict.fromkeys(means, "")
    several = [name for name in means if means[name].half_width is not None]
    if len(several) < 2:
        return found
    best = min(several, key=lambda name: means[name].mean)
    differences = {
        name: paired_difference(values[name], values[best])
        if values.get(name) and values.get(best)
        else unpaired_difference(means[name], means[best])
        for name in means
        if name != best
    }
    known = {name: each for name, each in differences.items() if each.half_width is not None}
    corrected = holm({name: each.probability for name, each in known.items()})
    for name in differences:
        if name not in known:
            found[name] = UNKNOWN
        elif corrected[name] >= 1.0 - LEVEL:
            found[name] = within_margin(known[name], means[best].mean)
    return found | {best: BEST}


@dataclass(frozen=True)
class Spread:
    """The range of the points' means, and the range that 95 % of shuffles stay below if the points do not matter."""

    range: float
    chance: float
    probability: float
    """Share of shuffles with at least this range."""
    points: int
    seeds: int

    @property
    def exceeds_chance(self) -> bool:
        return self.probability < 1.0 - LEVEL


def spread(points: Sequence[BySeed], *, shuffles: int = 4000) -> Spread | None:
    """A permutation test on max − min of the means: points are shuffled within each seed. None below two seeds or points.

    Only seeds that every point has count. The shuffles are always the same ones.
    """
    shared = sorted(set.intersection(*map(set, points))) if len(points) > 1 else []
    table = np.array([[values[seed] for seed in shared] for values in points])
    if len(shared) < 2 or not np.isfinite(table).all():
        return None
    observed = float(np.ptp(table.mean(axis=1)))
    shuffled = np.random.default_rng(0).permuted(np.broadcast_to(table, (shuffles, *table.shape)), axis=1)
    ranges = np.ptp(shuffled.mean(axis=2), axis=1)
    # The observed order counts as one of them, so that the probability is never zero; 1e-12 is for rounding of the mean.
    reached = int((ranges >= observed * (1.0 - 1e-12)).sum()) + 1
    return Spread(observed, float(np.quantile(ranges, LEVEL)), reached / (shuffles + 1), len(points), len(shared))


@dataclass(frozen=True)
class Association:
    rho: float
    probability: float
    """Share of the orders of the methods that have a correlation at least as far from zero."""
    methods: int
    runs: int


def association(pairs: Sequence[tuple[BySeed, BySeed]]) -> Association | None:
    """Spearman's ρ over all runs; each pair is a method's two quantities by seed. None where nothing varies or is shared.

    Runs of one method are alike, and do not count as independent: the shuffles exchange whole methods, their seeds together.
    Only seeds that every method has count. The shuffles are always the same ones.
    """
    finite = [
        {seed: (one[seed], other[seed]) for seed in one.keys() & other.keys() if math.isfinite(one[seed] + other[seed])}
        for one, other in pairs
    ]
    finite = [values for values in finite if values]
    shared = sorted(set.intersection(*map(set, finite))) if len(finite) > 1 else []
    if not shared:
        return None
    table = np.array([[values[seed] for seed in shared] for values in finite])
    ranks = (stats.rankdata(table[:, :, column]).reshape(table.shape[:2]) for column in (0, 1))
    one, other = (each - each.mean() for each in ranks)
    scale = math.sqrt(float((one**2).sum()) * float((other**2).sum()))
    if scale == 0.0:
        return None
    products = one @ other.T / scale  # of methods; an order of them picks one from each row
    methods = len(finite)
    if methods <= EXHAUSTIVE:
        orders = np.array(list(itertools.permutations(range(methods))))
    else:
        shuffled = np.random.default_rng(0).permuted(np.tile(np.arange(methods), (SHUFFLES, 1)), axis=1)
        orders = np.vstack([np.arange(methods), shuffled])  # the first is the one that was observed
    found = products[np.arange(methods), orders].sum(axis=1)
    rho = float(np.trace(products))
    reached = int((np.abs(found) >= abs(rho) - 1e-12).sum())
    return Association(rho, reached / len(orders), methods, one.size)
