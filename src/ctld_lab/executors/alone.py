"""`execute` a run that no other process has: two that write into one directory would spoil it.

The kernel holds the lock on the run's config.json and lets it go when the process dies, however it dies. It matters for
the seconds in which the workers of a killed command still finish their step, and for `ctld resume` of a run that is live.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ctld_lab import jobs
from ctld_lab.control import Control

PATIENCE = 90.0  # seconds; longer than orphans live (`pool.GRACE`)


def execute(path: Path, *, threads: int, control: Control) -> str:
    """As `jobs.execute`; "waiting" if another process has the run and keeps it."""
    give_up = time.monotonic() + PATIENCE
    while not control.stopping:
        with _lock(path / "config.json") as ours:
            if ours:
                return jobs.execute(path, threads=threads, control=control)
        if time.monotonic() > give_up:
            break
        time.sleep(0.2)
    control.announce(state="waiting")
    return "waiting"


@contextmanager
def _lock(path: Path) -> Iterator[bool]:
    try:
        file = path.open("r+b")  # network file systems lock only what is open for writing
    except OSError:
        yield True  # `jobs.execute` says what is wrong with it
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            pass
        yield True
