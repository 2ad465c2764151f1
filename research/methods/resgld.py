"""Replica-exchange SGLD (Deng, Feng, Gao, Liang and Lin, ICML 2020), with momentum.

Two chains, at T and at ratio·T. With U₁ and U₂ the potentials of the cold and the hot one, before they move,

    δ = (1 − 1/ratio)·(U₁ − U₂)/T,     swap if log u < δ − s²/2,     u uniform in (0, 1)
    v_i ← momentum·v_i − lr·∇_i + √(2(1 − momentum)·lr·T_i/N)·ε_i,     θ_i ← θ_i + v_i

at the temperatures after the swap; each velocity is multiplied by the root of new over old T. s² is the variance of δ that
minibatches make, from second differences of U₁ − U₂; with Gaussian noise of that variance the law is exact up to the step
(research/methods/README.md). Second differences see the chains' own motion too: take a small lr, or a momentum of 0.9,
or swaps are too rare and the cold chain is too narrow. Target: exp(−U/T) for the cold chain,
exp(−U/(ratio·T)) for the hot one. momentum = 0 is the paper's SGLD.

**A step of both chains is two calls of `step`, and two gradients.** The model holds the cold parameters, then, for the second
gradient, the hot ones; after the second call both have moved and it holds the cold ones again: draws count where
`temperature_ratio` is 1. So every loop will do, and a call costs one gradient, as with other methods. Give both calls the same
batch if you can: what counts is the noise of the difference. Buffers of the model, as batch norm has, are shared by both.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ctld.checks import integer, real
from ctld.noise import ALPHA, scalar_normal
from ctld.optimizers import (
    Active,
    Facts,
    Noise,
    Observation,
    Part,
    Plan,
    Sampler,
    Sweep,
    local,
    momentum_dtype,
    run,
    zero_momentum,
)

_MEMORY = 1000
_FEWEST = 10
"""Second differences before the first swap: a variance that is not known cannot be corrected for."""
_OTHERS = 1 << 31  # initial momenta of the second chain are numbered from here


class Exchange:
    """Whose turn it is, the potential of the chain that had its own, s² and what it is made from, and counts."""

    def __init__(self) -> None:
        self.waiting = False
        """Whether the cold chain has been seen and the hot one has not."""
        self.cold = 0.0
        self.before, self.known = (0.0, 0.0), 0
        """Differences U₁ − U₂ of the last steps, in units of T, of the chains as they are named now; how many there are."""
        self.variance, self.terms = 0.0, 0
        self.tries = self.swaps = 0

    def decide(self, cold: float, hot: float, factor: float, uniform: float, divisor: float) -> bool:
        """True if the chains swap, given U/T of both; `factor` is 1 − 1/ratio."""
        difference = cold - hot
        if self.known == 2:
            self.terms += 1
            square = (difference - 2.0 * self.before[0] + self.before[1]) ** 2 / 6.0
            self.variance += (square - self.variance) / min(self.terms, _MEMORY)
        self.before, self.known = (difference, self.before[0]), min(self.known + 1, 2)
        if self.terms < _FEWEST or not factor:
            return False
        self.tries += 1
        if math.log(uniform) >= factor * difference - 0.5 * factor**2 * self.variance / divisor:
            return False
        self.swaps += 1
        # The chains go on, under each other's name. To forget what was seen of them would leave out of s² the very terms whose
        # noise made a swap likely, and s² would be too small.
        self.before = (-self.before[0], -self.before[1])
        return True

    def state_dict(self) -> dict[str, Any]:
        counts = {"waiting": int(self.waiting), "known": self.known, "terms": self.terms}
        counts |= {"tries": self.tries, "swaps": self.swaps}
        numbers = {"cold": self.cold, "last": self.before[0], "last_but_one": self.before[1], "variance": self.variance}
        return counts | numbers

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        waiting, known, *counts = (
            integer(name, state_dict[name], at_least=0) for name in ("waiting", "known", "terms", "tries", "swaps")
        )
        if waiting > 1 or known > 2:
            raise ValueError(f"the state has waiting = {waiting}, known = {known}; load one that was saved")
        cold, *before = (real(name, state_dict[name]) for name in ("cold", "last", "last_but_one"))
        self.variance = real("variance", state_dict["variance"], at_least=0)
        self.waiting, self.known, self.cold, self.before = bool(waiting), known, cold, (before[0], before[1])
        self.terms, self.tries, self.swaps = counts


class ReSGLD(Sampler):
    """Two chains that swap temperatures; needs the loss. Draws count where `temperature_ratio` is 1, every second call.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss, for both chains.
    num_data : float
        N.
    temperature : float
        T of the cold chain. 0 gives no noise, and no swaps.
    ratio : float
        Of the hot chain's temperature to T.
    biased_divisor : float
        Divides s²/2, the paper's F. Anything but 1 swaps more often than the law allows, and heats the cold chain.
    noise, seed, process_group
        As in `CTLD`.
    """

    reads_loss = check_gradients = True

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        ratio: float = 2.0,
        biased_divisor: float = 1.0,
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.ratio = real("ratio", ratio, at_least=1)
        self.biased_divisor = real("biased_divisor", biased_divisor, at_least=1)
        self.exchange = Exchange()
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group}
        super().__init__(params, defaults, num_data=num_data, temperature=temperature, **options)
        self._start(self.param_groups)

    @property
    def temperature_ratio(self) -> float:
        """1 while the model holds the cold parameters, else `ratio`."""
        return self.ratio if self.exchange.waiting else 1.0

    @property
    def swaps(self) -> int:
        """How often the chains have swapped."""
        return self.exchange.swaps

    @property
    def is_draw(self) -> bool:
        return super().is_draw and not self.exchange.waiting

    @torch.no_grad()
    def _move(self, active: Active, seen: Observation | None) -> None:
        assert seen is not None, "every step reads the loss"
        if all(float(group["lr"]) == 0 for group in self.param_groups):
            return
        exchange, owners = self.exchange, [owner for group in active.groups for owner in group.owners]
        if not exchange.waiting:
            for owner in owners:
                self.state[owner]["other_gradient"].copy_(owner.grad)
            exchange.waiting, exchange.cold = True, seen.potential
            self._trade()
            return
        swap, factor = False, 1.0 - 1.0 / self.ratio
        if self.temperature > 0:
            unit, normal = self.num_data / self.temperature, scalar_normal(self.seed, ALPHA, self.steps)
            uniform = max(0.5 * math.erfc(-normal / math.sqrt(2.0)), 1e-300)
            energies = unit * exchange.cold, unit * seen.potential
            swap = exchange.decide(*energies, factor, uniform, self.biased_divisor)
        if swap:
            for _, _, parameter in self._enumerate():
                if state := self.state.get(parameter):  # what is frozen has none
                    state["momentum_buffer"].mul_(self.ratio**-0.5)
                    state["other_momentum"].mul_(self.ratio**0.5)
        # First those in the model, which were hot; then the others, at the gradients that were kept.
        self._advance(active, cold=swap)
        self._trade()
        gradients = [owner.grad for owner in owners]
        for owner in owners:
            owner.grad = self.state[owner]["other_gradient"].to(owner.dtype)
        self._advance(self._active(), cold=not swap)
        for owner, gradient in zip(owners, gradients, strict=True):
            owner.grad = gradient
        if swap:
            self._trade()
        exchange.waiting = False

    def _advance(self, active: Active, *, cold: bool) -> None:
        temperature = self.temperature if cold else self.ratio * self.temperature
        plans = [self._plan_at(group, temperature) for group in self.param_groups]
        # Two calls make a step: the cold chain has the noise of the first.
        run(active, plans, Noise(self.noise, self.seed, self.steps - cold))

    def _plan_at(self, group: dict[str, Any], temperature: float) -> Plan:
        lr, momentum = float(group["lr"]), float(group["momentum"])
        if lr == 0:
            return Plan(())  # a velocity in θ's units would coast on
        deviation = math.sqrt(2.0 * (1.0 - momentum) * temperature * (lr / self.num_data))
        sweep = Sweep(retain=momentum, impulse=-lr, stride=1.0, deviation=deviation)
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"])

    def _scale_momenta(self, factor: float) -> None:
        for _, _, parameter in self._enumerate():
            for name in ("momentum_buffer", "other_momentum"):
                if name in self.state.get(parameter, {}):
                    self.state[parameter][name].mul_(factor)

    def _trade(self) -> None:
        """Puts the other chain's parameters and momenta in place of the model's."""
        for _, _, parameter in self._enumerate():
            state = self.state.get(parameter)
            if state:
                for mine, other in ((parameter, state["other"]), (state["momentum_buffer"], state["other_momentum"])):
                    kept = local(mine).detach().clone()
                    local(mine).copy_(local(other))
                    local(other).copy_(kept)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        dtype = momentum_dtype(parameter)
        velocities = [zero_momentum(parameter) for _ in range(2)]
        size = math.sqrt(self.temperature * float(group["lr"]) / self.num_data)
        self._draw_momentum(velocities[0], index, deviation=size)
        self._draw_momentum(velocities[1], index + _OTHERS, deviation=math.sqrt(self.ratio) * size)
        self.state[parameter] = {
            "momentum_buffer": velocities[0],
            "other": parameter.detach().clone().to(dtype),
            "other_momentum": velocities[1],
            "other_gradient": torch.zeros_like(velocities[0]),
        }

    def _parts(self) -> list[tuple[str, Part]]:
        return [*super()._parts(), ("exchange_", self.exchange)]

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"ratio": self.ratio, "biased_divisor": self.biased_divisor}

    def _facts(self, *, first: bool = False) -> Facts:
        return {**super()._facts(first=first), "swaps": self.exchange.swaps, "cold": self.exchange.cold}
