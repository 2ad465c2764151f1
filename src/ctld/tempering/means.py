"""What calibrated tempering expects U/T to be: its mean at each α."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctld.tempering.warm_up import Seen

_FIT_PERIOD = 20


class _Scaling(Protocol):
    """What the means need to know of g."""

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
        self._inverse = np.array([1.0 / control.scaling(centre) for centre in centres])
        self._control, self._seen = control, seen
        # count, sum of U/T, sum of 1/g: α moves within a bin
        self._sums = np.zeros((3, control.num_bins))
        count = 50.0 * seen.correlation_time  # the warm-up, which was all on the plateau
        self._sums[:, 0] = count, count * seen.mean, count
        self._since_fit = 0
        self._fit()

    def deviation(self, place: float, potential: float) -> float:
        """U/T less its mean at |α| = `place`; then takes this U/T into the mean."""
        inverse = 1.0 / self._control.scaling(place)
        bin_index = 0 if place <= self._plateau else min(1 + int((place - self._plateau) / self._width), self._last)
        expected = self._offset + self._gain * inverse + self._residuals[bin_index]
        count, total, inverses = self._sums[:, bin_index].tolist()
        self._sums[:, bin_index] = count + 1.0, total + potential, inverses + inverse
        self._since_fit += 1
        if self._since_fit == _FIT_PERIOD:
            self._fit()
        return potential - float(expected)

    def _fit(self) -> None:
        """Least squares of the bins' means, held to B as the warm-up saw it by as much as 10τ visits would."""
        self._since_fit = 0
        counts = self._sums[0]
        visited = counts > 0
        weights = counts[visited]
        means = self._sums[1, visited] / weights
        inverses = self._sums[2, visited] / weights
        prior = 10.0 * self._seen.correlation_time
        centre = weights @ inverses / weights.sum()
        spread = weights @ (inverses - centre) ** 2
        whole = prior * float(np.var(self._inverse))
        middle = weights @ means / weights.sum()
        self._gain = (weights @ ((inverses - centre) * (means - middle)) + whole * self._seen.variance) / (
            spread + whole
        )
        self._offset = middle - self._gain * centre
        left = means - self._offset - self._gain * inverses
        self._residuals = np.zeros(len(counts))
        self._residuals[visited] = left * weights / (weights + prior)

    def numbers(self) -> NDArray[np.float64]:
        """Everything, as rows of `num_bins` numbers."""
        fit = np.zeros(len(self._residuals))
        fit[:3] = self._offset, self._gain, self._since_fit
        return np.vstack([self._sums, self._residuals, fit])

    def load(self, numbers: NDArray[np.float64]) -> None:
        self._sums, self._residuals = numbers[:3].copy(), numbers[3].copy()
        self._offset, self._gain, self._since_fit = float(numbers[4, 0]), float(numbers[4, 1]), int(numbers[4, 2])
