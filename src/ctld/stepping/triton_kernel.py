"""The step of a chunk of elements on a GPU, for Triton; `ctld.stepping.triton` launches it.

Triton is imported when a kernel is wanted, not before: `kernel` makes kernels of the functions here. They see each other's
names, and the numbers of `NAMES`, and no other globals.
"""

from __future__ import annotations  # which name types of Triton, before it is imported

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:

    class _Language(type):
        def __getattr__(cls, name: str) -> Any: ...

    class tl(metaclass=_Language):
        constexpr: TypeAlias = Any
        tensor: TypeAlias = Any

else:
    tl = None  # triton.language, once a kernel is wanted

# The table begins with what is common to all tensors: two integers, and factors as the bits of float64.
COMMON = ("SEED", "STEP", "RETAIN", "IMPULSE", "DEVIATION", "STRIDE", "DECAY", "SIGN", "TOTAL", "SHARE", "MEMORY")
SEED, STEP, RETAIN, IMPULSE, DEVIATION, STRIDE, DECAY, SIGN, TOTAL, SHARE, MEMORY = range(len(COMMON))
# Then each tensor has a row: addresses, size, its noise, and how many elements at its beginning are not its own.
COLUMNS = ("PARAMETER", "GRADIENT", "MOMENTUM", "SCALE", "PREVIOUS", "VARIANCE", "NUMEL", "STREAM", "OFFSET", "AHEAD")
PARAMETER, GRADIENT, MOMENTUM, SCALE, PREVIOUS, VARIANCE, NUMEL, STREAM, OFFSET, AHEAD = range(len(COLUMNS))
ROWS, WIDTH = len(COMMON), len(COLUMNS)
GAUSSIAN = 1
NAMES = (*COMMON, *COLUMNS, "ROWS", "WIDTH", "GAUSSIAN")

_DEVICE_FUNCTIONS: list[Callable[..., Any]] = []


def _device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark what `kernel` hands to `triton.jit`."""
    _DEVICE_FUNCTIONS.append(function)
    return function


@_device
def _box_muller(radius_word: tl.tensor, angle_word: tl.tensor) -> tl.tensor:
    """gaussian.py, line by line."""
    uniform = (radius_word >> 1 | 1).to(tl.int32, bitcast=True).to(tl.float32)
    bits = uniform.to(tl.int32, bitcast=True) - 0x4EB504F3
    x = ((bits & 0x7FFFFF) + 0x3F3504F3).to(tl.float32, bitcast=True) - 1.0
    q = tl.fma(x, 0.28584146, -0.44111873)
    q = tl.fma(q, x, 0.50806539)
    q = tl.fma(q, x, -0.66516047)
    q = tl.fma(q, x, 0.99980435)
    q = tl.fma(q, x, -2.00000912)
    radius = tl.sqrt_rn(tl.fma((bits >> 23).to(tl.float32), -1.3862944, x * q))
    t = angle_word.to(tl.int32, bitcast=True).to(tl.float32) * 4.656612873077393e-10
    square = t * t
    cosine = tl.fma(square, -2.25374617e-04, 1.12074192e-02)
    cosine = tl.fma(cosine, square, -2.18088819e-01)
    cosine = tl.fma(cosine, square, 7.07106758e-01)
    sine = tl.fma(square, 0.00172225, -0.05708102)
    sine = tl.fma(sine, square, 0.55535953) * t
    first = ((cosine - sine) * radius).to(tl.uint32, bitcast=True) ^ (angle_word << 31)
    second = ((cosine + sine) * radius).to(tl.uint32, bitcast=True) ^ ((angle_word & 2) << 30)
    return first.to(tl.float32, bitcast=True), second.to(tl.float32, bitcast=True)


@_device
def _three_points(half: tl.tensor) -> tl.tensor:
    return ((half >= 21845).to(tl.float32) - (half < -21845).to(tl.float32)) * 1.7320244312286377


@_device
def _side_by_side(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tensor:
    """Four columns as one tensor; each thread keeps what it has."""
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), (a.shape[0], 4))


@_device
def _words(seed: tl.tensor, step: tl.tensor, stream: tl.tensor, first_block: tl.tensor, lane: tl.tensor) -> tl.tensor:
    """Block `first_block` + `lane` of a stream: four words for each lane."""
    block = first_block + lane
    return tl.philox(seed, block.to(tl.uint32), (block >> 32).to(tl.uint32), step.to(tl.uint32), stream.to(tl.uint32))


@_device
def _noise(
    seed: tl.tensor, step: tl.tensor, stream: tl.tensor, first: tl.tensor, NOISE: tl.constexpr, CHUNK: tl.constexpr
) -> tl.tensor:
    """The numbers of a chunk that begins with element `first`, as the two halves of `_step`."""
    lane = tl.arange(0, CHUNK // 8)
    if NOISE == GAUSSIAN:
        block = lane // 4 * 8 + lane % 4
        r0, r1, r2, r3 = _words(seed, step, stream, first >> 2, block)
        a0, a1, a2, a3 = _words(seed, step, stream, first >> 2, block + 4)
        x0, y0 = _box_muller(r0, a0)
        x1, y1 = _box_muller(r1, a1)
        x2, y2 = _box_muller(r2, a2)
        x3, y3 = _box_muller(r3, a3)
        here, there = _side_by_side(x0, x1, x2, x3), _side_by_side(y0, y1, y2, y3)
    else:
        w0, w1, w2, w3 = _words(seed, step, stream, first >> 3, lane)
        words = _side_by_side(w0, w1, w2, w3)
        here = _three_points((words << 16).to(tl.int32, bitcast=True) >> 16)
        there = _three_points(words.to(tl.int32, bitcast=True) >> 16)
    return here, there


@_device
def _root(x: tl.tensor) -> tl.tensor:
    """√x, correctly rounded: Triton's plain one is approximate in float32 and is not in float64."""
    return tl.sqrt(x) if x.dtype == tl.float64 else tl.sqrt_rn(x)


@_device
def _rounded(x: tl.tensor, TYPE: tl.constexpr) -> tl.tensor:
    """Round to nearest, ties to even; bfloat16 by hand, since Triton's own conversion truncates in the interpreter."""
    if TYPE == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        x = tl.where(x != x, 0x7FC0, bits).to(tl.uint16)
    return x.to(TYPE, bitcast=True)


@_device
def _column(
    row: tl.tensor, number: tl.constexpr, first: tl.tensor, TYPE: tl.constexpr, ALIGNED: tl.constexpr
) -> tl.tensor:
    """Return where a chunk begins in one of a row's tensors."""
    start = tl.load(row + number).to(tl.pointer_type(TYPE), bitcast=True)
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start + first


@_device
def _factor(table: tl.tensor, number: tl.constexpr, REAL: tl.constexpr) -> tl.tensor:
    return tl.load(table + number).to(tl.float64, bitcast=True).to(REAL)


@_device
def _read(place: tl.tensor, inside: tl.tensor, WHOLE: tl.constexpr) -> tl.tensor:
    """Read a chunk, zero beyond the tensor's end. Even a mask that is true throughout would cut a load of four into four."""
    return tl.load(place) if WHOLE else tl.load(place, inside, 0.0)


@_device
def _write(place: tl.tensor, value: tl.tensor, inside: tl.tensor, WHOLE: tl.constexpr) -> None:
    if WHOLE:
        tl.store(place, value)
    else:
        tl.store(place, value, inside)


@_device
def _move(
    table: tl.tensor,
    row: tl.tensor,
    first: tl.tensor,
    ahead: tl.tensor,
    count: tl.tensor,
    here: tl.tensor,
    there: tl.tensor,
    sums: tl.tensor,
    STORED: tl.constexpr,
    REAL: tl.constexpr,
    NOISE: tl.constexpr,
    MOMENTA: tl.constexpr,
    SCALES: tl.constexpr,
    COMPENSATION: tl.constexpr,
    MEASURE: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """The update of a chunk, pass_… of kernels.c; a `WHOLE` one has CHUNK elements."""
    parameter, gradient = (
        _column(row, PARAMETER, first, STORED, ALIGNED),
        _column(row, GRADIENT, first, STORED, ALIGNED),
    )
    momentum, scale = _column(row, MOMENTUM, first, REAL, ALIGNED), _column(row, SCALE, first, REAL, ALIGNED)
    previous, variance = _column(row, PREVIOUS, first, REAL, ALIGNED), _column(row, VARIANCE, first, REAL, ALIGNED)
    retain, impulse, deviation = (
        _factor(table, RETAIN, REAL),
        _factor(table, IMPULSE, REAL),
        _factor(table, DEVIATION, REAL),
    )
    stride, decay, sign = _factor(table, STRIDE, REAL), _factor(table, DECAY, REAL), _factor(table, SIGN, REAL)
    # Eight numbers of a lane are added in the arithmetic's own precision, as in kernels.c, and the lanes in float64.
    prior, kinetic = tl.zeros((CHUNK // 8,), REAL), tl.zeros((CHUNK // 8,), REAL)
    midpoint, clamped = tl.zeros((CHUNK // 8,), REAL), tl.zeros((CHUNK // 8,), tl.int32)
    lane = tl.arange(0, CHUNK // 8)
    for half in tl.static_range(2):
        places = (lane // 4 * 32 + lane % 4 * 4)[:, None] + (tl.arange(0, 4) + 16 * half)[None, :]
        inside = (places >= ahead) & (places < count)
        theta = _read(parameter + places, inside, WHOLE).to(REAL)
        raw = _read(gradient + places, inside, WHOLE).to(REAL)
        move = tl.fma(decay, theta, raw * sign)
        spread = deviation
        if SCALES:
            s = _read(scale + places, inside, WHOLE)
            move *= s
            spread = deviation * _root(s)
        if COMPENSATION:
            total, share, memory = (
                _factor(table, TOTAL, REAL),
                _factor(table, SHARE, REAL),
                _factor(table, MEMORY, REAL),
            )
            other = (_factor(table, MEMORY, tl.float64) - 1.0).to(REAL)
            change = raw - _read(previous + places, inside, WHOLE)
            known = _read(variance + places, inside, WHOLE)
            square = change * change * 0.5
            fresh = square - known
            known = tl.where(memory < 0.5, tl.fma(memory, fresh, known), tl.fma(other, fresh, square))
            remaining = total - share * known
            _write(previous + places, raw, inside, WHOLE)
            _write(variance + places, known, inside, WHOLE)
            clamped += tl.sum((inside & (remaining < 0)).to(tl.int32), 1)
            spread = _root(tl.where(remaining < 0, 0.0, remaining))
        old = _read(momentum + places, inside, WHOLE) if MOMENTA else tl.zeros_like(move)
        move = tl.fma(impulse, move, retain * old)
        if NOISE != 0:
            # Beyond the tensor's end noise would enter the sums.
            move = tl.fma(spread, tl.where(inside, here if half == 0 else there, 0.0).to(REAL), move)
        if MOMENTA:
            _write(momentum + places, move, inside, WHOLE)
        _write(parameter + places, _rounded(tl.fma(stride, move, theta), STORED), inside, WHOLE)
        if MEASURE:
            prior += tl.sum(theta * theta, 1)
            middle = old + move
            if SCALES:
                mass = 1.0 / tl.where(inside, s, 1.0)  # no momenta are beyond the tensor's end
                kinetic += tl.sum(mass * move * move, 1)
                midpoint += tl.sum(mass * middle * middle, 1)
            else:
                kinetic += tl.sum(move * move, 1)
                midpoint += tl.sum(middle * middle, 1)
    if MEASURE or COMPENSATION:
        tl.store(sums, tl.sum(prior.to(tl.float64), 0))
        tl.store(sums + 1, tl.sum(kinetic.to(tl.float64), 0))
        tl.store(sums + 2, tl.sum(midpoint.to(tl.float64), 0))
        tl.store(sums + 3, tl.sum(clamped, 0).to(tl.float64))


@_device
def _step(
    table: tl.tensor,
    chunks: tl.tensor,
    partials: tl.tensor,
    refused: tl.tensor,
    STORED: tl.constexpr,
    REAL: tl.constexpr,
    NOISE: tl.constexpr,
    MOMENTA: tl.constexpr,
    SCALES: tl.constexpr,
    COMPENSATION: tl.constexpr,
    MEASURE: tl.constexpr,
    REFUSABLE: tl.constexpr,
    ALIGNED: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """A chunk. Lane l holds elements 32⌊l/4⌋ + 4(l mod 4) to +3 and those 16 further on: what a call of Philox gives it."""
    program = tl.program_id(0)
    row = table + ROWS + WIDTH * tl.load(chunks + 2 * program)
    first = tl.load(chunks + 2 * program + 1).to(tl.int64) * CHUNK
    count = tl.minimum(tl.load(row + NUMEL) - first, CHUNK).to(tl.int32)
    ahead = tl.maximum(tl.load(row + AHEAD) - first, 0).to(tl.int32)
    if REFUSABLE:
        count = tl.where(tl.load(refused) != 0, 0, count)
    here, there = 0.0, 0.0
    if NOISE != 0:
        element = tl.load(row + OFFSET) + first
        here, there = _noise(tl.load(table + SEED), tl.load(table + STEP), tl.load(row + STREAM), element, NOISE, CHUNK)
    sums = partials + 4 * program
    if (count == CHUNK) & (ahead == 0):
        _move(table, row, first, ahead, count, here, there, sums, STORED, REAL, NOISE, MOMENTA, SCALES, COMPENSATION,
              MEASURE, ALIGNED, CHUNK, True)  # fmt: skip
    else:
        _move(table, row, first, ahead, count, here, there, sums, STORED, REAL, NOISE, MOMENTA, SCALES, COMPENSATION,
              MEASURE, ALIGNED, CHUNK, False)  # fmt: skip


@cache
def kernel() -> Any:
    """Return `_step`, ready to launch, or None without Triton."""
    try:
        triton, language = import_module("triton"), import_module("triton.language")
    except ImportError:
        return None
    known = globals()
    known["tl"] = language
    for name in NAMES:
        known[name] = language.constexpr(known[name])
    for function in _DEVICE_FUNCTIONS:
        known[function.__name__] = triton.jit(function)
    return _step
