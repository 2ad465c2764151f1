"""One step of the momenta and parameters of a group, from one gradient: functions from numbers to plans.

In units of u = r/√N, with the mean loss's gradient ∇, τ = T/(gN) that the variance of u should be, μ = momentum:

    euler   u ← μ u − √lr ∇ + sqrt(2(1 − μ)τ) ε;  θ ← θ + √lr u                                   (the paper's)
    baoab   u ← u − k ∇;  θ ← θ + k u/2;  u ← μ u + sqrt((1 − μ²)τ) ε;  θ ← θ + k u/2,   k = sqrt(2 lr/(1 + μ))

    ubu     u ← u − k ∇;  then (θ, u) by the exact law of free motion with friction and noise,    k = sqrt(lr ln(1/μ)/(1 − μ))

BAOAB (Leimkuhler and Matthews 2013) kicks by half at the end of one step and by half at the beginning of the next: here that is
one kick, since both have the same gradient. k makes lr and momentum mean what they mean in SGD: without noise the path is
SGD's. Its θ has the exact variance on a Gaussian at any stable step, Euler's is too large by 1/(1 − lr·curvature/(2(1 + μ))).

UBU (Sanz-Serna and Zygalakis 2021) moves freely for half a step, kicks, and moves freely for another half. The parameters rest
where the gradient is taken, in the middle, so two halves are one whole. Free motion has noise in θ and u, correlated; here it
is two sweeps with a normal number each. At the same step its variance on a Gaussian is too large by lr·curvature/12, a third
of Euler's error.

Where the potential alone is tempered, momenta are multiplied by `before` and `after` as α moves within the step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ctld.stepping.sweep import Compensation, Plan, Reading, Sweep

_MEAN = Reading("mean")


def euler(
    lr: float,
    momentum: float,
    variance: float,
    decay: float = 0.0,
    ascend: bool = False,
    before: float = 1.0,
    after: float = 1.0,
    compensate: bool = False,
    scaled: bool = False,
) -> Plan:
    """Return the plan of the paper's scheme; `variance` is τ."""
    injected = 2.0 * (1.0 - momentum) * variance
    scale = before * after  # both after the drift, which is by the momenta as they were
    root = math.sqrt(lr)
    sweep = Sweep(scale * momentum, -scale * root, root / scale, scale * math.sqrt(injected))
    return Plan((sweep,), decay, ascend, True, scaled, Compensation(lr, injected) if compensate else None)


def baoab(
    lr: float,
    momentum: float,
    variance: float,
    decay: float = 0.0,
    ascend: bool = False,
    before: float = 1.0,
    after: float = 1.0,
    compensate: bool = False,
    scaled: bool = False,
) -> Plan:
    """Return the plan of the splitting; `variance` is τ.

    On the step, between two half kicks, u² is too small. It is read where it is not: before the refreshment and after it, which
    by reversal of time have the same law, on a Gaussian with variance τ at any stable step. Their mean scatters less.
    """
    _refuse(compensate, "baoab")
    kick = kick_of("baoab", lr, momentum)
    first = Sweep(1.0, -kick, 0.5 * kick * before)
    deviation = after * math.sqrt((1.0 - momentum**2) * variance)
    second = Sweep(before * momentum * after, 0.0, 0.5 * kick / after, deviation)
    reading = _MEAN if before == after == 1.0 else Reading("mean", before**2, after**2)
    return Plan((first, second), decay, ascend, True, scaled, None, reading)


def ubu(
    lr: float,
    momentum: float,
    variance: float,
    decay: float = 0.0,
    ascend: bool = False,
    before: float = 1.0,
    after: float = 1.0,
    compensate: bool = False,
    scaled: bool = False,
) -> Plan:
    """Return the plan of free motion between kicks; `variance` is τ."""
    _refuse(compensate, "ubu")
    kick, motion = kick_of("ubu", lr, momentum), FreeMotion.over(momentum)
    scale, root = before * after, math.sqrt(variance)
    first = Sweep(1.0, -kick, kick * (motion.reach - motion.stride * momentum), motion.first * root)
    deviation = motion.second * root * scale
    second = Sweep(momentum * scale, 0.0, kick * motion.stride / scale, deviation, second_noise=True)
    return Plan((first, second), decay, ascend, True, scaled, None, Reading("last", 1.0, scale**2))


@lru_cache(maxsize=256)
def sgd(lr: float, momentum: float, *, decay: float = 0.0, ascend: bool = False) -> Plan:
    """Return SGD with momentum as torch does it, to the last bit; the buffer holds torch's −v/lr."""
    return Plan((Sweep(momentum, 1.0, -lr),), decay, ascend)


def rest(*, decay: float = 0.0, scaled: bool = False) -> Plan:
    """Return the plan of a group that does not move; its energies are measured."""
    return Plan((), decay, measure=True, scaled=scaled)


INTEGRATORS: dict[str, Callable[..., Plan]] = {"euler": euler, "baoab": baoab, "ubu": ubu}


def planned(
    integrator: str,
    lr: float,
    momentum: float,
    variance: float,
    decay: float = 0.0,
    ascend: bool = False,
    before: float = 1.0,
    after: float = 1.0,
    compensate: bool = False,
    scaled: bool = False,
) -> Plan:
    """Return the plan of an integrator, the same object for the same numbers: most steps repeat those of the last.

    Not where momenta are multiplied: those numbers do not come again.
    """
    make = _made if before == after == 1.0 else _make
    return make(integrator, lr, momentum, variance, decay, ascend, before, after, compensate, scaled)


def _make(integrator: str, *numbers: float) -> Plan:
    return INTEGRATORS[integrator](*numbers)


_made = lru_cache(maxsize=256)(_make)


@dataclass(frozen=True, slots=True)
class FreeMotion:
    """u ← u + first·ε₁,  θ ← θ + (reach − stride·μ) u,  u ← μ u + second·ε₂,  θ ← θ + stride·u: in law, free motion for a step.

    With G = ln(1/μ), of unit temperature: θ moves by reach·u = (1 − μ)/G·u and has noise of variance (2G − 3 + 4μ − μ²)/G²;
    that of u has variance 1 − μ²; their covariance is (1 − μ)²/G. Four conditions for four numbers.
    """

    reach: float
    first: float
    second: float
    stride: float

    @classmethod
    @lru_cache(maxsize=64)
    def over(cls, momentum: float) -> "FreeMotion":
        """Return the motion for a step that keeps this share of the momentum."""
        length = -math.log(momentum)
        reach, lost = (1.0 - momentum) / length, 1.0 - momentum**2
        wander = (2.0 * length - 3.0 + 4.0 * momentum - momentum**2) / length**2
        together = (1.0 - momentum) ** 2 / length
        spread = wander * momentum**2 + reach**2 * lost - 2.0 * together * reach * momentum
        first = max(wander * lost - together**2, 0.0) / spread
        second = lost - momentum**2 * first
        return cls(reach, math.sqrt(first), math.sqrt(second), (together - reach * momentum * first) / second)


def kick_of(integrator: str, lr: float, momentum: float) -> float:
    """Return k, with which lr and momentum mean what they mean in SGD."""
    if integrator == "ubu":
        return math.sqrt(lr * -math.log(momentum) / (1.0 - momentum)) if momentum else 0.0
    return math.sqrt(2.0 * lr / (1.0 + momentum))


def buffer_unit(integrator: str, lr: float, momentum: float) -> float:
    """Return the unit of u in torch's −b: SGD goes on with the velocity that the last step had."""
    return math.sqrt(lr) if integrator == "euler" else momentum * kick_of(integrator, lr, momentum)


def _refuse(compensate: bool, integrator: str) -> None:
    if compensate:
        raise ValueError(f'noise compensation goes with integrator="euler", not {integrator!r}')
