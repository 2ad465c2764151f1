"""Whole steps on GPUs, in Triton: one launch for all tensors of one dtype, noise included.

    table of tensors (pointers, sizes, streams)  +  map of chunks (which tensor, which part)  →  one program per chunk

`ctld.movers` says what a step computes; the operations and their order are those of kernels.c. The noise is noise/philox.py
and noise/gaussian.py. Every operation is one that IEEE 754 rounds correctly and none are contracted, so the bits should be
those of gaussian.py on a CPU.

So far this has been run in Triton's interpreter only, on a CPU, and compiled for GPUs; it has not yet been run on a GPU.
On a machine that has one, ``TRITON_INTERPRET=0 pytest tests/kernels/test_cuda.py`` runs the same tests there.

Nothing here waits for the device: the table goes there from pinned memory, and the sums stay there. They are added in an
order that does not depend on timing. Everything that changes from step to step is in the table, so that a kernel is compiled
once for a dtype and a set of options, at its first step.
"""

from __future__ import annotations  # which name types of Triton, before it is imported

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

KINDS = {None: 0, "gaussian": 1, "three_point": 2}
TYPES = {
    torch.float32: ("float32", "float32"),
    torch.float64: ("float64", "float64"),
    torch.bfloat16: ("bfloat16", "float32"),
}
"""Of parameters and gradients; and, in Triton's names, what they are stored as and what momenta and arithmetic are in."""

CHUNK = 2048  # elements for one program; a multiple of the 32 whose noise is made together
WARPS = 8  # so that a thread has eight elements; 40 to 70 registers by Triton 3.9 for compute capability 8.0

if TYPE_CHECKING:

    class _Language(type):
        def __getattr__(cls, name: str) -> Any: ...

    class tl(metaclass=_Language):
        constexpr: TypeAlias = Any
        tensor: TypeAlias = Any

else:
    tl = None  # triton.language, once a kernel is wanted


# ---- on the device. Triton sees names of other functions here as kernels, and no other globals: hence numbers as they are ----


_DEVICE_FUNCTIONS: list[Callable[..., Any]] = []


def _device(function: Callable[..., Any]) -> Callable[..., Any]:
    """`triton.jit`, put off until `_kernel`."""
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
    if NOISE == 1:
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
    """To nearest, ties to even. Of bfloat16 by hand, since Triton's own conversion truncates in the interpreter."""
    if TYPE == tl.bfloat16:  # noqa: SIM300
        bits = x.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        x = tl.where(x != x, 0x7FC0, bits).to(tl.uint16)
    return x.to(TYPE, bitcast=True)


@_device
def _column(
    row: tl.tensor, number: tl.constexpr, first: tl.tensor, TYPE: tl.constexpr, ALIGNED: tl.constexpr
) -> tl.tensor:
    """Where a chunk begins in one of a row's tensors."""
    start = tl.load(row + number).to(tl.pointer_type(TYPE), bitcast=True)
    if ALIGNED:
        start = tl.multiple_of(start, 16)
    return start + first


@_device
def _factor(table: tl.tensor, number: tl.constexpr, REAL: tl.constexpr) -> tl.tensor:
    return tl.load(table + 2 + number).to(tl.float64, bitcast=True).to(REAL)


@_device
def _read(place: tl.tensor, inside: tl.tensor, WHOLE: tl.constexpr) -> tl.tensor:
    """Zero beyond the tensor's end. A mask, even one that is true throughout, would cut a load of four elements into four."""
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
    parameter, gradient = _column(row, 0, first, STORED, ALIGNED), _column(row, 1, first, STORED, ALIGNED)
    momentum, scale = _column(row, 2, first, REAL, ALIGNED), _column(row, 3, first, REAL, ALIGNED)
    previous, variance = _column(row, 4, first, REAL, ALIGNED), _column(row, 5, first, REAL, ALIGNED)
    retain, impulse, deviation = _factor(table, 0, REAL), _factor(table, 1, REAL), _factor(table, 2, REAL)
    stride, decay, sign = _factor(table, 3, REAL), _factor(table, 4, REAL), _factor(table, 5, REAL)
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
            total, share, memory = _factor(table, 6, REAL), _factor(table, 7, REAL), _factor(table, 8, REAL)
            other = (_factor(table, 8, tl.float64) - 1.0).to(REAL)
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
    """A chunk. Lane l holds elements 32⌊l/4⌋ + 4(l mod 4) to +3 and those 16 further on: what a call of Philox gives it.

    The table: seed, step, the bits of nine factors in float64; then for each tensor six addresses, its size, its stream,
    where it begins in the stream, and how many elements at its beginning are not its own.
    """
    program = tl.program_id(0)
    row = table + 11 + 10 * tl.load(chunks + 2 * program)
    first = tl.load(chunks + 2 * program + 1).to(tl.int64) * CHUNK
    count = tl.minimum(tl.load(row + 6) - first, CHUNK).to(tl.int32)
    ahead = tl.maximum(tl.load(row + 9) - first, 0).to(tl.int32)
    if REFUSABLE:
        count = tl.where(tl.load(refused) != 0, 0, count)
    here, there = 0.0, 0.0
    if NOISE != 0:
        element = tl.load(row + 8) + first
        here, there = _noise(tl.load(table), tl.load(table + 1), tl.load(row + 7), element, NOISE, CHUNK)
    sums = partials + 4 * program
    if (count == CHUNK) & (ahead == 0):
        _move(table, row, first, ahead, count, here, there, sums, STORED, REAL, NOISE, MOMENTA, SCALES, COMPENSATION,
              MEASURE, ALIGNED, CHUNK, True)  # fmt: skip
    else:
        _move(table, row, first, ahead, count, here, there, sums, STORED, REAL, NOISE, MOMENTA, SCALES, COMPENSATION,
              MEASURE, ALIGNED, CHUNK, False)  # fmt: skip


# ---- on the host ----


@cache
def _kernel() -> Any:
    """`_step`, ready to launch, or None without Triton."""
    try:
        triton, language = import_module("triton"), import_module("triton.language")
    except ImportError:
        return None
    globals()["tl"] = language
    for function in _DEVICE_FUNCTIONS:
        globals()[function.__name__] = triton.jit(function)
    return _step


def available() -> bool:
    """Whether Triton is installed."""
    return _kernel() is not None


def advance(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor] | None,
    streams: Sequence[int],
    offsets: Sequence[int],
    kind: str | None,
    seed: int,
    step: int,
    *,
    retain: float,
    impulse: float,
    deviation: float,
    stride: float,
    decay: float,
    ascend: bool,
    scales: Sequence[Tensor] | None = None,
    previous_gradients: Sequence[Tensor] | None = None,
    gradient_variances: Sequence[Tensor] | None = None,
    variance: float = 0.0,
    gradient_share: float = 0.0,
    memory: float = 0.0,
    measure: bool = False,
    refused: Tensor | None = None,
) -> Tensor:
    """One step.

    Parameters
    ----------
    parameters, gradients : lists of tensors
        All of one dtype of `TYPES`, on one device, contiguous.
    momenta, scales, previous_gradients, gradient_variances : lists of tensors, optional
        Contiguous; in float64 for parameters in float64, else in float32. The last two, for noise compensation, go together.
    streams, offsets : lists of int
        Of the noise, for each parameter: its stream, and the element of it with which the tensor begins.
    kind : "gaussian", "three_point" or None
        None is a step without noise; `seed` and `step` do not matter then.
    retain, impulse, deviation, stride, decay : float
        The factors of `ctld.movers`.
    ascend : bool
        Whether the gradient's sign is turned.
    variance, gradient_share, memory : float
        Noise compensation: the deviation is √(variance − gradient_share·Var(∇)) in place of `deviation`, and the estimate of
        Var(∇) goes this part of the way to its newest value.
    measure : bool
        Whether the first three sums are wanted.
    refused : Tensor of bool, of one element, optional
        Whether nothing is to change after all, and the sums are to be zero; read by the kernel, not by the host.

    Returns
    -------
    Tensor of float64, shape (4,), on the device
        Σθ² before the step, Σp² after it, Σ(p before + p after)², and how many noise variances were clamped at zero.
    """
    device, kernel = parameters[0].device, _kernel()
    factors = (retain, impulse, deviation, stride, decay, -1.0 if ascend else 1.0, variance, gradient_share, memory)
    table = [seed, step] if kind is not None else [0, 0]
    table += struct.unpack("9q", struct.pack("9d", *factors))
    columns = (parameters, gradients, momenta, scales, previous_gradients, gradient_variances)
    # The noise of 32 elements is made together. Where a shard begins amid such a group, rows begin with the group, at
    # addresses that lie before the tensors, and the kernel leaves out the `ahead` elements there.
    aheads = [offset % 32 for offset in offsets]
    addresses = [
        [0] * len(parameters)
        if column is None
        else [x.data_ptr() - ahead * x.element_size() for x, ahead in zip(column, aheads, strict=True)]
        for column in columns
    ]
    numels = tuple(
        parameter.numel() + ahead if parameter.numel() else 0
        for parameter, ahead in zip(parameters, aheads, strict=True)
    )
    for *row, offset, ahead in zip(*addresses, numels, streams, offsets, aheads, strict=True):
        table += [*row, offset - ahead, ahead]
    chunks = _chunks(numels, device, _queue(device))
    if not len(chunks):
        return torch.zeros(4, dtype=torch.float64, device=device)
    counted = measure or previous_gradients is not None
    partials = torch.empty((len(chunks) if counted else 0, 4), dtype=torch.float64, device=device)
    stored, real = TYPES[parameters[0].dtype]
    # Triton launches on the current device.
    with torch.cuda.device_of(parameters[0]):  # type: ignore[no-untyped-call]
        kernel[(len(chunks),)](
            _sent(torch.tensor(table, dtype=torch.int64, device="cpu"), device),
            chunks,
            partials,
            chunks if refused is None else refused.to(device, non_blocking=True).view(torch.uint8),
            STORED=getattr(tl, stored),
            REAL=getattr(tl, real),
            NOISE=KINDS[kind],
            MOMENTA=momenta is not None,
            SCALES=scales is not None,
            COMPENSATION=previous_gradients is not None,
            MEASURE=measure,
            REFUSABLE=refused is not None,
            # Parameters that are views may begin anywhere; then elements are loaded one by one.
            ALIGNED=not any(address % 16 for column in addresses for address in column),
            CHUNK=CHUNK,
            num_warps=WARPS,
            enable_fp_fusion=False,
        )
    return partials.sum(0)


@lru_cache(maxsize=64)
def _chunks(numels: tuple[int, ...], device: torch.device, queue: int) -> Tensor:
    """Two numbers for each chunk: of its tensor, and its own within the tensor.

    They depend on sizes alone and stay on the device from step to step. `queue` is there to make a copy for each CUDA stream:
    another one would not know when this one's copy has arrived.
    """
    counts = torch.tensor([-(-numel // CHUNK) for numel in numels], device="cpu")
    tensors = torch.repeat_interleave(torch.arange(len(numels), device="cpu"), counts)
    parts = torch.arange(len(tensors), device="cpu") - (counts.cumsum(0) - counts)[tensors]
    return _sent(torch.stack((tensors, parts), 1).int(), device)


def _queue(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it; torch keeps pinned memory until it has been read."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
