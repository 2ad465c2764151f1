"""A run on several ranks: as many processes carry it out together, each on its share of every batch (`ctld_lab.ranks`).

The parent sees who died or failed first, ends the others, and says so in failure.json. It needs no torch.
"""

import fcntl
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.executors import pool
from ctld_lab.executors.pool import Worker
from ctld_lab.jobs import failure
from ctld_lab.records import RunDirectory

PATIENCE = 5.0  # seconds that ranks have to say how they ended, once one of them has failed or died

LOST = "RanksError: "  # how the error of a rank that misses another begins
Answer = tuple[str, dict[str, Any] | None]  # the state of the run, and what went wrong on this rank


# ---- the parent ----


class Team:
    """In the pool, a team is what a worker is for a run of one process."""

    def __init__(self, threads: int, ranks: int) -> None:
        self.path: Path | None = None
        self.usable = True
        self._meeting = tempfile.TemporaryDirectory(prefix="ctld-ranks-", ignore_cleanup_errors=True)
        store = str(Path(self._meeting.name) / "store")
        self.members = [Worker(work_as_rank, threads, rank, ranks, store) for rank in range(ranks)]
        self._answers: dict[int, Answer | None] = {}
        self._troubled: float | None = None

    def give(self, path: Path) -> None:
        self.path, self._answers, self._troubled = path, {}, None
        for member in self.members:
            member.give(path)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def sources(self) -> list[Any]:
        waiting = [member for rank, member in enumerate(self.members) if rank not in self._answers]
        return [source for member in waiting for source in member.sources()]

    def ended(self, control: Control) -> str | None:
        for rank, member in enumerate(self.members):
            if rank not in self._answers and (member.pipe.poll() or not member.process.is_alive()):
                self._answers[rank] = member.answer()
        said = [self._answers.get(rank) for rank in range(len(self.members))]
        missing = len(self.members) - len(self._answers)
        if any(answer is None or answer[0] == "failed" for answer in self._answers.values()):
            self._troubled = self._troubled or time.monotonic()
            if missing and time.monotonic() < self._troubled + PATIENCE:
                return None
            return self._failed(said, control)
        if missing or said[0] is None:
            return None
        self.usable = all(answer is not None and answer[0] == "done" for answer in said)
        return said[0][0]

    def close(self) -> None:
        """Those that still have something to do are not waited for."""
        for member in self.members:
            member.pipe.close()
            if not self.usable:
                member.process.kill()  # it may be stopped, or wait for one that is
        for member in self.members:
            member.close()
        self._meeting.cleanup()

    def _failed(self, said: list[Answer | None], control: Control) -> str:
        """Find out who was the first: whoever died, then whoever has an error of its own, then those who miss another rank."""
        assert self.path is not None
        directory = RunDirectory(self.path)
        names = [f"rank {rank} of {len(said)}" for rank in range(len(said))]
        self.usable = None not in said  # all have said how it ended, and wait for the next run
        for rank, member in enumerate(self.members):
            if rank in self._answers and said[rank] is None:
                member.process.join(timeout=10.0)
                return pool.state_of_ended(directory, failure(member.reason(names[rank])), control)
        failures = {rank: answer[1] for rank, answer in enumerate(said) if answer is not None and answer[1] is not None}
        own = [rank for rank, each in failures.items() if not each["error"].startswith(LOST)]
        first, *_ = own or failures
        what = dict(failures[first])
        if own and first > 0:
            what["error"] += f" ({names[first]})"
        elif not own and len(self._answers) < len(said):
            silent = [name for rank, name in enumerate(names) if rank not in self._answers]
            what["error"] += f". No word came from {' and '.join(silent)}"
        control.fail(directory, what)
        return "failed"


# ---- a rank ----


class RankControl(Control):
    """What goes wrong is left to the parent to write, who knows of all ranks."""

    failure: dict[str, Any] | None = None

    def fail(self, directory: RunDirectory, failure: dict[str, Any]) -> None:
        self.failure = failure


def work_as_rank(pipe: Connection, threads: int, rank: int, size: int, meeting: str) -> None:
    """As `pool.work`, together with the other ranks."""
    control = RankControl()
    store: Any = None
    presence = _enter(Path(meeting).parent)

    def leave() -> None:
        if _orphaned() and _last(presence):  # then nobody else removes it
            shutil.rmtree(Path(meeting).parent, ignore_errors=True)

    for number, path in enumerate(pool.orders(pipe, control, leave)):
        if store is None and _orphaned():
            break  # the others may have gone, and the directory with them: torch would look for it for minutes
        import torch.distributed as dist

        from ctld_lab.ranks import Ranks

        if sys.platform == "linux":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody outside this machine has to reach them
        store = store or dist.FileStore(meeting, size)
        control.failure = None
        control.ranks = Ranks(rank, size, dist.PrefixStore(f"run{number}", store))
        state = jobs.follow(path, control=control) if rank else jobs.execute(path, threads=threads, control=control)
        try:
            pipe.send((state, control.failure))
        except OSError:
            break
    leave()
    os._exit(0)  # taking torch apart would last a second


def _enter(directory: Path) -> int | None:
    """A shared lock on the directory, which says that somebody is there; the kernel lets it go when the process dies."""
    try:
        handle = os.open(directory, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
    except OSError:
        return None
    return handle


def _last(presence: int | None) -> bool:
    """Whether no other rank is there any more."""
    try:
        if presence is not None:
            fcntl.flock(presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return presence is not None


def _orphaned() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()
