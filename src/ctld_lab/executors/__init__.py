"""Where runs execute: in this process, in a pool of processes, by torchrun's, or on Ray. It leaves the same records.

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
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(
    paths: Sequence[Path],
    *,
    engine: str = "pool",
    workers: int = 1,
    threads: int | None = None,
    ranks: int = 1,
    on_change: Callable[[], None] | None = None,
    control: Control | None = None,
    ray_address: str | None = None,
) -> dict[Path, str]:
    """Execute the runs that these directories describe, `workers` at a time, each by `ranks` processes on `threads` threads.

    Returns the state in which each is left: "done", "failed", "interrupted" (begun, and can go on) or "waiting" (not
    begun). `on_change` is called whenever one of them changes. `control.stopping` becomes true when a signal comes.
    """
    if engine not in ENGINES:
        raise ValueError(f"no engine is called {engine!r}; known: {', '.join(ENGINES)}")
    if workers < 1 or ranks < 1 or (threads is not None and threads < 1):
        raise ValueError(f"workers, ranks and threads must be at least 1, not {workers}, {ranks} and {threads}")
    if ranks > 1 and engine != "pool":
        raise ValueError(f"the engine {engine!r} executes a run in one process; ranks = {ranks} need the engine 'pool'")
    threads = threads or max(1, cores() // (workers * ranks))
    control = control or Control()
    changed = on_change or _nothing
    with listening(control):
        if engine == "local":
            return _run_here(paths, threads=threads, control=control, on_change=changed)
        if engine == "pool":
            from ctld_lab.executors import pool, team

            def start() -> pool.AnyWorker:
                return pool.Worker(pool.work, threads) if ranks == 1 else team.Team(threads, ranks)

            return pool.run(paths, workers=workers, start=start, control=control, on_change=changed)
        from ctld_lab.executors import on_ray

        return on_ray.run(
            paths, workers=workers, threads=threads, control=control, on_change=changed, address=ray_address
        )


@contextmanager
def listening(control: Control) -> Iterator[None]:
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


def _run_here(
    paths: Sequence[Path], *, threads: int, control: Control, on_change: Callable[[], None]
) -> dict[Path, str]:
    """In this process, one run after the other."""
    states = dict.fromkeys(paths, "waiting")
    for path in paths:
        if control.stopping:
            break
        states[path] = jobs.execute(path, threads=threads, control=control)
        on_change()
    return states


def _nothing() -> None:
    pass
