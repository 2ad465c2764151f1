"""kernels.c on CPUs: noise, and steps of all groups in one call, in as many threads as torch has.

The library is built when the package is installed (hatch_build.py). Where it is missing, or does not give the numbers that
it should, `load` returns None, says so once, and torch does the work, ten to twenty times slower. layout.h names what is handed
over; it is read here once, and its structures are classes of ctypes, whose fields Python writes by name.
"""

import ctypes
import logging
import os
import re
import struct
from array import array
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIBRARY = Path(__file__).with_name("_kernels.so")
FAILURE = Path(__file__).with_name("_kernels.failure.txt")
"""Written by the build where there is no library: why."""
LEVELS = ("portable", "AVX2", "AVX2 and VAES", "AVX-512")

_log = logging.getLogger("ctld")
_Integer, _Seed, _Pointer, _Real = ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_double
# Elements 0 to 3 of seed 2017, step 12, stream 4; the tests hold the slow version to the same.
_KNOWN = {
    "gaussian": [0.24943512678146362, -1.050191044807434, -0.005450126249343157, 1.4700632095336914],
    "three_point": [0.0, 0.0, 0.0, 1.7320244312286377],
}
_FIELDS: dict[str, Any] = {"POINTER": ctypes.c_int64, "INTEGER": ctypes.c_int64, "REAL": ctypes.c_double}


def _read_layout(text: str) -> tuple[dict[str, Any], dict[str, dict[str, int]], dict[str, str]]:
    """Return classes of structures, enumerations and constants."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).replace("\\\n", " ")
    structures, choices, constants = {}, {}, {}
    for name, arguments, body in re.findall(r"^#define CTLD_(\w+)(\([^)]*\))?(.*)$", text, flags=re.MULTILINE):
        if not arguments:
            constants[name] = body.strip()
        elif "NAME" in arguments:
            choices[name] = {each: number for number, each in enumerate(re.findall(r"NAME\((\w+)\)", body))}
        else:
            fields = re.findall(r"(POINTER|INTEGER|REAL)\((\w+)\)", body)
            described = {"_fields_": [(field, _FIELDS[kind]) for kind, field in fields], "__slots__": ()}
            structures[name] = type(name.title(), (ctypes.Structure,), described)
    return structures, choices, constants


STRUCTURES, CHOICES, CONSTANTS = _read_layout(Path(__file__).with_name("layout.h").read_text(encoding="utf-8"))
VERSION, UNIT = int(CONSTANTS["VERSION"]), int(CONSTANTS["UNIT"])
STATUS = CHOICES["STATUS"]
KINDS = {
    None: CHOICES["NOISE"]["NO_NOISE"],
    "gaussian": CHOICES["NOISE"]["GAUSSIAN"],
    "three_point": CHOICES["NOISE"]["THREE_POINT"],
}


def packed(structure: Any, *names: str) -> tuple[struct.Struct, int]:
    """Return what writes and reads these fields at once, and the offset of the first; one by one takes many times as long.

    They have to follow one another in layout.h.
    """
    kinds = dict(structure._fields_)
    known, first = [*kinds], [*kinds].index(names[0])
    if tuple(known[first : first + len(names)]) != names:
        raise ImportError(f"{names} do not follow one another in layout.h, which has {known}; install ctld again")
    codes = "".join("d" if kinds[name] is _Real else "q" for name in names)
    return struct.Struct("=" + codes), getattr(structure, names[0]).offset


class Type(NamedTuple):
    """A dtype of parameters that the kernels know: its number there, and the dtype of the momenta."""

    number: int
    momentum: torch.dtype


TYPES = {
    torch.float32: Type(CHOICES["TYPE"]["FLOAT32"], torch.float32),
    torch.float64: Type(CHOICES["TYPE"]["FLOAT64"], torch.float64),
    torch.bfloat16: Type(CHOICES["TYPE"]["BFLOAT16"], torch.float32),
}


class Library:
    """The functions of kernels.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library.ctld_version.restype = library.ctld_best_level.restype = _Integer
        if library.ctld_version() != VERSION:
            raise OSError(f"{LIBRARY.name} is of version {library.ctld_version()}, not {VERSION}")
        self._numbers, self.run, self.fit = library.ctld_numbers, library.ctld_run, library.ctld_fit
        self._numbers.argtypes = [_Integer, _Integer, _Seed, _Integer, _Integer, _Seed, _Seed, _Pointer]
        self._numbers.restype = None
        self.square_norms = library.ctld_square_norms
        self.run.argtypes = self.fit.argtypes = self.square_norms.argtypes = [_Pointer]
        self.run.restype = self.fit.restype = self.square_norms.restype = _Integer
        self._add_hill = library.ctld_add_hill
        self._add_hill.argtypes = [_Pointer, _Pointer, _Integer, _Integer, _Real, _Real, _Real]
        self._add_hill.restype = None
        self.level = int(library.ctld_best_level())
        """Which of LEVELS runs: the best that the processor has. The numbers are the same with any."""
        self.threads: Callable[[], int] = torch.get_num_threads
        """Number of threads that a step may use."""
        # OpenMP's threads do not survive a fork, and a child that asks for them hangs.
        os.register_at_fork(after_in_child=self._forget_threads)

    def _forget_threads(self) -> None:
        self.threads = lambda: 1

    def numbers(self, kind: str, seed: int, step: int, stream: int, offset: int, numel: int) -> Tensor:
        """Return elements `offset` to `offset + numel` of a stream, in float32."""
        # Not on torch's default device, whatever it is: C writes to it.
        made = torch.empty(numel, dtype=torch.float32, device="cpu")
        self._numbers(self.level, KINDS[kind], seed, step, stream, offset, numel, made.data_ptr())
        return made

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
        """Do values += height·exp(−scale·(nodes − centre)²), from element `first` to `last`."""
        self._add_hill(address(values), address(nodes), first, last, centre, height, scale)


@cache
def load() -> Library | None:
    """Return the library, or None."""
    try:
        library = Library(ctypes.CDLL(str(LIBRARY)))
    except (OSError, AttributeError) as error:
        _log.warning(
            "ctld's kernels are not there, so its steps are ten to twenty times slower; %s (%s)", _remedy(), error
        )
        return None
    for kind, known in _KNOWN.items():
        if library.numbers(kind, 2017, 12, 4, 0, 4).tolist() != known:
            _log.warning("ctld's kernels do not give the known numbers, so torch does their work; install ctld again")
            return None
    return library


@cache
def stepper() -> Library | None:
    """Return the library, if its steps are SGD's to the last bit: torch must round a·b + c once, as the kernels do."""
    x = torch.linspace(0.1, 1.0, 67, dtype=torch.float32, device="cpu")
    factor = torch.tensor(0.1, dtype=torch.float32, device="cpu").double()
    fused = (x.double() + factor * x.flip(0).double()).float()
    return load() if torch.equal(torch.add(x, x.flip(0), alpha=0.1), fused) else None


def address(values: "array[int] | array[float]") -> int:
    """Return where an array's elements begin."""
    return values.buffer_info()[0]


def _remedy() -> str:
    """Return what to do about a missing library, by what the build has left to read."""
    try:
        return FAILURE.read_text(encoding="utf-8").strip()
    except OSError:
        return "install ctld again where there is a C compiler"
