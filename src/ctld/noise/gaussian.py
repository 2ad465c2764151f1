"""Noise of mean 0 and variance 1 from uniform words: Gaussian by Box-Muller, or three-point.

Gaussian. A pair of words makes a pair of numbers, r cos φ and r sin φ with r² = −2 ln u:

    u = ((word₁ >> 1) | 1)/2³¹ = m·2ᵉ, m in [√½, √2),    r² = −2 ln 2·e + x Q(x),  x = m − 1
    φ = π/4 + ψ in one quadrant, ψ = π/4·word₂/2³¹ (as a signed number);  cos φ = C − S, sin φ = C + S, where
    C = cos ψ/√2 and S = sin ψ/√2;  the two lowest bits of word₂ choose the quadrant, as signs of the two numbers

Q, C and S are polynomials with a relative error below 1e-5, three orders below what 10⁸ numbers can show. Every operation
is one that IEEE 754 rounds correctly, fused multiply-add among them, and is written as such: on CPUs the bits are the same
everywhere, in C or here. Other devices may round a last bit otherwise.

Three-point. 0 with probability 2/3 and ±√3 with 1/6 each has the Gaussian's moments up to the fifth, which is what a weak
second-order integrator needs, and takes 16 bits. With 10,923 of 65,536 on either side the value is 1.73202, not √3, for the
variance to be 1 exactly; the fourth moment is 2.9999.
"""

import numpy as np
import torch
from torch import Tensor

GROUP = 32
"""Elements made together: word i of 16 with word i + 16 make elements i and i + 16; or halves of word i, three-point."""

# Of −2 ln(1 + x)/x on [√½ − 1, √2 − 1], cos(πt/4)/√2 and sin(πt/4)/(√2 t) as functions of t² on [0, 1]; minimax, highest first.
LOGARITHM = (0.28584146, -0.44111873, 0.50806539, -0.66516047, 0.99980435, -2.00000912)
COSINE = (-2.25374617e-04, 1.12074192e-02, -2.18088819e-01, 7.07106758e-01)
SINE = (0.00172225, -0.05708102, 0.55535953)
MINUS_TWO_LN_2 = -1.3862944
ROOT_HALF_BITS = 0x3F3504F3

THRESHOLD = 21845
THREE_POINT_VALUE = float(np.float32(np.sqrt(65536 / (2 * (32768 - THRESHOLD)))))


def gaussian(words: Tensor) -> Tensor:
    """Standard normal float32 numbers, one for each word.

    Parameters
    ----------
    words : Tensor of int64, shape (n·GROUP,)
        Uniform 32-bit words.
    """
    radius_word, angle_word = words.view(-1, 2, GROUP // 2).unbind(1)
    radius = _root(_minus_two_log(radius_word))
    t = _signed(angle_word).float().mul_(2.0**-31)
    square = t * t
    cosine = _polynomial(COSINE, square)
    sine = _polynomial(SINE, square).mul_(t)
    first = (cosine - sine).mul_(radius).mul_(1.0 - 2.0 * (angle_word & 1).float())
    second = (cosine + sine).mul_(radius).mul_(1.0 - (angle_word & 2).float())
    return torch.stack((first, second), 1).view(-1)


def three_point(words: Tensor) -> Tensor:
    """Three-point float32 numbers, two for each word.

    Parameters
    ----------
    words : Tensor of int64, shape (n·GROUP/2,)
        Uniform 32-bit words.
    """
    pairs = words.view(-1, GROUP // 2)
    halves = torch.stack((pairs & 0xFFFF, pairs >> 16), 1).view(-1)
    halves = torch.where(halves < 0x8000, halves, halves - 0x10000)
    return ((halves >= THRESHOLD).float() - (halves < -THRESHOLD).float()).mul_(THREE_POINT_VALUE)


def _minus_two_log(word: Tensor) -> Tensor:
    """−2 ln u."""
    uniform = (word >> 1 | 1).float()
    bits = uniform.view(torch.int32) - (ROOT_HALF_BITS + (31 << 23))
    x = ((bits & 0x7FFFFF) + ROOT_HALF_BITS).view(torch.float32) - 1.0
    return _fused((bits >> 23).float(), torch.full_like(x, MINUS_TWO_LN_2), x * _polynomial(LOGARITHM, x))


def _signed(word: Tensor) -> Tensor:
    return torch.where(word < 1 << 31, word, word - (1 << 32))


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Evaluate a polynomial by Horner's rule in fused multiply-adds."""
    total = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = _fused(total, x, torch.full_like(x, coefficient))
    return total


def _fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c, rounded once; off the CPU, where no bits are promised, rounded as the device likes."""
    if a.device.type != "cpu":
        return torch.addcmul(c, a, b)
    # In float64 the product is exact and the sum nearly: if its last bit is made odd whenever something was lost, then
    # rounding it to float32 gives what rounding the exact sum would have given (Boldo and Melquiond 2008).
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    back = total - product
    lost = (product - (total - back)) + (addend - back)
    bits = total.view(torch.int64)
    towards = torch.where((lost > 0) == (total > 0), 1, -1)
    odd = torch.where((lost != 0) & (bits & 1 == 0), bits + towards, bits)
    return odd.view(torch.float64).float()


def _root(x: Tensor) -> Tensor:
    """√x in place, correctly rounded. On a CPU torch's is a library's, which may miss the last bit; numpy's is not."""
    if x.device.type != "cpu":
        return x.sqrt_()
    array = x.numpy()
    np.sqrt(array, out=array)
    return x
