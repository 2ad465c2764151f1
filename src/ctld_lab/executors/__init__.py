"""Executors of runs: this process, a pool of processes, or Ray. All leave the same records.

Ctrl-C or SIGTERM asks the live runs to save a checkpoint and stop, and no other is begun; a second one kills.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ctld_lab import jobs
from ctld_lab.control import Control

ENGINES = ("local", "pool", "ray")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    paths: Sequence[Path],
    *,
    engine: str = "pool",
    workers: int = 1,
    threads: int | None = None,
    control: Control | None = None,
    ray_address: str | None = None,
    on_end: Callable[[Path, str], None] = lambda path, state: None,
) -> dict[Path, str]:
    """Execute the runs that these directories describe, `workers` at a time, each on `threads` threads.

    Returns the state in which each is left: "done", "failed", "interrupted" (begun, and can go on) or "waiting" (not
    begun); `on_end` hears each state as soon as it is known. `control.stopping` becomes true when a signal comes.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if workers < 1 or (threads is not None and threads < 1):
        raise ValueError(f"workers and threads must be at least 1, got {workers} and {threads}")
    threads = threads or max(1, cores() // (workers if engine != "local" else 1))
    control = control or Control()
    with _listening(control):
        if engine == "pool":
            from ctld_lab.executors import pool

            return pool.run(paths, workers, threads, control, on_end)
        if engine == "ray":
            from ctld_lab.executors import on_ray

            return on_ray.run(paths, workers, threads, control, on_end, ray_address)
        states = {}
        for path in paths:
            states[path] = jobs.execute(path, threads=threads, control=control)
            on_end(path, states[path])
        return states


@contextmanager
def _listening(control: Control) -> Iterator[None]:
    """Signals go to `control` meanwhile; afterwards to whoever had them before."""
    if threading.current_thread() is not threading.main_thread():  # Python hands signals to no other
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    control.listen()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
