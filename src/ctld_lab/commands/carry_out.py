"""`ctld run`, `ctld resume` and `ctld demo`: the runs that a study asks for, executed, counted and reported."""

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from rich.console import Console

from ctld_lab.commands import Refusal, overview
from ctld_lab.commands.lock import check_writable, locked
from ctld_lab.commands.options import say, unknown
from ctld_lab.commands.request import Order, build, find_study, is_file, use_data_dir
from ctld_lab.control import Control
from ctld_lab.executors import ENGINES, cores, run_all, torchrun
from ctld_lab.executors.progress import Display, first_line
from ctld_lab.jobs import MOST_THREADS
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory
from ctld_lab.studies.study import Request, Study

INTERRUPTED = 130  # as shells say it
WORDS = {"interrupted": "stopped"}


@dataclass(frozen=True)
class Machinery:
    """How runs execute; decides how long they take, not what comes out."""

    engine: str | None = None
    workers: int | None = None
    threads: int | None = None
    ray_address: str | None = None
    ranks: int | None = None

    def check(self) -> None:
        if self.engine not in (None, *ENGINES):
            raise Refusal(unknown("engine", str(self.engine), ENGINES))
        for option, value in (("--workers", self.workers), ("--threads", self.threads), ("--ranks", self.ranks)):
            if value is not None and not 1 <= value <= MOST_THREADS:
                raise Refusal(f"{option} {value}: at least 1 and at most {MOST_THREADS} are needed")
        if self.ray_address is not None and self.engine != "ray":
            raise Refusal("--ray-address is for --engine ray")
        if self.engine == "local" and self.workers not in (None, 1):
            raise Refusal("--engine local executes one run at a time; leave --workers out, or give --engine pool")
        if self.ranks not in (None, 1) and self.engine in ("local", "ray"):
            raise Refusal(
                f"--engine {self.engine} executes a run in one process; leave it out with --ranks {self.ranks}, "
                "or start the ranks by torchrun"
            )
        if torchrun.launched() and {self.engine, self.workers, self.ranks} != {None}:
            raise Refusal(
                f"torchrun has started {torchrun.size()} ranks, which take one run after the other; leave --engine, "
                "--workers and --ranks out"
            )

    def check_kind(self, kind: str) -> None:
        if kind != "train" and (torchrun.launched() or self.ranks not in (None, 1)):
            raise Refusal(
                f"runs of kind {kind} are not trained, and have no use for ranks; leave --ranks or torchrun out"
            )

    def alone(self) -> Self:
        """For a single run."""
        return replace(self, workers=1)

    def execute(self, paths: Sequence[Path], console: Console, title: str) -> dict[Path, str]:
        """The state of each; see `run_all`."""
        control = Control()
        ranks = self.ranks or 1
        workers = self.workers or (1 if self.engine == "local" or ranks > 1 else cores())
        engine = self.engine or ("local" if workers == ranks == 1 else "pool")
        with Display(paths, console, title=title, control=control):
            if torchrun.launched():
                return torchrun.run_all(paths, threads=self.threads, control=control)
            return run_all(
                paths,
                engine=engine,
                workers=workers,
                threads=self.threads,
                ranks=ranks,
                control=control,
                ray_address=self.ray_address,
            )


def run_study(
    order: Order,
    directory: Path,
    machinery: Machinery,
    console: Console,
    *,
    again: str,
    report: bool = True,
    tensorboard: bool = False,
) -> int:
    """The exit code. `again` is the command that goes on, should this one be interrupted."""
    from ctld_lab import studies

    machinery.check()
    study = find_study(order.study)
    check_writable(directory)
    request = build(order, study)
    place = StudyDirectory(directory)
    try:
        with locked(directory):
            place.prepare(studies.describe(study, request, order.command()))
            say(console, introduce(study, request, directory))
            states, before = follow_plan(study, request, place, machinery, console)
            code = conclude(states, before, console, again=again)
            if code != INTERRUPTED:
                if tensorboard:
                    overview.write_tensorboard(place, console)
                if report:
                    overview.write_report(directory, console)
            return code
    except KeyboardInterrupt:  # between the runs; while they execute, Ctrl-C is theirs
        return conclude({}, set(), console, again=again, interrupted=True)


def introduce(study: Study, request: Request, directory: Path) -> str:
    """What is about to be done, and where."""
    seeds = f"{len(request.seeds)} seed{'s' * (len(request.seeds) != 1)}"
    parts = [", ".join(request.methods), seeds, str(request.data.get("name", ""))]
    return f"{study.title} ({study.figure}, {request.scale}): {'; '.join(filter(None, parts))} → {directory}"


def follow_plan(
    study: Study, request: Request, place: StudyDirectory, machinery: Machinery, console: Console
) -> tuple[dict[Path, str], set[Path]]:
    """The state of each run that the study asked for, and those that were done before."""
    states: dict[Path, str] = {}
    before: set[Path] = set()
    for runs in study.plan(request, place):
        paths = []
        for run in runs:
            machinery.check_kind(str(run.config.get("kind")))
            place.run(run.name).prepare(run.config)
            paths.append(place.run(run.name).path)
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


def _is_over(path: Path) -> bool:
    """Whether nothing is left to do: a run that was killed when its result was written has its checkpoint to be removed."""
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
    machinery.check()
    if (path / "study.json").exists():
        return _resume_study(path, machinery, console, data_dir=data_dir, again=again)
    if (path / "config.json").exists():
        use_data_dir(data_dir)
        return _resume_run(RunDirectory(path), machinery, console, again=again)
    raise Refusal(f"{path} is neither a study (no study.json) nor a run (no config.json)")


def _resume_study(path: Path, machinery: Machinery, console: Console, *, data_dir: Path | None, again: str) -> int:
    """Every command that was given to it, in order; the report comes once, at the end."""
    try:
        orders = [Order.from_command(command) for command in StudyDirectory(path).description()["commands"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        orders = []
    if not orders:
        raise RecordError(f"{path / 'study.json'} does not say which commands made it; give the command itself")
    for order in orders:
        if is_file(order.study):  # a record must not have us execute a file that it names
            raise Refusal(
                f"{path} was made by a study of one's own; give its command itself: {order.command()} --dir {path}"
            )
    code = 0
    for index, order in enumerate(orders, start=1):
        order = order if data_dir is None else order.in_data_dir(data_dir)
        now = run_study(order, path, machinery, console, again=again, report=index == len(orders))
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
        order = Order(study, scale, "sgd,adam,santa,ctld")
        code = run_study(order, directory / study, machinery, console, again=again, report=False)
        if code:
            return code
    overview.write_report(directory, console)
    return 0
