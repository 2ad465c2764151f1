"""`ctld run`, `ctld resume` and `ctld demo`: the runs that a study asks for, executed, counted and reported."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from ctld_lab.commands import Refusal, overview
from ctld_lab.commands.checkpoints import published, take_up
from ctld_lab.commands.display import Display, first_line
from ctld_lab.commands.lock import check_writable, locked
from ctld_lab.commands.options import say
from ctld_lab.commands.request import Order, build, find_study, is_file, use_data_dir
from ctld_lab.control import Control
from ctld_lab.executors import cores, run_all
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory
from ctld_lab.studies.study import Request, Study

INTERRUPTED = 130  # as shells say it
WORDS = {"interrupted": "stopped"}


@dataclass(frozen=True)
class Machinery:
    """Settings of the execution; they decide how long runs take, not what comes out."""

    engine: str | None = None
    workers: int | None = None
    threads: int | None = None
    ray_address: str | None = None

    def alone(self) -> Self:
        """The same for a single run."""
        return replace(self, workers=1)

    def execute(self, paths: Sequence[Path], console: Console, title: str) -> dict[Path, str]:
        """The state of each; see `run_all`."""
        control = Control()
        engine = self.engine or ("ray" if self.ray_address else "pool")
        with Display(paths, console, title=title, control=control) as display:
            return run_all(
                paths,
                engine=engine,
                workers=self.workers or cores(),
                threads=self.threads,
                control=control,
                ray_address=self.ray_address,
                on_end=display.ended,
            )


def run_study(
    order: Order,
    directory: Path,
    machinery: Machinery,
    console: Console,
    *,
    again: str,
    checkpoints: Path | None = None,
    resumed: bool = False,
) -> int:
    """The exit code. `again` is the command that goes on, should this one be interrupted."""
    from ctld_lab import studies

    study = find_study(order.study)
    check_writable(directory)
    request = build(order, study)
    place = StudyDirectory(directory)
    try:
        with locked(directory):
            asked = [] if resumed else [order.to_json()]
            place.prepare(studies.describe(study, request, order.command()) | {"orders": asked})
            say(console, introduce(study, request, directory))
            states, before = follow_plan(study, request, place, machinery, console, checkpoints)
            code = conclude(states, before, console, again=again)
            if code != INTERRUPTED:
                if order.tensorboard:
                    overview.write_tensorboard(place, console)
                if order.report:
                    overview.write_report(directory, console)
            return code
    except KeyboardInterrupt:  # between the runs; while they execute, Ctrl-C is theirs
        return conclude({}, set(), console, again=again, interrupted=True)


def introduce(study: Study, request: Request, directory: Path) -> str:
    """Say what is about to be done, and where."""
    seeds = f"{len(request.seeds)} seed{'s' * (len(request.seeds) != 1)}"
    parts = [", ".join(request.methods), seeds, str(request.data.get("name", ""))]
    return f"{study.title} ({study.figure}, {request.scale}): {'; '.join(filter(None, parts))} → {directory}"


def follow_plan(
    study: Study,
    request: Request,
    place: StudyDirectory,
    machinery: Machinery,
    console: Console,
    checkpoints: Path | None = None,
) -> tuple[dict[Path, str], set[Path]]:
    """The state of each run that the study asked for, and those that were done before."""
    states: dict[Path, str] = {}
    before: set[Path] = set()
    for runs in study.plan(request, place):
        paths = []
        for run in runs:
            directory = place.run(run.name)
            directory.prepare(run.config | _number_format(request, run.config))
            if checkpoints is not None:
                take_up(directory, published(place, checkpoints, run.name), console)
            paths.append(directory.path)
        finished = [path for path in paths if path not in states and _is_over(path)]
        before.update(finished)
        states |= dict.fromkeys(finished, "done")
        waiting = [path for path in paths if states.get(path) != "done"]
        if waiting:
            roles = sorted({str(run.config.get("role", "")) for run in runs} - {""})
            title = f"{study.name}, {' and '.join(roles)}" if roles else study.name
            states |= machinery.execute(waiting, console, title)
        if any(states[path] in ("interrupted", "waiting") for path in paths):
            break  # what comes next in the plan builds on these
    return states, before


def _number_format(request: Request, config: dict[str, Any]) -> dict[str, Any]:
    if "autocast" not in request.settings:
        return {}
    if config.get("kind") != "train":
        raise Refusal(
            f"--autocast is for runs that train, and this study's are of kind {config.get('kind')}; leave it out"
        )
    return {"autocast": request.settings["autocast"]}


def _is_over(path: Path) -> bool:
    """True if nothing is left to do; a run killed when its result was written still has a checkpoint to be removed."""
    return RunDirectory(path).result() is not None and not any(path.glob("checkpoint*.safetensors"))


def conclude(
    states: dict[Path, str], before: set[Path], console: Console, *, again: str, interrupted: bool = False
) -> int:
    """Say what became of each; the exit code."""
    if len(states) > 1:
        words = ("done before" if path in before else WORDS.get(state, state) for path, state in states.items())
        say(console, f"runs: {', '.join(f'{count} {word}' for word, count in Counter(words).items())}")
    failed = [RunDirectory(path) for path, state in states.items() if state == "failed"]
    for run in failed:
        failure = run.failure()
        said = _unrecorded(run) if failure is None else first_line(failure.get("error"))
        console.print("[red]failed[/]  ", end="")
        say(console, f"{run.name}: {said}")
        if failure is not None:
            path = run.path / "failure.json"
            say(console, f"        traceback: {path}")
    for run in (RunDirectory(path) for path in states if path not in before):
        for note in run.notes():
            say(console, f"note    {run.name}: {note}")
    unfinished = interrupted or any(state in ("interrupted", "waiting") for state in states.values())
    if failed or unfinished:
        word = "interrupted" if unfinished else "failed runs try again"
        say(console, f"{word}; go on with: {again}")
    return INTERRUPTED if unfinished else 1 if failed else 0


def _unrecorded(run: RunDirectory) -> str:
    """A run that could not even leave a failure.json: most likely the disk is full."""
    free = shutil.disk_usage(run.path).free
    return f"its failure could not be written to {run.path}, where {free:,} bytes are free; make space"


# ---- ctld resume ----


def resume_path(path: Path, machinery: Machinery, console: Console, *, data_dir: Path | None = None, again: str) -> int:
    """A study or a run; the exit code."""
    if (path / "study.json").exists():
        return _resume_study(path, machinery, console, data_dir=data_dir, again=again)
    if (path / "config.json").exists():
        use_data_dir(data_dir)
        return _resume_run(RunDirectory(path), machinery, console, again=again)
    raise Refusal(f"{path} is neither a study (no study.json) nor a run (no config.json)")


def _resume_study(path: Path, machinery: Machinery, console: Console, *, data_dir: Path | None, again: str) -> int:
    """Every order that was given to it, one after the other; the report comes once, at the end, if the last order had one."""
    description = StudyDirectory(path).description()
    try:
        orders = [Order.from_json(stored) for stored in description["orders"]]
    except (TypeError, KeyError, AttributeError):
        orders = []
    if not orders:
        raise RecordError(
            f"{path / 'study.json'} does not hold the orders that made it, as those of before 0.3 do not; give the command "
            f'"ctld run" again, with --dir {path}'
        )
    code = 0
    for index, order in enumerate(orders, start=1):
        if is_file(order.study):  # a record must not have us execute a file that it names
            raise Refusal(
                f"{path} was made by a study of one's own; give its command itself: {order.command()} --dir {path}"
            )
        order = replace(order, data_dir=data_dir or order.data_dir, report=order.report and index == len(orders))
        now = run_study(order, path, machinery, console, again=again, resumed=True)
        if now > 1:
            return now
        code = max(code, now)
    return code


def _resume_run(run: RunDirectory, machinery: Machinery, console: Console, *, again: str) -> int:
    if run.result() is not None:
        say(console, f"{run.path} is done")
        return 0
    run.config()
    study = run.path.absolute().parent.parent
    with locked(study if (study / "study.json").exists() else run.path):
        states = machinery.alone().execute([run.path], console, run.name)
    return conclude(states, set(), console, again=again)


# ---- ctld demo ----


def demonstrate(directory: Path, machinery: Machinery, console: Console, *, again: str, scale: str = "demo") -> int:
    """The paper's two comparisons in miniature, and the report on them: 5,000 digits, the English of Python's manual."""
    for study in ("sda", "charrnn"):
        order = Order(study, scale, "sgd,adam,santa,ctld", report=False)
        code = run_study(order, directory / study, machinery, console, again=again)
        if code:
            return code
    overview.write_report(directory, console)
    return 0
