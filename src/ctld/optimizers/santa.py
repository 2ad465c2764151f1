"""Santa: stochastic annealing thermostats with adaptive momentum (Chen, Carlson, Gan, Li and Carin, AISTATS 2016).

Exploration samples exp(−β_t U) with a rising inverse temperature β_t = A t^γ; refinement then minimises. With f = ∇U = N ḡ
and η = lr/N,

    V ← σ V + (1 − σ) ḡ²,     g = 1/sqrt(λ + √V)                                 start: u = √η N(0, I), ξ = √η C

    Euler:  ξ ← ξ + u² − η/β;     u ← (1 − ξ) u − η g f + noise;     θ ← θ + g u
    SSS:    θ ← θ + g u/2;  ξ ← ξ + (u² − η/β)/2;  u ← e^{−ξ/2} u;  u ← u − η g f + noise;  u ← e^{−ξ/2} u;
            ξ ← ξ + (u² − η/β)/2;  θ ← θ + g u/2
    refinement: ξ rests, no noise

The SDE in these variables calls for noise of variance 2 η^{3/2} g/β, as the authors' code has it (`noise_variance="sde"`);
`"print"` is 2 η g/β, which other codes use: wrong at any step size, and with Euler without equilibrium for g > ½. (With
the right noise Euler has none for √η g > ½.) g of the noise is the one of the step before (at the first step, its own).
Departures: the two half drifts of SSS around a gradient are taken as one, so that the parameters rest where the next
gradient is due; the term (η/β)(1 − g_{t−1}/g_t)/u is left out, since it blows up at u ≈ 0.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ctld import dynamics
from ctld.checks import integer, real
from ctld.movers import Movers
from ctld.optimizers.sampler import GroupwiseSampler
from ctld.schedules import Schedule, polynomial_growth, schedule


class Santa(GroupwiseSampler):
    """Adaptive momentum with thermostats, annealed, then refined.

    Parameters
    ----------
    lr : float
        On the mean loss: the paper's η is lr/num_data. Steps are scaled by g² ≈ 1/|gradient|, so good values are far
        smaller than SGD's.
    num_data : float
        N.
    exploration_steps : int
        Steps before refinement ("burn-in" in the paper).
    integrator : "sss" or "euler"
        The symmetric splitting, of second order, or the Euler scheme.
    inverse_temperature : callable of the step, optional
        β_t. Left out: `ctld.schedules.polynomial_growth(1.0, 0.5)`.
    friction : float
        C.
    smoothing, epsilon, adapt
        σ and λ of the preconditioner; `adapt=False`, in a group, holds V.
    noise_variance : "sde" or "print"
    weight_decay, maximize, noise, seed, process_group
        As in `CTLD`.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        num_data: float,
        exploration_steps: int,
        integrator: Literal["sss", "euler"] = "sss",
        inverse_temperature: Schedule | None = None,
        friction: float = 5.0,
        smoothing: float = 0.95,
        epsilon: float = 1e-8,
        adapt: bool = True,
        noise_variance: Literal["sde", "print"] = "sde",
        weight_decay: float = 0.0,
        maximize: bool = False,
        noise: str = "gaussian",
        seed: int | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        if integrator not in ("sss", "euler"):
            raise ValueError(f'integrator = {integrator!r} is unknown; give "sss" or "euler"')
        if noise_variance not in ("sde", "print"):
            raise ValueError(f'noise_variance = {noise_variance!r} is unknown; give "sde" or "print"')
        self.exploration_steps = integer("exploration_steps", exploration_steps, at_least=0)
        self.integrator, self.noise_variance = integrator, noise_variance
        self.inverse_temperature = schedule("inverse_temperature", inverse_temperature or polynomial_growth(1.0, 0.5))
        self.friction = real("friction", friction, at_least=0)
        defaults = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
        defaults |= {"smoothing": smoothing, "epsilon": epsilon, "adapt": adapt}
        super().__init__(params, defaults, num_data=num_data, noise=noise, seed=seed, process_group=process_group)
        self._start(self.param_groups)

    @property
    def exploring(self) -> bool:
        """Whether the next step injects noise."""
        return self._step_count < self.exploration_steps

    def _update(self, group: dict[str, Any], movers: Movers) -> None:
        lr = float(group["lr"])
        if lr == 0:
            return  # a velocity in θ's units would coast on
        heat = (
            lr / self.num_data / real("inverse_temperature(step)", self.inverse_temperature(self._step_count), above=0)
        )  # η/β: what u² should be
        source = self._source()
        step = self._symmetric_step if self.integrator == "sss" else self._euler_step
        rows = (movers.parameters, movers.states, movers.streams, movers.blocks, self._gradients(group, movers))
        for parameter, state, stream, block, gradient in zip(*rows, strict=True):
            scale, noise_scale = self._scales(group, state, gradient)
            impulse = gradient.mul(scale).mul_(-lr)
            if self.exploring:
                power = 0.5 if self.noise_variance == "sde" else 0.0
                variance = noise_scale.mul_(2.0 * heat * (lr / self.num_data) ** power)
                dynamics.thermostat(impulse, source.like(impulse, stream, block), deviation=variance.sqrt_())
            step(state["momentum_buffer"], state["thermostat"], impulse, heat)
            parameter.addcmul_(scale.to(parameter.dtype), state["momentum_buffer"].to(parameter.dtype))

    def _euler_step(self, u: Tensor, xi: Tensor, impulse: Tensor, heat: float) -> None:
        if self.exploring:
            xi.add_(u.square()).sub_(heat)
        u.mul_(1.0 - xi).add_(impulse)

    def _symmetric_step(self, u: Tensor, xi: Tensor, impulse: Tensor, heat: float) -> None:
        if self.exploring:
            xi.add_(u.square(), alpha=0.5).sub_(0.5 * heat)
        decay = torch.exp(-0.5 * xi)
        u.mul_(decay).add_(impulse).mul_(decay)
        if self.exploring:
            xi.add_(u.square(), alpha=0.5).sub_(0.5 * heat)

    def _scales(self, group: dict[str, Any], state: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """g of this step and of the one before; at the first step, which has none before, twice the same."""
        square = state["square_average"]
        before = None if state["steps"] == 0 else _scale(square, group["epsilon"])
        if group["adapt"]:
            square.lerp_(gradient.square(), 1.0 - group["smoothing"])
        state["steps"] += 1
        scale = _scale(square, group["epsilon"])
        return scale, scale.clone() if before is None else before

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        real("smoothing", group["smoothing"], at_least=0, below=1)
        real("epsilon", group["epsilon"], above=0)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        u = torch.zeros_like(parameter, dtype=dynamics.momentum_dtype(parameter), requires_grad=False)
        root = math.sqrt(float(group["lr"]) / self.num_data)
        self._heat(u, index, deviation=root)
        self.state[parameter] = {
            "momentum_buffer": u,
            "thermostat": torch.full_like(u, root * self.friction),
            "square_average": torch.zeros_like(u),
            "steps": 0,
        }


def _scale(square: Tensor, epsilon: float) -> Tensor:
    return square.sqrt().add_(epsilon).rsqrt_()
