"""ARS-7, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), on CPUs.

Seven rounds of AES turn a 128-bit counter into 128 random bits, with sums of Weyl constants in place of AES's key
schedule. Processors do a round in one instruction, so the kernels use it; this is the slow version that they must equal,
and what runs where they could not be built. Checked against the vectors published with Random123.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

ROUNDS = 7
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)  # golden ratio and sqrt(3) − 1

Words = NDArray[np.uint32]


def ars(counter: Words, key: tuple[int, int], rounds: int = ROUNDS) -> Words:
    """Four random words for each counter.

    Parameters
    ----------
    counter : array of uint32, shape (4, n)
        The words of n counters, the least significant first.
    key : (int, int)
        The low and the high 64 bits of the key.

    Returns
    -------
    array of uint32, shape (4, n)
    """
    substituted, mixed = _tables()
    state = counter ^ _round_key(key, 0)
    for number in range(1, rounds):
        state = _columns(state, mixed) ^ _round_key(key, number)
    return _columns(state, substituted) ^ _round_key(key, rounds)


def _columns(state: Words, tables: Words) -> Words:
    """One round but for the key: byte i of column j comes from column j + i, substituted and, but for the last, mixed."""
    columns = [
        tables[0][state[j] & 0xFF]
        ^ tables[1][state[(j + 1) % 4] >> 8 & 0xFF]
        ^ tables[2][state[(j + 2) % 4] >> 16 & 0xFF]
        ^ tables[3][state[(j + 3) % 4] >> 24]
        for j in range(4)
    ]
    return np.stack(columns)


def _round_key(key: tuple[int, int], number: int) -> Words:
    low, high = (((half + number * weyl) & (1 << 64) - 1) for half, weyl in zip(key, WEYL, strict=True))
    words = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    return np.array(words, dtype=np.uint32)[:, None]


@cache
def _tables() -> tuple[Words, Words]:
    """For a byte in each of the four places of a column: the column it becomes, without and with mixing."""
    box = [_substitute(byte) for byte in range(256)]
    column = [_times(s, 2) | s << 8 | s << 16 | _times(s, 3) << 24 for s in box]
    substituted = [[s << 8 * place for s in box] for place in range(4)]
    mixed = [[(c << 8 * place | c >> 32 - 8 * place) & 0xFFFFFFFF for c in column] for place in range(4)]
    return np.array(substituted, dtype=np.uint32), np.array(mixed, dtype=np.uint32)


def _substitute(byte: int) -> int:
    """AES's S-box: the inverse in GF(2⁸), then an affine map."""
    inverse = next((other for other in range(256) if _times(byte, other) == 1), 0)
    turned = inverse | inverse << 8
    return 0x63 ^ inverse ^ ((turned >> 4 ^ turned >> 5 ^ turned >> 6 ^ turned >> 7) & 0xFF)


def _times(a: int, b: int) -> int:
    """Product in GF(2⁸), modulo x⁸ + x⁴ + x³ + x + 1."""
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return product
