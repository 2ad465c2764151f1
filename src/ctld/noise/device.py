"""Noise by a device's own generator, keyed by seed, step and stream: one launch or a few for a tensor.

Philox by operations of torch takes some two hundred launches. So where neither the kernels of CPUs nor Triton's are at hand,
the generator of torch makes the numbers. They are another sequence than elsewhere, and states store the name of it.
"""

import hashlib
import struct
from functools import cache

import torch
from torch import Tensor

from ctld.noise.gaussian import THREE_POINT_VALUE, THRESHOLD

NAME = "torch.Generator"


@cache
def generator(device: torch.device) -> torch.Generator:
    """Return the generator that noise on this device is drawn from."""
    return torch.Generator(device)


FIRST = 4096
"""Elements of the first piece that is made at once. Each further piece is twice as long as the one before."""


def device_numbers(
    kind: str, seed: int, step: int, stream: int, numel: int, *, offset: int, device: torch.device
) -> Tensor:
    """Return elements `offset` to `offset + numel` of a stream, in float32.

    They are cut out of whole pieces, since a generator makes other numbers for other lengths. A tensor takes as many launches
    as its size has doublings beyond `FIRST`.
    """
    made = []
    piece = (offset // FIRST + 1).bit_length() - 1
    while FIRST * (2**piece - 1) < offset + numel:
        begin, size = FIRST * (2**piece - 1), FIRST * 2**piece
        key = hashlib.blake2b(struct.pack("<QQQQ", seed, step, stream, piece), digest_size=8).digest()
        source = generator(device).manual_seed(int.from_bytes(key, "little") >> 1)
        made.append(_piece(kind, size, source, device)[max(offset - begin, 0) : offset + numel - begin])
        piece += 1
    return made[0] if len(made) == 1 else torch.cat(made)


def _piece(kind: str, size: int, source: torch.Generator, device: torch.device) -> Tensor:
    if kind == "gaussian":
        return torch.randn((size,), generator=source, device=device)
    halves = torch.randint(-0x8000, 0x8000, (size,), generator=source, device=device)
    return ((halves >= THRESHOLD).float() - (halves < -THRESHOLD).float()).mul_(THREE_POINT_VALUE)
