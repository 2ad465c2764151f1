"""A pool of processes. A worker that dies takes one run with it: that one is marked failed, and the others go on.

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

from ctld_lab import jobs
from ctld_lab.control import Control

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 60.0  # seconds that a worker without a parent has for its next checkpoint
FAREWELL = 5.0  # and one that has none to save
STOP = "stop"


# ---- the parent ----


def run(
    paths: Sequence[Path], workers: int, threads: int, control: Control, on_end: Callable[[Path, str], None]
) -> dict[Path, str]:
    """Return the state of each; see `run_all`. Up to `workers` of them are started as they are needed."""
    states = dict.fromkeys(paths, "waiting")
    waiting = deque(paths)
    started: list[Worker] = []
    told_to_stop = False
    try:
        while True:
            if control.stopping and not told_to_stop:  # Ctrl-C reached them too, `kill` did not
                told_to_stop = True
                for worker in started:
                    worker.give(STOP)
            while waiting and not control.stopping:
                idle = next((worker for worker in started if worker.path is None), None)
                if idle is None:
                    if len(started) >= workers:
                        break
                    started.append(idle := Worker(threads))
                idle.path = waiting.popleft()
                idle.give(idle.path)
            busy = [worker for worker in started if worker.path is not None]
            if not busy:
                return states
            sources = [source for worker in busy for source in (worker.pipe, worker.process.sentinel)]
            ready = connection.wait(sources, timeout=0.2)
            for worker in busy:
                if worker.path is None or not {worker.pipe, worker.process.sentinel} & set(ready):
                    continue
                answer = worker.answer()
                states[worker.path] = answer or jobs.lost(worker.path, worker.cause_of_death(), control)
                on_end(worker.path, states[worker.path])
                worker.path = None
                if answer not in ("done", "failed"):  # dead, or about to leave
                    started.remove(worker)
                    worker.close()
    finally:
        for worker in started:
            worker.close()


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
        lacking = jobs.MEMORY.keys() - os.environ.keys()  # what the user has set stays
        os.environ.update({name: jobs.MEMORY[name] for name in lacking})
        try:
            self.process.start()
        finally:
            for name in lacking:
                del os.environ[name]
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # then its end of the pipe is its alone, and closes when it dies

    def give(self, order: Path | str) -> None:
        with suppress(OSError):  # dead; its sentinel says so
            self.pipe.send(order)

    def answer(self) -> str | None:
        """The state in which it left its run; None if it died."""
        try:
            return self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            return None

    def cause_of_death(self) -> str:
        self.process.join(timeout=10.0)
        return exit_reason(self.process.exitcode)

    def close(self) -> None:
        """Idle ones leave when the pipe ends."""
        self.pipe.close()
        self.process.join(timeout=10.0)


def exit_reason(exit_code: int | None) -> str:
    again = "the run can be resumed from its last checkpoint"
    if exit_code is None or exit_code >= 0:
        return f"Died: the process ended with exit code {exit_code}; {again}"
    cause = ", as happens when memory runs out" if -exit_code == signal.SIGKILL else ""
    return f"Killed: the process was killed by signal {-exit_code}{cause}; {again}"


# ---- a worker ----


def work(pipe: Connection, threads: int) -> None:
    """Execute what comes through the pipe, and say how each run ended, until the pipe ends or a signal comes."""
    control = Control()
    control.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    orders: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(pipe, orders, control), daemon=True).start()
    while not control.stopping and (path := orders.get()) is not None:
        state = jobs.execute(path, threads=threads, control=control)
        try:
            pipe.send(state)
        except OSError:
            return  # nobody is there to hear it; the records are


def _hear(pipe: Connection, orders: "queue.SimpleQueue[Path | None]", control: Control) -> None:
    """Listen in a thread of its own, since a live run must hear that it should stop."""
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
        os._exit(1)


def _outlive(control: Control) -> None:
    """Live on without a parent as long as a checkpoint or a result may be on its way, and no longer."""
    end = time.monotonic() + GRACE
    last = time.monotonic()  # that there was something to save
    while time.monotonic() < min(end, last + FAREWELL):
        if control.saves:
            last = time.monotonic()
        time.sleep(0.1)
