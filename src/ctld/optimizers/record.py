"""What a step of CTLD did: its energies, and a record for logs and diagnostics, no part of the state."""

import math
from collections.abc import Iterable, Sequence
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


class Energies(NamedTuple):
    """The energies of a step, over N; prior and loss at the parameters before it, momenta after the kick."""

    potential: float
    """N times the mean loss and the prior."""
    kinetic: float
    """rᵀr/2."""
    kinetic_temperature: float | None
    clamped: float
    """How many noise variances were clamped at zero."""
    dimensions: int
    """How many elements moved."""

    @classmethod
    def of(
        cls, measured: Iterable[tuple[float, int, Sequence[float]]], mean_loss: float, sign: float, num_data: float
    ) -> "Energies":
        """Adds up over groups: weight decay, how many elements moved, and the sums of its sweeps."""
        prior = kinetic = midpoint = clamped = 0.0
        dimensions = 0
        for decay, moved, (squares, after, twice_midpoint, fewer) in measured:
            prior += 0.5 * decay * squares
            kinetic += 0.5 * after
            midpoint += 0.25 * twice_midpoint
            clamped += fewer
            dimensions += moved
        temperature = num_data * midpoint / dimensions if dimensions else None
        return cls(num_data * (sign * mean_loss + prior), num_data * kinetic, temperature, clamped, dimensions)

    def hamiltonian(self, temperature: float) -> float:
        """H/T."""
        return (self.potential + self.kinetic) / temperature

    def checked_sum(self, temperature: float) -> float:
        """Returns H/T, if it is finite."""
        found = self.hamiltonian(temperature)
        if not math.isfinite(found):
            raise FloatingPointError(
                f"the Hamiltonian is {found}: the momenta have diverged and the parameters were moved by them; go back to the "
                "last checkpoint, with a lower lr"
            )
        return found


class Journal:
    """Notes what the last step did, and makes a record of it when somebody asks."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] | None = None

    def note(
        self, alpha: float | None, ratio: float, energies: Energies | None, temperature: float, force: float | None
    ) -> None:
        self._last = alpha, ratio, energies, temperature, force

    def forget(self) -> None:
        self._last = None

    @property
    def hamiltonian(self) -> float | None:
        """H/T of the last step, if it had one."""
        if self._last is None or self._last[2] is None:
            return None
        found: float = self._last[2].hamiltonian(self._last[3])
        return found

    def record(self, thermometers: Thermometers, steps: int) -> StepRecord | None:
        """Returns the record; None before the first step. `steps` are done."""
        if self._last is None:
            return None
        alpha, ratio, energies, temperature, force = self._last
        groups = thermometers.temperatures
        since = None if thermometers.last_cold_step < 0 else steps - 1 - thermometers.last_cold_step
        if energies is None:
            return StepRecord(alpha, ratio, groups=groups, steps_since_cold=since)
        hamiltonian = energies.hamiltonian(temperature)
        measured = energies.potential, energies.kinetic_temperature, hamiltonian, force
        return StepRecord(alpha, ratio, *measured, groups, since)
