"""One step of the momenta and parameters of a group, from one gradient.

In units of u = r/√N, with the mean loss's gradient ∇, temperature variance τ = T/(gN), μ = momentum:

    euler   u ← μ u − √lr ∇ + sqrt(2(1 − μ)τ) ε;  θ ← θ + √lr u                                   (the paper's)
    baoab   u ← u − k ∇;  θ ← θ + k u/2;  u ← μ u + sqrt((1 − μ²)τ) ε;  θ ← θ + k u/2,   k = sqrt(2 lr/(1 + μ))

    ubu     u ← u − k ∇;  then (θ, u) by the exact law of free motion with friction and noise,    k = sqrt(lr ln(1/μ)/(1 − μ))

BAOAB (Leimkuhler and Matthews 2013) kicks by half at the end of one step and by half at the beginning of the next: here that is
one kick, since both have the same gradient. k makes lr and momentum mean what they mean in SGD: without noise the path is
SGD's. Its θ has the exact variance on a Gaussian at any stable step, Euler's is too large by 1/(1 − lr·curvature/(2(1 + μ))).

UBU (Sanz-Serna and Zygalakis 2021) moves freely for half a step, kicks, and moves freely for another half. The parameters rest
where the gradient is taken, in the middle, so two halves are one whole. Free motion has noise in θ and u, correlated; here it
is two passes with a normal number each. It is of strong order two where the others are of order one; at the same step its
variance on a Gaussian is too large by lr·curvature/12, a third of Euler's error.

Where the potential alone is tempered, momenta are multiplied by `before` and `after` as α moves within the step.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ctld.dynamics import Compensation, Noise
from ctld.movers import Movers

INTEGRATORS = ("euler", "baoab", "ubu")

_SECOND_NOISE = 1 << 61  # flips a bit of the seed


@dataclass(slots=True)  # not frozen: that takes three times as long to make, at every step
class Settings:
    """Of a group, in one step."""

    lr: float
    momentum: float
    heat: float
    """τ: what the variance of u should be."""
    decay: float
    ascend: bool
    before: float = 1.0
    after: float = 1.0
    compensate: bool = False

    def step(self, integrator: str, movers: Movers, source: Noise, *, check: bool, refused: Tensor | None) -> Any:
        """Four sums: Σθ² before, Σu² that the energy takes, Σu² that the thermometer reads (× 4), noise variances clamped.

        None if the gradients were looked at, and not finite: then nothing has changed.
        """
        if integrator == "euler":
            return self._euler(movers, source, check=check, refused=refused)
        scheme = self._baoab if integrator == "baoab" else self._ubu
        return scheme(movers, source, refused=refused)

    def _euler(self, movers: Movers, source: Noise, *, check: bool, refused: Tensor | None) -> Any:
        variance = 2.0 * (1.0 - self.momentum) * self.heat
        if self.compensate:
            movers.compensate(Compensation(self.lr, variance))
        scale = self.before * self.after  # both after the drift, which is by the momenta as they were
        return movers.advance(
            source,
            retain=scale * self.momentum,
            impulse=-scale * math.sqrt(self.lr),
            deviation=scale * math.sqrt(variance),
            stride=math.sqrt(self.lr) / scale,
            decay=self.decay,
            ascend=self.ascend,
            measure=True,
            check=check,
            refused=refused,
        )

    def _baoab(self, movers: Movers, source: Noise, *, refused: Tensor | None) -> Any:
        kick = kick_of("baoab", self.lr, self.momentum)
        first: Any = movers.advance(
            None,
            retain=1.0,
            impulse=-kick,
            stride=0.5 * kick * self.before,
            decay=self.decay,
            ascend=self.ascend,
            measure=True,
            refused=refused,
        )
        second: Any = movers.advance(
            source,
            retain=self.before * self.momentum * self.after,
            impulse=0.0,
            deviation=self.after * math.sqrt((1.0 - self.momentum**2) * self.heat),
            stride=0.5 * kick / self.after,
            measure=True,
            refused=refused,
        )
        # Between kick and refreshment u² is too large by as much as it is too small on the step: with what it is after the
        # refreshment, the mean is exact on a Gaussian.
        kinetic, refreshed = self.before**2 * first[1], second[1] / self.after**2
        sums = first[0], kinetic, 2.0 * (kinetic + refreshed), 0.0 * kinetic
        return torch.stack(sums) if isinstance(kinetic, Tensor) else sums

    def _ubu(self, movers: Movers, source: Noise, *, refused: Tensor | None) -> Any:
        kick, motion = kick_of("ubu", self.lr, self.momentum), FreeMotion.over(self.momentum)
        scale = self.before * self.after
        first: Any = movers.advance(
            source,
            retain=1.0,
            impulse=-kick,
            deviation=motion.first * math.sqrt(self.heat),
            stride=kick * (motion.reach - motion.stride * self.momentum),
            decay=self.decay,
            ascend=self.ascend,
            measure=True,
            refused=refused,
        )
        second: Any = movers.advance(
            source._replace(seed=source.seed ^ _SECOND_NOISE),
            retain=self.momentum * scale,
            impulse=0.0,
            deviation=motion.second * math.sqrt(self.heat) * scale,
            stride=kick * motion.stride / scale,
            measure=True,
            refused=refused,
        )
        kinetic = second[1] / scale**2
        sums = first[0], kinetic, 4.0 * kinetic, 0.0 * kinetic
        return torch.stack(sums) if isinstance(kinetic, Tensor) else sums


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
        length = -math.log(momentum)
        reach, lost = (1.0 - momentum) / length, 1.0 - momentum**2
        wander = (2.0 * length - 3.0 + 4.0 * momentum - momentum**2) / length**2
        together = (1.0 - momentum) ** 2 / length
        spread = wander * momentum**2 + reach**2 * lost - 2.0 * together * reach * momentum
        first = max(wander * lost - together**2, 0.0) / spread
        second = lost - momentum**2 * first
        return cls(reach, math.sqrt(first), math.sqrt(second), (together - reach * momentum * first) / second)


def kick_of(integrator: str, lr: float, momentum: float) -> float:
    """k, with which lr and momentum mean what they mean in SGD."""
    if integrator == "ubu":
        return math.sqrt(lr * -math.log(momentum) / (1.0 - momentum)) if momentum else 0.0
    return math.sqrt(2.0 * lr / (1.0 + momentum))


def buffer_unit(integrator: str, lr: float, momentum: float) -> float:
    """What u is a multiple of, in torch's −b: SGD goes on with the velocity that the last step had."""
    return math.sqrt(lr) if integrator == "euler" else momentum * kick_of(integrator, lr, momentum)
