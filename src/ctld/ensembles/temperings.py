"""Temperings by name, for those who do not want to build one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from ctld.tempering import TemperatureControl, Tempering
from ctld.tempering.falling import FallingTemperature

Named = Literal["constant", "falling", "driven", "calibrated", "paper"]

_WARM_UP = (100, 4000)  # the least that calibrated tempering takes, and its default

# By name, what is made for so many exploration steps a cycle and so many cycles; None is what CTLD makes itself, the paper's.
_MAKERS: dict[str, Callable[[int, int], Any]] = {
    "constant": lambda steps, cycles: Tempering.constant(),
    "falling": lambda steps, cycles: FallingTemperature(steps),
    "driven": lambda steps, cycles: Tempering.driven(2 * steps),  # α once up and down in each exploration
    "calibrated": lambda steps, cycles: Tempering.calibrated(warm_up=_warm_up(steps, cycles)),
    "paper": lambda steps, cycles: None,
}


def _warm_up(steps: int, cycles: int) -> int:
    """Return a warm-up that leaves three quarters of all exploration, and all cycles but the first, to the tempering."""
    least, most = _WARM_UP
    return max(least, min(most, steps, steps * cycles // 4))


def named_tempering(
    tempering: Named | TemperatureControl, exploration_steps: int, cycles: int
) -> TemperatureControl | None:
    """Return the tempering of this name, for a number of exploration steps in each cycle; an object is returned as it is."""
    if not isinstance(tempering, str):
        return tempering
    if tempering not in _MAKERS:
        raise ValueError(f"tempering = {tempering!r} is unknown; give one of {', '.join(map(repr, _MAKERS))}")
    made: TemperatureControl | None = _MAKERS[tempering](max(exploration_steps, 1), cycles)
    return made
