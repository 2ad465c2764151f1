"""A diagonal mass matrix from the gradients (the paper's future work), adapted slowly and then frozen.

    V ← mean of ∇² over the last gradients seen,     s = mean(√V)/√V within [1/limit, limit],     mass 1/s

Each element moves with the learning rate lr·s: `lr` keeps its meaning for an element of average gradient, and s does not change
with the scale of the loss. Elements that have had no gradient have s = 1 and no share in the mean. The noise is scaled along,
so that while s rests the target is the same posterior. While s moves it is not, to the order of its change; hence slow
adaptation, now and then, in which momenta keep their temperature: p ← p·√(s/s before). `CTLD` keeps p = √s·u = v/√lr in its
buffer. Fine-tuning is SGD with momentum, without s.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.checks import integer, real
from ctld.dynamics import wide_dtype
from ctld.movers import Movers

FEWEST = 20
"""Gradients in V before s leaves 1: a ratio of two of them says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSPreconditioner:
    """Options of the diagonal mass matrix. Costs two more buffers per parameter.

    Parameters
    ----------
    smoothing : float
        V remembers 1/(1 − smoothing) of the gradients that it sees.
    every : int
        Steps from one gradient that it sees to the next.
    limit : float
        The largest ratio of an element's learning rate to `lr`, and the inverse of the smallest.
    adapt_steps : int, optional
        After so many steps s is frozen, and from there on the law is exact for small steps. Left out: by
        `CTLD.freeze_preconditioner`, or never.
    """

    smoothing: float = 0.99
    every: int = 10
    limit: float = 10.0
    adapt_steps: int | None = None

    def __post_init__(self) -> None:
        real("smoothing", self.smoothing, at_least=0, below=1)
        integer("every", self.every, at_least=1)
        real("limit", self.limit, at_least=1)
        if self.adapt_steps is not None and integer("adapt_steps", self.adapt_steps, at_least=1) <= self.first_change:
            raise ValueError(
                f"adapt_steps = {self.adapt_steps} ends before anything was adapted, which takes {FEWEST} gradients, one in "
                f"{self.every} steps; give more than {self.first_change}"
            )

    @property
    def first_change(self) -> int:
        """The step before which s leaves 1."""
        return (FEWEST - 1) * self.every

    def initial_state(self, momentum: Tensor) -> dict[str, Any]:
        zeros, ones = torch.zeros_like(momentum), torch.ones_like(momentum)
        return {"gradient_square": zeros, "squares_seen": 0, "scale": ones}

    def due(self, step: int) -> bool:
        """Whether to adapt before this step."""
        return step % self.every == 0 and (self.adapt_steps is None or step < self.adapt_steps)

    def observe(self, movers: Movers, gradients: list[Tensor]) -> Tensor:
        """Take in gradients. Returns Σ√V and Σ1 over the elements here that have had any; they stay on the device."""
        device = movers.parameters[0].device
        sums = torch.zeros(2, dtype=wide_dtype(device), device=device)
        for state, gradient, weight in zip(movers.states, gradients, movers.weights, strict=True):
            seen = state["squares_seen"] = state["squares_seen"] + 1
            square = state["gradient_square"]
            # A plain mean at first: V is of its size from the beginning. What is not finite was let in unchecked.
            fresh = gradient.square().nan_to_num_(nan=0.0, posinf=0.0)
            square.lerp_(fresh, max(1.0 / seen, 1.0 - self.smoothing))
            if seen >= FEWEST:
                total = square.sqrt().sum(dtype=sums.dtype)
                sums += weight * torch.stack((total, (square > 0).sum().to(sums.dtype))).to(device)
        return sums

    def adapt(self, movers: Movers, mean_root: float) -> None:
        """Give each element its s, and keep its momentum's temperature."""
        assert movers.momenta is not None
        for state, momentum in zip(movers.states, movers.momenta, strict=True):
            if state["squares_seen"] < FEWEST or not mean_root > 0.0:
                continue
            scale, square = state["scale"], state["gradient_square"]
            fresh = square.sqrt().reciprocal_().mul_(mean_root).clamp_(1.0 / self.limit, self.limit)
            fresh[square == 0] = 1.0
            momentum.mul_((fresh / scale).sqrt_())
            scale.copy_(fresh)
