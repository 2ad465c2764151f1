"""`ctld status`: what of a study is done, running and left, and how long that will take. Records only, no torch.

Times are the runs' own, by their clocks at each evaluation. A stage that a run has not reached takes what it took in the runs
of the study that have, multiplied by how much slower or faster this run was in the stages that both have; where nobody has, a
step takes what it took so far, and the table says so.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ctld_lab.commands import Refusal
from ctld_lab.commands.lock import holder
from ctld_lab.commands.options import examples
from ctld_lab.commands.overview import plain_table
from ctld_lab.executors.progress import duration, total_steps
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, find_studies, number

SILENT = 120.0  # seconds without a word after which a run is not taken for running
RECENT = 5  # evaluations by which the present speed is measured
MANY = 20  # runs above which those that are done or wait are counted, not listed

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
        raise Refusal(f'{path} holds no study (no study.json), nor one right below it; "ctld run" makes one')
    console = Console()
    for study in studies:
        show(study, console)


# ---- what is known of one run ----


@dataclass(frozen=True)
class RunStatus:
    """How far a run is, and how long its steps took, by stage."""

    name: str
    state: str
    """done, diverged, failed, running, stopped or waiting."""
    step: int
    plan: tuple[int, ...]
    """Steps of each stage; empty for a run that does not count them."""
    pace: dict[int, float]
    """Seconds a step of each stage that has been timed."""

    @property
    def ended(self) -> bool:
        return self.state in ("done", "diverged")

    def left(self) -> dict[int, int]:
        """Steps that are still to come, by stage."""
        found, passed = {}, 0
        for stage, steps in enumerate(self.plan, start=1):
            remaining = steps - min(max(self.step - passed, 0), steps)
            passed += steps
            if remaining and not self.ended:
                found[stage] = remaining
        return found


def read(run: RunDirectory, *, live: bool) -> RunStatus:
    """`live`: a command is at work in the study."""
    config, told, lines = run.config(), run.progress(), run.metrics()
    result = run.result()
    steps = config.get("steps")
    total = total_steps(config) or int(told.get("steps", 0)) or None
    if isinstance(steps, list) and total is not None:
        plan = tuple(int(count) for count in steps)
    else:
        plan = () if total is None else (total,)
    state = run.state()
    if result is not None:
        state = "diverged" if result.get("diverged") else "done"
    elif state == "started":
        state = "running" if live and time.time() - number(told.get("time", 0.0)) < SILENT else "stopped"
    reached = max([int(told.get("step", 0)), *(int(number(line.get("step", 0))) for line in lines[-1:])])
    if result is not None:
        reached = int(number(result.get("steps", sum(plan))))
    pace = paces(lines)
    if not pace and state == "done" and reached:  # a kind of run that is not evaluated on its way
        pace = {1: sum(map(number, (result or {}).get("seconds", {}).values())) / reached}
    return RunStatus(run.name, state, reached, plan, pace)


def paces(lines: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Seconds a step of each stage. Of the stage that a run is in, the last evaluations count: other work comes and goes."""
    stages: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        clocks = line.get("seconds")
        if isinstance(clocks, dict):
            point = number(line.get("stage_step")), sum(map(number, clocks.values()))
            stages.setdefault(int(number(line.get("stage", 1))), []).append(point)
    found = {}
    for stage, points in stages.items():
        first = points[-1 - RECENT] if stage == max(stages) and len(points) > RECENT else points[0]
        steps, seconds = points[-1][0] - first[0], points[-1][1] - first[1]
        if steps > 0 and seconds > 0:
            found[stage] = seconds / steps
    return found


# ---- how long ----


@dataclass(frozen=True)
class Forecast:
    """Seconds that a run still takes."""

    seconds: float
    guessed: bool
    """Some stage has been timed in no run."""


def forecast(run: RunStatus, others: Sequence[RunStatus]) -> Forecast | None:
    """None where nothing has been timed at all, or nobody knows how many steps there are."""
    if not run.plan:
        return None
    seconds, guessed = 0.0, False
    for stage, steps in run.left().items():
        pace = run.pace.get(stage) or _borrowed(run, stage, others)
        if pace is None:
            known = list(run.pace.values()) or [value for other in others for value in other.pace.values()]
            if not known:
                return None
            pace, guessed = sum(known) / len(known), True
        seconds += steps * pace
    return Forecast(seconds, guessed)


def _borrowed(run: RunStatus, stage: int, others: Sequence[RunStatus]) -> float | None:
    """What a step of `stage` takes in other runs, scaled to this one's speed; None where none has been there."""
    found = []
    for other in others:
        if stage in other.pace and other is not run:
            shared = run.pace.keys() & other.pace.keys()
            ratio = sum(run.pace[each] for each in shared) / sum(other.pace[each] for each in shared) if shared else 1.0
            found.append(ratio * other.pace[stage])
    return sum(found) / len(found) if found else None


# ---- the table ----


def show(study: StudyDirectory, console: Console) -> None:
    """One study: what sums it up, and a row for each run; of many runs, for those that are neither done nor waiting."""
    live = holder(study.path) is not None
    try:
        description = study.description()
        runs = [read(run, live=live) for run in study.runs()]
    except (RecordError, TypeError, ValueError, AttributeError) as error:
        console.print(Text(_printable(f"{study.path}: {error}"), style="red"), soft_wrap=True)
        return
    forecasts = {run.name: forecast(run, runs) for run in runs if not run.ended}
    console.print(_heading(study, description, runs, forecasts, live=live), soft_wrap=True)
    order = ("running", "stopped", "failed", "waiting", "done", "diverged")
    table = plain_table("run", "state", "step", "of", "ms/step", "left", numeric=("step", "of", "ms/step", "left"))
    for run in sorted(runs, key=lambda run: (order.index(run.state), run.name)):
        if len(runs) <= MANY or run.state not in ("done", "waiting"):
            table.add_row(*_row(run, forecasts.get(run.name)))
    if table.row_count:
        console.print(table)
    for sentence in _notes(description, runs, forecasts):
        console.print(sentence, markup=False, highlight=False)


def _heading(
    study: StudyDirectory,
    description: dict[str, Any],
    runs: Sequence[RunStatus],
    forecasts: dict[str, Forecast | None],
    *,
    live: bool,
) -> Text:
    counts = {state: sum(run.state == state for run in runs) for state in ("done", "diverged", "running", "failed")}
    ended = counts["done"] + counts["diverged"]
    words = [f"{ended} of {len(runs)} runs done"]
    words += [f"{counts[state]} {state}" for state in ("running", "failed") if counts[state]]
    known = [found for found in forecasts.values() if found is not None]
    if ended < len(runs):
        at_once = max(1, counts["running"])
        total = sum(found.seconds for found in known) / at_once
        together = f", {at_once} at a time" if at_once > 1 else ""
        words.append(f"about {duration(total)} left{together}" if known else "nothing timed yet")
        unknown = len(forecasts) - len(known)
        words += [f"{unknown} of unknown length"] if known and unknown else []
        words += [] if live else ["no command is at work"]
    name = f"{description.get('study')}, {description.get('scale')}"
    return Text(_printable(f"{study.path} ({name})") + f"\n{'; '.join(words)}")


def _row(run: RunStatus, left: Forecast | None) -> tuple[Text, ...]:
    pace = run.pace.get(max(run.pace)) if run.pace else None
    total = sum(run.plan)
    style = {"running": "green", "failed": "red", "diverged": "red"}.get(run.state, "")
    remaining = "–" if run.ended else "?" if left is None else f"{'~' if left.guessed else ''}{duration(left.seconds)}"
    return (
        Text(_shortened(run.name, 27)),
        Text(run.state, style=style),
        Text(f"{run.step:,}"),
        Text(f"{total:,}" if total else "?"),
        Text("–" if pace is None else f"{1000 * pace:.3g}"),
        Text(remaining),
    )


def _notes(description: dict[str, Any], runs: Sequence[RunStatus], forecasts: dict[str, Forecast | None]) -> list[str]:
    notes = []
    if len(runs) > MANY:
        done, waiting = (sum(run.state == state for run in runs) for state in ("done", "waiting"))
        notes.append(f"Not listed: {done} done, {waiting} waiting.")
    if any(found is not None and found.guessed for found in forecasts.values()):
        notes.append("~ no run has reached some stage yet; its steps are counted as those before.")
    trials = (description.get("settings") or {}).get("trials")
    if trials and not any("-tuned-" in run.name for run in runs):
        notes.append("Runs that the trials decide are not counted yet.")
    return notes


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _printable(text: str) -> str:
    """Records may be a stranger's: nothing in them that a terminal would obey."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
