"""Whether ranks that should be one run still are: the same seed, step, temperature and α on each.

Nothing in torch would say that they are not: each rank goes on with its own noise, and the average of the gradients hides it.
Two numbers in a sum over ranks suffice to find out. Each adds a mark m made from what it has, and m²; with Σm and Σm² over R
ranks, R·Σm² = (Σm)² if and only if all marks are equal. Marks have 16 bits, so that the sums are exact in float64 for up to a
thousand ranks, and two states have the same one by chance once in 65,536: the next step tells.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence

import torch
import torch.distributed
from torch import Tensor

from ctld.checks import DriftError

PERIOD = 100
"""Steps between checks of methods that have no reduction in every step."""

Facts = Mapping[str, int | float]
"""What must be equal on all ranks, by name."""


def mark(facts: Facts) -> float:
    """A number from 0 to 65535."""
    return float(zlib.crc32(struct.pack(f"<{len(facts)}q", *map(_bits, facts.values()))) & 0xFFFF)


def apart(ranks: float | Tensor, marks: float | Tensor, squares: float | Tensor) -> bool | Tensor:
    """Whether not all marks are equal, from sums over ranks of 1, m and m²."""
    return ranks * squares != marks * marks


def report(facts: Facts, device: torch.device, group: torch.distributed.ProcessGroup | None) -> None:
    """Raise a `DriftError` that names ranks and values; all ranks must call it."""
    mine = torch.tensor([_bits(value) for value in facts.values()], dtype=torch.int64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, mine, group=group)
    columns = zip(*(row.tolist() for row in everyone), strict=True)
    found = [
        f"{name} is {_who(column, isinstance(value, float))}"
        for (name, value), column in zip(facts.items(), columns, strict=True)
        if len(set(column)) > 1
    ]
    raise DriftError(
        f"the ranks have drifted apart: {'; '.join(found) or 'their marks differed'}. They must be one run: give every rank "
        "the same options and the same checkpoint; replicas that are meant to differ need a process_group of their own"
    )


def _who(column: Sequence[int], real: bool) -> str:
    """Each value, with its ranks."""
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
