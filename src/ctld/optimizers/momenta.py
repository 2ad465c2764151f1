"""In which units a group's momentum buffers are: u = v/√lr where noise is injected, torch's b = −v/lr elsewhere.

So a change of lr leaves the paper's r alone while a group explores, and is torch's while it does not; the factor ρ that would
carry a momentum from one lr to the next never has to be computed, and the switch is one multiplication.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ctld.stepping.integrators import buffer_unit

UNITS = {
    "langevin": False,  # whether the momentum buffer holds v/√lr rather than torch's −v/lr
    "momentum_lr": 0.0,  # the last lr > 0 with which the group took a step: turns one into the other
}
"""Entries of a group, as it starts."""


def bring_into_units(
    group: dict[str, Any], state: Mapping[Tensor, dict[str, Any]], *, langevin: bool, integrator: str
) -> None:
    """Converts the momenta of a group, which are in the other units, to those of the step to come."""
    # Before its first step with lr > 0 a group has no velocity.
    unit = buffer_unit(integrator, group["momentum_lr"], float(group["momentum"]))
    factor = (-unit if langevin else -1.0 / unit) if unit else 0.0
    for parameter in group["params"]:
        # What is frozen has no velocity to carry over, and its thermal one would kick it when it thaws.
        if "momentum_buffer" in state[parameter]:
            state[parameter]["momentum_buffer"].mul_(factor if parameter.requires_grad else 0.0)
    group["langevin"] = langevin


def note_lr(groups: list[dict[str, Any]]) -> None:
    """Notes with which lr a step was taken; one at lr = 0 leaves the velocity what it was."""
    for group in groups:
        group["momentum_lr"] = float(group["lr"]) or group["momentum_lr"]
