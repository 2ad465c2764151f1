"""Statistics of repeated runs: means with intervals, paired differences, ties, corrections and the words of verdicts.

Studies outside the package may import this module. An interval has 95 % unless something else is said. A difference is *lower*
or *higher* if its interval excludes zero. It is a *tie* if the interval lies within the margin, and *undecided* otherwise.
Several comparisons at once are corrected by Holm's method before any of them counts.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
from scipy import stats

Name = TypeVar("Name", bound=Hashable)
BySeed = Mapping[int, float]

LEVEL = 0.95
MARGIN = 0.05
"""Share of the reference's mean: smaller differences are of no consequence."""
LOWER, TIE, HIGHER, UNDECIDED = "lower", "tie", "higher", "undecided"
AHEAD, BEHIND = "ahead", "behind"
BEST, UNKNOWN = "best", "too few seeds"
EXHAUSTIVE, SHUFFLES = 8, 20_000  # up to 8 methods all 40,320 orders are tried, for more methods this many


@dataclass(frozen=True)
class Estimate:
    """A mean and its interval. The ends are None where fewer than two values leave them unknown."""

    mean: float
    low: float | None
    high: float | None
    count: int
    degrees: float | None = None
    """Degrees of freedom. By default one less than `count`."""

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else 0.5 * (self.high - self.low)

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, NaN where it is unknown."""
        return (math.nan, math.nan) if self.low is None or self.high is None else (self.low, self.high)

    @property
    def error(self) -> float:
        """Standard error, NaN where it is unknown."""
        half = self.half_width
        return math.nan if half is None else half / float(stats.t.ppf(0.5 + LEVEL / 2, _freedom(self)))

    @property
    def probability(self) -> float:
        """Two-sided p value of the hypothesis that the true mean is zero."""
        error = self.error
        if math.isnan(error):
            return math.nan
        return float(2.0 * stats.t.sf(abs(self.mean) / error, _freedom(self))) if error else float(self.mean == 0.0)


NOTHING = Estimate(math.nan, None, None, 0)


def _freedom(found: Estimate) -> float:
    return found.count - 1.0 if found.degrees is None else found.degrees


def from_error(mean: float, error: float, count: int, degrees: float | None = None) -> Estimate:
    """Return the estimate with Student's interval about `mean`."""
    found = Estimate(mean, None, None, count, degrees)
    if not _freedom(found) > 0 or math.isnan(error):
        return found
    half = float(stats.t.ppf(0.5 + LEVEL / 2, _freedom(found))) * error
    return Estimate(mean, mean - half, mean + half, count, degrees)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of the finite values with its interval. The mean is NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    count = len(finite)
    if count < 2:
        return Estimate(finite[0], None, None, 1) if finite else NOTHING
    mean = math.fsum(finite) / count  # exactly rounded, so that every processor writes the same digits
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    return from_error(mean, math.sqrt(variance / count), count)


def paired_difference(one: BySeed, other: BySeed) -> Estimate:
    """Return one − other over the seeds that both have. Effects that the seeds share cancel."""
    return estimate([one[seed] - other[seed] for seed in sorted(set(one.keys()) & set(other.keys()))])


def unpaired_difference(one: Estimate, other: Estimate) -> Estimate:
    """Return one − other by Welch's method, for estimates whose values by seed were not kept."""
    first, second = one.error**2, other.error**2
    count, mean = min(one.count, other.count), one.mean - other.mean
    if math.isnan(first + second):
        return Estimate(mean, None, None, count)
    spread = first**2 / _freedom(one) + second**2 / _freedom(other)
    degrees = (first + second) ** 2 / spread if spread else _freedom(one) + _freedom(other)
    return from_error(mean, math.sqrt(first + second), count, degrees)


def word(difference: Estimate, reference: float) -> str:
    """Return lower, tie, higher or undecided, with a margin of 5 % of `reference`. Empty where the interval is unknown."""
    if difference.low is None or difference.high is None:
        return ""
    if difference.high < 0.0 or difference.low > 0.0:
        return LOWER if difference.mean < 0 else HIGHER
    return tie_or_undecided(difference, MARGIN * abs(reference))


def tie_or_undecided(difference: Estimate, margin: float) -> str:
    """Return tie if the whole interval lies within ± `margin`, else undecided."""
    low, high = difference.ends
    return TIE if -margin <= low and high <= margin else UNDECIDED


def within_margin(difference: Estimate, reference: float) -> str:
    """Return tie or undecided, with a margin of 5 % of `reference`."""
    return tie_or_undecided(difference, MARGIN * abs(reference))


def holm(probabilities: Mapping[Name, float], *, planned: int | None = None) -> dict[Name, float]:
    """Return p values corrected for how many there are (Holm 1979), or for how many were `planned`."""
    p = pd.Series(dict(probabilities), dtype=float).sort_values(kind="stable")
    factors = np.arange(planned or len(p), 0, -1)[: len(p)]
    corrected = np.minimum(1.0, np.maximum.accumulate(factors * p.to_numpy()))
    return dict(zip(sorted(probabilities, key=lambda name: probabilities[name]), corrected.tolist(), strict=True))


def verdicts(
    differences: Mapping[Name, Estimate],
    margin: float | Mapping[Name, float],
    *,
    lower_is_better: bool = True,
    planned: int | None = None,
) -> dict[Name, str]:
    """Return ahead, behind, tie or undecided for differences (ours − theirs) that were planned together.

    Ahead and behind need a p value below 5 % after Holm's correction. `margin` is absolute, one for all or one for each.
    Differences without an interval are left out.
    """
    known = {name: each for name, each in differences.items() if each.half_width is not None}
    corrected = holm({name: each.probability for name, each in known.items()}, planned=planned)
    found = {}
    for name, each in known.items():
        own = margin[name] if isinstance(margin, Mapping) else margin
        better = (each.mean < 0) == lower_is_better
        significant = corrected[name] < 1.0 - LEVEL
        found[name] = (AHEAD if better else BEHIND) if significant else tie_or_undecided(each, own)
    return found


def marks(means: Mapping[str, Estimate], values: Mapping[str, BySeed]) -> dict[str, str]:
    """Return best, tie, undecided, too few seeds, or nothing for what is worse than the best. Lower is better.

    `values` are by seed, where they were kept. One seed supports no claim. Leave out whatever diverged in any seed.
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
    stands = verdicts(differences, MARGIN * abs(means[best].mean))
    found |= {name: stands.get(name, UNKNOWN) for name in differences}
    return {name: "" if told in (AHEAD, BEHIND) else told for name, told in found.items()} | {best: BEST}


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
    """Test the range of the means by permutation: points are shuffled within each seed. None below two seeds or points.

    Only seeds that every point has count. The shuffles are always the same ones.
    """
    table = pd.DataFrame([dict(values) for values in points]).dropna(axis="columns")
    if len(points) < 2 or table.shape[1] < 2 or not np.isfinite(table.to_numpy()).all():
        return None
    rows = table.to_numpy()
    observed = float(np.ptp(rows.mean(axis=1)))
    shuffled = np.random.default_rng(0).permuted(np.broadcast_to(rows, (shuffles, *rows.shape)), axis=1)
    ranges = np.ptp(shuffled.mean(axis=2), axis=1)
    # The observed order counts as one of them, so that the probability is never zero; 1e-12 is for rounding of the mean.
    reached = int((ranges >= observed * (1.0 - 1e-12)).sum()) + 1
    return Spread(observed, float(np.quantile(ranges, LEVEL)), reached / (shuffles + 1), *rows.shape)


@dataclass(frozen=True)
class Association:
    """Spearman's ρ, and the share of the orders of the methods whose ρ is at least as far from zero."""

    rho: float
    probability: float
    methods: int
    runs: int


def association(pairs: Sequence[tuple[BySeed, BySeed]]) -> Association | None:
    """Correlate two quantities over all runs. Each pair is a method's two quantities by seed. None where nothing varies.

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
