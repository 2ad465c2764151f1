"""Second-order Langevin dynamics at constant temperature (Eq. 1 of the CTLD paper): CTLD with g ≡ 1, for ever.

Target: exp(−(U + rᵀr/2)/T), U = N·(mean loss + prior), in the limit of small steps.

    r ← (1 − ηγ) r − η ∇U + sqrt(2ηγT) ε,     θ ← θ + η r

In SGD's units lr = N η² and momentum = 1 − ηγ. The buffer holds u = r/√N = v/√lr, so that a change of lr leaves r alone;
at constant lr the path is SGHMC's.
"""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ctld.optimizers.sampler import Sampler
from ctld.stepping.foreach import zero_momentum
from ctld.stepping.sweep import Plan, Sweep


class Langevin(Sampler):
    """Langevin dynamics with SGD's learning rate and momentum.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss.
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
        lr, momentum = float(group["lr"]), float(group["momentum"])
        decay, ascend = float(group["weight_decay"]), group["maximize"]
        return _plan(lr, momentum, self.temperature, self.num_data, decay, ascend)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        u = zero_momentum(parameter)
        self._draw_momentum(u, index, deviation=math.sqrt(self.temperature / self.num_data))
        self.state[parameter] = {"momentum_buffer": u}


@lru_cache(maxsize=256)
def _plan(lr: float, momentum: float, temperature: float, num_data: float, decay: float, ascend: bool) -> Plan:
    """Return the equations above; the same object for the same numbers, since most steps repeat those of the last."""
    if lr == 0:
        return Plan(())  # neither θ nor r changes
    deviation = math.sqrt(2.0 * (1.0 - momentum) * temperature / num_data)
    sweep = Sweep(retain=momentum, impulse=-math.sqrt(lr), stride=math.sqrt(lr), deviation=deviation)
    return Plan((sweep,), decay=decay, ascend=ascend)
