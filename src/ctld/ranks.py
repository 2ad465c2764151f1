"""Processes of one run: their number, their sums, and whether they still agree.

Nothing in torch would say that ranks no longer do: each goes on with its own noise, and the average of the gradients hides it.
Two numbers in a sum over ranks suffice to find out. Each adds a mark m made from what it has, and m²; with Σm and Σm² over R
ranks, R·Σm² = (Σm)² if and only if all marks are equal. Marks have 16 bits, so that the sums are exact in float64 for up to a
thousand ranks, and two states have the same one by chance once in 65,536: the next look tells.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from ctld.checks import DisagreementError, NonFiniteError
from ctld.sharding import AVAILABLE, distributed

PERIOD = 100
"""Calls between two looks of methods that have no reduction in every step."""
_REASON_BYTES = 600

Facts = Mapping[str, int | float]
"""Values that must be equal on all ranks, by name; the names are the same everywhere, since values are gathered."""


class Ranks:
    """The processes of a group; the world if there is one and no group is given; else this process alone."""

    def __init__(self, group: torch.distributed.ProcessGroup | None = None) -> None:
        self.group = group
        self.calls = 0
        """Calls of `meets`, since the optimizer was built or a state loaded."""

    def meets(self, *, every: int = 0) -> bool:
        """True if all ranks compare themselves now: at the first call, after a state was loaded, and at every `every`-th call.

        Calls are counted, not steps: ranks whose steps have come apart must still meet.
        """
        calls, self.calls = self.calls, self.calls + 1
        return not (calls % every if every else calls)

    @property
    def size(self) -> int:
        """Number of processes in this run."""
        return torch.distributed.get_world_size(self.group) if AVAILABLE and torch.distributed.is_initialized() else 1

    def sum(self, numbers: Tensor) -> Tensor:
        """Add up over all ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(numbers, group=self.group)
        return numbers

    def of_first(self, value: Tensor) -> Tensor:
        """Return rank 0's value on every rank: what is chosen or drawn must be the same everywhere."""
        if distributed():
            torch.distributed.broadcast(value, group_src=0, group=self.group)
        return value

    def name_differences(self, facts: Facts, device: torch.device) -> None:
        """Raise a `DisagreementError` that names ranks and values; all ranks must call this."""
        mine = torch.tensor([_bits(value) for value in facts.values()], dtype=torch.int64, device=device)
        columns = zip(*(row.tolist() for row in self._gather(mine)), strict=True)
        found = [
            f"{name} is {_who(column, isinstance(value, float))}"
            for (name, value), column in zip(facts.items(), columns, strict=True)
            if len(set(column)) > 1
        ]
        raise DisagreementError(
            f"the ranks have drifted apart: {'; '.join(found) or 'their marks differed'}. They must be one run: give every "
            "rank the same options, parameters and checkpoint; replicas that are meant to differ need a process_group of "
            "their own. FSDP1 and ZeroRedundancyOptimizer hand each rank other parameters: use FSDP2 (fully_shard) or DDP"
        )

    def refuse(self, mine: Exception | None, device: torch.device) -> None:
        """Tell the other ranks why a step cannot be taken here, if so, and raise what they say; all ranks must call this."""
        text = ("" if mine is None else f"{type(mine).__name__}: {mine}").encode()[:_REASON_BYTES]
        sent = torch.zeros(_REASON_BYTES, dtype=torch.uint8, device=device)
        if text:
            sent[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(device)
        reasons = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in self._gather(sent)]
        if mine is not None:
            raise mine
        rank, reason = next((pair for pair in enumerate(reasons) if pair[1]), (-1, "it does not say why"))
        raise NonFiniteError(f"another rank has refused the step, rank {rank}: {reason}. Nothing has changed here")

    def _gather(self, mine: Tensor) -> list[Tensor]:
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        torch.distributed.all_gather(everyone, mine, group=self.group)
        return everyone

    def __deepcopy__(self, memo: dict[int, Any]) -> "Ranks":
        twin = Ranks(self.group)  # a group is not copied with what uses it
        twin.calls = self.calls
        return twin


def mark(facts: Facts) -> float:
    """Return a number from 0 to 65535."""
    return float(zlib.crc32(struct.pack(f"<{len(facts)}q", *map(_bits, facts.values()))) & 0xFFFF)


def disagree(ranks: float | Tensor, marks: float | Tensor, squares: float | Tensor) -> bool | Tensor:
    """True if not all marks are equal, from sums over ranks of 1, m and m²."""
    return ranks * squares != marks * marks


def _who(column: Sequence[int], real: bool) -> str:
    """Return each value with its ranks."""
    ranks: dict[int, list[int]] = {}
    for rank, bits in enumerate(column):
        ranks.setdefault(bits, []).append(rank)
    parts = []
    for bits, which in ranks.items():
        value = struct.unpack("<d", struct.pack("<q", bits))[0] if real else bits
        names = ", ".join(map(str, which[:8])) + (", ..." if len(which) > 8 else "")
        parts.append(f"{value!r} on rank{'s' * (len(which) > 1)} {names}")
    return " and ".join(parts)


def _bits(value: int | float) -> int:
    if isinstance(value, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return int(bits)
    return value
