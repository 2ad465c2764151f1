"""Philox 4x32-10, a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

Ten rounds of a keyed bijection turn a 128-bit counter into 128 random bits. There is no state to carry: any block of
the sequence is computed alone, on any device, in any order.

    (c0, c1, c2, c3) ← (hi(M1·c2) ^ c1 ^ k0,  lo(M1·c2),  hi(M0·c0) ^ c3 ^ k1,  lo(M0·c0)),   (k0, k1) += (W0, W1)

Words are 32 bits wide and held in int64, the one integer type that every torch device multiplies; the product of two
words wraps around 2**64, which leaves its bits right.
"""

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)  # M0, M1
WEYL = (0x9E3779B9, 0xBB67AE85)  # W0, W1: golden ratio and sqrt(3) − 1
ROUNDS = 10
WORD = 0xFFFFFFFF


def philox(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Four random words for each counter.

    Parameters
    ----------
    counter : Tensor of int64, shape (4, n)
        The words c0, c1, c2, c3 of n counters, each in [0, 2**32).
    key : (int, int)
        The words k0 and k1 of the key.

    Returns
    -------
    Tensor of int64, shape (4, n)
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = (product1 >> 32).bitwise_and_(WORD).bitwise_xor_(c1).bitwise_xor_(k0)
        c2 = (product0 >> 32).bitwise_and_(WORD).bitwise_xor_(c3).bitwise_xor_(k1)
        c1, c3 = product1.bitwise_and_(WORD), product0.bitwise_and_(WORD)
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return torch.stack((c0, c1, c2, c3))
