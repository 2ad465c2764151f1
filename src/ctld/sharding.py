"""Parameters that are spread over processes: what of one lies here, and which of its elements that is.

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
    """What a process holds of a parameter."""

    runs: tuple[tuple[int, int], ...]
    """First element in the whole and count, of stretches that are in one piece there, in the order in which they lie here."""
    shards: int
    """Over how many processes the elements are spread; with more processes, there are copies."""


def sharded(tensor: Any) -> bool:
    """Whether it is a DTensor. Without importing them, which takes a second: where nobody has, there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Any:
    """What of a tensor lies here, without a copy; all of it, if it is not sharded. Other values are left as they are."""
    return tensor._local_tensor if sharded(tensor) else tensor


def block(tensor: Tensor) -> Block:
    """Which elements `local` has. Of a whole tensor, all."""
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
    """Of a block of this shape that starts there."""
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
    """Returns whether there are processes that know each other."""
    return AVAILABLE and torch.distributed.is_initialized()
