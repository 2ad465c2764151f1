"""Progress of a run of chains: a bar where there is a terminal and `rich`, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

Report = Callable[[int, str], None]
"""Called with the number of steps done and a few words."""
EVERY = 30.0
"""Seconds between two plain lines."""


@contextmanager
def reporting(title: str, total: int, *, wanted: bool) -> Iterator[Report]:
    """Yield what is to be called as the run goes on."""
    if not wanted:
        yield lambda done, words: None
        return
    try:
        rich = import_module("rich.progress") if sys.stderr.isatty() else None
    except ImportError:
        rich = None
    if rich is None:
        due = [time.monotonic() + EVERY]

        def line(done: int, words: str) -> None:
            if time.monotonic() >= due[0]:
                due[0] = time.monotonic() + EVERY
                sys.stderr.write(f"{title}: step {done} of {total}, {words}\n")

        yield line
        return
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=import_module("rich.console").Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, words: bar.update(task, completed=done, description=f"{title}, {words}")
