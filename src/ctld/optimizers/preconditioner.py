"""A diagonal mass matrix from the gradients (the paper's future work), adapted slowly and then frozen.

    V ← σ V + (1 − σ) ∇²,     s = mean(√V)/√V within [1/limit, limit],     mass 1/s

Each element moves with the learning rate lr·s: `lr` keeps its meaning for an element of average gradient, and s does not change
with the scale of the loss. The noise is scaled along, so that while s rests the target is the same posterior. While s moves it
is not, to the order of its change; hence slow adaptation, now and then, in which momenta keep their temperature:
p ← p·√(s/s before). `CTLD` keeps p = √s·u = v/√lr in its buffer. Fine-tuning is SGD with momentum, without s.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.checks import integer, real
from ctld.movers import Movers

FEWEST = 20
"""Gradients in V before s leaves 1: a ratio of two of them says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RMSPreconditioner:
    """Options of the diagonal mass matrix. Costs two more buffers per parameter.

    Parameters
    ----------
    smoothing : float
        σ; V remembers 1/(1 − σ) of the gradients that it sees, `every` so many steps one.
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
        if self.adapt_steps is not None:
            integer("adapt_steps", self.adapt_steps, at_least=0)

    def initial_state(self, momentum: Tensor) -> dict[str, Tensor]:
        return {"gradient_square": torch.zeros_like(momentum), "scale": torch.ones_like(momentum)}

    def due(self, step: int) -> bool:
        """Whether to adapt before this step."""
        return step % self.every == 0 and (self.adapt_steps is None or step < self.adapt_steps)

    def observe(self, movers: Movers, gradients: list[Tensor]) -> Tensor:
        """Take in gradients, and return Σ√V and Σ1 over the elements that lie here."""
        squares = [state["gradient_square"] for state in movers.states]
        torch._foreach_mul_(squares, self.smoothing)
        torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - self.smoothing)
        sums = torch.zeros(2, dtype=torch.float64)
        for square, weight in zip(squares, movers.weights, strict=True):
            sums += weight * torch.tensor(
                (float(square.sqrt().sum(dtype=torch.float64)), square.numel()), dtype=torch.float64
            )
        return sums

    def adapt(self, movers: Movers, mean_root: float) -> None:
        """Give each element its s, and keep its momentum's temperature."""
        assert movers.momenta is not None
        for state, momentum in zip(movers.states, movers.momenta, strict=True):
            scale: Any = state["scale"]
            fresh = state["gradient_square"].sqrt().reciprocal_().mul_(mean_root)
            fresh = fresh.nan_to_num_(nan=1.0, posinf=self.limit).clamp_(1.0 / self.limit, self.limit)
            momentum.mul_((fresh / scale).sqrt_())
            scale.copy_(fresh)


def enough(sums: Tensor, updates: int) -> float | None:
    """The mean root over all elements; None while it says nothing."""
    total, count = sums.tolist()
    mean = total / count if count else 0.0
    return mean if updates >= FEWEST and mean > 0 and math.isfinite(mean) else None
