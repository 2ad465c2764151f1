"""`ctld checkpoints` and `ctld run --from`: runs that are not finished go on elsewhere, from checkpoints that are published."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ctld_lab.commands.options import examples, option, say
from ctld_lab.files import check_own, write_bytes
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, find_studies, is_name

LINES = ("metrics.jsonl", "trace.jsonl")
# The checkpoint is last: it vouches for the lines, of which there may be more than it has seen, but not fewer.
FILES = ("environment.json", *LINES, "checkpoint.safetensors")

checkpoints_app = typer.Typer()


@checkpoints_app.command(epilog=examples("ctld checkpoints runs/paper --output results/paper/checkpoints"))
def checkpoints(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a study, or of several.")],
    output: Annotated[Path, option("DIR", "Where they go.")],
) -> None:
    """Publish the newest checkpoint of each unfinished run, and remove those of runs that are done.

    Runs may be live meanwhile. On another machine, "ctld run STUDY ... --from DIR" goes on where they were.
    """
    for study in find_studies(path):
        publish(study, output, Console())


def publish(study: StudyDirectory, output: Path, console: Console) -> None:
    """Copy what a run needs to go on, or remove what it no longer needs."""
    for run in study.runs():
        place = published(study, output, run.name)
        if run.result() is not None:
            if _remove(place):
                say(console, f"{run.name}: done, {place.path} removed")
        elif run.checkpoint.exists():
            say(console, f"{run.name}: step {copy(run, place):,} → {place.path}")


def published(study: StudyDirectory, output: Path, name: str) -> RunDirectory:
    """Return where the checkpoint of a run lies among those that are published."""
    kind = str(study.description().get("study"))
    if not is_name(kind):
        raise RecordError(f"{study.path / 'study.json'} calls its study {kind!r}, which is no name")
    return RunDirectory(output / kind / name)


def take_up(run: RunDirectory, source: RunDirectory, console: Console) -> None:
    """Let a run that has no checkpoint of its own go on from a published one, if there is one."""
    if run.result() is not None or any(run.path.glob("checkpoint*.safetensors")) or not source.checkpoint.exists():
        return
    source.prepare(run.config())  # refuses other settings
    say(console, f"{run.name} goes on at step {copy(source, run):,}, from {source.path}")


def copy(run: RunDirectory, place: RunDirectory) -> int:
    """Copy all that a run needs to go on; return its step. A copy that is killed leaves what can be taken up, or nothing."""
    from ctld_lab.checkpoints import load_checkpoint

    load_checkpoint(run.checkpoint)  # a damaged one must not take the place of a good one
    content = {run.checkpoint.name: run.checkpoint.read_bytes()}  # first: a live run saves lines before a checkpoint
    for name in FILES:
        check_own(run.path / name)
        content[name] = content.get(name) or (run.path / name).read_bytes()
    place.prepare(run.config())
    for name in FILES:
        write_bytes(place.path / name, content[name])
    try:
        state = load_checkpoint(place.checkpoint)
        for name in LINES:
            place.cut(name, int(state["lengths"][name]))
        return int(sum(run.config()["steps"][: state["stage"]]) + state["stage_step"])
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{run.checkpoint} is no checkpoint of a run ({error}); remove it and run again") from None


def _remove(place: RunDirectory) -> bool:
    """Only what `copy` writes, and nothing through a link."""
    if not place.path.is_dir() or place.path.is_symlink():
        return False
    for name in ("config.json", *FILES):
        (place.path / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody keeps more there
        place.path.rmdir()
        place.path.parent.rmdir()
    return True
