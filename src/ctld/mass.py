"""A diagonal mass matrix from the gradients (the paper's future work), adapted slowly and then frozen.

    V ← mean of ∇² over the last gradients seen,     s = mean(√V)/√V within [1/limit, limit],     mass 1/s

Each element moves with the learning rate lr·s: `lr` keeps its meaning for an element of average gradient, and s does not change
with the scale of the loss. Elements that have had no gradient have s = 1 and no share in the mean. The noise is scaled along,
so that while s rests the target is the same posterior. While s moves it is not, to the order of its change; hence slow
adaptation, now and then, in which momenta keep their temperature: p ← p·√(s/s before). `CTLD` keeps p = √s·u = v/√lr in its
buffer. Fine-tuning is SGD with momentum, without s.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ctld.checks import flag, integer, real
from ctld.stepping.active import ActiveGroup
from ctld.stepping.foreach import total_gradients, wide_dtype

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


class Mass:
    """The diagonal mass matrix of a run: how far it has adapted, and whether it still does. Without options there is none."""

    def __init__(self, options: RMSPreconditioner | None, exploration_steps: int) -> None:
        if options is not None and not isinstance(options, RMSPreconditioner):
            raise TypeError(f"preconditioner = {options!r} is none; give ctld.RMSPreconditioner()")
        if options is not None and 0 < exploration_steps <= options.first_change:
            raise ValueError(
                f"exploration_steps = {exploration_steps} end before the preconditioner has adapted, at step "
                f"{options.first_change + 1}: explore for longer, give it a smaller `every`, or leave it out"
            )
        self.options = options
        self.updates, self.frozen = 0, False

    def freeze(self) -> None:
        """Keep s as it is from now on: the law is that of the posterior again."""
        if self.options is None:
            raise ValueError(
                "there is no preconditioner to freeze; give CTLD one: preconditioner=ctld.RMSPreconditioner()"
            )
        self.frozen = True

    def due(self, step: int) -> bool:
        """True if the mass matrix is to be adapted before this step."""
        rms = self.options
        if rms is None or self.frozen:
            return False
        return step % rms.every == 0 and (rms.adapt_steps is None or step < rms.adapt_steps)

    def initial_state(self, momentum: Tensor) -> dict[str, Any]:
        """Return two buffers and a counter for one parameter."""
        zeros, ones = torch.zeros_like(momentum), torch.ones_like(momentum)
        return {"gradient_square": zeros, "squares_seen": 0, "scale": ones}

    def update(
        self,
        moving: Sequence[tuple[Mapping[str, Any], ActiveGroup]],
        add_up: Callable[[list[Tensor]], Sequence[Sequence[float]]],
    ) -> None:
        """Take in the gradients of groups that move, and give each element its s; `add_up` sums rows over ranks."""
        self.updates += 1
        sums = [
            self.observe(active, decay=float(group["weight_decay"]), ascend=group["maximize"])
            for group, active in moving
        ]
        for (_, active), row in zip(moving, add_up(sums), strict=True):
            self.adapt(active, row[0] / row[1] if row[1] else 0.0)

    @torch.no_grad()
    def observe(self, active: ActiveGroup, *, decay: float, ascend: bool) -> Tensor:
        """Take in gradients. Return Σ√V and Σ1 over the elements here that have had any; they stay on the device."""
        assert self.options is not None
        device = active.parameters[0].device
        sums = torch.zeros(2, dtype=wide_dtype(device), device=device)
        gradients = total_gradients(active.parameters, active.gradients, decay=decay, ascend=ascend)
        for state, gradient, weight in zip(active.states, gradients, active.weights, strict=True):
            seen = state["squares_seen"] = state["squares_seen"] + 1
            square = state["gradient_square"]
            # A plain mean at first: V is of its size from the beginning. What is not finite was let in unchecked.
            fresh = gradient.square().nan_to_num_(nan=0.0, posinf=0.0)
            square.lerp_(fresh, max(1.0 / seen, 1.0 - self.options.smoothing))
            if seen >= FEWEST:
                total = square.sqrt().sum(dtype=sums.dtype)
                sums += weight * torch.stack((total, (square > 0).sum().to(sums.dtype))).to(device)
        return sums

    @torch.no_grad()
    def adapt(self, active: ActiveGroup, mean_root: float) -> None:
        """Give each element its s, and keep its momentum's temperature."""
        assert self.options is not None
        assert active.momenta is not None
        limit = self.options.limit
        for state, momentum in zip(active.states, active.momenta, strict=True):
            if state["squares_seen"] < FEWEST or not mean_root > 0.0:
                continue
            scale, square = state["scale"], state["gradient_square"]
            fresh = square.sqrt().reciprocal_().mul_(mean_root).clamp_(1.0 / limit, limit)
            fresh[square == 0] = 1.0
            momentum.mul_((fresh / scale).sqrt_())
            scale.copy_(fresh)

    def state_dict(self) -> dict[str, Any]:
        return {"mass_updates": self.updates, "mass_frozen": self.frozen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        updates = integer("mass_updates", state_dict["mass_updates"], at_least=0)
        self.updates, self.frozen = updates, flag("mass_frozen", state_dict["mass_frozen"])
