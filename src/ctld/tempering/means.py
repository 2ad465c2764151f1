"""What calibrated tempering knows of U/T: its statistics while α rests, and its mean at each α."""

import math
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_FIT_PERIOD = 20
_LARGEST_LAG = 1000


class Seen(NamedTuple):
    """Of U/T at g = 1."""

    mean: float
    variance: float
    """Without the minibatch noise."""
    noise: float
    """ν², the variance of the minibatch noise."""
    correlation_time: float
    """τ = 1/2 + Σ ρ_k, in steps."""


class WarmUp:
    """Watches U/T for so many steps; the second half counts."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._values: list[float] = []
        self._result: Seen | None = None
        self._last = (math.nan, math.nan)
        self._noise, self._noise_seen = 0.0, 0

    def observe(self, potential: float) -> None:
        """U/T while α rests."""
        self._values.append(potential)
        if len(self._values) > self._steps // 2:
            self.observe_noise(potential)

    def observe_noise(self, potential: float) -> float:
        """ν² as known now, from second differences: what moves slowly drops out of them."""
        before, last = self._last
        self._last = last, potential
        if not math.isnan(before):
            square = (potential - 2.0 * last + before) ** 2 / 6.0
            self._noise_seen += 1
            self._noise += (square - self._noise) / min(self._noise_seen, self._steps)
        return self._noise

    def interrupt(self) -> None:
        """What comes next does not follow on what was seen last: no difference is to span the gap."""
        self._last = (math.nan, math.nan)

    def result(self) -> Seen:
        if self._result is None:
            values = np.array(self._values[self._steps // 2 :])
            deviations = values - values.mean()
            whole = float(deviations @ deviations) / len(values)
            noise = min(self._noise, whole)
            # Where noise is nearly all of it, the difference is known to about whole·sqrt(6/n), no better.
            variance = max(whole - noise, whole * math.sqrt(6.0 / len(values)), 1e-300)
            correlation_time = min(_correlation_time(deviations, variance), len(values) / 20)
            self._result = Seen(float(values.mean()), variance, noise, correlation_time)
            self._values = []
        return self._result

    # ---- state ----

    def numbers(self) -> list[float]:
        """Everything, as one list, always of one length: checkpointers take tensors of known shapes only.

        What is not known is inf, which no potential is; and states can be compared, which NaN could not.
        """
        seen = [math.inf] * 4 if self._result is None else list(self._result)
        last = [math.inf if math.isnan(value) else value for value in self._last]
        room = [math.inf] * (self._steps - len(self._values))
        return [*seen, *last, self._noise, float(self._noise_seen), *self._values, *room]

    @classmethod
    def from_numbers(cls, steps: int, numbers: list[float]) -> "WarmUp":
        made = cls(steps)
        if math.isfinite(numbers[0]):
            made._result = Seen(*numbers[:4])
        before, last = (value if math.isfinite(value) else math.nan for value in numbers[4:6])
        made._last = before, last
        made._noise, made._noise_seen = numbers[6], int(numbers[7])
        made._values = [value for value in numbers[8:] if math.isfinite(value)]
        return made


def _correlation_time(deviations: NDArray[np.float64], variance: float) -> float:
    """1/2 + Σ ρ_k up to Sokal's window, five correlation times; noise, which is in ρ_0 alone, is not in `variance`."""
    count = len(deviations)
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(deviations, size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[: min(count // 2, _LARGEST_LAG)] / count
    sums = 0.5 + np.cumsum(covariance[1:]) / variance
    beyond = np.nonzero(np.arange(1, len(sums) + 1) >= 5.0 * sums)[0]
    return float(max(sums[beyond[0] if len(beyond) else -1], 0.5))


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
