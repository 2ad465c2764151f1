"""The processes that train one run together, each on its share of every batch. The first decides, and it alone writes.

A batch, its dropout and its evaluation do not depend on how many ranks there are: a run has the same trajectory on any
number, but for the order in which gradients are summed. A run's process group lives as long as the run: when one rank fails,
the others hear it at once, and the next run begins with a new one. `ALONE`, the one process of most runs, has none.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Before a group is made: default arguments in there would keep one that is destroyed, and its connections, alive.
import torch.distributed.nn.functional
from torch import Tensor, nn

TIMEOUT = 600.0  # seconds; the longest that a rank does anything by itself is rank 0's thorough evaluation
VARIABLE = "CTLD_TIMEOUT"
BEGINNING = 120.0  # seconds more until a run begins: rank 0 may have to wait for who has it (`jobs.PATIENCE`)
AGAIN = "the run can be resumed from its last checkpoint"


class RanksError(Exception):
    """Ranks have lost each other, or differ where they must not."""


class Ranks:
    """This process among those of a run. `store` is what they can all reach, and of this run alone."""

    def __init__(self, rank: int = 0, size: int = 1, store: dist.Store | None = None) -> None:
        self.rank, self.size, self._store = rank, size, store

    @property
    def timeout(self) -> float:
        """How long a rank waits for another, in seconds."""
        said = os.environ.get(VARIABLE, "")
        try:
            seconds = float(said or TIMEOUT)
        except ValueError:
            seconds = 0.0
        if not 0.0 < seconds < 1e9:
            raise RanksError(f"{VARIABLE}={said} is no time; give seconds, such as {TIMEOUT:g}")
        return seconds

    @property
    def first(self) -> bool:
        return self.rank == 0

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"

    # ---- a run's beginning and end ----

    def announce(self, word: dict[str, Any]) -> None:
        """Of rank 0: what is to be done with the run; `heard` by the others."""
        if self._store is not None:
            self._store.set("begin", json.dumps(word))

    def heard(self) -> dict[str, Any]:
        assert self._store is not None
        with self._explained():
            self._store.wait(["begin"], timedelta(seconds=self.timeout + BEGINNING))
        word: dict[str, Any] = json.loads(self._store.get("begin"))
        return word

    @contextmanager
    def joined(self) -> Iterator[None]:
        """In one process group with the others; they leave it together, unless something goes wrong."""
        if self.size == 1:
            yield
            return
        with self._explained():
            dist.init_process_group(
                "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=self.timeout),
            )
            try:
                yield
                dist.barrier()
            except Exception as error:
                self._tell(error)
                raise
            finally:
                with suppress(RuntimeError):  # of a group that is broken
                    dist.destroy_process_group()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """torch's own words for a lost rank name an address and a line of C++."""
        try:
            yield
        except RuntimeError as error:
            said = str(error)
            # A store that is a file has an error of no kind for this.
            if not isinstance(error, dist.DistError) and not any(
                word in said.lower() for word in ("gloo", "wait timeout")
            ):
                raise
            if "timed out" in said.lower() or "timeout" in said.lower():
                raise RanksError(
                    f"{self} waited {self.timeout:g} s for another rank, which hangs or is that much slower; {AGAIN}. "
                    f"{VARIABLE}=SECONDS sets how long they wait"
                ) from error
            raise RanksError(f"{self} has lost another rank, {self._told()}; {AGAIN}") from error

    def _tell(self, error: Exception) -> None:
        """The other ranks, before they notice that this one is gone."""
        if self._store is not None:
            self._store.set(f"error{self.rank}", f"{type(error).__name__}: {error}")

    def _told(self) -> str:
        """Why another rank is gone, if it said so. Who only lost one himself is no cause."""
        assert self._store is not None
        for rank in range(self.size):
            if rank != self.rank and self._store.check([f"error{rank}"]):
                said = self._store.get(f"error{rank}").decode()
                if "gloo" not in said.lower():
                    return f"rank {rank}, which failed ({said})"
        return "which died"

    # ---- what they say to each other ----

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            dist.barrier()

    def of_first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, on every rank; something that JSON can hold."""
        if self.size == 1:
            return make()
        said = json.dumps(make()).encode() if self.first else b""
        length = torch.tensor(len(said))
        dist.broadcast(length, src=0)
        content = torch.tensor(bytearray(said), dtype=torch.uint8) if self.first else torch.empty(int(length)).byte()
        dist.broadcast(content, src=0)
        return json.loads(content.numpy().tobytes())

    def average_gradients(
        self, parameters: Sequence[nn.Parameter], *, stopping: bool, saving: bool
    ) -> tuple[bool, bool]:
        """In one reduction with their wishes. Returns whether any rank wants to stop, and whether rank 0 wants to save."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        wishes = gradients[0].new_tensor([stopping, saving and self.first])
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), wishes])
        dist.all_reduce(flat)
        *summed, wishes = torch.split(flat, [*(gradient.numel() for gradient in gradients), 2])
        for gradient, total in zip(gradients, summed, strict=True):
            torch.div(total.view_as(gradient), self.size, out=gradient)
        stop, save = wishes.tolist()
        return stop > 0, save > 0

    # ---- shares ----

    def share(self, rows: int) -> slice:
        """This rank's rows of a batch; shares differ by one row at most."""
        if rows < self.size:
            raise ValueError(
                f"a batch of {rows} rows cannot be shared by {self.size} ranks; give --ranks {rows} or fewer"
            )
        return self._share_of(self.rank, rows)

    def weight(self, rows: int) -> float:
        """What a rank's mean is multiplied by: then the mean over ranks is the mean over rows."""
        share = self.share(rows)
        return float((share.stop - share.start) * self.size / rows)

    def gather(self, part: Tensor, rows: int, dimension: int) -> Tensor:
        """All `rows` along a dimension, from the share of each rank; on every rank."""
        parts = []
        for rank in range(self.size):
            share = self._share_of(rank, rows)
            shape = list(part.shape)
            shape[dimension] = share.stop - share.start
            piece = part.contiguous() if rank == self.rank else part.new_empty(shape)
            dist.broadcast(piece, src=rank)
            parts.append(piece)
        return torch.cat(parts, dimension)

    def _share_of(self, rank: int, rows: int) -> slice:
        return slice(rank * rows // self.size, (rank + 1) * rows // self.size)


ALONE = Ranks()
