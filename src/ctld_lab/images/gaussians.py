"""A picture as a sum of Gaussians on its mean colour, and the gradient of its error.

    picture(x) = mean + deviation · Σ_i c_i exp(−½ (x − m_i)ᵀ Σ_i⁻¹ (x − m_i))
    loss       = k · mean over pixels and colours of (error/deviation)²

A Gaussian has eight numbers: position (2), log-scales (2), angle, colour (3). Units are such that all are of order one:
lengths in 1/√k of the picture's side, colours in its deviation, and the loss in what one Gaussian of k has to explain.
"""

import math

import torch
from torch import Tensor

from ctld_lab.images.pictures import SIDE

POSITION, SHAPE, COLOUR = slice(0, 2), slice(0, 5), slice(5, 8)
LOWEST = -60.0
"""Exponent of two below which a Gaussian has ended: far smaller numbers are slow to compute."""

_axis = (torch.arange(SIDE) + 0.5) / SIDE
Y, X = (each.reshape(-1) for each in torch.meshgrid(_axis, _axis, indexing="ij"))
_MONOMIALS = torch.stack([torch.ones_like(X), X, Y, X * X, X * Y, Y * Y])


def normalised(picture: Tensor) -> tuple[Tensor, float]:
    """Returns a picture in units of its deviation from its mean colour, and that deviation."""
    centred = picture - picture.mean(dim=1, keepdim=True)
    deviation = float(centred.square().mean().sqrt())
    return centred / deviation, deviation


def start(target: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Returns `count` round Gaussians anywhere, with half of the colour that is there."""
    theta = torch.zeros(count, 8)
    place = torch.rand(count, 2, generator=random)
    theta[:, POSITION] = place * math.sqrt(count)
    theta[:, 2:4] = -0.3
    column, row = (place * SIDE).long().unbind(1)
    theta[:, COLOUR] = 0.5 * target[:, row * SIDE + column].T
    return theta


def _exponents(shape: Tensor) -> Tensor:
    """Returns log₂ of each Gaussian as a polynomial in x and y, by the coefficients of `_MONOMIALS`."""
    spacing = 1.0 / math.sqrt(shape.shape[-2])
    x, y = spacing * shape[..., 0], spacing * shape[..., 1]
    first, second = (torch.exp(-2.0 * shape[..., axis]) / (2.0 * spacing**2 * math.log(2.0)) for axis in (2, 3))
    cos, sin = shape[..., 4].cos(), shape[..., 4].sin()
    xx, yy = first * cos**2 + second * sin**2, first * sin**2 + second * cos**2
    xy = 2.0 * (first - second) * cos * sin
    constant = -(xx * x**2 + xy * x * y + yy * y**2)
    return torch.stack([constant, 2 * xx * x + xy * y, 2 * yy * y + xy * x, -xx, -xy, -yy], dim=-1)


def _values(exponents: Tensor) -> Tensor:
    """Returns each Gaussian at each pixel."""
    return (exponents @ _MONOMIALS.to(exponents)).clamp_(min=LOWEST).exp2_()


def draw(theta: Tensor) -> Tensor:
    """Returns the picture of one set of Gaussians, as `normalised` has it."""
    return theta[:, COLOUR].T.contiguous() @ _values(_exponents(theta[:, SHAPE]))


def gradient(theta: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the loss of each row (rows × k × 8), its gradient, and the errors (rows × 3 × pixels).

    Rows go one after another: what one needs stays in the cache. Everything large is a product of matrices by hand; the few
    numbers between parameters and polynomials are differentiated by torch.
    """
    shape = theta[..., SHAPE].detach().requires_grad_()
    exponents = _exponents(shape)
    by_exponents, found, errors = torch.empty_like(exponents), torch.empty_like(theta), torch.empty_like(targets)
    monomials = _MONOMIALS.to(theta)
    scale = 2.0 * theta.shape[1] / targets[0].numel()
    for row, each in enumerate(exponents.detach()):
        values, colours = _values(each), theta[row, :, COLOUR].contiguous()
        torch.sub(colours.T.contiguous() @ values, targets[row], out=errors[row])
        found[row, :, COLOUR] = scale * (errors[row] @ values.T).T
        by_exponents[row] = (colours @ errors[row]).mul_(values) @ monomials.T
    found[..., SHAPE] = torch.autograd.grad(exponents, shape, scale * math.log(2.0) * by_exponents)[0]
    return theta.shape[1] * errors.square().mean(dim=(1, 2)), found, errors


def psnr(loss: Tensor, count: int, deviation: float) -> float:
    """Returns −10 log₁₀ of the mean squared error, in dB; 0 where nothing is left of the picture."""
    decibels = -10.0 * math.log10(max(float(loss) / count * deviation**2, 1e-10)) if torch.isfinite(loss) else 0.0
    return max(decibels, 0.0)
