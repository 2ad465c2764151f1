"""Display of commands at work, on a terminal."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ctld_lab.commands.options import say
from ctld_lab.control import Control
from ctld_lab.records import RecordError, RunDirectory

INTERVAL = 0.5  # seconds


def total_steps(config: dict[str, Any]) -> int | None:
    """Steps of the whole run, or its rounds; None if only the run itself knows, or if they make no sense."""
    steps = config.get("steps", config.get("rounds"))
    try:
        return None if steps is None else max(1, int(sum(steps) if isinstance(steps, list) else steps))
    except (TypeError, ValueError):
        return None


def first_line(text: Any) -> str:
    return next(iter(str(text or "unknown error").splitlines()), "")


def duration(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


class Rate(progress.ProgressColumn):
    """Steps per second, which rich has no column for."""

    def render(self, task: progress.Task) -> str:
        speed = task.finished_speed or task.speed
        return "– steps/s" if speed is None else f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.2g} steps/s"


class Left(progress.TimeRemainingColumn):
    """Says what it is, beside the time that has passed."""

    def render(self, task: progress.Task) -> Text:
        return super().render(task).append(" left")


def bars(
    console: Console, *columns: progress.ProgressColumn, width: int = 24, refresh: bool = True
) -> progress.Progress:
    """Bars that show how far a command is, where there is a terminal; with these columns after the bar."""
    shown = (progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=width), *columns)
    return progress.Progress(
        *shown,
        progress.TimeElapsedColumn(),
        Left(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
        auto_refresh=refresh,
        speed_estimate_period=60.0,
    )


class Display:
    """One bar over all runs, on a terminal; everywhere a line for each run that has ended.

    How far the runs are is read from their directories, and so the same for every engine.
    """

    def __init__(self, paths: Sequence[Path], console: Console, *, title: str, control: Control) -> None:
        self._totals = {RunDirectory(path): steps_of(RunDirectory(path)) for path in paths}
        self._ended: dict[Path, str] = {}
        self._began = time.time()
        self._console, self._title, self._control = console, title, control
        self._said_stopping = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._bars = bars(console, progress.TaskProgressColumn(), Rate(), width=14, refresh=False)
        self._task = self._bars.add_task(escape(title))

    def __enter__(self) -> Self:
        self._bars.start()
        self._console.show_cursor(True)  # a second Ctrl-C would leave it hidden
        self._update()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._update()
        self._bars.stop()

    def ended(self, path: Path, state: str) -> None:
        """Hear that a run is no longer executed, and say how it ended."""
        self._ended[path] = state
        if state in ("done", "failed"):
            say(self._console, describe(RunDirectory(path), state))

    def _repeat(self) -> None:
        while not self._over.wait(INTERVAL):
            self._update()

    def _update(self) -> None:
        if self._control.stopping and not self._said_stopping:
            self._said_stopping = True
            say(self._console, "stopping after a checkpoint; once more to kill")
        if not self._console.is_terminal:
            return
        completed, total, live = 0, 0, []
        for run, steps in self._totals.items():
            told = {} if run.path in self._ended else run.progress()
            steps = steps or int(told.get("steps", 1))
            total += steps
            completed += steps if self._ended.get(run.path) == "done" else min(int(told.get("step", 0)), steps)
            if told.get("time", 0.0) > self._began:
                live.append(run.name)
        now = f": {', '.join(live[:2])}{' …' if len(live) > 2 else ''}" if live else ""
        count = sum(state == "done" for state in self._ended.values())
        described = f"[bold]{escape(self._title)}[/] {count}/{len(self._totals)} runs{escape(now)}"
        self._bars.update(self._task, total=total, completed=completed, description=described)
        self._bars.refresh()


def steps_of(run: RunDirectory) -> int | None:
    try:
        return total_steps(run.config())
    except RecordError:  # which the run will tell
        return None


def describe(run: RunDirectory, state: str) -> str:
    """One line on a run that has ended."""
    try:
        if state == "failed":
            return f"failed  {run.name}: {first_line((run.failure() or {}).get('error'))}"
        seconds = (run.result() or {}).get("seconds")
    except RecordError as error:
        return f"failed  {run.name}: {error}"
    steps, took = steps_of(run), sum(map(float, seconds.values())) if isinstance(seconds, dict) else None
    facts = ([] if steps is None else [f"{steps:,} steps"]) + ([] if took is None else [duration(took)])
    return f"done    {run.name}: {', '.join(facts)}" if facts else f"done    {run.name}"
