"""In a pool of processes. A worker that dies takes one run with it: that one is marked failed, and the others go on.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from ctld_lab.control import Control
from ctld_lab.executors import alone
from ctld_lab.jobs import failure
from ctld_lab.records import RunDirectory

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 60.0  # seconds that a worker without a parent has for its next checkpoint
STOP = "stop"


# ---- the parent ----


class Worker:
    """A process, its pipe and the run that it has."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, threads), daemon=True)
        self.path: Path | None = None
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

    def answer(self) -> str | None:
        """The state of the run that it had; None if it died."""
        try:
            return str(self.pipe.recv()) if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def dismiss(self) -> None:
        """Idle ones leave when the pipe ends."""
        self.pipe.close()
        self.process.join(timeout=10.0)

    def _send(self, order: Path | str) -> None:
        with suppress(OSError):  # dead; its sentinel says so
            self.pipe.send(order)


def run(
    paths: Sequence[Path], *, workers: int, threads: int, control: Control, on_change: Callable[[], None]
) -> dict[Path, str]:
    """The state of each; see `run_all`."""
    states = dict.fromkeys(paths, "waiting")
    waiting = deque(paths)
    crew: list[Worker] = []
    told_to_stop = False
    try:
        while True:
            if control.stopping and not told_to_stop:  # Ctrl-C reached them too, `kill` did not
                told_to_stop = True
                for worker in crew:
                    worker.stop()
            while waiting and not control.stopping:
                idle = next((worker for worker in crew if worker.path is None), None)
                if idle is None:
                    if len(crew) >= workers:
                        break
                    idle = Worker(threads)
                    crew.append(idle)
                idle.give(waiting.popleft())
            busy = [worker for worker in crew if worker.path is not None]
            if not busy:
                return states
            sources = [source for worker in busy for source in (worker.pipe, worker.process.sentinel)]
            ready = connection.wait(sources, timeout=0.2)
            for worker in busy:
                if worker.path is None or (worker.pipe not in ready and worker.process.sentinel not in ready):
                    continue
                state = worker.answer()
                states[worker.path] = state or _buried(worker, control)
                worker.path = None
                if state not in ("done", "failed"):  # it died, or a signal came to it: it takes no more
                    crew.remove(worker)
                    worker.dismiss()
                on_change()
    finally:
        for worker in crew:
            worker.dismiss()


def _buried(worker: Worker, control: Control) -> str:
    """The state of the run of a worker that died."""
    assert worker.path is not None
    worker.process.join(timeout=10.0)
    directory = RunDirectory(worker.path)
    if directory.result() is not None:
        return "done"
    if control.stopping:
        return "interrupted"
    with suppress(OSError):  # a full disk must not stop the others
        directory.write("failure.json", failure(_obituary(worker.process.exitcode)))
    return "failed"


def _obituary(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"Died: the process ended with exit code {exit_code}; it can be resumed from its last checkpoint"
    cause = ", as happens when memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"Killed: the process was killed by signal {-exit_code}{cause}; it can be resumed from its last checkpoint"


# ---- a worker ----


def work(pipe: Connection, threads: int) -> None:
    """Execute what comes through the pipe, and say how each run ended, until the pipe ends or a signal comes."""
    control = Control()
    control.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    orders: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(pipe, orders, control), daemon=True).start()
    while not control.stopping and (path := orders.get()) is not None:
        state = alone.execute(path, threads=threads, control=control)
        try:
            pipe.send(state)
        except OSError:
            return  # nobody is there to hear it; the records are


def _hear(pipe: Connection, orders: "queue.SimpleQueue[Path | None]", control: Control) -> None:
    """In a thread of its own, since a live run must hear that it should stop."""
    try:
        while (order := pipe.recv()) != STOP:
            orders.put(order)
        control.stopping = True
        orders.put(None)
        pipe.recv()
    except (EOFError, OSError):
        control.stopping = True
        orders.put(None)
        time.sleep(GRACE)
        os._exit(1)
