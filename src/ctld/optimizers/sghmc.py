"""SGHMC: stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, ICML 2014, Eq. 15).

Target: exp(−U/T), U = N·(mean loss + prior), in the limit of small steps.

    v ← (1 − a) v − η ∇U + N(0, 2(a T − b̂) η),     θ ← θ + v

In SGD's units η = lr/N and a = 1 − momentum. b̂ is an estimate of the gradient noise, η·N²·Var(∇)/2 for the gradient of the
mean loss, which is taken off the injected noise. On a Gaussian with x = lr·k the law is (T/(Nk))/(1 − x/(2(1 + momentum))).
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld.checks import real
from ctld.optimizers.sampler import Sampler
from ctld.stepping.foreach import zero_momentum
from ctld.stepping.sweep import Plan, Sweep


class SGHMC(Sampler):
    """SGD with momentum, plus the noise that its friction calls for.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss; Chen et al.'s friction is 1 − momentum.
    num_data : float
        N.
    temperature : float
        T of the sampled exp(−U/T).
    noise_estimate : float
        b̂, at most (1 − momentum)·T.
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
        noise_estimate: float = 0.0,
        weight_decay: float = 0.0,
        localization: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.noise_estimate = real("noise_estimate", noise_estimate, at_least=0)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group}
        options |= {"num_data": num_data, "temperature": temperature, "localization": localization}
        super().__init__(params, defaults, **options)
        self._start(self.param_groups)

    def _plan(self, group: dict[str, Any]) -> Plan:
        lr, momentum = self._learning_rate(group), float(group["momentum"])
        if lr == 0:
            return Plan(())  # a velocity in θ's units would coast on
        variance = 2.0 * ((1.0 - momentum) * self._temperature_now() - self.noise_estimate) * lr / self.num_data
        sweep = Sweep(retain=momentum, impulse=-lr, stride=1.0, deviation=math.sqrt(max(variance, 0.0)))
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"])

    def _learning_rate(self, group: dict[str, Any]) -> float:
        return float(group["lr"])

    def _temperature_now(self) -> float:
        return self.temperature

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        largest = (1.0 - float(group["momentum"])) * self.temperature
        if self.noise_estimate > largest:
            raise ValueError(
                f"noise_estimate = {self.noise_estimate} is larger than (1 - momentum)·temperature = {largest:.4g}: there is "
                "less noise to inject than the gradients bring; lower lr, or the momentum"
            )

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"noise_estimate": self.noise_estimate}

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        velocity = zero_momentum(parameter)
        deviation = math.sqrt(self.temperature * float(group["lr"]) / self.num_data)
        self._draw_momentum(velocity, index, deviation=deviation)
        self.state[parameter] = {"momentum_buffer": velocity}
