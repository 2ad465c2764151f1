"""One command at a time in a study's directory. The kernel lets the lock go when the process dies, however it dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ctld_lab.commands import Refusal
from ctld_lab.records import RecordError

NAME = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Make the directory if need be, and have it alone."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Not through a link: it is emptied, and a stranger's directory must not have us empty another file.
        file = os.fdopen(os.open(directory / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+")
    except OSError as error:
        raise Refusal(f"{directory} cannot be written ({error.strerror}); give another --dir") from None
    with file:
        if not _taken(file):
            raise RecordError(
                f"another command, process {holder(directory) or 'unknown'}, is at work in {directory}; "
                "wait for it, stop it, or give another --dir"
            )
        with suppress(OSError):  # for eyes only; a full disk is told by who needs it
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), f"{os.getpid()}\n".encode())
        yield


def _taken(file: IO[str]) -> bool:
    for _ in range(5):  # `holder` may look at it just now
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:  # a file system without locks
            return True
        else:
            return True
    return False


def holder(directory: Path) -> int | None:
    """The process that has the directory now; None if nobody has, 0 if it does not say who it is."""
    if not (directory / NAME).is_file():  # a pipe would never answer
        return None
    try:
        with (directory / NAME).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                said = file.read().strip()
                return int(said) if said.isdecimal() else 0
    except OSError:
        pass
    return None


def check_writable(directory: Path) -> None:
    """Refuse a directory that could not be made or written, before anything is done."""
    existing = directory
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise Refusal(f"{existing} is not a directory; give another --dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise Refusal(f"{existing} cannot be written; give another --dir")
