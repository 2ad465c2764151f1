"""Temperatures of one group of parameters, from batch means of readings at the lowest temperature that it visits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ctld.diagnostics.errors import Estimate
from ctld.diagnostics.streaming import BatchMeans
from ctld.thermometers.probe import PROJECTIONS

SAME = 1.0 + 1e-6  # within which ratios are one temperature


@dataclass(frozen=True, slots=True)
class GroupTemperatures:
    """A group's temperatures in units of T/g(α), with standard errors; None while there is too little to tell."""

    kinetic: Estimate | None = None
    configurational: Estimate | None = None
    minibatch_heat: Estimate | None = None
    remaining_heat: float | None = None
    """Share of the minibatches' heat that stays in the parameters: 1 for batches drawn with replacement, less for epochs."""

    @property
    def effective(self) -> Estimate | None:
        """The temperature of the parameters, which remember longer than momenta and have less of the heat of epochs.

        It is the kinetic one, unless batches come in epochs and are what heats: then 1 + remaining_heat · minibatch_heat.
        """
        kinetic, heat, share = self.kinetic, self.minibatch_heat, self.remaining_heat
        if kinetic is None or heat is None or share is None or not 0.0 < kinetic.mean - 1.0 < 2.0 * heat.mean:
            return kinetic
        return Estimate(1.0 + share * heat.mean, math.hypot(share * heat.standard_error, kinetic.standard_error))


class ExploringGroup(NamedTuple):
    """A group that explores, as numbers, which stay what they were in a step."""

    number: int
    lr: float
    momentum: float
    decay: float
    elements: int
    """Number of elements that move: none, at lr = 0."""


class GroupThermometer:
    """Thermometer of one group: running averages of its readings."""

    NUMBERS = 3 + 3 * BatchMeans.NUMBERS + 2 * PROJECTIONS

    def __init__(self) -> None:
        self._begin()
        self.lowest_ratio = math.inf
        self.temperatures = GroupTemperatures()
        self.held: list[Tensor] = []
        """Projections of the gradients of the last steps, while a probe is going on."""
        self.identity = 0
        """Which elements they are of."""

    def _begin(self) -> None:
        self.kinetic, self.configurational, self.heat = BatchMeans(10), BatchMeans(2), BatchMeans(1)

    def read(self, kinetic: float, ratio: float) -> bool:
        """Take in the momenta of a step at 1/g = `ratio`; return True if there are new averages."""
        if ratio > self.lowest_ratio * SAME:
            return False
        if ratio * SAME < self.lowest_ratio:
            self._begin()  # all that was read before was at a higher temperature
            self.lowest_ratio = ratio
        if not self.kinetic.add(kinetic):
            return False
        self._average()
        return True

    def read_probe(self, configurational: float, heat: float, ratio: float) -> None:
        """Take in what a probe has found; a heat that is not known is NaN."""
        if ratio <= self.lowest_ratio * SAME:
            self.configurational.add(configurational)
            if not math.isnan(heat):
                self.heat.add(heat)
            self._average()  # now, so that what is known is a function of what is saved

    def hold(self, seen: tuple[int, Tensor] | None) -> None:
        """Hold the elements that were looked at, and their projections; None when a probe is over."""
        if seen is None:
            self.held = []
            return
        self.held = [*(self.held if self.identity == seen[0] else []), seen[1]]
        self.identity = seen[0]

    def _average(self) -> None:
        kinetic, configurational, heat = (part.estimate() for part in (self.kinetic, self.configurational, self.heat))
        self.temperatures = GroupTemperatures(kinetic, configurational, heat)

    @property
    def numbers(self) -> list[float]:
        """Contents, as numbers."""
        parts = self.kinetic, self.configurational, self.heat
        held = [number for row in self.held for number in row.tolist()]
        unused = [0.0] * (2 * PROJECTIONS - len(held))
        means = [number for part in parts for number in part.numbers]
        return [self.lowest_ratio, float(self.identity), float(len(self.held)), *means, *held, *unused]

    @numbers.setter
    def numbers(self, values: Sequence[float]) -> None:
        self.lowest_ratio, self.identity = values[0], int(values[1])
        rest = values[3:]
        for part in (self.kinetic, self.configurational, self.heat):
            part.numbers, rest = rest[: BatchMeans.NUMBERS], rest[BatchMeans.NUMBERS :]
        rows = (rest[:PROJECTIONS], rest[PROJECTIONS:])[: int(values[2])]
        self.held = [torch.tensor(row, dtype=torch.float64) for row in rows]
        self._average()
