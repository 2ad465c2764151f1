"""Means of U/T at each α, as calibrated tempering expects them."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctld.tempering.warm_up import Seen

_FIT_PERIOD = 20


class _Scaling(Protocol):
    """Properties of g that the means need."""

    plateau: float
    edge: float
    num_bins: int

    def scaling(self, alpha: float) -> float: ...


class BinnedMeans:
    """⟨U/T⟩ at each |α|: A + B/g(α), fitted through the means of bins, plus what the fit leaves in each bin.

    For a quadratic U that form is exact, with B = Var(U/T) at g = 1. The plateau is one bin. A bin's own mean counts for as
    much as it has independent visits: n/(n + 10τ). The past is forgotten over as many steps as there were.
    """

    def __init__(self, control: _Scaling, seen: Seen) -> None:
        self._plateau = control.plateau
        self._width = (control.edge - control.plateau) / (control.num_bins - 1)
        self._last = control.num_bins - 1
        centres = [0.0, *(control.plateau + (k + 0.5) * self._width for k in range(self._last))]
        grid = [1.0 / control.scaling(centre) for centre in centres]
        self._seen = seen
        self._prior = 10.0 * seen.correlation_time
        middle = sum(grid) / len(grid)
        self._ridge = self._prior * sum((inverse - middle) ** 2 for inverse in grid) / len(grid)
        # Numbers of Python, not of numpy: one bin is read and written at every step.
        self._counts, self._totals, self._inverses = ([0.0] * control.num_bins for _ in range(3))
        self._residuals = [0.0] * control.num_bins
        count = 50.0 * seen.correlation_time  # the warm-up, which was all on the plateau
        self._counts[0], self._totals[0], self._inverses[0] = count, count * seen.mean, count
        self._since_fit = 0
        self._fit()

    def deviation(self, place: float, inverse: float, potential: float) -> float:
        """Return U/T less its mean at |α| = `place`, where 1/g is `inverse`; then take this U/T into the mean."""
        bin_index = 0 if place <= self._plateau else min(1 + int((place - self._plateau) / self._width), self._last)
        expected = self._offset + self._gain * inverse + self._residuals[bin_index]
        self._counts[bin_index] += 1.0
        self._totals[bin_index] += potential
        self._inverses[bin_index] += inverse  # α moves within a bin
        self._since_fit += 1
        if self._since_fit == _FIT_PERIOD:
            self._fit()
        return potential - expected

    def _fit(self) -> None:
        """Least squares of the bins' means, held to B as the warm-up saw it by as much as 10τ visits would."""
        self._since_fit = 0
        visited = [
            (number, count, total / count, inverses / count)
            for number, (count, total, inverses) in enumerate(
                zip(self._counts, self._totals, self._inverses, strict=True)
            )
            if count
        ]
        weight = sum(self._counts)
        centre, middle = sum(self._inverses) / weight, sum(self._totals) / weight
        spread, together = self._ridge, self._ridge * self._seen.variance
        for _, count, mean, inverse in visited:
            apart = inverse - centre
            spread += count * apart * apart
            together += count * apart * (mean - middle)
        # A depth so small that 1/g is 1 to the last bit, in every bin, tells nothing.
        self._gain = together / spread if spread else self._seen.variance
        self._offset = middle - self._gain * centre
        for number, count, mean, inverse in visited:
            self._residuals[number] = (mean - self._offset - self._gain * inverse) * (count / (count + self._prior))

    def numbers(self) -> NDArray[np.float64]:
        """Return everything, as rows of `num_bins` numbers."""
        fit = [self._offset, self._gain, float(self._since_fit), *[0.0] * (len(self._counts) - 3)]
        return np.array([self._counts, self._totals, self._inverses, self._residuals, fit])

    def load(self, numbers: NDArray[np.float64]) -> None:
        """Take over what `numbers` returned."""
        self._counts, self._totals, self._inverses, self._residuals, fit = numbers.tolist()
        self._offset, self._gain, self._since_fit = fit[0], fit[1], int(fit[2])
