"""Noise compensation (section 4.1 of the paper): minibatches are noisy already, so inject that much less.

The injected variances lose η²Σ̂ and η² g′(α)² σ̂²/T², Σ̂ and σ̂² being the minibatch variances of ∇Ũ and Ũ. They are
estimated from successive differences, ½(x_t − x_{t−1})², averaged over the last `MEMORY` steps. A running variance of x
would measure the sampler's own motion, and cool it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MEMORY = 100


def initial_state(momentum: Tensor) -> dict[str, Any]:
    """Two buffers and a counter for one parameter."""
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
        """Take in the loss of a step; returns the variance as known now."""
        if self.seen:
            self.value += (0.5 * (loss - self.previous) ** 2 - self.value) / min(self.seen, MEMORY)
        self.previous = loss
        self.seen += 1
        return self.value

    def state_dict(self) -> dict[str, Any]:
        return {"previous": self.previous, "value": self.value, "seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.previous, self.value = float(state_dict["previous"]), float(state_dict["value"])
        self.seen = int(state_dict["seen"])
