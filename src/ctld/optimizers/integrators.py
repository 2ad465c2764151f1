"""One step of the momenta and parameters of a group, from one gradient.

In units of u = r/√N, with the mean loss's gradient ∇, temperature variance τ = T/(gN), μ = momentum:

    euler   u ← μ u − √lr ∇ + sqrt(2(1 − μ)τ) ε;  θ ← θ + √lr u                                   (the paper's)
    baoab   u ← u − k ∇;  θ ← θ + k u/2;  u ← μ u + sqrt((1 − μ²)τ) ε;  θ ← θ + k u/2,   k = sqrt(2 lr/(1 + μ))

BAOAB (Leimkuhler and Matthews 2013) kicks by half at the end of one step and by half at the beginning of the next: here that is
one kick, since both have the same gradient. k makes lr and momentum mean what they mean in SGD: without noise the path is
SGD's. Its θ has the exact variance on a Gaussian at any stable step, Euler's is too large by 1/(1 − lr·curvature/(2(1 + μ))).

Where the potential alone is tempered, momenta are multiplied by `before` and `after` as α moves within the step.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.dynamics import Compensation, Noise
from ctld.movers import Movers

INTEGRATORS = ("euler", "baoab")


@dataclass(frozen=True, slots=True)
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
        return self._baoab(movers, source, refused=refused)

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
        kick = kick_of(self.lr, self.momentum)
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


def kick_of(lr: float, momentum: float) -> float:
    """k of BAOAB."""
    return math.sqrt(2.0 * lr / (1.0 + momentum))


def buffer_unit(integrator: str, lr: float, momentum: float) -> float:
    """What u is a multiple of, in torch's −b: SGD goes on with the velocity that the last step had."""
    return math.sqrt(lr) if integrator == "euler" else momentum * kick_of(lr, momentum)
