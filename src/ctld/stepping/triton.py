"""Whole steps on GPUs, in Triton: one launch for each sweep of all tensors of one dtype, noise included.

    table of tensors (pointers, sizes, streams)  +  map of chunks (which tensor, which part)  →  one program per chunk

`ctld.stepping.sweep` says what a sweep computes; the operations and their order are those of kernels.c. The noise is
noise/philox.py and noise/gaussian.py. Every operation is one that IEEE 754 rounds correctly and none are contracted, so the
bits should be those of gaussian.py on a CPU.

So far this has been run in Triton's interpreter only, on a CPU, and compiled for GPUs; it has not yet been run on a GPU.
On a machine that has one, ``TRITON_INTERPRET=0 pytest tests/stepping/test_triton.py`` runs the same tests there.

Nothing here waits for the device: the table goes there from pinned memory, and the sums stay there. They are added in an
order that does not depend on timing. Everything that changes from step to step is in the table, so that a kernel is compiled
once for a dtype and a set of options, at its first step.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ctld.compensation import MEMORY
from ctld.stepping import triton_kernel
from ctld.stepping.foreach import Noise, Part
from ctld.stepping.sweep import SECOND_NOISE, Plan, Sweep

KINDS = {None: 0, "gaussian": 1, "three_point": 2}
TYPES = {
    torch.float32: ("float32", "float32"),
    torch.float64: ("float64", "float64"),
    torch.bfloat16: ("bfloat16", "float32"),
}
"""Dtypes of parameters and gradients, with Triton's names of the dtype in memory and of that of momenta and arithmetic."""

CHUNK = 2048  # elements for one program; a multiple of the 32 whose noise is made together
WARPS = 8  # so that a thread has eight elements; 40 to 70 registers by Triton 3.9 for compute capability 8.0


def available() -> bool:
    """True if Triton is installed."""
    return triton_kernel.kernel() is not None


def advance(part: Part, plan: Plan, noise: Noise | None, *, refused: Tensor | None = None) -> list[Tensor]:
    """Carry a plan out on tensors of one dtype on one device; return the sums of each sweep, which stay there."""
    return [_sweep(part, plan, sweep, noise, refused) for sweep in plan.sweeps]


def _sweep(part: Part, plan: Plan, sweep: Sweep, noise: Noise | None, refused: Tensor | None) -> Tensor:
    """Take one sweep; parameters whose gradients were seen equally often go together."""
    if noise is None or not (sweep.deviation or plan.compensation is not None):
        name: tuple[str | None, int, int] = (None, 0, 0)
    else:
        name = (noise.kind, noise.seed ^ SECOND_NOISE if sweep.second_noise else noise.seed, noise.step)
    share, variance = plan.compensation or (0.0, 0.0)
    alike: dict[int, list[int]] = {}
    for place, state in enumerate(part.states):
        alike.setdefault(state["gradients_seen"] if plan.compensation is not None else 0, []).append(place)
    totals = []
    for seen, places in alike.items():

        def of(column: list[Tensor], places: list[int] = places) -> list[Tensor]:
            return [column[place] for place in places]

        def buffers(name: str, places: list[int] = places) -> list[Tensor]:
            return [part.states[place][name] for place in places]

        compensated = plan.compensation is not None
        totals.append(
            launch(
                of(part.parameters),
                of(part.gradients),
                None if part.momenta is None else of(part.momenta),
                [part.streams[place] for place in places],
                [part.blocks[place].runs[0][0] if part.blocks[place].runs else 0 for place in places],
                *name,
                retain=sweep.retain,
                impulse=sweep.impulse,
                deviation=sweep.deviation,
                stride=sweep.stride,
                decay=plan.decay if sweep.impulse else 0.0,
                ascend=plan.ascend,
                scales=buffers("scale") if plan.scaled else None,
                previous_gradients=buffers("previous_gradient") if compensated else None,
                gradient_variances=buffers("gradient_variance") if compensated else None,
                variance=variance,
                gradient_share=share,
                memory=1.0 / min(seen, MEMORY) if seen else 0.0,
                measure=plan.measure,
                refused=refused,
            )
        )
        increment_version(of(part.parameters))
    return totals[0] if len(totals) == 1 else torch.stack(totals).sum(0)


def launch(
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
    """Take one sweep.

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
        The factors of a sweep.
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
    device, kernel = parameters[0].device, triton_kernel.kernel()
    factors = (retain, impulse, deviation, stride, decay, -1.0 if ascend else 1.0, variance, gradient_share, memory)
    table = [seed, step] if kind is not None else [0, 0]
    table += struct.unpack(f"{len(factors)}q", struct.pack(f"{len(factors)}d", *factors))
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
            STORED=getattr(triton_kernel.tl, stored),
            REAL=getattr(triton_kernel.tl, real),
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
    """Send to the device without waiting for it; torch keeps pinned memory until it has been read."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
