"""What a step of CTLD did: a record for logs and diagnostics, no part of the state."""

from typing import NamedTuple

from ctld.optimizers.thermometers import GroupTemperatures


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
