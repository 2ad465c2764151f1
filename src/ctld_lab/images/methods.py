"""The methods. They differ in the first 60 % of the gradients; the others are Adam's, at a learning rate that falls to zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ctld import CTLD, NonFiniteError, Tempering
from ctld.tempering.falling import FallingTemperature, falling_ratio
from ctld_lab.images import gaussians
from ctld_lab.images.gaussians import COLOUR, POSITION

SHARE = 0.6
MOMENTUM = 0.9
FINE_LR = 0.15
"""Of Adam after exploration by CTLD."""
COLD = 0.01
"""Of the first temperature, at the end of a fall."""
EVERY = 50
"""Gradients from one relocation to the next."""
LRS = (0.015, 0.05, 0.15)
LEVELS = 4
MOVED = (0.02, 0.05, 0.1, 0.2)
"""Shares of the Gaussians that are relocated at a time."""


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    first: Literal["adam", "ctld"]
    coldest: float = 0.0
    """The lowest of four levels of T, half a decade apart; 0: there is no noise."""
    falling: bool = False
    relocates: bool = False


@dataclass(frozen=True)
class Setting:
    lr: float
    temperature: float = 0.0
    moved: float = 0.0


METHODS = {
    method.name: method
    for method in [
        Method("adam", "Adam", "adam"),
        Method("relocation", "Adam, relocation", "adam", relocates=True),
        Method("noisy-adam", "Adam, noise on positions, falling T", "adam", coldest=3e-4, falling=True),
        Method("ctld-zero", "CTLD, T = 0, then Adam", "ctld"),
        Method("ctld-constant", "CTLD, constant T, then Adam", "ctld", coldest=1e-3),
        Method("ctld-falling", "CTLD, falling T, then Adam", "ctld", coldest=1e-3, falling=True),
    ]
}


def setting(method: Method, rate: int, level: int) -> Setting:
    """Returns a point of the design. What has neither T nor relocations has four finer steps of the learning rate."""
    if method.relocates:
        return Setting(LRS[rate], moved=MOVED[level])
    if method.coldest:
        return Setting(LRS[rate], method.coldest * 10.0 ** (level / 2.0))
    return Setting(LRS[rate] * 10.0 ** (level / 8.0))


def fit(
    method: Method, settings: Sequence[Setting], theta: Tensor, targets: Tensor, *, budget: int, seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Returns the Gaussians of each row after `budget` gradients, and their losses. A row that diverges stays where it is."""
    theta = theta.clone()
    exploring = round(SHARE * budget)
    rates = torch.tensor([each.lr for each in settings]).view(-1, 1, 1)
    fine = rates if method.first == "adam" else torch.full_like(rates, FINE_LR)
    random = torch.Generator().manual_seed(seeds[0])
    adam = Adam(theta)
    explorers = [
        Explorer(row, method, each, exploring, seed)
        for row, each, seed in zip(theta, settings, seeds if method.first == "ctld" else (), strict=False)
    ]
    for step in range(budget):
        losses, gradient, errors = gaussians.gradient(theta, targets)
        alive = torch.isfinite(losses) & torch.isfinite(gradient).all(dim=(1, 2))
        gradient[~alive] = 0.0
        if step >= exploring:
            adam.step(
                theta, gradient, 0.5 * (1.0 + math.cos(math.pi * (step - exploring) / (budget - exploring))) * fine
            )
        elif explorers:
            for row in alive.nonzero().flatten().tolist():
                explorers[row].step(losses[row], gradient[row])
        else:
            if method.relocates and step and step % EVERY == 0:
                for row in alive.nonzero().flatten().tolist():
                    adam.forget(row, relocate(theta[row], errors[row], settings[row].moved))
            adam.step(theta, gradient, rates)
            if method.coldest:
                heat = torch.tensor([each.temperature for each in settings]).view(-1, 1, 1)
                heat *= falling_ratio(step, exploring, 1.0, COLD)
                noise = torch.randn(theta[..., POSITION].shape, generator=random)
                theta[..., POSITION] += alive.view(-1, 1, 1) * (2.0 * rates * heat).sqrt() * noise
    return theta, gaussians.gradient(theta, targets)[0]


class Explorer:
    """The library's exploration of one row: noise on positions, SGD with momentum for everything else."""

    def __init__(self, row: Tensor, method: Method, point: Setting, steps: int, seed: int) -> None:
        self._row = row
        self._positions, self._others = (torch.nn.Parameter(part.clone()) for part in (row[:, :2], row[:, 2:]))
        self._optimizer = CTLD(
            [{"params": [self._positions]}, {"params": [self._others], "explore": False}],
            point.lr,
            MOMENTUM,
            num_data=1.0,
            exploration_steps=steps,
            temperature=point.temperature,
            tempering=FallingTemperature(steps, cold=COLD) if method.falling else Tempering.constant(),
            seed=seed,
        )

    @torch.no_grad()
    def step(self, loss: Tensor, gradient: Tensor) -> None:
        self._positions.grad, self._others.grad = gradient[:, :2].contiguous(), gradient[:, 2:].contiguous()
        try:
            self._optimizer.step(loss=loss)
        except NonFiniteError:  # a row that runs away is not stepped again, and its picture is 0 dB
            self._row.fill_(torch.nan)
        else:
            self._row[:, :2], self._row[:, 2:] = self._positions, self._others


class Adam:
    """`torch.optim.Adam` with a learning rate for each row."""

    def __init__(self, theta: Tensor) -> None:
        self._mean, self._square, self._steps = torch.zeros_like(theta), torch.zeros_like(theta), 0

    def step(self, theta: Tensor, gradient: Tensor, rates: Tensor) -> None:
        self._steps += 1
        self._mean.lerp_(gradient, 0.1)
        self._square.lerp_(gradient.square(), 0.001)
        size = (self._square / (1.0 - 0.999**self._steps)).sqrt_().add_(1e-8)
        theta -= rates * self._mean / (1.0 - 0.9**self._steps) / size

    def forget(self, row: int, which: Tensor) -> None:
        self._mean[row, which] = 0.0
        self._square[row, which] = 0.0


def relocate(theta: Tensor, errors: Tensor, share: float) -> Tensor:
    """Moves the weakest of the Gaussians to where the errors are largest, half a spacing apart at least; returns which."""
    count = len(theta)
    spacing = 1.0 / math.sqrt(count)
    weight = theta[:, COLOUR].square().sum(dim=1) * theta[:, 2:4].sum(dim=1).exp()
    weakest = weight.argsort()[: max(1, round(share * count))]
    left = errors.square().sum(dim=0)
    for each in weakest.tolist():
        pixel = int(left.argmax())
        x, y = gaussians.X[pixel], gaussians.Y[pixel]
        theta[each] = torch.tensor([x / spacing, y / spacing, -1.0, -1.0, 0.0, *(-0.5 * errors[:, pixel]).tolist()])
        left[(gaussians.X - x) ** 2 + (gaussians.Y - y) ** 2 < (0.5 * spacing) ** 2] = 0.0
    return weakest
