"""Checks of what a user hands over: each error names the value and the remedy, each warning points at the user's line."""

import math
import operator
import sys
import warnings
from numbers import Integral, Real
from typing import Any


class NonFiniteError(ValueError):
    """A loss or a gradient is NaN or infinite. Nothing was changed: catch this to skip the batch."""


class DisagreementError(RuntimeError):
    """Ranks that should be one run are not: another seed, step, temperature or α on some."""


DriftError = DisagreementError
"""What version 0.1 called it."""


class TemperatureWarning(UserWarning):
    """What is sampled has another temperature than it should, by the thermometers of the run."""


def real(
    name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> float:
    """`value` as a float, if it is a finite number within the bounds; else an error that says which bounds.

    One-element tensors count as numbers: torch's optimizers take a tensor as lr.
    """
    item = getattr(value, "item", None)
    number = item() if item is not None and getattr(value, "ndim", 0) == 0 else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name} = {value!r} is not a number; give {_range(at_least, above, below)}")
    try:
        number = float(number)
    except OverflowError:
        raise ValueError(f"{name} is beyond the largest float; give {_range(at_least, above, below)}") from None
    if not (math.isfinite(number) and number >= at_least and number > above and number < below):
        raise ValueError(f"{name} = {number!r} is out of range; give {_range(at_least, above, below)}")
    return number


def integer(name: str, value: Any, *, at_least: int) -> int:
    """`value` as an int, if it is a whole number and large enough."""
    if isinstance(value, bool) or not isinstance(value, Integral | float) or not float(value).is_integer():
        raise TypeError(f"{name} = {value!r} is not a whole number; give an int >= {at_least}")
    number = int(float(value)) if isinstance(value, float) else operator.index(value)
    if number < at_least:
        raise ValueError(f"{name} = {number} is out of range; give an int >= {at_least}")
    return number


def flag(name: str, value: Any) -> bool:
    """`value`, if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} = {value!r} is neither True nor False; give one of them")
    return value


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """A warning that is attributed to the nearest caller outside this package and torch, whose step wrappers come between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("ctld", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _range(at_least: float, above: float, below: float) -> str:
    bounds = []
    if above > -math.inf:
        bounds.append(f"> {above:g}")
    elif at_least > -math.inf:
        bounds.append(f">= {at_least:g}")
    if below < math.inf:
        bounds.append(f"< {below:g}")
    return "a finite number" + (" " + " and ".join(bounds) if bounds else "")
