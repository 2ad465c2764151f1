"""What a step of CTLD did: its energies, and a record for logs and diagnostics, no part of the state."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ctld.thermometers import GroupTemperatures, Thermometers


class StepRecord(NamedTuple):
    """What the last step did, for logs and diagnostics. In fine-tuning α is frozen, the ratio 1, the temperatures those of the
    exploration before, and the rest None."""

    alpha: float | None
    """α after the step; None if the tempering has no `alpha`."""
    temperature_ratio: float
    """1/g(α), the one that multiplied this step's noise."""
    potential: float | None = None
    """Ũ = N·(mean loss + prior) at the parameters before the step."""
    kinetic_temperature: float | None = None
    """Thermometer, target T·temperature_ratio: N‖(u_t + u_{t−1})/2‖²/d, exact on a Gaussian at any stable lr, but for UBU."""
    hamiltonian: float | None = None
    """H in units of T: (potential + kinetic energy after the kick)/T."""
    alpha_force: float | None = None
    """h, the force on α."""
    groups: tuple[GroupTemperatures | None, ...] = ()
    """Of each group that has explored, its temperatures so far, in units of T/g(α), with errors; None for the others."""
    steps_since_cold: int | None = None
    """How many steps ago the last one was that explored at T itself, g(α) = 1: 0 is this one. None if there was none."""


class ExploringGroup(NamedTuple):
    """A group that explores, as numbers, which stay what they were in a step."""

    number: int
    lr: float
    momentum: float
    decay: float
    elements: int
    """How many move: none, at lr = 0."""


class Energies:
    """The energies of a step: prior and loss at the parameters before it, momenta after the kick.

    They are added up when somebody asks: where α moves in the kernel, nobody may.

    Parameters
    ----------
    groups : sequence of ExploringGroup
    sums : sequence of rows of numbers
        The sums of the sweeps of each.
    loss : float
        The mean loss, negative where it is to grow.
    """

    def __init__(
        self,
        groups: Sequence[ExploringGroup],
        sums: Sequence[Sequence[float]],
        loss: float,
        num_data: float,
        temperature: float,
    ) -> None:
        self._groups, self._sums = groups, sums
        self._loss, self._num_data, self._temperature = loss, num_data, temperature

    @cached_property
    def potential(self) -> float:
        """Ũ = N·(loss + prior)."""
        prior = 0.0
        for group, row in zip(self._groups, self._sums, strict=True):
            prior += 0.5 * group.decay * row[0]
        return self._num_data * (self._loss + prior)

    @cached_property
    def hamiltonian(self) -> float:
        """H/T = (Ũ + rᵀr/2)/T."""
        kinetic = 0.0
        for row in self._sums:
            kinetic += 0.5 * row[1]
        return (self.potential + self._num_data * kinetic) / self._temperature

    @property
    def kinetic_temperature(self) -> float | None:
        """N‖(u_t + u_{t−1})/2‖²/d."""
        midpoint = 0.0
        for row in self._sums:
            midpoint += 0.25 * row[2]
        return self._num_data * midpoint / self.dimensions if self.dimensions else None

    @property
    def dimensions(self) -> int:
        """How many elements moved."""
        return sum(group.elements for group in self._groups)

    @property
    def clamped(self) -> float:
        """How many noise variances were clamped at zero."""
        return sum(row[3] for row in self._sums)


def finite(hamiltonian: float) -> float:
    """Returns H/T, or raises an error: momenta that have diverged have moved the parameters already."""
    if not math.isfinite(hamiltonian):
        raise FloatingPointError(
            f"the Hamiltonian is {hamiltonian}: the momenta have diverged and the parameters were moved by them; go back to "
            "the last checkpoint, with a lower lr"
        )
    return hamiltonian


class Journal:
    """Notes what the last step did, and makes a record of it when somebody asks."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] | None = None

    def note(
        self, alpha: float | None, ratio: float, energies: Energies | None = None, force: float | None = None
    ) -> None:
        self._last = alpha, ratio, energies, force

    def forget(self) -> None:
        self._last = None

    @property
    def hamiltonian(self) -> float | None:
        """H/T of the last step, if it had one."""
        if self._last is None or self._last[2] is None:
            return None
        found: float = self._last[2].hamiltonian
        return found

    def record(self, thermometers: Thermometers, steps: int) -> StepRecord | None:
        """Returns the record; None before the first step. `steps` are done."""
        if self._last is None:
            return None
        alpha, ratio, energies, force = self._last
        groups = thermometers.temperatures
        since = None if thermometers.last_cold_step < 0 else steps - 1 - thermometers.last_cold_step
        if energies is None:
            return StepRecord(alpha, ratio, groups=groups, steps_since_cold=since)
        measured = energies.potential, energies.kinetic_temperature, energies.hamiltonian, force
        return StepRecord(alpha, ratio, *measured, groups, since)
