"""Batch means of a series that is not kept: constant memory, however long the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ctld.diagnostics.errors import Estimate

MOST = 40
"""Batches. When there are so many, neighbours are put together, and from then on batches are twice as long."""
FEWEST = 10


class BatchMeans:
    """The mean of what was added, with its batch-means error; the first tenth is left out, as not yet settled.

    Batches begin with `length` draws and grow with the run, to a fortieth or more of it. The error is the largest that these
    batches give, and twice as long ones: where they are shorter than the correlation time, longer ones give a larger error.
    """

    NUMBERS = MOST + 4
    """Number of `numbers`."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.means: list[float] = []
        self._sum, self._count = 0.0, 0

    def add(self, value: float) -> bool:
        """Add a value; return True if it completes a batch."""
        self._sum += value
        self._count += 1
        if self._count < self.length:
            return False
        self.means.append(self._sum / self.length)
        self._sum, self._count = 0.0, 0
        if len(self.means) == MOST:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [0.5 * (first + second) for first, second in pairs]
            self.length *= 2
        return True

    def estimate(self) -> Estimate | None:
        """Return the mean and its error; None while there are too few batches to tell an error."""
        if len(self.means) < FEWEST:
            return None
        batches = self.settled
        found = _estimate(batches)
        error = found.standard_error
        while len(batches) >= 2 * FEWEST - 2:
            batches = [0.5 * (first + second) for first, second in zip(batches[::2], batches[1::2], strict=False)]
            error = max(error, _estimate(batches).standard_error)
        return Estimate(found.mean, error)

    @property
    def settled(self) -> list[float]:
        """Means of the batches that count: all but the first tenth."""
        return self.means[len(self.means) // 10 :]

    @property
    def steady(self) -> bool:
        """True if the second half agrees with the first, within three standard errors of the difference."""
        kept = self.settled
        if len(kept) < FEWEST:
            return False
        first, second = _estimate(kept[: len(kept) // 2]), _estimate(kept[len(kept) // 2 :])
        return abs(second.mean - first.mean) <= 3.0 * math.hypot(first.standard_error, second.standard_error)

    @property
    def numbers(self) -> list[float]:
        """Contents, as always the same number of floats."""
        unused = [0.0] * (MOST - len(self.means))
        return [float(self.length), self._sum, float(self._count), float(len(self.means)), *self.means, *unused]

    @numbers.setter
    def numbers(self, values: Sequence[float]) -> None:
        length, self._sum, count, batches = values[:4]
        self.length, self._count = int(length), int(count)
        self.means = list(values[4 : 4 + int(batches)])


def _estimate(means: Sequence[float]) -> Estimate:
    mean = sum(means) / len(means)
    spread = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
    return Estimate(mean, math.sqrt(spread / len(means)))
