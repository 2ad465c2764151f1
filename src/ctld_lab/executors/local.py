"""In this process, one run after the other."""

from collections.abc import Callable, Sequence
from pathlib import Path

from ctld_lab import jobs
from ctld_lab.control import Control


def run(paths: Sequence[Path], *, threads: int, control: Control, on_change: Callable[[], None]) -> dict[Path, str]:
    """The state of each; see `run_all`."""
    states = dict.fromkeys(paths, "waiting")
    for path in paths:
        if control.stopping:
            break
        states[path] = jobs.execute(path, threads=threads, control=control)
        on_change()
    return states
