"""Temperings by name, for those who do not want to build one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ctld.tempering import TemperatureControl, Tempering
from ctld.tempering.falling import FallingTemperature

Named = Literal["constant", "falling", "driven", "calibrated", "paper"]

# By name, what is made for so many exploration steps a cycle; None is what CTLD makes itself, the paper's.
_MAKERS: dict[str, Callable[[int], Any]] = {
    "constant": lambda steps: Tempering.constant(),
    "falling": FallingTemperature,
    "driven": lambda steps: Tempering.driven(2 * steps),  # α once up and down in each exploration
    "calibrated": lambda steps: Tempering.calibrated(),
    "paper": lambda steps: None,
}


def named_tempering(tempering: Named | TemperatureControl, exploration_steps: int) -> TemperatureControl | None:
    """Returns the tempering of this name, for so many exploration steps a cycle; an object is taken as it is."""
    if not isinstance(tempering, str):
        return tempering
    if tempering not in _MAKERS:
        raise ValueError(f"tempering = {tempering!r} is unknown; give one of {', '.join(map(repr, _MAKERS))}")
    made: TemperatureControl | None = _MAKERS[tempering](max(exploration_steps, 1))
    return made
