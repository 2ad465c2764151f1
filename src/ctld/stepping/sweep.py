"""Plans: the step of one group of parameters as numbers, without tensors or devices.

A sweep is one pass over memory,

    ∇ = ±∇loss + decay·θ,     p ← retain·p + impulse·s∇ + deviation·√s·ε,     θ ← θ + stride·p

s being 1, or a scale for each element: the inverse of its mass, so that its share of the kinetic energy is p²/s. A plan is a
list of sweeps and what is to be known of them; `ctld.stepping.engine` carries plans out.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Sums = tuple[float, float, float, float] | Tensor
"""Σθ² before the step, Σp²/s, Σ(p before + p after)²/s, and how many noise variances were clamped; numbers, or on a device."""

NONE = (0.0, 0.0, 0.0, 0.0)

SECOND_NOISE = 1 << 61  # flips a bit of the seed


class Sweep(NamedTuple):
    """One pass over memory."""

    retain: float
    impulse: float
    """On the gradient. 0: the gradient is not read."""
    stride: float
    deviation: float = 0.0
    """Deviation of the noise; at 0 none is drawn."""
    second_noise: bool = False
    """True to draw a second number for each element, under the seed with another bit."""


class Compensation(NamedTuple):
    """Inject sqrt(variance − lr·Var(∇)) in place of a common deviation; see `ctld.compensation`."""

    lr: float
    variance: float


class Reading(NamedTuple):
    """Reading of a plan: how the sums of its sweeps become the sums of its group."""

    kind: str = "only"
    """Sums to use: of the "only" sweep, of the "last" sweep, or the "mean" of kinetic energies around a refreshment."""
    times: float = 1.0
    """Factor on the first sweep's Σp²."""
    over: float = 1.0
    """Divisor of the second sweep's."""

    def __call__(self, rows: Sequence[Any]) -> Sums:
        """Return the four sums."""
        if self.kind == "only":
            made: Sums = rows[0]
            return made
        kinetic = rows[1][1] / self.over
        if self.kind == "mean":
            refreshed, kinetic = kinetic, self.times * rows[0][1]
            midpoint = 2.0 * (kinetic + refreshed)
        else:
            midpoint = 4.0 * kinetic
        if isinstance(kinetic, Tensor):
            return torch.stack((rows[0][0], kinetic, midpoint, torch.zeros_like(kinetic)))
        return rows[0][0], kinetic, midpoint, 0.0


ONLY = Reading()


class Plan(NamedTuple):
    """A step of one group."""

    sweeps: tuple[Sweep, ...]
    """None: the group rests, and its sums are made all the same."""
    decay: float = 0.0
    """Decay of the prior, whose gradient decay·θ enters the sweeps that have an impulse."""
    ascend: bool = False
    measure: bool = False
    """True if sums are wanted; of a plan with a compensation the number of clamped variances is known in any case."""
    scaled: bool = False
    """True if s is `state["scale"]` of each parameter."""
    compensation: Compensation | None = None
    reading: Reading = ONLY


class PsgldPlan(NamedTuple):
    """V ← σV + (1 − σ)∇²,  s = 1/(λ + √V),  θ ← θ − lr·s∇ + deviation·√s·ε; V is `state["square_average"]`."""

    lr: float
    deviation: float
    smoothing: float
    epsilon: float
    adapt: bool = True
    decay: float = 0.0
    ascend: bool = False


class SantaPlan(NamedTuple):
    """V ← σV + (1 − σ)∇²,  g = 1/√(λ + √V),  then u, ξ and θ by one of two schemes; see `ctld.optimizers.santa`.

    V, ξ and u are "square_average", "thermostat" and "momentum_buffer" of the state, whose "steps" the engine counts.
    """

    lr: float
    target: float
    """η/β: what u² should be."""
    variance: float
    """Variance of the noise, over g of the step before."""
    smoothing: float
    epsilon: float
    symmetric: bool
    """The symmetric splitting, or Euler's scheme."""
    exploring: bool
    """True if ξ moves and there is noise."""
    adapt: bool = True
    decay: float = 0.0
    ascend: bool = False


AnyPlan = Plan | PsgldPlan | SantaPlan
