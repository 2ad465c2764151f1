"""Checks of what a user hands over: each error names the value and the remedy, each warning points at the user's line."""

import difflib
import functools
import inspect
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any


class NonFiniteError(ValueError):
    """A loss or a gradient is NaN or infinite. Nothing was changed: catch this to skip the batch."""


class DisagreementError(RuntimeError):
    """Ranks that should be one run are not: another seed, step, temperature or α on some."""


DriftError = DisagreementError
"""Name of `DisagreementError` in version 0.1."""


class TemperatureWarning(UserWarning):
    """The thermometers of the run read another temperature than the one to be sampled at."""


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
    try:
        number = float(number)
    except OverflowError:
        raise ValueError(f"{name} is beyond the largest float; give {_range(at_least, above, below)}") from None
    if not (math.isfinite(number) and number >= at_least and number > above and number < below):
        raise ValueError(f"{name} = {number!r} is out of range; give {_range(at_least, above, below)}")
    return number


def integer(name: str, value: Any, *, at_least: int) -> int:
    """`value` as an int, if it is a whole number and large enough."""
    whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
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


IMPLEMENTATIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Options of torch's optimizers that choose how a step is carried out."""


def refuse_options(method: str, options: dict[str, Any], known: Iterable[str] = ()) -> None:
    """Accept torch's choices of an implementation that are off; raise an error for any other option.

    `known` are the names that the method has, to guess which was meant.
    """
    known = sorted(known)
    for name, value in options.items():
        if name in IMPLEMENTATIONS and (value is None or value is False):
            continue
        if name in IMPLEMENTATIONS:
            raise ValueError(
                f"{name} = {value!r} is an implementation of torch's that {method} does not have, nor need: a step is one pass "
                f"over memory by itself. Leave it out, or give {name}=None"
            )
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}" if known else "leave it out"
        raise TypeError(f"{method} has no option {name}; {hint}")


HANDED = frozenset({"self", "params"})
"""Arguments that every constructor takes, and that are never given by name."""


def accepts_torch_options(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return `constructor` with `refuse_options` before it: an unknown option must be off, else an error names it."""
    known = inspect.signature(constructor).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return constructor  # hands them on to one that does

    @functools.wraps(constructor)
    def checked(self: Any, *arguments: Any, **options: Any) -> None:
        foreign = {name: options.pop(name) for name in list(options) if name not in known}
        refuse_options(type(self).__name__, foreign, [name for name in known if name not in HANDED and name[0] != "_"])
        constructor(self, *arguments, **options)

    return checked


def warn_user(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, with the nearest caller outside this package and torch as the place; torch's step wrappers come between."""
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
