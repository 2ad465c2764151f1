"""SGLD: stochastic gradient Langevin dynamics (Welling and Teh, ICML 2011).

Target: exp(−U/T), U = N·(mean loss + prior), in the limit of small steps.

    θ ← θ − (ε_t/2) ∇U + sqrt(ε_t T) z,     ε_t = a(b + t)^−γ

In SGD's units lr = ε N/2. On a Gaussian of curvature k (of the mean loss) the variance is exactly (T/(Nk))/(1 − lr·k/2).

With `localization` κ a spring holds the parameters near θ₀, where they started. Local learning coefficients are estimated so
(Lau et al. 2023); of devinterp's law exp(−nβL − γ‖θ − θ₀‖²/2), γ is N κ/T and nβ is N/T.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld import schedules
from ctld.checks import real
from ctld.optimizers.sampler import Sampler
from ctld.schedules import Schedule, constant
from ctld.stepping.sweep import AnyPlan, Plan, Sweep


class SGLD(Sampler):
    """Stochastic gradient Langevin dynamics: SGD without momentum, plus noise.

    Parameters
    ----------
    lr, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss; Welling and Teh's ε is 2 lr/num_data.
    num_data : float
        N.
    temperature : float
        T of the sampled exp(−U/T).
    schedule : callable, optional
        Factor on lr at each step; `ctld.schedules.welling_teh(offset, exponent)` is the paper's. Left out: constant.
    localization : float
        κ of a spring to where the parameters started, in the units of weight_decay: U gains N κ‖θ − θ₀‖²/2.
    noise : "gaussian" or "three_point"
        As in `CTLD`.
    seed, process_group
        As in `CTLD`.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        *,
        num_data: float,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        schedule: Schedule | None = None,
        localization: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
        _defaults: dict[str, Any] | None = None,
    ) -> None:
        self.schedule = constant() if schedule is None else schedules.schedule("schedule", schedule)
        defaults = (_defaults or {}) | {"lr": lr, "weight_decay": weight_decay, "maximize": maximize}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group}
        options |= {"num_data": num_data, "temperature": temperature, "localization": localization}
        super().__init__(params, defaults, **options)
        self._start(self.param_groups)

    def _plan(self, group: dict[str, Any]) -> AnyPlan:
        lr, deviation = self._lr_and_deviation(group)
        sweep = Sweep(retain=0.0, impulse=-lr, stride=1.0, deviation=deviation)
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"])

    def _lr_and_deviation(self, group: dict[str, Any]) -> tuple[float, float]:
        lr = float(group["lr"]) * real("schedule(step)", self.schedule(self.steps), at_least=0)
        return lr, math.sqrt(2.0 * lr * self._temperature_now() / self.num_data)

    def _temperature_now(self) -> float:
        return self.temperature

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"schedule": schedules.described(self.schedule)}

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        self.state[parameter] = {}  # an entry keeps checkpointers from making a step of their own
