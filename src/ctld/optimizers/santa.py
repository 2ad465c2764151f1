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

from ctld.checks import flag, real
from ctld.clock import Clock
from ctld.optimizers.sampler import Sampler
from ctld.schedules import Schedule, described, polynomial_growth, schedule
from ctld.stepping.foreach import zero_momentum
from ctld.stepping.sweep import AnyPlan, Plan, SantaPlan


class Santa(Sampler):
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
        clock = Clock(exploration_steps)
        self.integrator, self.noise_variance = integrator, noise_variance
        self.inverse_temperature = schedule("inverse_temperature", inverse_temperature or polynomial_growth(1.0, 0.5))
        self.friction = real("friction", friction, at_least=0)
        defaults = {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
        defaults |= {"smoothing": smoothing, "epsilon": epsilon, "adapt": adapt}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group, "clock": clock}
        super().__init__(params, defaults, num_data=num_data, **options)
        self._start(self.param_groups)

    @property
    def exploration_steps(self) -> int:
        """Steps before refinement."""
        return self.clock.exploration_steps

    @property
    def exploring(self) -> bool:
        """True if the next step injects noise."""
        return self.clock.exploring

    def _plan(self, group: dict[str, Any]) -> AnyPlan:
        lr = float(group["lr"])
        if lr == 0:
            return Plan(())  # a velocity in θ's units would coast on
        beta = real("inverse_temperature(step)", self.inverse_temperature(self.steps), above=0)
        target = lr / self.num_data / beta  # η/β: what u² should be
        power = 0.5 if self.noise_variance == "sde" else 0.0
        return SantaPlan(
            lr,
            target,
            2.0 * target * (lr / self.num_data) ** power,
            group["smoothing"],
            group["epsilon"],
            symmetric=self.integrator == "sss",
            exploring=self.exploring,
            adapt=group["adapt"],
            decay=float(group["weight_decay"]),
            ascend=group["maximize"],
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        real("smoothing", group["smoothing"], at_least=0, below=1)
        real("epsilon", group["epsilon"], above=0)
        flag("adapt", group["adapt"])

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "exploration_steps": self.exploration_steps,
            "integrator": self.integrator,
            "noise_variance": self.noise_variance,
            "friction": self.friction,
            "inverse_temperature": described(self.inverse_temperature),
        }

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        u = zero_momentum(parameter)
        root = math.sqrt(float(group["lr"]) / self.num_data)
        self._draw_momentum(u, index, deviation=root)
        self.state[parameter] = {
            "momentum_buffer": u,
            "thermostat": torch.full_like(u, root * self.friction),
            "square_average": torch.zeros_like(u),
            "steps": 0,
        }
