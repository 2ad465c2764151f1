"""In a pool of processes. A worker that dies takes one run with it: that one is marked failed, and the others go on.
A run on several ranks has a team of such processes (`team`) in the place of a worker.

Processes are spawned, not forked: a forked child hangs when it enters OpenMP. Each worker has a pipe of its own, so the
parent knows who has which run, and a worker whose parent is gone sees the pipe's end, saves a checkpoint and leaves.
"""

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from ctld_lab import jobs
from ctld_lab.control import Control
from ctld_lab.jobs import failure
from ctld_lab.records import RunDirectory

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 60.0  # seconds that a worker without a parent has for its next checkpoint
FAREWELL = 5.0  # and one that has none to save: it may wait for other orphans, who are gone
STOP = "stop"
AGAIN = "can be resumed from its last checkpoint"


# ---- the parent ----


class AnyWorker(Protocol):
    """What executes one run at a time: a worker, or a team of ranks."""

    path: Path | None
    usable: bool
    """False once it died, or a signal came to it: it takes no more."""

    def give(self, path: Path) -> None: ...

    def stop(self) -> None: ...

    def sources(self) -> list[Any]:
        """What to wait for."""
        ...

    def ended(self, control: Control) -> str | None:
        """The state in which the run is left, once it has ended."""
        ...

    def close(self) -> None: ...


class Worker:
    """A process, its pipe and the run that it has."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.path: Path | None = None
        self.usable = True
        # Until it listens, a signal must wait rather than end it. The tracker, started first, would lift the block.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # then its end of the pipe is its alone, and closes when it dies

    def give(self, path: Path) -> None:
        self.path = path
        self._send(path)

    def stop(self) -> None:
        self._send(STOP)

    def sources(self) -> list[Any]:
        return [self.pipe, self.process.sentinel]

    def ended(self, control: Control) -> str | None:
        if not connection.wait(self.sources(), timeout=0.0):
            return None
        state = self.answer()
        self.usable = state in ("done", "failed")
        return state or self._died(control)

    def answer(self) -> Any:
        """What it says of the run that it had; None if it died."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """Idle ones leave when the pipe ends."""
        self.pipe.close()
        self.process.join(timeout=10.0)

    def _send(self, order: Path | str) -> None:
        with suppress(OSError):  # dead; its sentinel says so
            self.pipe.send(order)

    def _died(self, control: Control) -> str:
        """The state of the run, now that the process is dead."""
        assert self.path is not None
        self.process.join(timeout=10.0)
        return state_of_ended(RunDirectory(self.path), failure(self.reason("the process")), control)

    def reason(self, who: str) -> str:
        return exit_reason(self.process.exitcode, who)


def run(
    paths: Sequence[Path],
    *,
    workers: int,
    start: Callable[[], AnyWorker],
    control: Control,
    on_change: Callable[[], None],
) -> dict[Path, str]:
    """The state of each; see `run_all`. Up to `workers` of them are started as they are needed."""
    states = dict.fromkeys(paths, "waiting")
    waiting = deque(paths)
    started: list[AnyWorker] = []
    told_to_stop = False
    try:
        while True:
            if control.stopping and not told_to_stop:  # Ctrl-C reached them too, `kill` did not
                told_to_stop = True
                for worker in started:
                    worker.stop()
            while waiting and not control.stopping:
                idle = next((worker for worker in started if worker.path is None), None)
                if idle is None:
                    if len(started) >= workers:
                        break
                    idle = start()
                    started.append(idle)
                idle.give(waiting.popleft())
            busy = [worker for worker in started if worker.path is not None]
            if not busy:
                return states
            connection.wait([source for worker in busy for source in worker.sources()], timeout=0.2)
            for worker in busy:
                state = worker.ended(control)
                if worker.path is None or state is None:
                    continue
                states[worker.path] = state
                worker.path = None
                if not worker.usable:
                    started.remove(worker)
                    worker.close()
                on_change()
    finally:
        for worker in started:
            worker.close()


def state_of_ended(directory: RunDirectory, what: dict[str, Any], control: Control) -> str:
    """The state of a run that came to such an end: failed, unless it was done or was to be stopped anyway."""
    if directory.result() is not None:
        return "done"
    if control.stopping:
        return "interrupted"
    with suppress(OSError):  # a full disk must not stop the others
        directory.write("failure.json", what)
    return "failed"


def exit_reason(exit_code: int | None, who: str = "the process") -> str:
    if exit_code is None or exit_code >= 0:
        return f"Died: {who} ended with exit code {exit_code}; the run {AGAIN}"
    cause = ", as happens when memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"Killed: {who} was killed by signal {-exit_code}{cause}; the run {AGAIN}"


# ---- a worker ----


def work(pipe: Connection, threads: int) -> None:
    """Execute what comes through the pipe, and say how each run ended, until the pipe ends or a signal comes."""
    control = Control()
    for path in orders(pipe, control):
        state = jobs.execute(path, threads=threads, control=control)
        try:
            pipe.send(state)
        except OSError:
            return  # nobody is there to hear it; the records are


def orders(pipe: Connection, control: Control, leave: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """The runs that come through the pipe; from the first on, signals and the pipe's end reach `control`.

    `leave` is called by an orphan that has to be ended, before it is.
    """
    control.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(pipe, waiting, control, leave), daemon=True).start()
    while not control.stopping and (path := waiting.get()) is not None:
        yield path


def _hear(
    pipe: Connection, orders: "queue.SimpleQueue[Path | None]", control: Control, leave: Callable[[], None]
) -> None:
    """In a thread of its own, since a live run must hear that it should stop."""
    try:
        while (order := pipe.recv()) != STOP:
            orders.put(order)
        control.stop()
        orders.put(None)
        pipe.recv()
    except (EOFError, OSError):
        control.stop()
        orders.put(None)
        _outlive(control)
        leave()
        os._exit(1)


def _outlive(control: Control) -> None:
    """Without a parent: as long as a checkpoint or a result may be on its way, and no longer."""
    end = time.monotonic() + GRACE
    last = time.monotonic()  # that there was something to save
    while time.monotonic() < min(end, last + FAREWELL):
        if control.saves:
            last = time.monotonic()
        time.sleep(0.1)
