"""One command at a time in a study's directory; and directories that are not a study's are left as they are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from ctld_lab.commands import Refusal
from ctld_lab.records import RecordError

NAME = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and have it alone; the kernel lets it go when the process dies, however it dies."""
    lock = FileLock(directory / NAME)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0.25)  # `holder` may look at it just now
    except Timeout:
        raise RecordError(
            f"another command, process {holder(directory) or 'unknown'}, is at work in {directory}; "
            "wait for it, stop it, or give another --dir"
        ) from None
    except OSError as error:  # also a link in its place: a stranger's directory must not have us write elsewhere
        raise Refusal(f"{directory} cannot be written ({error.strerror}); give another --dir") from None
    try:
        with suppress(OSError):  # for eyes only; a full disk is told by who needs it
            (directory / NAME).write_text(f"{os.getpid()}\n")
        yield
    finally:
        lock.release()


def holder(directory: Path) -> int | None:
    """The process that has the directory now; None if nobody has, 0 if it does not say who it is."""
    path = directory / NAME
    if not path.is_file():  # a pipe would never answer
        return None
    try:
        with FileLock(path, timeout=0):
            return None
    except Timeout:
        said = path.read_text()[:20].strip()
        return int(said) if said.isdecimal() else 0
    except OSError:
        return None


def check_writable(directory: Path) -> None:
    """Refuse a directory that could not be made or written, or that holds something else, before anything is done."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise Refusal(f"{existing} is not a directory; give another --dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refusal(f"{existing} cannot be written; give another --dir")
    if existing != directory or (directory / "study.json").exists():
        return
    # What a command leaves that is stopped at once, and what people keep beside, is no reason.
    foreign = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
    if foreign:
        raise Refusal(
            f"{directory} holds {foreign[0]!r} and is no study's (no study.json); give another --dir, or an empty one"
        )
