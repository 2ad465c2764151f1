"""Checks of what a user hands over: each error names the value and the remedy, each warning points at the user's line."""

import math
import operator
import sys
import warnings
from numbers import Integral, Real
from typing import Any


class NonFiniteError(ValueError):
    """A loss or a gradient is NaN or infinite. Nothing was changed: catch this to skip the batch."""


class DriftError(RuntimeError):
    """Ranks that should be one run are not: another seed, step, temperature or α on some."""


class TemperatureWarning(UserWarning):
    """What is sampled has another temperature than it should, by the thermometers of the run."""


def real(
    name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> float:
    """`value` as a float, if it is a finite number within the bounds; else an error that says which bounds.

    Tensors and arrays of one element count as numbers: torch's optimizers take a tensor as lr, of any shape.
    """
    item = getattr(value, "item", None)
    number = item() if item is not None and math.prod(getattr(value, "shape", ())) == 1 else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name} = {value!r} is not a number; give {_range(at_least, above, below)}")
    number = float(number)
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


IMPLEMENTATIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Options of torch's optimizers that choose how a step is carried out."""

_OPTIONS_OF_TORCH = {
    "nesterov": "Nesterov's momentum is no step of Langevin dynamics: leave it out (EAMSGD has it built in)",
    "dampening": "the momentum is torch's with dampening 0: leave it out",
    "betas": "moments of Adam are not kept: give momentum=, or take ctld.create('adam', ...)",
    "amsgrad": "moments of Adam are not kept: take ctld.create('adam', ...)",
    "decoupled_weight_decay": "weight_decay is the Gaussian prior, part of the gradient: leave it out",
    "eps": "nothing is divided by a root of squares: leave it out",
    "alpha": "no average of squares is kept, and alpha is the tempering variable: leave it out",
    "rho": "no average of squares is kept: leave it out",
    "centered": "no average of squares is kept: leave it out",
}


def without_torch_options(method: str, options: dict[str, Any]) -> dict[str, Any]:
    """`options` without those that choose an implementation of torch's and are off; an error for any that asks for more.

    For a constructor that takes `**options` for the sake of code written for torch: whatever comes back is unknown to it.
    """
    for name in IMPLEMENTATIONS & options.keys():
        if options[name]:
            raise ValueError(
                f"{name} = {options[name]!r} is an implementation of torch's that {method} does not have, nor need: a step is "
                f"one pass over memory by itself. Leave it out, or give {name}=None"
            )
    for name in _OPTIONS_OF_TORCH.keys() & options.keys():
        if options[name]:
            raise TypeError(f"{method} has no {name}: {_OPTIONS_OF_TORCH[name]}")
    known = IMPLEMENTATIONS | _OPTIONS_OF_TORCH.keys()
    return {name: value for name, value in options.items() if name not in known}


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
