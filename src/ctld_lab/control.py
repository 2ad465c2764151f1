"""Signals into a run and progress out of it: a wish to stop, and a word once a second."""

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from ctld_lab.records import RunDirectory, write_bytes


class Interrupted(Exception):
    """The run stopped because it was asked to, after it had saved a checkpoint."""


class Control:
    """One for each process that executes runs. After Ctrl-C or SIGTERM `stopping` is true, and runs stop at their next step.

    Where there is nothing to save (torch is being imported, data are read), they stop at once.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.executing = False  # a run, in the main thread
        self.saves = False  # whether the run, asked to stop, will save a checkpoint first
        self._written = 0.0

    def listen(self) -> None:
        """Handle signals from now on: the first asks the run to stop, a second one kills."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.stopping = True
        signal.signal(number, signal.SIG_DFL)
        if self.executing and not self.saves:
            raise KeyboardInterrupt

    def stop(self) -> None:
        """Ask the run to stop, from another thread of this process."""
        self.stopping = True
        if self.executing and not self.saves and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which may sleep

    def teller(self, directory: RunDirectory, steps: int, before: int = 0) -> Callable[[int], None]:
        """Return what hears the step of a run without a checkpoint, counted from `before`, and ends the run if it should."""

        def tell(step: int) -> None:
            if self.stopping:
                raise Interrupted
            self.tell(directory, before + step, steps)

        return tell

    def tell(self, directory: RunDirectory, step: int, steps: int) -> None:
        """Leave progress.json in the run's directory, at most once a second."""
        now = time.monotonic()
        if now - self._written >= 1.0:
            self._written = now
            said = {"step": step, "steps": steps, "time": time.time()}
            with suppress(OSError):  # for eyes only: nothing fails for want of it
                write_bytes(directory.path / "progress.json", json.dumps(said).encode(), durable=False)
