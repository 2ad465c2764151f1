"""Trips of α between cold and hot, compared with the number that was promised."""

from collections.abc import Sequence

TRIPS = 20
"""Half-trips that are wanted; with fewer, averages at g = 1 rest on too few visits."""
_LOOK = 8  # half-trips that were to be by the first look, and by each further one
_MISSED = 0.25  # share of them below which they are called missing; chance alone gets there once in some hundred runs


class Trips:
    """Counts half-trips as `diagnostics.half_trips` does, and finds out whether they stay away.

    Parameters
    ----------
    plateau, edge : float
        Cold is |α| ≤ plateau; hot is the last tenth of the way to the edge.
    """

    def __init__(self, plateau: float, edge: float) -> None:
        self._cold, self._hot = plateau, plateau + 0.9 * (edge - plateau)
        self.count = 0
        self.hot = False
        """Which end was visited last."""
        self.warned = self._missed = False
        self._begin, self._length, self._end, self._next_look = 0, 1.0, 0, 0

    def promise(self, *, begin: int, length: float, end: int) -> None:
        """Expect half-trips of `length` steps from step `begin` on; all is over at `end`, 0 if that is unknown."""
        self._begin, self._length, self._end = begin, length, end
        self._plan(begin)

    def promised(self, step: int) -> float:
        """Return how many half-trips there should have been by a step."""
        return max(step - self._begin, 0) / self._length

    def visit(self, place: float, step: int) -> bool:
        """Take in |α| at a step; return True if it is time to look."""
        if self.hot:
            if place <= self._cold:
                self.hot, self.count = False, self.count + 1
        elif place >= self._hot:
            self.hot, self.count = True, self.count + 1
        return step >= self._next_look

    def look(self, step: int) -> str | None:
        """Return a warning, once, if half-trips stay away; else None."""
        self._plan(step)
        promised, over = self.promised(step), step == self._end
        missed = promised >= _LOOK and self.count < _MISSED * promised and not self._missed
        few = over and self.count < TRIPS and not self.warned
        if not missed and not few:
            return None
        self.warned, self._missed = True, missed
        return f"{self.count} half-trips in {step - self._begin} steps, where {promised:.3g} were promised"

    def made_up(self, step: int) -> bool:
        """True if at the end there are enough half-trips after all, although a warning was given."""
        return step == self._end and self.warned and self.count >= TRIPS

    def _plan(self, step: int) -> None:
        every = max(int(_LOOK * self._length), 1)
        self._next_look = self._begin + every * ((step - self._begin) // every + 1)
        if step < self._end:
            self._next_look = min(self._next_look, self._end)

    @property
    def numbers(self) -> list[float]:
        """Numbers that say which warnings were given; the rest follows from the calibration."""
        return [float(self.warned), float(self._missed)]

    def go_on(self, count: int, hot: bool, said: Sequence[float], step: int) -> None:
        """Take over what a state has; the promise has been made again."""
        self.count, self.hot = count, hot
        self.warned, self._missed = map(bool, said)
        self._plan(step)
