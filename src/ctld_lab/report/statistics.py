"""Means with their 95 % intervals, paired differences, and whether points differ by more than chance. No scipy."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval, whose ends are None where fewer than two values leave it unknown."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else 0.5 * (self.high - self.low)

    @property
    def holds_zero(self) -> bool | None:
        """Of a difference: is it a tie? None where that is unknown."""
        return None if self.low is None or self.high is None else self.low <= 0.0 <= self.high


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """t such that Student's law with `degrees` degrees of freedom puts `level` between −t and t.

    The law is a finite sum at whole degrees (Abramowitz and Stegun 26.7.3, 26.7.4), in θ = arctan(t/√degrees).
    """
    if degrees < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"a t quantile needs degrees ≥ 1 and 0 < level < 1, not {degrees} and {level}")

    def between(theta: float) -> float:
        cosine = math.cos(theta)
        first = 3 if degrees % 2 else 2
        term = cosine if degrees % 2 else 1.0
        total = term if degrees > 1 else 0.0
        for k in range(first, degrees, 2):  # 1 + ½cos² + (1·3)/(2·4)cos⁴ …, or cos + ⅔cos³ + (2·4)/(3·5)cos⁵ …
            term *= cosine * cosine * (k - 1) / k
            total += term
        if degrees % 2:
            return 2.0 / math.pi * (theta + math.sin(theta) * total)
        return math.sin(theta) * total

    low, high = 0.0, math.pi / 2
    while high - low > 1e-15:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if between(middle) < level else (low, middle)
    return math.sqrt(degrees) * math.tan(0.5 * (low + high))


def estimate(values: Sequence[float]) -> Estimate:
    """Of the finite values; NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    count = len(finite)
    if count == 0:
        return Estimate(math.nan, None, None, 0)
    mean = math.fsum(finite) / count
    if count == 1:
        return Estimate(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in finite) / (count - 1)
    half_width = t_quantile(count - 1) * math.sqrt(variance / count)
    return Estimate(mean, mean - half_width, mean + half_width, count)


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Estimate:
    """one − other over the seeds that both have: what the seeds share (data order, initialisation) cancels."""
    return estimate([one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())])


LOWER, TIE, HIGHER, UNCLEAR = "lower", "tie", "higher", "unclear"
WIDE = 0.5
"""Of the reference's mean: an interval that reaches further does not show a tie, but that the seeds differ too much to tell."""


def word(difference: Estimate, reference: float = math.inf) -> str:
    """Of a paired difference, LOWER, TIE or HIGHER; UNCLEAR beside the mean of what was subtracted, if that is given.

    "" where fewer than two seeds leave it unknown.
    """
    if difference.half_width is None:
        return ""
    if not difference.holds_zero:
        return LOWER if difference.mean < 0 else HIGHER
    return UNCLEAR if difference.half_width > WIDE * abs(reference) else TIE


BEST, UNKNOWN = "best", "too few seeds"


def marks(columns: Mapping[str, Mapping[int, float]]) -> dict[str, str]:
    """BEST, TIE, UNCLEAR, UNKNOWN or "" for each name, given its values by seed; lower is better.

    A tie is a method whose paired difference from the best has an interval that holds zero. Nothing is claimed where one
    seed is all there is, and a method that diverged in any seed is out of the race.
    """
    entered = {name: values for name, values in columns.items() if values and all(map(math.isfinite, values.values()))}
    found = dict.fromkeys(columns, "")
    several = {name: values for name, values in entered.items() if len(values) > 1}
    if len(several) < 2:
        return found
    best = min(several, key=lambda name: estimate(list(several[name].values())).mean)
    found[best] = BEST
    for name, values in entered.items():
        if name != best:
            said = word(paired_difference(values, entered[best]), estimate(list(entered[best].values())).mean)
            found[name] = {"": UNKNOWN, TIE: TIE, UNCLEAR: UNCLEAR}.get(said, "")
    return found


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


def spread(points: Sequence[Mapping[int, float]], *, shuffles: int = 4000) -> Spread | None:
    """A permutation test on max − min of the means: points are shuffled within each seed. None below two seeds or points.

    Only seeds that every point has count. The shuffles are always the same ones.
    """
    if len(points) < 2:
        return None
    shared = sorted(set.intersection(*(set(values) for values in points)))
    table = np.array([[values[seed] for seed in shared] for values in points])
    if len(shared) < 2 or not np.isfinite(table).all():
        return None
    observed = float(np.ptp(table.mean(axis=1)))
    generator = np.random.default_rng(0)
    shuffled = generator.permuted(np.broadcast_to(table, (shuffles, *table.shape)), axis=1)
    ranges = np.ptp(shuffled.mean(axis=2), axis=1)
    # The observed order counts as one of them, so that the probability is never zero; 1e-12 is for rounding of the mean.
    reached = int((ranges >= observed * (1.0 - 1e-12)).sum()) + 1
    return Spread(observed, float(np.quantile(ranges, LEVEL)), reached / (shuffles + 1), len(points), len(shared))
