"""A picture as a sum of Gaussians on its mean colour, and the gradient of its error.

    picture(x) = mean + deviation · Σ_i c_i exp(−½ (x − m_i)ᵀ Σ_i⁻¹ (x − m_i))
    loss       = k · mean over pixels and colours of (error/deviation)²

A Gaussian has eight numbers: position (2), log-scales (2), angle, colour (3). Units are such that all are of order one:
lengths in 1/√k of the picture's side, colours in its deviation, and the loss in what one Gaussian of k has to explain.
"""

import math

import torch
from torch import Tensor

from images.pictures import SIDE

LOWEST = -60.0
"""Exponent of two below which a Gaussian has ended: far smaller numbers are slow to compute."""
LEAST = 0.3 / SIDE**2
"""Added to variances, 0.3 pixels², as Gaussian splatting does. Much below a pixel the polynomials would cancel."""
BLOCK = 1024
"""Pixels."""

_axis = (torch.arange(SIDE) + 0.5) / SIDE
Y, X = (each.reshape(-1) for each in torch.meshgrid(_axis, _axis, indexing="ij"))
_MONOMIALS = torch.stack([torch.ones_like(X), X, Y, X * X, X * Y, Y * Y])


def normalised(picture: Tensor) -> tuple[Tensor, float]:
    """Return a picture in units of its deviation from its mean colour, and that deviation."""
    centred = picture - picture.mean(dim=1, keepdim=True)
    deviation = float(centred.square().mean().sqrt())
    return centred / deviation, deviation


def start(target: Tensor, count: int, random: torch.Generator) -> Tensor:
    """Return `count` round Gaussians anywhere, with half of the colour that is there: 8 × k numbers."""
    place = torch.rand(2, count, generator=random)
    column, row = (place * SIDE).long()
    colours = 0.5 * target[:, row * SIDE + column]
    return torch.cat([place * math.sqrt(count), torch.full((2, count), -0.3), torch.zeros(1, count), colours])


def _exponents(shape: Tensor) -> Tensor:
    """Return log₂ of each Gaussian as a polynomial in x and y, by the coefficients of `_MONOMIALS`."""
    spacing = 1.0 / math.sqrt(shape.shape[-1])
    x, y, first, second, angle = shape.unbind(dim=-2)
    x, y = spacing * x, spacing * y
    variances = (spacing**2 * torch.exp(2.0 * each) + LEAST for each in (first, second))
    first, second = (1.0 / (2.0 * math.log(2.0) * each) for each in variances)
    cos, sin = angle.cos(), angle.sin()
    xx, yy = first * cos**2 + second * sin**2, first * sin**2 + second * cos**2
    xy = 2.0 * (first - second) * cos * sin
    constant = -(xx * x**2 + xy * x * y + yy * y**2)
    return torch.stack([constant, 2 * xx * x + xy * y, 2 * yy * y + xy * x, -xx, -xy, -yy], dim=-1)


def _values(exponents: Tensor, monomials: Tensor) -> Tensor:
    """Return each Gaussian at each pixel."""
    return (exponents @ monomials).clamp_(min=LOWEST).exp2_()


def draw(theta: Tensor) -> Tensor:
    """Return the picture of one set of Gaussians, as `normalised` has it."""
    return theta[5:] @ _values(_exponents(theta[:5]), _MONOMIALS)


def gradient(theta: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss of each row (rows × 8 × k), its gradient, and the errors (rows × 3 × pixels).

    Rows go one after another, and pixels in blocks that stay in the cache. Everything large is a product of matrices by hand;
    the few numbers between parameters and polynomials are differentiated by torch.
    """
    shape = theta[:, :5].detach().requires_grad_()
    exponents = _exponents(shape)
    by_exponents, found, errors = torch.zeros_like(exponents), torch.zeros_like(theta), torch.empty_like(targets)
    blocks = [slice(first, first + BLOCK) for first in range(0, SIDE * SIDE, BLOCK)]
    monomials = [_MONOMIALS[:, block].to(theta).contiguous() for block in blocks]
    scale = 2.0 * theta.shape[2] / targets[0].numel()
    for row, polynomials in enumerate(exponents.detach()):
        colours = theta[row, 5:]
        for block, own in zip(blocks, monomials, strict=True):
            values = _values(polynomials, own)
            error = (colours @ values).sub_(targets[row, :, block])
            errors[row, :, block] = error
            found[row, 5:].addmm_(error, values.T, alpha=scale)
            by_exponents[row].addmm_((colours.T @ error).mul_(values), own.T, alpha=scale * math.log(2.0))
    found[:, :5] = torch.autograd.grad(exponents, shape, by_exponents)[0]
    return theta.shape[2] * errors.square().mean(dim=(1, 2)), found, errors


def psnr(loss: Tensor, count: int, deviation: float) -> float:
    """Return −10 log₁₀ of the mean squared error, in dB; 0 where nothing is left of the picture."""
    decibels = -10.0 * math.log10(max(float(loss) / count * deviation**2, 1e-10)) if torch.isfinite(loss) else 0.0
    return max(decibels, 0.0)
