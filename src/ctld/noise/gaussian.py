"""From uniform words to Gaussian numbers: Box-Muller in arithmetic that rounds alike everywhere.

    z0 = sqrt(−2 ln u)·cos φ,   z1 = sqrt(−2 ln u)·sin φ,   u in (0, 1],  φ uniform on the circle

The logarithm, sine and cosine are short power series made of +, ×, ÷ and √ alone, which IEEE 754 rounds correctly.
The library's own `log` and `cos` would be quicker to write, but their last bit depends on whether an element falls
into a vector register or the remainder of a loop, hence on thread count and split.
"""

import math

import numpy as np
import torch
from torch import Tensor


def box_muller(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers, two for each pair of words.

    Parameters
    ----------
    words : Tensor of int64, shape (2, n)
        Uniform 32-bit words: the first row makes the radius, the second the angle.
    dtype : torch.float32 or torch.float64
        In which the arithmetic is done; the two agree within 1e-4, the worst being numbers near 0.

    Returns
    -------
    Tensor of `dtype`, shape (2, n)
        Largest possible magnitude: sqrt(2·33·ln 2) = 6.76.
    """
    radius = _root(_log_of_uniform(words[0], dtype).mul_(-2.0))
    cosine, sine = _circle(words[1], dtype)
    return torch.stack((cosine.mul_(radius), sine.mul_(radius)))


def _root(x: Tensor) -> Tensor:
    """√x in place, correctly rounded. On a CPU torch's is a library's, which may miss the last bit; numpy's is not."""
    if x.device.type != "cpu":
        return x.sqrt_()
    array = x.numpy()
    np.sqrt(array, out=array)
    return x


def _log_of_uniform(word: Tensor, dtype: torch.dtype) -> Tensor:
    """ln u for u = (word + ½)/2³²; u = m·2ᵉ with m in [√½, √2), ln m = 2 artanh((m − 1)/(m + 1))."""
    uniform = word.to(dtype).add_(0.5).mul_(2.0**-32)
    if dtype == torch.float32:
        integer, mantissa_bits, root_half, terms = torch.int32, 23, 0x3F3504F3, 5
    else:
        integer, mantissa_bits, root_half, terms = torch.int64, 52, 0x3FE6A09E667F3BCD, 11
    bits = uniform.view(integer) - root_half
    exponent = bits >> mantissa_bits
    mantissa = bits.bitwise_and_((1 << mantissa_bits) - 1).add_(root_half).view(dtype)
    ratio = (mantissa - 1.0).div_(mantissa + 1.0)
    artanh = _series(ratio * ratio, [1.0 / (2 * k + 1) for k in range(terms)]).mul_(ratio)
    return exponent.to(dtype).mul_(math.log(2.0)).add_(artanh.mul_(2.0))


def _circle(word: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos φ and sin φ for φ = 2π(word + ½)/2³²: the nearest quarter turn is exact, the series covers ±π/4."""
    quarter = (word + (1 << 29)) >> 30
    angle = (word - (quarter << 30)).to(dtype).add_(0.5).mul_(math.pi / 2**31)
    square = angle * angle
    terms = 6 if dtype == torch.float32 else 9
    cosine = _series(square, [(-1) ** k / math.factorial(2 * k) for k in range(terms)])
    sine = _series(square, [(-1) ** k / math.factorial(2 * k + 1) for k in range(terms)]).mul_(angle)
    turned = (quarter & 1).bool()
    cosine, sine = torch.where(turned, sine, cosine), torch.where(turned, cosine, sine)
    # Quarters 1 and 2 have a negative cosine, 2 and 3 a negative sine; quarter 4 is quarter 0.
    cosine_sign = 1 - ((quarter + 1) & 2)
    sine_sign = 1 - (quarter & 2)
    return cosine.mul_(cosine_sign.to(dtype)), sine.mul_(sine_sign.to(dtype))


def _series(x: Tensor, coefficients: list[float]) -> Tensor:
    """Σ cₖ xᵏ by Horner's rule; multiplication and addition as separate operations, so that nothing is contracted."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(x).add_(coefficient)
    return total
