"""SGNHT: stochastic gradient Nosé-Hoover thermostat (Ding, Fang, Babbush, Chen, Skeel and Neven, NIPS 2014).

SGHMC whose friction ξ is a variable: it grows while the momenta are too hot, so that gradient noise of unknown size is
taken out. Target: exp(−U/T), U = N·(mean loss + prior).

    v ← (1 − ξ) v − η ∇U + N(0, 2 a T η),     θ ← θ + v,     ξ ← ξ + vᵀv/d − η T

In SGD's units η = lr/N and a = 1 − momentum, which is also where ξ starts. Each group has a thermostat of its own, over its
d elements; with one group it is the paper's. The thermostat holds ⟨v²⟩ at ηT, and not that of the mid-step velocity, so at
finite steps θ is cold by about ξ/2; it settles within about ξN/(lr·T) steps.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld import dynamics
from ctld.checks import real
from ctld.movers import Movers
from ctld.optimizers.sampler import GroupwiseSampler


class SGNHT(GroupwiseSampler):
    """SGHMC with a thermostat; `group["thermostat"]` holds ξ, a tensor on the device.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss; 1 − momentum is the noise's a, and the first ξ.
    num_data : float
        N.
    temperature : float
        T of the sampled exp(−U/T).
    noise : "gaussian" or "three_point"
        As in `CTLD`.
    seed, process_group
        As in `CTLD`.
    """

    _hidden = frozenset({"thermostat"})

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.temperature = real("temperature", temperature, at_least=0)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, num_data=num_data, noise=noise, seed=seed, process_group=process_group)
        self._start(self.param_groups)

    def _update(self, group: dict[str, Any], movers: Movers) -> None:
        lr = float(group["lr"])
        if lr == 0:
            return  # a velocity in θ's units would coast on
        eta = lr / self.num_data
        sums: Any = movers.advance(
            self._source(),
            retain=1.0 - float(group["thermostat"]),
            impulse=-lr,
            deviation=math.sqrt(2.0 * (1.0 - float(group["momentum"])) * self.temperature * eta),
            stride=1.0,
            decay=float(group["weight_decay"]),
            ascend=group["maximize"],
            measure=True,
        )
        (total,) = self._over_shards([sums])
        if movers.numel:
            # A new tensor each time: a state dict that was taken before keeps its own.
            group["thermostat"] = group["thermostat"] + total[1] / movers.numel - eta * self.temperature

    def _start_group(self, group: dict[str, Any]) -> None:
        start = 1.0 - float(group["momentum"])
        group["thermostat"] = torch.tensor(start, dtype=dynamics.wide_dtype(self._device()), device=self._device())

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        velocity = torch.zeros_like(parameter, dtype=dynamics.momentum_dtype(parameter), requires_grad=False)
        deviation = math.sqrt(self.temperature * float(group["lr"]) / self.num_data)
        self._heat(velocity, index, deviation=deviation)
        self.state[parameter] = {"momentum_buffer": velocity}
