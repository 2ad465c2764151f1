"""The noise in C (native.c): the same bits as the torch version, about ten times as fast, on CPUs only.

The library is built when the package is installed (hatch_build.py). Where it is missing, or does not give the numbers that it
should, `load` returns None, says so once at level INFO, and torch computes the noise.
"""

import ctypes
import logging
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_native.so")

_log = logging.getLogger("ctld")
_FUNCTIONS = {torch.float32: "ctld_normal_float32", torch.float64: "ctld_normal_float64"}
# Elements 0 to 3 of seed 2017, step 12, stream 4; the tests hold the torch version to the same.
_KNOWN = {
    torch.float64: [0.03626968976869684, 0.7317442005612188, -0.5364045989014136, 0.9608620056107797],
    torch.float32: [0.036269690841436386, 0.7317442297935486, -0.5364046692848206, 0.9608621001243591],
}


@cache
def load() -> dict[torch.dtype, Any] | None:
    """The functions by dtype, or None."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        functions = {dtype: getattr(library, name) for dtype, name in _FUNCTIONS.items()}
    except (OSError, AttributeError) as error:
        _log.info("ctld computes its noise by torch, about ten times slower than in C: %s", error)
        return None
    for function in functions.values():
        function.argtypes = [
            ctypes.c_uint64,
            ctypes.c_uint32,
            ctypes.c_uint32,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_void_p,
        ]
        function.restype = None
    if any(fill(functions, 2017, 12, 4, 0, 4, dtype).tolist() != known for dtype, known in _KNOWN.items()):
        _log.info("ctld computes its noise by torch: %s does not give the known numbers; install ctld again", LIBRARY)
        return None
    return functions


def fill(
    functions: dict[torch.dtype, Any], seed: int, step: int, stream: int, offset: int, numel: int, dtype: torch.dtype
) -> Tensor:
    """Elements `offset` to `offset + numel`."""
    # Not on torch's default device, whatever it is: C writes to it.
    numbers = torch.empty(numel, dtype=dtype, device="cpu")
    if numel:
        functions[dtype](seed, step, stream, offset, numel, numbers.data_ptr())
    return numbers
