"""`ctld resume`: what a directory says was asked of it, once more."""

from pathlib import Path

from rich.console import Console

from ctld_lab.commands import Refusal
from ctld_lab.commands.carry_out import Machinery, conclude, run_study
from ctld_lab.commands.lock import locked
from ctld_lab.commands.options import say
from ctld_lab.commands.request import Order, is_file, use_data_dir
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory


def resume_path(path: Path, machinery: Machinery, console: Console, *, data_dir: Path | None = None, again: str) -> int:
    """A study or a run; the exit code."""
    machinery.check()
    if (path / "study.json").exists():
        return _study(path, machinery, console, data_dir=data_dir, again=again)
    if (path / "config.json").exists():
        use_data_dir(data_dir)
        return _run(RunDirectory(path), machinery, console, again=again)
    raise Refusal(f"{path} is neither a study (no study.json) nor a run (no config.json)")


def _study(path: Path, machinery: Machinery, console: Console, *, data_dir: Path | None, again: str) -> int:
    """Every command that was given to it, in order; the report comes once, at the end."""
    commands = StudyDirectory(path).description().get("commands")
    try:
        orders = [Order.from_command(command) for command in commands or ()]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise RecordError(
            f"{path / 'study.json'} does not say which commands made it; give the command itself"
        ) from None
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


def _run(run: RunDirectory, machinery: Machinery, console: Console, *, again: str) -> int:
    if run.result() is not None:
        say(console, f"{run.path} is done")
        return 0
    run.config()
    study = run.path.absolute().parent.parent
    with locked(study if (study / "study.json").exists() else run.path):
        states = machinery.alone().execute([run.path], console, run.name)
    return conclude(states, set(), console, again=again)
