"""The methods. They differ in the first 60 % of the gradients; the others are Adam's, at a learning rate that falls to zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ctld import CTLD, NonFiniteError, RMSPreconditioner, Tempering
from ctld.tempering import FallingTemperature
from images import gaussians

SHARE, MOMENTUM = 0.6, 0.9
COLD = 0.01
"""The last temperature of a fall, in units of the first."""
FINE_LR = 0.15
"""The learning rate of Adam after exploration by CTLD."""
EVERY = 50
"""Gradients from one relocation to the next."""
LRS, LEVELS = (0.015, 0.05, 0.15), 3
MOVED = (0.02, 0.05, 0.1)
"""Shares of the Gaussians that are relocated at a time."""


@dataclass(frozen=True)
class Method:
    title: str
    by_ctld: bool = False
    coldest: float = 0.0
    """The lowest of three levels of T, a factor of five apart; 0: there is no noise."""
    falling: bool = True
    relocates: bool = False
    rates: tuple[float, float, float] = LRS
    mass: bool = False
    """True if all parameters explore, each with a mass by its gradients; else positions alone explore, without a mass."""


@dataclass(frozen=True)
class Setting:
    lr: float
    temperature: float = 0.0
    moved: float = 0.0


FIRST = {
    "adam": Method("Adam"),
    "relocation": Method("Adam, relocation", relocates=True),
    "noisy-adam": Method("Adam, noise on positions, falling T", coldest=2e-4),
    "ctld-zero": Method("CTLD, T = 0, then Adam", by_ctld=True),
    "ctld-constant": Method("CTLD, constant T, then Adam", by_ctld=True, coldest=1e-3, falling=False),
    "ctld-falling": Method("CTLD, falling T, then Adam", by_ctld=True, coldest=1e-3),
}
LOW = (0.0015, 0.005, 0.015)
MASS = RMSPreconditioner(smoothing=0.9, every=1, limit=100.0)
"""It has seen enough after 19 gradients, and follows them as Adam does."""
NONE = 1e-9
"""A T that moves nothing: at T = 0 itself there would be no mass, since that is SGD with momentum."""
LATER = {
    "low-zero": Method("CTLD, T = 0, lower lr, then Adam", by_ctld=True, rates=LOW),
    "low-falling": Method("CTLD, falling T, lower lr, then Adam", by_ctld=True, coldest=1e-3, rates=LOW),
    "mass-zero": Method("CTLD with mass, next to no noise, then Adam", by_ctld=True, rates=LOW, mass=True),
    "mass-falling": Method("CTLD with mass, falling T, then Adam", by_ctld=True, coldest=1e-5, rates=LOW, mass=True),
}
"""Planned when the others had been read: CTLD had been at the lowest lr that was tried, and had had one for everything."""
METHODS = FIRST | LATER


def setting(name: str, rate: int, level: int) -> Setting:
    """Return a point of the design. What has neither T nor relocations has three finer steps of the learning rate."""
    method = METHODS[name]
    if method.relocates:
        return Setting(method.rates[rate], moved=MOVED[level])
    if method.coldest:
        return Setting(method.rates[rate], method.coldest * 5.0**level)
    return Setting(method.rates[rate] * 10.0 ** (level / 6.0), NONE if method.mass else 0.0)


def fit(
    method: Method, settings: Sequence[Setting], theta: Tensor, targets: Tensor, *, budget: int, seeds: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return the Gaussians of each row after `budget` gradients, and their losses."""
    theta = theta.clone()
    rows = [Row(own, method, point, seed, budget) for own, point, seed in zip(theta, settings, seeds, strict=True)]
    for step in range(budget):
        for row, *seen in zip(rows, *gaussians.gradient(theta, targets), strict=True):
            row.step(step, *seen)
    return theta, gaussians.gradient(theta, targets)[0]


class Row:
    """One fit, in place."""

    def __init__(self, theta: Tensor, method: Method, point: Setting, seed: int, budget: int) -> None:
        self._theta, self._method, self._point, self._budget = theta, method, point, budget
        self._exploring = steps = round(SHARE * budget)
        self._random = torch.Generator().manual_seed(seed)
        self._parts = [torch.nn.Parameter(part) for part in (theta[:2], theta[2:])]  # they share its memory
        self._fine_lr = FINE_LR if method.by_ctld else point.lr
        self._adam = torch.optim.Adam(self._parts, point.lr)
        self._fall = FallingTemperature(steps, cold=COLD)
        self._ctld = CTLD(
            [{"params": self._parts[:1]}, {"params": self._parts[1:], "explore": method.mass}],
            point.lr,
            MOMENTUM,
            num_data=1.0,
            exploration_steps=steps,
            temperature=point.temperature,
            tempering=self._fall if method.by_ctld and method.falling else Tempering.constant(),
            preconditioner=MASS if method.mass else None,
            seed=seed,
        )

    @torch.no_grad()
    def step(self, step: int, loss: Tensor, gradient: Tensor, errors: Tensor) -> None:
        """Take one step. A fit that has run away stays where it is: its picture will be 0 dB."""
        if not gradient.isfinite().all():
            return
        self._parts[0].grad, self._parts[1].grad = gradient[:2], gradient[2:]
        if step >= self._exploring:
            passed = (step - self._exploring) / (self._budget - self._exploring)
            self._adam.param_groups[0]["lr"] = 0.5 * (1.0 + math.cos(math.pi * passed)) * self._fine_lr
            self._adam.step()
        elif self._method.by_ctld:
            try:
                self._ctld.step(loss=loss)
            except NonFiniteError:  # and nothing has changed
                return
        else:
            if self._method.relocates and step and step % EVERY == 0:
                self._relocate(errors)
            self._adam.step()
            if self._method.coldest:
                heat = self._point.temperature * self._fall.temperature_ratio
                self._fall.end(0.0, 0.0)
                noise = torch.randn(self._parts[0].shape, generator=self._random)
                self._parts[0].add_(noise, alpha=math.sqrt(2.0 * self._point.lr * heat))

    def _relocate(self, errors: Tensor) -> None:
        moved = relocate(self._theta, errors, self._point.moved)
        for state in self._adam.state.values():
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment][:, moved] = 0.0


def relocate(theta: Tensor, errors: Tensor, share: float) -> Tensor:
    """Move the weakest Gaussians to where the errors are largest, half a spacing apart at least; return which."""
    count = theta.shape[1]
    weakest = (theta[5:].square().sum(dim=0) * theta[2:4].sum(dim=0).exp()).argsort()[: max(1, round(share * count))]
    left = errors.square().sum(dim=0)
    for each in weakest.tolist():
        pixel = int(left.argmax())
        x, y = float(gaussians.X[pixel]), float(gaussians.Y[pixel])
        place = [x * math.sqrt(count), y * math.sqrt(count)]
        theta[:, each] = torch.tensor([*place, -1.0, -1.0, 0.0, *(-0.5 * errors[:, pixel]).tolist()])
        left[(gaussians.X - x) ** 2 + (gaussians.Y - y) ** 2 < 0.25 / count] = 0.0
    return weakest
