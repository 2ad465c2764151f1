"""AnnealSGD: SGD with annealed gradient noise (Neelakantan et al. 2015, "Adding gradient noise improves learning").

    ḡ ← ∇(mean loss) + N(0, s_t²),     s_t² = noise_scale/(1 + t)^exponent,     then SGD with momentum on ḡ

It minimises; it has no law of its own. The authors try noise_scale 0.01, 0.3 and 1.0 with exponent 0.55.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld.optimizers.sampler import Sampler
from ctld.schedules import annealed_variance, described
from ctld.stepping.foreach import zero_momentum
from ctld.stepping.sweep import Plan, Sweep


class AnnealSGD(Sampler):
    """SGD with momentum on gradients to which noise is added.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`.
    noise_scale, exponent : float
        Of the variance of the noise on each gradient element.
    noise : "gaussian" or "three_point"
        As in `CTLD`.
    seed, process_group
        As in `CTLD`.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.0,
        *,
        noise_scale: float = 0.01,
        exponent: float = 0.55,
        weight_decay: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.noise_variance = annealed_variance(noise_scale, exponent)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, noise=noise, seed=seed, process_group=process_group)
        self._start(self.param_groups)

    def _plan(self, group: dict[str, Any]) -> Plan:
        deviation = math.sqrt(self.noise_variance(self.steps))
        sweep = Sweep(float(group["momentum"]), 1.0, -float(group["lr"]), deviation)
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"])

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"noise_variance": described(self.noise_variance)}

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        zeros = zero_momentum(parameter)
        self.state[parameter] = {"momentum_buffer": zeros}
