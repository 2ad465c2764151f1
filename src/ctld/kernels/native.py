"""kernels.c on CPUs: noise and whole steps of lists of tensors, in as many threads as torch has.

The library is built when the package is installed (hatch_build.py). Where it is missing, or does not give the numbers that
it should, `load` returns None, says so once, and torch does the work, ten to twenty times slower.
"""

import ctypes
import logging
import os
import struct
from array import array
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_kernels.so")
LEVELS = ("portable", "AVX2", "AVX-512")
KINDS = {None: 0, "gaussian": 1, "three_point": 2}


class Type(NamedTuple):
    """A dtype of parameters that the kernels know: its number there, and the dtype of the momenta."""

    number: int
    momentum: torch.dtype


TYPES = {
    torch.float32: Type(0, torch.float32),
    torch.float64: Type(1, torch.float64),
    torch.bfloat16: Type(2, torch.float32),
}
VERSION = 3  # of what the functions in kernels.c take and give
COLUMNS = 11  # of a row of the table that describes a tensor

_log = logging.getLogger("ctld")
_Integer, _Seed, _Pointer, _Real = ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_double
# Elements 0 to 3 of seed 2017, step 12, stream 4; the tests hold the slow version to the same.
_KNOWN = {
    "gaussian": [0.24943512678146362, -1.050191044807434, -0.005450126249343157, 1.4700632095336914],
    "three_point": [0.0, 0.0, 0.0, 1.7320244312286377],
}


class Library:
    """The functions of kernels.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.ctld_version.restype = library.ctld_best_level.restype = _Integer
        if library.ctld_version() != VERSION:
            raise OSError(f"{LIBRARY.name} is of version {library.ctld_version()}, not {VERSION}")
        self._numbers, self._step, self._all_finite = library.ctld_numbers, library.ctld_step, library.ctld_all_finite
        self._numbers.argtypes = [_Integer, _Integer, _Seed, _Integer, _Integer, _Seed, _Seed, _Pointer]
        self._numbers.restype = None
        self._step.argtypes = [
            *[_Integer] * 3,
            _Pointer,
            _Integer,
            _Pointer,
            *[_Integer] * 3,
            _Seed,
            _Integer,
            _Pointer,
        ]
        self._step.restype = _Integer
        self._all_finite.argtypes = [_Integer, _Integer, _Pointer, _Integer]
        self._all_finite.restype = _Integer
        self._add_hill = library.ctld_add_hill
        self._add_hill.argtypes = [_Pointer, _Pointer, _Integer, _Integer, _Real, _Real, _Real]
        self._add_hill.restype = None
        self.level = int(library.ctld_best_level())
        """Which of LEVELS runs: the best that the processor has. The numbers are the same with any."""
        self._forked = False
        # OpenMP's threads do not survive a fork, and a child that asks for them hangs.
        os.register_at_fork(after_in_child=self._forget_threads)

    def _forget_threads(self) -> None:
        self._forked = True

    def _threads(self) -> int:
        return 1 if self._forked else torch.get_num_threads()

    def numbers(self, kind: str, seed: int, step: int, stream: int, offset: int, numel: int) -> Tensor:
        """Elements `offset` to `offset + numel` of a stream, in float32."""
        # Not on torch's default device, whatever it is: C writes to it.
        made = torch.empty(numel, dtype=torch.float32, device="cpu")
        self._numbers(self.level, KINDS[kind], seed, step, stream, offset, numel, made.data_ptr())
        return made

    def all_finite(self, dtype: torch.dtype, rows: "array[int]") -> bool:
        """Whether the gradients of the rows hold neither NaN nor inf."""
        return bool(self._all_finite(TYPES[dtype].number, self._threads(), _address(rows), len(rows) // COLUMNS))

    def add_hill(
        self,
        values: "array[float]",
        nodes: "array[float]",
        first: int,
        last: int,
        centre: float,
        height: float,
        scale: float,
    ) -> None:
        """values += height·exp(−scale·(nodes − centre)²), from element `first` to `last`."""
        self._add_hill(_address(values), _address(nodes), first, last, centre, height, scale)

    def step(
        self,
        dtype: torch.dtype,
        rows: "array[int]",
        factors: list[float],
        kind: str | None,
        seed: int,
        step: int,
        measure: bool,
        check: bool = False,
    ) -> tuple[float, float, float, float] | None:
        """One step of parameters of one dtype; kernels.c says what rows, factors and the sums returned are.

        None: the gradients were to be checked, and are not finite; nothing has changed.
        """
        numbers, sums = array("d", factors), array("d", (0.0, 0.0, 0.0, 0.0))
        failed = self._step(
            self.level, TYPES[dtype].number, self._threads(), _address(rows), len(rows) // COLUMNS, _address(numbers),
            KINDS[kind], measure, check, seed, step, _address(sums),
        )  # fmt: skip
        if failed == 1:
            raise MemoryError("there is no memory left for the sums of a step; nothing has changed")
        return None if failed else tuple(sums)  # type: ignore[return-value]


@cache
def load() -> Library | None:
    """The library, or None."""
    try:
        library = Library(ctypes.CDLL(str(LIBRARY)))
    except (OSError, AttributeError) as error:
        _log.warning("ctld's kernels are not there, so its steps are ten to twenty times slower; install ctld again where "
                     "there is a C compiler (%s)", error)  # fmt: skip
        return None
    for kind, known in _KNOWN.items():
        if library.numbers(kind, 2017, 12, 4, 0, 4).tolist() != known:
            _log.warning("ctld's kernels do not give the known numbers, so torch does their work; install ctld again")
            return None
    return library


@cache
def stepper() -> Library | None:
    """The library, if its steps are SGD's to the last bit: torch must round a·b + c once, as the kernels do."""
    x = torch.linspace(0.1, 1.0, 67, dtype=torch.float32, device="cpu")
    factor = torch.tensor(0.1, dtype=torch.float32, device="cpu").double()
    fused = (x.double() + factor * x.flip(0).double()).float()
    return load() if torch.equal(torch.add(x, x.flip(0), alpha=0.1), fused) else None


def bits(number: float) -> int:
    """A float64 as the integer with the same bits, to go into a row."""
    (integer,) = struct.unpack("q", struct.pack("d", number))
    return int(integer)


def _address(values: "array[int] | array[float]") -> int:
    return values.buffer_info()[0]
