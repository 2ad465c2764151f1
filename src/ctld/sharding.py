"""Parameters that are spread over processes: the part that this process holds, and which elements these are.

FSDP2 (`fully_shard`) and tensor parallelism make parameters DTensors, of which each process holds a block. Every operation of
this package is one on elements, or a sum over them, so a step needs the block alone, if the noise of an element is found by
its place in the whole parameter. Then a sharded run is the unsharded one.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a parameter that a process holds."""

    runs: tuple[tuple[int, int], ...]
    """First element in the whole and count, of stretches that are in one piece there, in the order in which they lie here."""
    shards: int
    """Over how many processes the elements are spread; with more processes, there are copies."""


def sharded(tensor: Any) -> bool:
    """True if the tensor is a DTensor. Nothing is imported, since that takes a second: without the import there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Any:
    """Return the part of a tensor that lies here, without a copy. Return unsharded tensors and other values whole."""
    return tensor._local_tensor if sharded(tensor) else tensor


def block(tensor: Tensor) -> Block:
    """Return the block of elements that `local` has; of an unsharded tensor, all elements."""
    if not sharded(tensor):
        return Block(((0, tensor.numel()),), 1)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"a parameter has placements {placements}: partial sums cannot be trained; redistribute it")
    shape, start = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    shards = math.prod(mesh.size(i) for i, placement in enumerate(placements) if not placement.is_replicate())
    return Block(_runs(tuple(tensor.shape), tuple(shape), tuple(start)), shards)


def _runs(whole: Sequence[int], shape: Sequence[int], start: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of a block of this shape that begins at `start`."""
    if 0 in shape:
        return ()
    split = len(shape)  # dimensions from here on are whole, so one step in the dimension before them is one piece
    while split > 0 and shape[split - 1] == whole[split - 1]:
        split -= 1
    split = max(split, 1)
    strides = [math.prod(whole[i + 1 :]) for i in range(len(whole))]
    firsts = [sum(s * stride for s, stride in zip(start, strides, strict=True))]
    for size, stride in zip(shape[: split - 1], strides, strict=False):
        firsts = [first + stride * i for first in firsts for i in range(size)]
    count = math.prod(shape[split - 1 :])
    return tuple((first, count) for first in firsts)


class LocalState(Mapping[str, Any]):
    """The state of a sharded parameter as one of its block."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Any:
        return local(self._state[name])

    def __setitem__(self, name: str, value: float) -> None:
        self._state[name] = value

    def __iter__(self) -> Any:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


AVAILABLE = torch.distributed.is_available()


def distributed() -> bool:
    """True if there are processes that know each other."""
    return AVAILABLE and torch.distributed.is_initialized()
