"""Potentials whose averages are known exactly. At temperature 1 the law is exp(−U), U = N·(mean loss + weight decay·‖θ‖²/2).

gaussian              ten directions of one curvature
anisotropic           six directions, curvatures from 1 to 25
double-well           8(x² − 1)² + ½‖y‖²: a barrier of 8 T between two wells
funnel                v ~ N(0, ½), x ~ N(0, e^v) (Neal 2003, narrowed): the curvature depends on the place
regression            Bayesian linear regression; the prior is CTLD's weight decay
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ctld_lab.workloads.double_well import BARRIER, DoubleWell

NUM_DATA = 1000.0  # of the targets without data: as good as any number but 1, which would hide a wrong unit


@dataclass(frozen=True)
class Quantity:
    """An average at T whose value is known; `of` maps many θ, of shape (n, d), to n numbers."""

    name: str
    expected: float
    scale: float
    """What an error is relative to: the value itself, or a standard deviation where the value may be zero."""
    of: Callable[[Tensor], Tensor]
    across: bool = False
    """Whether it rests on crossings of the barrier."""


@dataclass(frozen=True)
class Target:
    name: str
    stiffness: float
    """The largest curvature of U: lr is given in units of num_data/stiffness."""
    start: Tensor
    slope: Callable[[Tensor], Tensor]
    """∇U, prior and all, of many θ."""
    loss: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
    """Mean loss and its gradient, without the prior, of one θ; of some rows of the data if they are given."""
    quantities: tuple[Quantity, ...]
    center: Tensor | float = 0.0
    num_data: float = NUM_DATA
    weight_decay: float = 0.0
    rows: int = 0
    """How many data there are to draw minibatches from."""
    barrier: int | None = None
    """The coordinate that changes its sign there, if there is one."""


def build(name: str, *, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Target:
    return TARGETS[name](dtype, device)


def gaussian(dtype: torch.dtype, device: str) -> Target:
    curvature = 4.0
    return _without_data(
        "gaussian",
        stiffness=curvature,
        start=torch.zeros(10, dtype=dtype, device=device),
        potential=lambda theta: 0.5 * curvature * (theta * theta).sum(),
        slope=lambda theta: curvature * theta,
        quantities=(Quantity("variance", 1 / curvature, 1 / curvature, lambda theta: (theta * theta).mean(1)),),
    )


def anisotropic(dtype: torch.dtype, device: str) -> Target:
    curvatures = torch.logspace(2, 0, 6, base=5.0, dtype=dtype, device=device)
    return _without_data(
        "anisotropic",
        stiffness=25.0,
        start=torch.zeros(6, dtype=dtype, device=device),
        potential=lambda theta: 0.5 * (curvatures * theta * theta).sum(),
        slope=lambda theta: curvatures * theta,
        quantities=(
            Quantity("variance, stiffest", 0.04, 0.04, lambda theta: theta[:, 0] ** 2),
            Quantity("variance, softest", 1.0, 1.0, lambda theta: theta[:, -1] ** 2),
        ),
    )


def double_well(dtype: torch.dtype, device: str) -> Target:
    dimensions = 3

    def potential(theta: Tensor) -> Tensor:
        rest = theta[1:]
        return BARRIER * (theta[0] ** 2 - 1.0) ** 2 + 0.5 * (rest * rest).sum()

    def slope(theta: Tensor) -> Tensor:
        found, x = theta.clone(), theta[..., 0]
        found[..., 0] = 4.0 * BARRIER * x * (x * x - 1.0)
        return found

    square = DoubleWell(dimensions).mean_square()
    start = torch.zeros(dimensions, dtype=dtype, device=device)
    start[0] = 1.0
    return _without_data(
        "double-well",
        stiffness=8.0 * BARRIER,
        start=start,
        potential=potential,
        slope=slope,
        quantities=(
            Quantity("⟨x²⟩", square, square, lambda theta: theta[:, 0] ** 2),
            Quantity("share, right well", 0.5, 1.0, lambda theta: (theta[:, 0] > 0).to(theta.dtype), across=True),
        ),
        barrier=0,
    )


def funnel(dtype: torch.dtype, device: str) -> Target:
    variance, width = 0.5, 2

    def potential(theta: Tensor) -> Tensor:
        v, x = theta[0], theta[1:]
        return 0.5 * (v * v / variance + width * v + torch.exp(-v) * (x * x).sum())

    def slope(theta: Tensor) -> Tensor:
        v, x = theta[..., :1], theta[..., 1:]
        narrow = torch.exp(-v)
        neck = v / variance + 0.5 * width - 0.5 * narrow * (x * x).sum(-1, keepdim=True)
        return torch.cat([neck, narrow * x], -1)

    deviation = math.sqrt(variance)
    return _without_data(
        "funnel",
        stiffness=math.exp(3 * deviation),  # three standard deviations down the neck
        start=torch.zeros(1 + width, dtype=dtype, device=device),
        potential=potential,
        slope=slope,
        quantities=(
            Quantity("mean, neck", 0.0, deviation, lambda theta: theta[:, 0]),
            Quantity("variance, neck", variance, variance, lambda theta: theta[:, 0] ** 2),
        ),
    )


def regression(dtype: torch.dtype, device: str) -> Target:
    """y = Xw + N(0, 1), 64 rows, prior w ~ N(0, 1/(N·weight decay)): the posterior is a Gaussian, in closed form."""
    rows, weight_decay = 64, 0.1
    generator = np.random.default_rng(2017)
    features = generator.standard_normal((rows, 4)) * [1.0, 0.8, 0.5, 0.3]
    answers = features @ [1.0, -2.0, 0.5, 3.0] + generator.standard_normal(rows)
    precision = features.T @ features + rows * weight_decay * np.eye(4)
    center = np.linalg.solve(precision, features.T @ answers)
    curvatures, directions = np.linalg.eigh(precision)
    inputs, outputs, hessian, middle = (
        torch.as_tensor(array, dtype=dtype, device=device) for array in (features, answers, precision, center)
    )

    def loss(theta: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        x, y = (inputs, outputs) if chosen is None else (inputs[chosen], outputs[chosen])
        residual = x @ theta - y
        return 0.5 * (residual @ residual) / len(y), residual @ x / len(y)

    def along(index: int, name: str) -> tuple[Quantity, Quantity]:
        direction = torch.as_tensor(directions[:, index], dtype=dtype, device=device)
        mean, variance = float(center @ directions[:, index]), 1 / float(curvatures[index])
        return (
            Quantity(f"mean, {name}", mean, math.sqrt(variance), lambda theta: theta @ direction),
            Quantity(f"variance, {name}", variance, variance, lambda theta: (theta @ direction - mean) ** 2),
        )

    return Target(
        name="regression",
        stiffness=float(curvatures[-1]),
        start=torch.zeros(4, dtype=dtype, device=device),
        slope=lambda theta: (theta - middle) @ hessian,
        loss=loss,
        quantities=along(-1, "stiffest") + along(0, "softest"),
        center=middle,
        num_data=float(rows),
        weight_decay=weight_decay,
        rows=rows,
    )


TARGETS: dict[str, Callable[[torch.dtype, str], Target]] = {
    "gaussian": gaussian,
    "anisotropic": anisotropic,
    "double-well": double_well,
    "funnel": funnel,
    "regression": regression,
}


def _without_data(
    name: str,
    *,
    stiffness: float,
    start: Tensor,
    potential: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    quantities: tuple[Quantity, ...],
    barrier: int | None = None,
) -> Target:
    def loss(theta: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
        return potential(theta) / NUM_DATA, slope(theta) / NUM_DATA

    return Target(name, stiffness, start, slope, loss, quantities, barrier=barrier)
