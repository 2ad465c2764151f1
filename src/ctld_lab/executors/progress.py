"""How far the runs are, read from their directories twice a second, and so the same for every engine."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ctld_lab.control import Control
from ctld_lab.files import printable
from ctld_lab.records import RecordError, RunDirectory

INTERVAL = 0.5  # seconds


def total_steps(config: dict[str, Any]) -> int | None:
    """Of the whole run, or rounds where it counts those; None if only the run itself knows, or if it makes no sense."""
    steps = config.get("steps", config.get("rounds"))
    try:
        return None if steps is None else max(1, int(sum(steps) if isinstance(steps, list) else steps))
    except (TypeError, ValueError):
        return None


class Watched:
    """A run as its files show it. Files that were there before are not news."""

    def __init__(self, path: Path) -> None:
        self.directory = RunDirectory(path)
        self.steps = total_steps(self.directory.config())
        self.step = 0
        self.failed = self.live = False
        self._seen = {name: self._time(name) for name in ("environment.json", "progress.json", "failure.json")}
        self.done = self._time("result.json") > 0
        self._read_progress()

    @property
    def total(self) -> int:
        return self.steps or 1

    @property
    def completed(self) -> int:
        return self.total if self.done else min(self.step, self.total)

    def look(self) -> bool:
        """True if it has ended since the last look."""
        if self.done:
            return False
        if self._time("result.json"):
            self.done, self.live, self.failed = True, False, False
            return True
        if self._new("environment.json"):  # written when a run begins
            self.live, self.failed = True, False
        if self._new("progress.json"):
            self.live, self.failed = True, False
            self._read_progress()
        if self._new("failure.json"):
            self.live, self.failed = False, True
            return True
        return False

    def _read_progress(self) -> None:
        told = self.directory.progress()
        self.step = int(told.get("step", 0))
        self.steps = self.steps or told.get("steps")

    def _new(self, name: str) -> bool:
        now = self._time(name)
        new = now != self._seen[name]
        self._seen[name] = now
        return new and now > 0

    def _time(self, name: str) -> int:
        try:
            return (self.directory.path / name).stat().st_mtime_ns
        except OSError:
            return 0


def describe(run: Watched) -> str:
    """One line on a run that has ended."""
    name = run.directory.name
    try:
        if run.failed:
            return f"failed  {name}: {first_line((run.directory.failure() or {}).get('error'))}"
        seconds = (run.directory.result() or {}).get("seconds")
    except RecordError as error:
        return f"failed  {name}: {error}"
    took = sum(map(float, seconds.values())) if isinstance(seconds, dict) else None
    facts = ([] if run.steps is None else [f"{run.steps:,} steps"]) + ([] if took is None else [duration(took)])
    return f"done    {name}: {', '.join(facts)}" if facts else f"done    {name}"


def first_line(text: Any) -> str:
    return next(iter(str(text or "unknown error").splitlines()), "")


def duration(seconds: float) -> str:
    """As people say it."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


class Rate(progress.ProgressColumn):
    """Steps per second, which rich has no column for."""

    def render(self, task: progress.Task) -> str:
        speed = task.finished_speed or task.speed
        if speed is None:
            return "– steps/s"
        return f"{speed:,.0f} steps/s" if speed >= 10 else f"{speed:.2g} steps/s"


class Left(progress.TimeRemainingColumn):
    """Says what it is, beside the time that has passed."""

    def render(self, task: progress.Task) -> Text:
        return super().render(task).append(" left")


class Display:
    """On a terminal: one bar over all runs, with the rate and the time left. Everywhere: a line for each run that has ended."""

    def __init__(self, paths: Sequence[Path], console: Console, *, title: str, control: Control) -> None:
        self._runs = [Watched(path) for path in paths]
        self._console, self._title, self._control = console, title, control
        self._said_stopping = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=14),
            progress.TaskProgressColumn(),
            Rate(),
            progress.TimeElapsedColumn(),
            Left(),
            console=console,
            auto_refresh=False,
            disable=not console.is_terminal,
            transient=True,
            speed_estimate_period=60.0,
        )
        self._task = self._bars.add_task(escape(title), completed=sum(run.completed for run in self._runs))

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

    def _repeat(self) -> None:
        while not self._over.wait(INTERVAL):
            self._update()

    def _update(self) -> None:
        lines = [describe(run) for run in self._runs if run.look()]
        if self._control.stopping and not self._said_stopping:
            self._said_stopping = True
            lines.append("stopping after a checkpoint; once more to kill")
        for line in lines:
            self._console.print(Text(printable(line)), soft_wrap=True)
        ended, live = sum(run.done for run in self._runs), [run.directory.name for run in self._runs if run.live]
        now = f": {', '.join(live[:2])}{' …' if len(live) > 2 else ''}" if live else ""
        self._bars.update(
            self._task,
            total=sum(run.total for run in self._runs),
            completed=sum(run.completed for run in self._runs),
            description=f"[bold]{escape(self._title)}[/] {ended}/{len(self._runs)} runs{escape(now)}",
        )
        self._bars.refresh()
