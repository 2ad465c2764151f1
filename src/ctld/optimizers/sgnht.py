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

from ctld.checks import real
from ctld.optimizers.sampler import Sampler
from ctld.stepping.active import Active
from ctld.stepping.foreach import wide_dtype, zero_momentum
from ctld.stepping.sweep import Plan, Sums, Sweep


class SGNHT(Sampler):
    """SGHMC with a thermostat; `group["thermostat"]` holds ξ, a tensor on the device.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss; 1 − momentum is the noise's a, and the first ξ.
    num_data : float
        N.
    temperature : float
        T of the sampled exp(−U/T).
    localization : float
        κ of a spring to where the parameters started, in the units of weight_decay: U gains N κ‖θ − θ₀‖²/2.
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
        localization: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group}
        options |= {"num_data": num_data, "temperature": temperature, "localization": localization}
        super().__init__(params, defaults, **options)
        self._start(self.param_groups)

    def _plan(self, group: dict[str, Any]) -> Plan:
        lr = float(group["lr"])
        if lr == 0:
            return Plan(())  # a velocity in θ's units would coast on
        deviation = math.sqrt(2.0 * (1.0 - float(group["momentum"])) * self.temperature * (lr / self.num_data))
        sweep = Sweep(retain=1.0 - float(group["thermostat"]), impulse=-lr, stride=1.0, deviation=deviation)
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"], measure=True)

    def _settle(self, active: Active, sums: list[Sums]) -> None:
        rows = zip(self.param_groups, active.groups, self._over_shards(sums), strict=True)
        for group, members, total in rows:
            if members.numel and float(group["lr"]) > 0:
                excess = total[1] / members.numel - float(group["lr"]) / self.num_data * self.temperature
                # A new tensor each time: a state dict that was taken before keeps its own.
                group["thermostat"] = group["thermostat"] + excess

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if "thermostat" in group:  # not while a group is new
            real("thermostat", group["thermostat"])

    def _start_group(self, group: dict[str, Any]) -> None:
        start = 1.0 - float(group["momentum"])
        group["thermostat"] = torch.tensor(start, dtype=wide_dtype(self._device()), device=self._device())

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        velocity = zero_momentum(parameter)
        deviation = math.sqrt(self.temperature * float(group["lr"]) / self.num_data)
        self._draw_momentum(velocity, index, deviation=deviation)
        self.state[parameter] = {"momentum_buffer": velocity}
