"""Schedules of step sizes, temperatures and noise: each a pure function of the step t = 0, 1, 2, ...

A schedule of a step size is a factor on the group's lr, so that torch's LR schedulers go on working beside it. What the
functions here return can be copied and pickled with the optimizer that holds it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ctld.checks import integer, real

Schedule = Callable[[int], float]


def schedule(name: str, value: Any) -> Schedule:
    """`value`, if it can be called with a step."""
    if not callable(value):
        raise TypeError(
            f"{name} = {value!r} is not a schedule; give a function of the step, such as ctld.schedules.constant(1.0)"
        )
    return value  # type: ignore[no-any-return]


def described(value: Schedule) -> str | None:
    """Return a schedule of this module as text, by which a state is known to fit; None for a function of the user's own."""
    if not isinstance(value, partial) or value.func.__module__ != __name__:
        return None
    arguments = (described(a) if callable(a) else repr(a) for a in value.args)
    return f"{value.func.__name__}({', '.join(map(str, arguments))})"


def constant(value: float = 1.0) -> Schedule:
    """Return a schedule with the same value at every step."""
    return partial(_constant, real("value", value, at_least=0))


def _constant(value: float, step: int) -> float:
    return value


def welling_teh(offset: float, exponent: float = 0.55) -> Schedule:
    """(1 + t/offset)^−exponent: Welling and Teh's ε_t = a(b + t)^−γ, relative to its first step; γ in (0.5, 1]."""
    offset = real("offset", offset, above=0)
    exponent = real("exponent", exponent, above=0.5)
    if exponent > 1:
        raise ValueError(
            f"exponent = {exponent} is out of range; the steps must add up to infinity: give 0.5 < exponent <= 1"
        )
    return partial(_welling_teh, offset, exponent)


def _welling_teh(offset: float, exponent: float, step: int) -> float:
    return float((1.0 + step / offset) ** -exponent)


def logarithmic_cooling(scale: float) -> Schedule:
    """T(t) = c/log(2 + t), slow enough for simulated annealing to find the global minimum if c is large enough."""
    return partial(_logarithmic_cooling, real("scale", scale, at_least=0))


def _logarithmic_cooling(scale: float, step: int) -> float:
    return scale / math.log(2.0 + step)


def polynomial_cooling(scale: float, offset: float = 1.0, exponent: float = 0.55) -> Schedule:
    """T(t) = c/(a + t)^b, b in (0.5, 1): faster, with no guarantee."""
    scale, offset = real("scale", scale, at_least=0), real("offset", offset, above=0)
    return partial(_polynomial_cooling, scale, offset, real("exponent", exponent, above=0.5, below=1))


def _polynomial_cooling(scale: float, offset: float, exponent: float, step: int) -> float:
    return float(scale / (offset + step) ** exponent)


def annealed_variance(scale: float, exponent: float = 0.55) -> Schedule:
    """s²(t) = scale/(1 + t)^exponent, of the noise that AnnealSGD adds to gradients."""
    scale = real("noise_scale", scale, at_least=0)
    return partial(_polynomial_cooling, scale, 1.0, real("exponent", exponent, at_least=0))


def polynomial_growth(scale: float, exponent: float) -> Schedule:
    """β(t) = A (1 + t)^γ, Santa's inverse temperature; its first step is t = 1."""
    return partial(_polynomial_growth, real("scale", scale, above=0), real("exponent", exponent, at_least=0))


def _polynomial_growth(scale: float, exponent: float, step: int) -> float:
    return float(scale * (1.0 + step) ** exponent)


def cycle_position(num_steps: int, num_cycles: int) -> Schedule:
    """Return the position of a step in its cycle, in [0, 1): ⌈num_steps/num_cycles⌉ steps to a cycle, going on for ever."""
    num_steps = integer("num_steps", num_steps, at_least=1)
    return partial(_cycle_position, -(-num_steps // integer("num_cycles", num_cycles, at_least=1)))


def _cycle_position(length: int, step: int) -> float:
    return (step % length) / length


def cosine_cycles(num_steps: int, num_cycles: int) -> Schedule:
    """½(cos(π·position) + 1): from 1 down towards 0 in each cycle (Zhang et al. 2020)."""
    return partial(_cosine_cycles, cycle_position(num_steps, num_cycles))


def _cosine_cycles(position: Schedule, step: int) -> float:
    return 0.5 * (math.cos(math.pi * position(step)) + 1.0)
