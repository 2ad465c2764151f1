"""Warm-up of calibrated tempering: what U/T is like while α rests at 0, and how long α has to rest.

The last window of the warm-up counts: at first its second half, from `steps`/2 to `steps`. What is slower than a window cannot
be seen in it, neither its variance nor its time. So another follows, as long as all before it, up to a bound, where one holds
fewer than MANY correlation times, or has another mean than the one before it, by more than three standard errors: U has been
growing or falling then, or wanders more slowly than it seems to.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MANY = 50
"""Correlation times that a window should hold; research/LOG.md says what fewer of them miss."""
_APART = 3.0  # standard errors of the difference of two means
_FEWEST = 20  # what noise hides is taken to be correlated over so many times less than the window


class Seen(NamedTuple):
    """Statistics of U/T at g = 1."""

    mean: float
    variance: float
    """Without the minibatch noise."""
    noise: float
    """ν², the variance of the minibatch noise."""
    correlation_time: float
    """τ = 1/2 + Σ ρ_k, in steps."""
    steps: int
    """Length of the window that this was seen in."""
    settled: bool = True
    """True if the window before it had the same mean, within what can be told."""

    @property
    def enough(self) -> bool:
        """True if the window holds many correlation times and another would say the same."""
        return self.settled and self.steps >= MANY * self.correlation_time

    @property
    def friction(self) -> float:
        """Γ = Var(U/T)·τ + 0.7ν².

        τ with one standard error more than was seen, sqrt(20τ/n) of it by Sokal's window of five: a window sees too little of
        it rather than too much, and a Γ too small leaves α without trips.
        """
        doubt = math.sqrt(20.0 * self.correlation_time / self.steps)
        return max(self.variance * self.correlation_time * (1.0 + doubt) + 0.7 * self.noise, 1e-12)


class Known(NamedTuple):
    """The numbers of a state that a warm-up has whatever its windows are; inf for what is not known yet."""

    mean: float
    variance: float
    noise: float
    correlation_time: float
    """These four are the result."""
    before: float
    """U/T of the last step but one."""
    last: float
    noise_now: float
    noise_seen: float


class Window(NamedTuple):
    """The numbers of a state that say which window a warm-up is in, and what was added up there."""

    seen: float
    begin: float
    until: float
    block: float
    in_partial: float
    length: float
    """Length of the window that the result is from."""
    count_before: float
    settled: float
    partial: float
    mean: float
    squares: float
    mean_before: float


class WarmUp:
    """Watches U/T for `steps`, or for longer, up to `at_most`.

    It holds at most `steps` numbers: of a longer window these are means of blocks.
    """

    NUMBERS = len(Window._fields)
    """Length of `window`."""

    def __init__(self, steps: int, at_most: int | None = None) -> None:
        self._capacity = steps
        self.at_most = steps if at_most is None else max(at_most, steps)
        self.until = steps
        """When it is over, as far as is known."""
        self._seen, self._begin = 0, steps // 2
        self._before = (0.0, 0)  # mean of the window before, and its length
        self._result: Seen | None = None
        self._last = (math.nan, math.nan)
        self._noise, self._noise_seen = 0.0, 0
        self._open_window()

    def _open_window(self) -> None:
        self._values: list[float] = []
        self._block = -(-(self.until - self._begin) // self._capacity)
        self._partial, self._in_partial = 0.0, 0
        self._mean = self._squares = 0.0

    @property
    def over(self) -> bool:
        return self._result is not None

    def observe(self, potential: float) -> None:
        """Take in U/T while α rests."""
        self._seen += 1
        if self._capacity // 4 < self._seen <= self._capacity // 2:
            mean, count = self._before
            self._before = mean + (potential - mean) / (count + 1), count + 1
        if self._seen > self._begin:
            self.observe_noise(potential)
            change = potential - self._mean
            self._mean += change / (self._seen - self._begin)
            self._squares += change * (potential - self._mean)
            self._partial += potential
            self._in_partial += 1
            if self._in_partial == self._block:
                self._values.append(self._partial / self._block)
                self._partial, self._in_partial = 0.0, 0
        if self._seen >= self.until:
            self._close_window()

    def observe_noise(self, potential: float) -> float:
        """Return ν² as known now, from second differences: what moves slowly drops out of them."""
        before, last = self._last
        self._last = last, potential
        if not math.isnan(before):
            square = (potential - 2.0 * last + before) ** 2 / 6.0
            self._noise_seen += 1
            self._noise += (square - self._noise) / min(self._noise_seen, self._capacity)
        return self._noise

    def interrupt(self) -> None:
        """Forget the last values: the next ones do not follow on them, and no difference may span the gap."""
        self._last = (math.nan, math.nan)

    @property
    def result(self) -> Seen:
        if self._result is None:
            raise ValueError(f"the warm-up is over after {self.until} steps, and {self._seen} were seen; observe more")
        return self._result

    def _close_window(self) -> None:
        """Close the full window: it is enough, or another follows, unless that would have to be shorter than this one."""
        seen = self._statistics()
        longer = min(2 * self.until, self.at_most)
        if seen.enough or longer - self.until < self.until - self._begin:
            self._result, self._values = seen, []
            return
        self._before = seen.mean, seen.steps
        self._begin, self.until = self.until, longer
        self._open_window()

    def _statistics(self) -> Seen:
        values, block, steps = np.array(self._values), self._block, self.until - self._begin
        mean = float(values.mean())
        deviations = values - mean
        of_blocks = float(deviations @ deviations) / len(values)
        whole = of_blocks if block == 1 else self._squares / steps
        noise = min(self._noise, whole)
        # Where noise is nearly all of it, the difference is known to about whole·sqrt(6/n), no better.
        resolution = max(whole * math.sqrt(6.0 / steps), 1e-300)
        variance = max(whole - noise, resolution)
        slow = variance if block == 1 else max(of_blocks - noise / block, resolution)
        # Of blocks that are long against τ the variance is less and τ is more; the product stays.
        correlation_time = block * _correlation_time(deviations, slow) * (slow / variance)
        if variance == resolution:
            correlation_time = min(correlation_time, steps / _FEWEST)
        seen = Seen(mean, variance, noise, max(correlation_time, 0.5), steps)
        earlier, count = self._before
        error = math.sqrt(2.0 * (variance * seen.correlation_time + 0.5 * noise) * (1.0 / steps + 1.0 / max(count, 1)))
        return seen._replace(settled=abs(mean - earlier) <= _APART * error)

    # ---- state ----

    def numbers(self) -> list[float]:
        """Return what was seen, as one list, always of one length: checkpointers take tensors of known shapes only.

        What is not known is inf, which no potential is; and states can be compared, which NaN could not.
        """
        result = (math.inf,) * 4 if self._result is None else self._result[:4]
        before, last = (math.inf if math.isnan(value) else value for value in self._last)
        room = [math.inf] * (self._capacity - len(self._values))
        return [*Known(*result, before, last, self._noise, float(self._noise_seen)), *self._values, *room]

    def window(self) -> list[float]:
        """Return which window it is in, and what else was added up there."""
        length, settled = (0, False) if self._result is None else (self._result.steps, self._result.settled)
        made = Window(
            seen=self._seen,
            begin=self._begin,
            until=self.until,
            block=self._block,
            in_partial=self._in_partial,
            length=length,
            count_before=self._before[1],
            settled=settled,
            partial=self._partial,
            mean=self._mean,
            squares=self._squares,
            mean_before=self._before[0],
        )
        return [*map(float, made)]

    @classmethod
    def from_numbers(
        cls, steps: int, numbers: list[float], window: list[float] | None, at_most: int | None = None
    ) -> "WarmUp":
        """Return a warm-up that goes on; of version 0.1, which knew one window, there is no `window`."""
        made = cls(steps, at_most)
        known = Known(*numbers[: len(Known._fields)])
        values = [value for value in numbers[len(known) :] if math.isfinite(value)]
        over = math.isfinite(known.mean)
        if window is None:
            for value in values:
                made.observe(value)
            place, values = Window(*made.window()), made._values
            if over:
                half = steps // 2
                place = place._replace(
                    seen=steps,
                    begin=half,
                    until=steps,
                    block=1,
                    in_partial=0,
                    length=steps - half,
                    count_before=1,
                    settled=1,
                )
        else:
            place = Window(*window)
        counts = place[:8]
        if not (
            all(map(math.isfinite, place))
            and all(float(count).is_integer() and count >= 0 for count in counts)
            and place.settled in (0, 1)
            and place.begin < place.until <= made.at_most
            and place.seen <= place.until
            and place.in_partial < place.block
            and len(values) <= steps
        ):
            raise ValueError(
                f"the state has a warm-up of windows {[*counts]}, which no run has; load one that was saved"
            )
        before, last = (value if math.isfinite(value) else math.nan for value in (known.before, known.last))
        made._last = before, last
        made._noise, made._noise_seen = known.noise_now, int(known.noise_seen)
        made._seen, made._begin, made.until = int(place.seen), int(place.begin), int(place.until)
        made._block, made._in_partial = int(place.block), int(place.in_partial)
        made._partial, made._mean, made._squares = place.partial, place.mean, place.squares
        made._before = place.mean_before, int(place.count_before)
        made._values = values
        if over:
            length, settled = max(int(place.length), 1), bool(place.settled)
            made._result = Seen(*known[:4], length, settled)
        return made


def _correlation_time(deviations: NDArray[np.float64], variance: float) -> float:
    """Return 1/2 + Σ ρ_k up to Sokal's window, five of it; noise, which is in ρ_0 alone, is not in `variance`."""
    count = len(deviations)
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(deviations, size)
    covariance = np.fft.irfft(spectrum * spectrum.conj(), size)[: count // 2] / count
    sums = 0.5 + np.cumsum(covariance[1:]) / variance
    beyond = np.nonzero(np.arange(1, len(sums) + 1) >= 5.0 * sums)[0]
    return float(max(sums[beyond[0] if len(beyond) else -1], 0.5))
