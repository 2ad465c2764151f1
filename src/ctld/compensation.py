"""Noise compensation (section 4.1 of the paper): minibatches are noisy already, so inject that much less.

The injected variances lose η²Σ̂ and η² g′(α)² σ̂²/T², Σ̂ and σ̂² being the minibatch variances of ∇Ũ and Ũ. They are
estimated from successive differences, ½(x_t − x_{t−1})², averaged over the last `MEMORY` steps. A running variance of x
would measure the sampler's own motion, and cool it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ctld.checks import integer, real

MEMORY = 100


def initial_state(momentum: Tensor) -> dict[str, Any]:
    """Return two buffers and a counter for one parameter."""
    return {
        "previous_gradient": torch.zeros_like(momentum),
        "gradient_variance": torch.zeros_like(momentum),
        "gradients_seen": 0,
    }


def compensated_deviation(
    state: Mapping[str, Any], gradient: Tensor, *, lr: float, variance: float
) -> tuple[Tensor, Tensor]:
    """sqrt(variance − lr·Var(∇)) for each element, clamped at zero, and how many were clamped.

    `variance` is that of the noise on u = v/√lr; there η²Σ̂ becomes lr·Var(∇ of the mean loss).
    """
    gradient = gradient.to(state["previous_gradient"].dtype)
    if state["gradients_seen"]:
        square = (gradient - state["previous_gradient"]).square_().mul_(0.5)
        state["gradient_variance"].lerp_(square, 1.0 / min(state["gradients_seen"], MEMORY))
    state["previous_gradient"].copy_(gradient)
    remaining = variance - lr * state["gradient_variance"]
    clamped = (remaining < 0).sum()
    return remaining.clamp_min_(0.0).sqrt_(), clamped


class LossVariance:
    """The minibatch variance of the mean loss, from successive differences."""

    def __init__(self) -> None:
        self.previous = 0.0
        self.value = 0.0
        self.seen = 0

    def update(self, loss: float) -> float:
        """Take in the loss of a step; return the variance as known now."""
        if self.seen:
            self.value += (0.5 * (loss - self.previous) ** 2 - self.value) / min(self.seen, MEMORY)
        self.previous = loss
        self.seen += 1
        return self.value

    def interrupt(self) -> None:
        """Forget the last loss: the next one does not follow on it, and no difference may span the gap."""
        self.seen = 0


class NoiseCompensation:
    """Noise compensation of a run: the variance of the minibatch loss, and how many noise variances were clamped."""

    def __init__(self, active: bool) -> None:
        self.active = active
        self.loss = LossVariance()
        self.clamped = self.compensated = 0

    @property
    def clamped_share(self) -> float:
        """Share of the noise variances that had to be clamped at zero; where one is, the run is too hot."""
        return self.clamped / self.compensated if self.compensated else 0.0

    def count(self, clamped: float, dimensions: int) -> None:
        """Take in how many of the variances of a step were clamped."""
        self.clamped += round(clamped)
        self.compensated += dimensions

    def interrupt(self, states: Iterable[dict[str, Any]]) -> None:
        """Pause with the exploration: neither the next loss nor the next gradients follow on the last ones."""
        if self.active:
            self.loss.interrupt()
            for state in states:
                if state:  # what is frozen has none
                    state["gradients_seen"] = 0

    def state_dict(self) -> dict[str, Any]:
        counts = {"clamped": self.clamped, "compensated": self.compensated}
        loss = self.loss
        return counts | {"loss_previous": loss.previous, "loss_value": loss.value, "loss_seen": loss.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        clamped, compensated, seen = (
            integer(name, state_dict[name], at_least=0) for name in ("clamped", "compensated", "loss_seen")
        )
        previous = real("loss_previous", state_dict["loss_previous"])
        value = real("loss_value", state_dict["loss_value"], at_least=0)
        self.clamped, self.compensated = clamped, compensated
        self.loss.previous, self.loss.value, self.loss.seen = previous, value, seen
