"""`ctld list` and `ctld status`: what of a study is done, running and left, and how long that takes. Records only, no torch.

Times are the runs' own, by their clocks at each evaluation. A stage that a run has not reached takes as long as it took in the
other runs of the study.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.commands.display import duration, total_steps
from ctld_lab.commands.lock import holder
from ctld_lab.commands.options import examples, plain_table, say
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, find_studies, number

SILENT = 120.0  # seconds without a word after which a run is not taken for running
RECENT = 5  # evaluations by which the present speed is measured
MANY = 20  # runs above which those that are done or wait are counted, not listed
ORDER = ("running", "stopped", "failed", "waiting", "done", "diverged")
BROKEN = (RecordError, TypeError, ValueError, AttributeError)

status_app = typer.Typer()


@status_app.command(epilog=examples("ctld status runs", "ctld status runs/sda-paper"))
def status(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study, or of several.")] = Path(
        "runs"
    ),
) -> None:
    """Say what is done, what is running, what is left and how long it takes."""
    studies = find_studies(path)
    if not studies:
        raise Refusal(
            f'{path} holds no study (no study.json), nor one right below it; "ctld run" makes one. Studies of the folder '
            "research say how far they are themselves: python research/NAME.py --status"
        )
    for study in studies:
        show(study, Console())


@status_app.command("list", epilog=examples("ctld list", "ctld list /data/runs"))
def list_(
    root: Annotated[Path, typer.Argument(metavar="DIR", help="Where to look for studies.")] = Path("runs"),
) -> None:
    """Show the studies: those known, and those begun with what is done."""
    from ctld_lab import studies

    console = Console()
    known = plain_table("study", "what it rebuilds")
    for name, line in studies.names().items():
        known.add_row(name, line)
    console.print(known)
    found = find_studies(root)
    if not found:
        say(console, f"no study in {root} yet: ctld run NAME")
        return
    table = plain_table("directory", "study", "runs done", "failed", "state", numeric=("runs done", "failed"))
    for study in found:
        table.add_row(Text(str(study.path), overflow="fold"), *_row(study))
    console.print(table)


# ---- what is known of one run ----


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run, and the time of its steps by stage."""

    name: str
    state: str
    """One of ORDER."""
    step: int
    plan: tuple[int, ...]
    """Steps of each stage; empty for a run that does not count them."""
    pace: dict[int, float]
    """Seconds a step of each stage that has been timed."""

    @classmethod
    def read(cls, run: RunDirectory, *, live: bool) -> Self:
        """`live`: a command is at work in the study."""
        config, told, lines, result = run.config(), run.progress(), run.metrics(), run.result()
        steps, total = config.get("steps"), total_steps(config) or int(told.get("steps", 0)) or None
        plan = () if total is None else tuple(map(int, steps)) if isinstance(steps, list) else (total,)
        reached = max([int(told.get("step", 0)), *(int(number(line.get("step", 0))) for line in lines[-1:])])
        state, pace = run.state(), paces(lines)
        if result is not None:
            state = "diverged" if result.get("diverged") else "done"
            reached = int(number(result.get("steps", sum(plan))))
            if not pace and state == "done" and reached:  # a kind of run that is not evaluated on its way
                pace = {1: _seconds(result.get("seconds", 0.0)) / reached}
        elif state == "started":
            state = "running" if live and time.time() - number(told.get("time", 0.0)) < SILENT else "stopped"
        return cls(run.name, state, reached, plan, pace)

    @property
    def ended(self) -> bool:
        return self.state in ("done", "diverged")

    def left(self) -> dict[int, int]:
        """Steps that are still to come, by stage."""
        found, passed = {}, 0
        for stage, steps in enumerate(() if self.ended else self.plan, start=1):
            passed += steps
            if remaining := min(max(passed - self.step, 0), steps):
                found[stage] = remaining
        return found

    def forecast(self, others: "Sequence[RunStatus]") -> float | None:
        """Seconds that are left; None where nothing has been timed, or nobody knows how many steps there are."""
        seconds = 0.0
        for stage, steps in self.left().items():
            timed = [self.pace[stage]] if stage in self.pace else [x.pace[stage] for x in others if stage in x.pace]
            timed = timed or list(self.pace.values()) or [pace for other in others for pace in other.pace.values()]
            if not timed:
                return None
            seconds += steps * sum(timed) / len(timed)
        return seconds if self.plan else None


def paces(lines: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Seconds a step of each stage. Of the stage that a run is in, the last evaluations count: other work comes and goes."""
    stages: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        if isinstance(line.get("seconds"), dict):
            point = number(line.get("stage_step")), _seconds(line["seconds"])
            stages.setdefault(int(number(line.get("stage", 1))), []).append(point)
    found = {}
    for stage, points in stages.items():
        first = points[-1 - RECENT] if stage == max(stages) and len(points) > RECENT else points[0]
        steps, seconds = points[-1][0] - first[0], points[-1][1] - first[1]
        if steps > 0 and seconds > 0:
            found[stage] = seconds / steps
    return found


def _seconds(clocks: Any) -> float:
    return sum(map(number, clocks.values())) if isinstance(clocks, dict) else number(clocks)


# ---- tables ----


def _runs(study: StudyDirectory) -> tuple[str, list[RunStatus] | str, bool]:
    """The study's name; its runs, or what a published report says of them; whether a command is at work."""
    description, live = study.description(), holder(study.path) is not None
    runs = [RunStatus.read(run, live=live) for run in study.runs()]
    name = f"{description.get('study')}, {description.get('scale')}"
    return name, runs if runs or "published" not in description else str(description["published"]), live


def _row(study: StudyDirectory) -> tuple[Text, ...]:
    """A record that cannot be read is told in its row; the other rows are as good as ever."""
    try:
        name, runs, live = _runs(study)
    except BROKEN as error:
        return Text("?"), Text("–"), Text("–"), Text(str(error), style="red")
    if isinstance(runs, str):
        return Text(name), Text(""), Text(""), Text(runs)
    done, failed = sum(run.ended for run in runs), sum(run.state == "failed" for run in runs)
    total = sum(sum(run.plan) or 1 for run in runs)
    made = sum((sum(run.plan) or 1) if run.ended else min(run.step, sum(run.plan)) for run in runs)
    percent = f"{100 * made / total:.0f} %" if total else "0 %"
    now = f"live, {percent}" if live else "done" if runs and done == len(runs) else f"stopped, {percent}"
    counts = Text(f"{done}/{len(runs)}"), Text(str(failed), style="red" if failed else "")
    return Text(name), *counts, Text(now, style="green" if live else "")


def show(study: StudyDirectory, console: Console) -> None:
    """One study: what sums it up, and a row for each run; of many runs, for those that are neither done nor waiting."""
    try:
        name, runs, live = _runs(study)
    except BROKEN as error:
        say(console, f"{study.path}: {error}")
        return
    if isinstance(runs, str):
        say(console, f"{study.path} ({name})\n{runs}")
        return
    left = {run.name: run.forecast(runs) for run in runs if not run.ended}
    counts = Counter("done" if run.ended else run.state for run in runs)
    words = [f"{counts['done']} of {len(runs)} runs done"]
    words += [f"{counts[state]} {state}" for state in ("running", "failed") if counts[state]]
    if left:
        known, at_once = [seconds for seconds in left.values() if seconds is not None], max(1, counts["running"])
        together = f", {at_once} at a time" if at_once > 1 else ""
        words.append(f"about {duration(sum(known) / at_once)} left{together}" if known else "nothing timed yet")
        words += [] if live else ["no command is at work"]
    say(console, f"{study.path} ({name})\n{'; '.join(words)}")
    table = plain_table("run", "state", "step", "of", "ms/step", "left", numeric=("step", "of", "ms/step", "left"))
    for run in sorted(runs, key=lambda run: (ORDER.index(run.state), run.name)):
        if len(runs) <= MANY or run.state not in ("done", "waiting"):
            seconds, pace = left.get(run.name), run.pace.get(max(run.pace)) if run.pace else None
            remaining = "–" if run.ended else "?" if seconds is None else duration(seconds)
            style = {"running": "green", "failed": "red", "diverged": "red"}.get(run.state, "")
            shown = run.name if len(run.name) <= 27 else f"{run.name[:26]}…"
            numbers = f"{run.step:,}", f"{sum(run.plan):,}" if run.plan else "?"
            speed = "–" if pace is None else f"{1000 * pace:.3g}"
            table.add_row(shown, Text(run.state, style=style), *numbers, speed, remaining)
    if table.row_count:
        console.print(table)
    if len(runs) > MANY:
        say(console, f"Not listed: {sum(run.state == 'done' for run in runs)} done, {counts['waiting']} waiting.")
