"""Gaussian noise as a pure function of (seed, step, stream, element).

`normal` has no hidden state: element i of the logical, row-major flattened parameter gets the same number whatever
the memory layout, the number of threads, the split of the parameter over calls or processes, and whether the run was
resumed. Philox 4x32-10 turns the counter (element // 4, step, stream) under the key `seed` into words, Box-Muller
turns words into Gaussian numbers. On CPUs both are done in C where it could be built, elsewhere by torch; the bits are
the same.

Streams: `ALPHA` for the tempering variable, `INITIAL_MOMENTA` (its "step" is the parameter's index), and
`parameter_stream(index)` for each parameter.
"""

from functools import lru_cache

import torch
from torch import Tensor

from ctld.noise import native
from ctld.noise.gaussian import box_muller
from ctld.noise.philox import WORD, philox

GENERATOR = "philox4x32-10/box-muller/1"
"""Name and version of what `normal` computes; stored with every optimizer state, so that a resumed run is the same."""

ALPHA = 0
INITIAL_MOMENTA = 1
MAX_SEED = 2**63 - 1

_BLOCKS_AT_A_TIME = 1 << 16  # keeps the intermediate words within the processor's caches


def parameter_stream(index: int) -> int:
    """The stream of the parameter with this index, counted over all groups in their order."""
    return 2 + index


def normal(
    seed: int,
    step: int,
    stream: int,
    numel: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Standard normal numbers for elements `offset` to `offset + numel` of a stream at a step.

    Parameters
    ----------
    seed : int
        0 to 2**63 − 1.
    step, stream : int
        0 to 2**32 − 1.
    numel, offset : int
        Which elements. ``normal(..., 10)[4:]`` equals ``normal(..., 6, offset=4)``.
    dtype : torch.dtype
        float64 and float32 agree within 1e-4; lower precisions are rounded from float32.
    device : torch.device or str
        Where the numbers are made; nothing is copied from the host.

    Returns
    -------
    Tensor of shape (numel,)
    """
    _check(seed, step, stream, numel, offset)
    arithmetic = torch.float64 if dtype == torch.float64 else torch.float32
    functions = native.load() if torch.device(device).type == "cpu" else None
    if functions is not None:
        return native.fill(functions, seed, step, stream, offset, numel, arithmetic).to(dtype)
    first, last = offset // 4, -(-(offset + numel) // 4)
    blocks = [
        _normal_blocks(seed, step, stream, start, min(start + _BLOCKS_AT_A_TIME, last), arithmetic, device)
        for start in range(first, last, _BLOCKS_AT_A_TIME)
    ]
    if not blocks:
        return torch.empty(0, dtype=dtype, device=device)
    numbers = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    skip = offset - 4 * first
    return numbers[skip : skip + numel].to(dtype)


def scalar_normal(seed: int, stream: int, element: int) -> float:
    """Element `element` of a stream at step 0, for noise of which one number a step is needed."""
    page, position = divmod(element, 256)
    return _page(seed, stream, page)[position]


@lru_cache(maxsize=64)
def _page(seed: int, stream: int, page: int) -> list[float]:
    # One call costs the same for 256 numbers as for one.
    numbers: list[float] = normal(seed, 0, stream, 256, offset=256 * page, dtype=torch.float64).tolist()
    return numbers


def _normal_blocks(
    seed: int, step: int, stream: int, first: int, last: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    block = torch.arange(first, last, device=device)
    counter = torch.empty((4, last - first), dtype=torch.int64, device=device)
    torch.bitwise_and(block, WORD, out=counter[0])
    torch.bitwise_right_shift(block, 32, out=counter[1])
    counter[2] = step
    counter[3] = stream
    words = philox(counter, (seed & WORD, seed >> 32))
    # Words (0, 1) make elements 4b and 4b + 1, words (2, 3) elements 4b + 2 and 4b + 3.
    pairs = box_muller(words.view(2, 2, -1).transpose(0, 1), dtype)
    return pairs.permute(2, 1, 0).reshape(-1)


def _check(seed: int, step: int, stream: int, numel: int, offset: int) -> None:
    limits = {"seed": (seed, MAX_SEED), "step": (step, WORD), "stream": (stream, WORD)}
    for name, (value, largest) in limits.items():
        if not 0 <= value <= largest:
            raise ValueError(f"{name} = {value} is outside 0 to {largest}: a counter has no room for it")
    if numel < 0 or offset < 0 or offset + numel > MAX_SEED:
        raise ValueError(f"numel = {numel} and offset = {offset} must not be negative, nor their sum exceed 2**63 - 1")
