"""Files that are written whole, and read with care: what a directory holds may be torn, damaged or a stranger's.

Nothing is written through a link, and nothing is read that no reader here could have meant: pipes, files of gigabytes, numbers
that no machine has, nesting without end. A disk that is full leaves what was there before, and says which file and what to do.
"""

import errno
import itertools
import json
import math
import os
import shutil
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LARGEST = 64 * 2**20  # bytes; a larger file is not ours
DEEPEST = 50  # levels of nesting
BUFFER = 8192  # bytes of lines that wait to be written


class RecordError(Exception):
    """A record that is missing, broken or not ours; the message names the file and the remedy."""


class MissingRecord(RecordError):
    """There is no such file."""


class NoSpace(OSError):
    """The disk, a quota or a limit is full; the message names the file and the remedy."""


# ---- writing ----


def write_json(path: Path, value: Any) -> None:
    """Beside the file, to the disk, then renamed: a reader sees the old one or the new one, never a part."""
    write_bytes(path, (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes, *, durable: bool = True, keep: Path | None = None) -> None:
    """Write any content as `write_json` does. What is not `durable` may be lost with the machine's power, never be torn.

    What was there before stays under the name `keep`, if there is one.
    """
    with _no_space_told(path, len(content)), _unfinished(path) as unfinished:
        with unfinished.open("xb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if keep is not None and os.path.lexists(path):
            _name_again(path, keep)
        os.replace(unfinished, path)
        if durable:
            _to_disk(path.parent)  # else the rename itself could be lost with the power


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """A name to write under. Nothing is there: not what a killed process of this number left, nor a stranger's link."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def _name_again(path: Path, other: Path) -> None:
    """`other` becomes a second name of the file at `path`; at no moment is a name that had a file without one."""
    with _unfinished(other) as second:
        try:
            os.link(path, second, follow_symlinks=False)
        except OSError:  # a file system without hard links: then `path` is without a file until it is written
            second = path
        os.replace(second, other)  # does nothing if both are the same file already


@contextmanager
def _no_space_told(path: Path, size: int) -> Iterator[None]:
    """The system's own words for a full disk name neither the file nor what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        free = shutil.disk_usage(path.parent).free
        raise NoSpace(
            f"{path} could not be written: {os.strerror(error.errno)} ({size:,} bytes to write, {free:,} free on that disk). "
            "What was saved before is whole. Make space, or raise the quota or limit, and give the same command again"
        ) from error


def _to_disk(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def plain(value: Any) -> Any:
    """Replace numbers that JSON lacks by strings: what diverged says "nan", "inf" or "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Appender:
    """Appends lines to a file, all that are waiting or none; `length` is what a checkpoint remembers."""

    def __init__(self, path: Path) -> None:
        check_own(path)
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._written = self._file.tell()
        self._waiting = bytearray()

    @property
    def length(self) -> int:
        return self._written + len(self._waiting)

    def append(self, value: dict[str, Any]) -> None:
        self._waiting += (json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n").encode()
        if len(self._waiting) >= BUFFER:
            self.flush()

    def flush(self, *, to_disk: bool = False) -> None:
        lines, self._waiting = bytes(self._waiting), bytearray()
        with _no_space_told(self._path, len(lines)):
            try:
                rest = memoryview(lines)
                while rest:  # a disk that is almost full takes a part
                    rest = rest[self._file.write(rest) :]
                if to_disk:
                    os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(self._written)
                raise
        self._written += len(lines)

    def close(self) -> None:
        with self._file:
            self.flush()


def check_own(path: Path) -> None:
    """Refuse a link or a pipe: a stranger's directory must not make us change files elsewhere."""
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise RecordError(f"{path} is a link or no file at all; remove it and run again")


# ---- reading ----


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is refused with a sentence."""
    try:
        _check_readable(path)
        value = _parse(path.read_bytes())
    except FileNotFoundError:
        raise MissingRecord(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read as JSON ({error}); remove it and run again") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path} holds {type(value).__name__}, not an object; remove it and run again")
    return value


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """An object in each line; a last one that was cut off is left out."""
    if not path.exists():
        return
    _check_readable(path)
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                value = _parse(line)
            except (ValueError, RecursionError) as error:
                raise RecordError(f"{path}, line {line_number}: {error}; remove {path.parent} and run again") from None
            if not isinstance(value, dict):
                raise RecordError(f"{path}, line {line_number} is no object; remove {path.parent} and run again")
            yield value


def printable(text: str) -> str:
    """Escape what is not printable as Python does: a stranger's record must not move the cursor of a terminal."""
    return "".join(
        letter
        if letter.isprintable() or letter == "\n" or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _check_readable(path: Path) -> None:
    """Before it is opened: a pipe may never end, and a file of terabytes fits nowhere."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise RecordError(f"{path} is no file; remove it and run again")
    if facts.st_size > LARGEST:
        raise RecordError(f"{path} has {facts.st_size:,} bytes, more than any record has; remove it and run again")


def _parse(text: bytes) -> Any:
    """Parse JSON with numbers that a machine has, and no deeper than ours: readers need fear no overflow."""
    value = json.loads(text.decode(), parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    layer = [value]
    for _ in range(DEEPEST):
        inside = [item.values() if isinstance(item, dict) else item for item in layer if isinstance(item, dict | list)]
        layer = list(itertools.chain.from_iterable(inside))
    if layer:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return value


def _integer(text: str) -> int:
    if len(text) > 20:  # 64 bits and a sign
        raise ValueError(f"an integer of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no number of JSON")  # ours are strings; see `plain`
    return value
