"""Record of a step of CTLD, with its energies: for logs and diagnostics, no part of the state."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from ctld.stepping.active import Active
from ctld.thermometers import ExploringGroup, GroupTemperatures, Thermometers

Measured = tuple[Sequence[ExploringGroup], Sequence[Sequence[float]], float, float, float]
"""Measurements that `Energies` are made from."""
LastStep = tuple[float | None, float, Measured | None, float | None]
"""α, 1/g(α), what was measured and the force on α: all that a step keeps for its record."""


class StepRecord(NamedTuple):
    """Record of the last step, for logs and diagnostics. In fine-tuning α is frozen, the ratio 1, the temperatures those of the
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
    """Temperatures so far of each group that has explored, in units of T/g(α), with errors; None for the others."""
    steps_since_cold: int | None = None
    """Number of steps since the last one that explored at T itself, g(α) = 1: 0 is this one. None if there was none."""

    @classmethod
    def of(cls, last: LastStep, thermometers: Thermometers, steps: int) -> "StepRecord":
        """Return the record of the last step, when `steps` are done."""
        alpha, ratio, measured, force = last
        groups = thermometers.temperatures
        since = None if thermometers.last_cold_step < 0 else steps - 1 - thermometers.last_cold_step
        if measured is None:
            return cls(alpha, ratio, groups=groups, steps_since_cold=since)
        found = Energies(*measured)
        return cls(alpha, ratio, found.potential, found.kinetic_temperature, found.hamiltonian, force, groups, since)


class ExploringGroups(NamedTuple):
    """The groups that explore, of those that are active."""

    active: Active
    groups: tuple[ExploringGroup, ...]
    moving: bool
    """True if one has lr > 0."""

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]], active: Active) -> "ExploringGroups":
        """Return the groups of an optimizer that explore."""
        found = []
        for number, (group, members) in enumerate(zip(groups, active.groups, strict=True)):
            if group["explore"]:
                lr, momentum, decay = (float(group[name]) for name in ("lr", "momentum", "weight_decay"))
                found.append(ExploringGroup(number, lr, momentum, decay, members.numel if lr > 0 else 0))
        return cls(active, tuple(found), any(group.lr > 0 for group in found))


class Energies:
    """The energies of a step: prior and loss at the parameters before it, momenta after the kick.

    They are added up when somebody asks: where α moves in the kernel, few steps do.

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
        """Number of elements that moved."""
        return sum(group.elements for group in self._groups)

    @property
    def clamped(self) -> float:
        """Number of noise variances that were clamped at zero."""
        return sum(row[3] for row in self._sums)
