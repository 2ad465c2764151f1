"""Share of the minibatches' heat that stays in the parameters when batches come in reshuffled epochs.

Over an epoch the noises of the gradients add up to zero. What stays is the share of the variance of θ that lies within an
epoch, 1 − Var(mean of an epoch)/Var θ (`ctld.diagnostics.batch_order` has the law). It is read from a few random projections
of θ, at evenly spaced steps of some epochs; the last of them count, so that the way to equilibrium is forgotten.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ctld.thermometers.probe import PROJECTIONS

LOOKS = 8
"""At θ, in an epoch that is watched."""
SHARE = 8
"""At one step of so many there is a look, at most."""
KEPT, FEWEST = 32, 12
"""Epochs that count, and with how many there is an answer."""


class EpochShare:
    """Means and variances of the projections of a group within epochs."""

    NUMBERS = 2 + LOOKS * PROJECTIONS + 2 * KEPT * PROJECTIONS

    def __init__(self) -> None:
        self._looks: list[list[float]] = []
        self._epochs: list[tuple[list[float], list[float]]] = []

    def add(self, projections: Sequence[float], *, first: bool, looks: int) -> None:
        """Take in the projections of a look, the `first` of its epoch or not; an epoch has so many `looks`."""
        if first:
            self._looks = []
        elif not self._looks:
            return  # the epoch was entered in its middle
        self._looks.append([float(value) for value in projections])
        if len(self._looks) == looks:
            seen = np.array(self._looks)
            self._epochs = [*self._epochs[-(KEPT - 1) :], (seen.mean(axis=0).tolist(), seen.var(axis=0).tolist())]
            self._looks = []

    @property
    def share(self) -> float | None:
        """The share of the variance within an epoch, pooled over projections; None while too few epochs were seen."""
        if len(self._epochs) < FEWEST:
            return None
        means, within = (np.array([epoch[part] for epoch in self._epochs]) for part in (0, 1))
        inside, between = within.mean(axis=0).sum(), means.var(axis=0, ddof=1).sum()
        return float(inside / (inside + between)) if inside > 0 else None

    @property
    def numbers(self) -> list[float]:
        """Contents, as always the same number of floats."""
        looks = _padded(self._looks, LOOKS)
        means = _padded([epoch[0] for epoch in self._epochs], KEPT)
        within = _padded([epoch[1] for epoch in self._epochs], KEPT)
        rows = np.concatenate([looks, means, within]).reshape(-1).tolist()
        return [float(len(self._looks)), float(len(self._epochs)), *rows]

    @numbers.setter
    def numbers(self, values: Sequence[float]) -> None:
        count, epochs = int(values[0]), int(values[1])
        rows = np.array(values[2:]).reshape(-1, PROJECTIONS).tolist()
        self._looks = rows[:count]
        means, within = rows[LOOKS : LOOKS + KEPT], rows[LOOKS + KEPT :]
        self._epochs = list(zip(means[:epochs], within[:epochs], strict=True))


def place_of(step: int, steps_per_epoch: int) -> tuple[int, int] | None:
    """Return the number of a look and how many its epoch has; None if there is no look after this step."""
    epoch, place = divmod(step, steps_per_epoch)
    places = _places(steps_per_epoch)
    number = places.get(place)
    if number is None or epoch % max(1, -(-SHARE * len(places) // steps_per_epoch)):
        return None
    return number, len(places)


@cache
def _places(steps_per_epoch: int) -> dict[int, int]:
    """Return the places in an epoch at which there is a look, and their numbers."""
    looks = min(LOOKS, steps_per_epoch)
    return {(2 * number + 1) * steps_per_epoch // (2 * looks): number for number in range(looks)}


def _padded(rows: list[list[float]], count: int) -> NDArray[np.float64]:
    found = np.zeros((count, PROJECTIONS))
    if rows:
        found[: len(rows)] = rows
    return found
