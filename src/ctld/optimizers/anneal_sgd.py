"""AnnealSGD: SGD with annealed gradient noise (Neelakantan et al. 2015, "Adding gradient noise improves learning").

    ḡ ← ∇(mean loss) + N(0, s_t²),     s_t² = noise_scale/(1 + t)^exponent,     then SGD with momentum on ḡ

It minimises; it has no law of its own. The authors try noise_scale 0.01, 0.3 and 1.0 with exponent 0.55.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld import dynamics
from ctld.movers import Movers
from ctld.optimizers.sampler import GroupwiseSampler
from ctld.schedules import annealed_variance


class AnnealSGD(GroupwiseSampler):
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

    def _update(self, group: dict[str, Any], movers: Movers) -> None:
        deviation = math.sqrt(self.noise_variance(self._step_count))
        movers.advance(
            self._source() if deviation else None,
            retain=float(group["momentum"]),
            impulse=1.0,
            deviation=deviation,
            stride=-float(group["lr"]),
            decay=float(group["weight_decay"]),
            ascend=group["maximize"],
        )

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        zeros = torch.zeros_like(parameter, dtype=dynamics.momentum_dtype(parameter), requires_grad=False)
        self.state[parameter] = {"momentum_buffer": zeros}
