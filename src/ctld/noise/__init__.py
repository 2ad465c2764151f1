"""Noise as a pure function of (seed, step, stream, element).

`numbers` has no hidden state: element i of the logical, row-major flattened parameter gets the same number whatever
the memory layout, the number of threads, the split of the parameter over calls or processes, and whether the run was
resumed. A counter-based generator turns the counter (block, step, stream) under the key `seed` into words: ARS-7 on CPUs,
where processors have instructions for it, Philox 4x32-10 on GPUs that Triton serves. `gaussian.py` turns words into numbers.
Other devices use torch's own generator, keyed alike (`device.py`). On CPUs both are done in C where it could be built,
elsewhere by numpy and torch; the bits are the same.

Streams: `ALPHA` for the tempering variable, `INITIAL_MOMENTA` (its "step" is the parameter's index), and
`parameter_stream(index)` for each parameter.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctld.noise.ars import ars
from ctld.noise.device import NAME, device_numbers
from ctld.noise.gaussian import GROUP, gaussian, three_point
from ctld.noise.philox import WORD, philox
from ctld.stepping import native

GENERATOR = "ars-7 (cpu) or philox4x32-10/box-muller/2"
"""Name and version of what `numbers` computes; stored with every optimizer state, so that a resumed run is the same."""

KINDS = ("gaussian", "three_point")

ALPHA = 0
INITIAL_MOMENTA = 1
MAX_SEED = 2**63 - 1

_GROUPS_AT_A_TIME = 1 << 11  # keeps the intermediate words within the processor's caches


def generator_on(device: torch.device) -> str:
    """Return the name of the generator that makes the noise there."""
    if device.type == "cpu":
        return "ars-7"
    return "philox4x32-10" if device.type in ("cuda", "meta") and _triton() else NAME


@cache
def _triton() -> bool:
    """Return whether Triton is installed, whose kernels make Philox's numbers within a step."""
    return find_spec("triton") is not None


def parameter_stream(index: int) -> int:
    """The stream of the parameter with this index, counted over all groups in their order."""
    return 2 + index


def numbers(
    kind: str,
    seed: int,
    step: int,
    stream: int,
    numel: int,
    *,
    offset: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Noise of mean 0 and variance 1 for elements `offset` to `offset + numel` of a stream at a step.

    Parameters
    ----------
    kind : "gaussian" or "three_point"
    seed : int
        0 to 2**63 − 1.
    step, stream : int
        0 to 2**32 − 1.
    numel, offset : int
        Which elements. ``numbers(..., 10)[4:]`` equals ``numbers(..., 6, offset=4)``.
    dtype : torch.dtype
        Of the result; made in float32 and converted.
    device : torch.device or str
        Where the numbers are made; nothing is copied from the host.

    Returns
    -------
    Tensor of shape (numel,)
    """
    _check(kind, seed, step, stream, numel, offset)
    if numel == 0:
        return torch.empty(0, dtype=dtype, device=device)
    where = torch.device(device)
    if generator_on(where) == NAME:
        return device_numbers(kind, seed, step, stream, numel, offset=offset, device=where).to(dtype)
    library = native.load() if where.type == "cpu" else None
    if library is not None:
        return library.numbers(kind, seed, step, stream, offset, numel).to(dtype)
    return slow_numbers(kind, seed, step, stream, numel, offset=offset, device=device).to(dtype)


def normal(seed: int, step: int, stream: int, numel: int, **options: Any) -> Tensor:
    """Standard normal `numbers`."""
    return numbers("gaussian", seed, step, stream, numel, **options)


def slow_numbers(
    kind: str, seed: int, step: int, stream: int, numel: int, *, offset: int, device: torch.device | str
) -> Tensor:
    """`numbers` by numpy and torch, in float32."""
    first, last = offset // GROUP, -(-(offset + numel) // GROUP)
    blocks_per_group, transform = (GROUP // 4, gaussian) if kind == "gaussian" else (GROUP // 8, three_point)
    made = []
    for start in range(first, last, _GROUPS_AT_A_TIME):
        stop = min(start + _GROUPS_AT_A_TIME, last)
        block = torch.arange(start * blocks_per_group, stop * blocks_per_group, device=device)
        made.append(transform(words(seed, step, stream, block)))
    skip = offset - GROUP * first
    return torch.cat(made)[skip : skip + numel] if numel else torch.empty(0, device=device)


def words(seed: int, step: int, stream: int, block: Tensor) -> Tensor:
    """Four uniform 32-bit words for each block, in its order, as int64."""
    counter = torch.empty((4, block.numel()), dtype=torch.int64, device=block.device)
    torch.bitwise_and(block, WORD, out=counter[0])
    torch.bitwise_right_shift(block, 32, out=counter[1])
    counter[2] = step
    counter[3] = stream
    if block.device.type == "cpu":
        made = torch.from_numpy(ars(counter.numpy().astype(np.uint32), (seed, 0)).astype(np.int64))
    else:
        made = philox(counter, (seed & WORD, seed >> 32))
    return made.T.reshape(-1)


def scalar_normal(seed: int, stream: int, element: int) -> float:
    """Element `element` of a stream at step 0, for noise of which one number a step is needed."""
    page, position = divmod(element, 256)
    return _page(seed, stream, page)[position]


@lru_cache(maxsize=64)
def _page(seed: int, stream: int, page: int) -> list[float]:
    # One call costs the same for 256 numbers as for one.
    made: list[float] = normal(seed, 0, stream, 256, offset=256 * page).tolist()
    return made


def _check(kind: str, seed: int, step: int, stream: int, numel: int, offset: int) -> None:
    if kind not in KINDS:
        raise ValueError(f"noise = {kind!r} is unknown; give one of {', '.join(map(repr, KINDS))}")
    limits = {"seed": (seed, MAX_SEED), "step": (step, WORD), "stream": (stream, WORD)}
    for name, (value, largest) in limits.items():
        if not 0 <= value <= largest:
            raise ValueError(f"{name} = {value} is outside 0 to {largest}: a counter has no room for it")
    if numel < 0 or offset < 0 or offset + numel > MAX_SEED:
        raise ValueError(f"numel = {numel} and offset = {offset} must not be negative, nor their sum exceed 2**63 - 1")
