"""Flatness of a minimum: eigenvalues and trace of the Hessian, Keskar's sharpness, the loss under random perturbations.

The paper's hypothesis is that exploration ends in flatter minima. Each of these is one reading of "flat". None is unchanged
when a ReLU network is rescaled to another that computes the same: compare networks of one kind, of one weight decay.

`loss` is a function without arguments that gives the scalar loss at the present values of `parameters`, the same each time:
model in eval mode (no dropout, no moving statistics), data fixed. It is the loss of that data: give all of it, or one fixed
part. The parameters are put back as they were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctld.checks import integer, real
from ctld.diagnostics.errors import Estimate
from ctld.diagnostics.parameter_space import Loss, ParameterSpace, loss_number


@dataclass(frozen=True, slots=True)
class Eigenvalues:
    """The largest ones found, in falling order; an eigenvalue lies within `residuals` of each."""

    values: NDArray[np.float64]
    residuals: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sharpness:
    """Keskar et al. 2017, (2): how far the loss rises in a box about the parameters."""

    sharpness: float
    """100·(highest − loss)/(1 + loss), a percentage."""
    loss: float
    highest: float
    """The highest loss found in the box, hence a lower bound of the maximum."""


def top_eigenvalues(
    loss: Loss,
    parameters: Iterable[Tensor],
    count: int = 1,
    *,
    iterations: int = 50,
    seed: int = 0,
    by_differences: bool = False,
) -> Eigenvalues:
    """The `count` largest eigenvalues of the Hessian, by Lanczos with full re-orthogonalisation.

    The largest, not the largest in magnitude. Costs one gradient, `iterations` Hessian-vector products (about two gradients
    each), and as many vectors in memory. The extreme eigenvalues come first, those that are close together last: see that the
    residuals are small. With as many iterations as parameters the whole spectrum is found. Where the loss cannot be
    differentiated twice, `by_differences=True` takes differences of gradients.
    """
    space = ParameterSpace(parameters)
    count = integer("count", count, at_least=1)
    if count > space.size:
        raise ValueError(f"count = {count} is more than there are parameters, {space.size}")
    iterations = min(integer("iterations", iterations, at_least=count), space.size)
    product = space.differences(loss) if by_differences else space.hessian(loss)
    generator = torch.Generator().manual_seed(seed)
    basis: list[Tensor] = []
    diagonal: list[float] = []
    beside: list[float] = []
    vector = _orthonormal(space.normal(generator), basis)
    scale = 0.0
    while vector is not None:
        basis.append(vector)
        image = product(vector)
        diagonal.append(float(vector @ image))
        scale = max(scale, float(image.norm()))
        for _ in range(2):  # twice is enough (Parlett, The Symmetric Eigenvalue Problem, 6-9)
            for other in basis:
                image = image - (other @ image) * other
        norm = float(image.norm())
        beside.append(norm)
        if len(basis) == iterations:
            break
        if norm > 10 * torch.finfo(image.dtype).eps * math.sqrt(space.size) * scale:
            vector = image / norm
        else:  # these vectors span what the Hessian makes of the first: go on with another, for eigenvalues that are left
            beside[-1] = 0.0
            vector = _orthonormal(space.normal(generator), basis)
    matrix = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(matrix)
    order = np.argsort(values)[::-1][:count]
    residuals = np.abs(beside[-1] * vectors[-1])[order]
    return Eigenvalues(values[order], residuals if len(basis) < space.size else np.zeros_like(residuals))


def hessian_trace(loss: Loss, parameters: Iterable[Tensor], *, probes: int = 30, seed: int = 0) -> Estimate:
    """Trace of the Hessian by Hutchinson's estimate: the mean of zᵀHz over vectors z of random signs.

    Exact for a diagonal Hessian; else a probe scatters by sqrt(2 Σ_{i≠j} H_ij²), which the standard error tells.
    """
    space = ParameterSpace(parameters)
    probes = integer("probes", probes, at_least=2)
    product = space.hessian(loss)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(probes):
        signs = space.signs(generator)
        found.append(float(signs @ product(signs)))
    return _independent(found)


def sharpness(
    loss: Loss, parameters: Iterable[Tensor], *, radius: float = 1e-3, iterations: int = 20, seed: int = 0
) -> Sharpness:
    """Rise of the loss within |δ_i| ≤ radius·(|θ_i| + 1), relative to it (Keskar et al. 2017, in the whole space).

    Keskar's maximiser is ten iterations of L-BFGS-B. This one goes up by the signs of the gradient, kept in the box, once from
    beside the centre and once from a random point, and takes the highest loss that it met: 2·iterations gradients. Like
    Keskar's, it is a lower bound of the maximum.
    """
    space = ParameterSpace(parameters)
    radius = real("radius", radius, above=0)
    iterations = integer("iterations", iterations, at_least=1)
    generator = torch.Generator().manual_seed(seed)
    with space.kept() as center:
        here = loss_number(loss())
        reach = radius * (center.abs() + 1.0)
        if here <= -1.0:
            raise ValueError(f"the loss is {here:g}; Keskar's sharpness divides by 1 + loss, which must be positive")
        highest = here
        for spread in (1e-3, 1.0):  # at the centre of a minimum no sign would say where to go
            place = spread * (2.0 * space.uniform(generator) - 1.0)  # in units of the box's half-width
            for _ in range(iterations):
                space.put(center + reach * place)
                value, gradient = space.gradient(loss)
                highest = max(highest, value)
                # 2.5 half-widths in all: enough to cross the box.
                place = (place + 2.5 / iterations * gradient.sign()).clamp(-1.0, 1.0)
            space.put(center + reach * place)
            with torch.no_grad():
                highest = max(highest, loss_number(loss()))
    return Sharpness(100.0 * (highest - here) / (1.0 + here), here, highest)


def perturbed_loss(
    loss: Loss, parameters: Iterable[Tensor], *, size: float = 0.05, draws: int = 20, seed: int = 0
) -> Estimate:
    """Mean rise of the loss when Gaussian noise is added to the parameters, with its standard error.

    Of each tensor the noise has `size` times its root mean square: a tensor of zeros is left alone. Each draw is used with both
    signs, which takes the gradient out of the scatter. To second order the rise is half the trace of the Hessian, each tensor's
    part times its noise's variance.
    """
    space = ParameterSpace(parameters)
    size = real("size", size, above=0)
    draws = integer("draws", draws, at_least=2)
    generator = torch.Generator().manual_seed(seed)
    with space.kept() as center, torch.no_grad():
        here = loss_number(loss())
        deviation = size * space.root_mean_squares()
        found = []
        for _ in range(draws):
            noise = deviation * space.normal(generator)
            rises = []
            for moved in (center + noise, center - noise):
                space.put(moved)
                rises.append(loss_number(loss()) - here)
            found.append(0.5 * sum(rises))
    return _independent(found)


def _orthonormal(vector: Tensor, basis: list[Tensor]) -> Tensor | None:
    """`vector` without its part in the basis, of length 1; None if nothing is left."""
    if len(basis) >= vector.numel():
        return None
    for _ in range(2):
        for other in basis:
            vector = vector - (other @ vector) * other
        vector = vector / vector.norm()
    return vector


def _independent(values: list[float]) -> Estimate:
    array = np.asarray(values)
    return Estimate(float(array.mean()), float(array.std(ddof=1) / math.sqrt(array.size)))
