"""Bounded reading of plain, gzip and zip files into one buffer allocated beforehand.

Files may be hostile. Never is more read, decompressed or allocated than the size expected, a chunk and a byte; names
in an archive are compared, never used as paths.
"""

import gzip
import hashlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ctld_lab.data.table import DataError

CHUNK = 2**20  # bytes
# gzip and deflate add a thousandth at most to bytes that do not compress; headers and names fit into the rest.
_SLACK = 2**16

_READ_ERRORS = (OSError, EOFError, zlib.error, zipfile.BadZipFile, struct.error, ValueError, LookupError, RuntimeError)


def regular_file_size(path: Path) -> int:
    """Size in bytes. Anything but a regular file is refused: reading a pipe or a device may never end."""
    try:
        facts = path.stat()
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)})") from error
    if not stat.S_ISREG(facts.st_mode):
        what = "a folder" if stat.S_ISDIR(facts.st_mode) else "a pipe, a socket or a device"
        raise DataError(f"{path}: is {what}, not a file")
    return facts.st_size


def read(path: Path, *, size: int, member: str = "", plain: bool = False) -> tuple[NDArray[np.uint8], str]:
    """Exactly `size` plain bytes and their SHA-256.

    A name that ends in `.gz` or `.zip` says that the file is compressed, unless `plain`; of a zip, `member` is read.
    """
    on_disk = regular_file_size(path)
    form = "" if plain else path.suffix
    if form not in (".gz", ".zip"):
        if on_disk != size:
            raise DataError(f"{path}: has {on_disk:,} bytes, expected {size:,}")
    elif on_disk > size + size // 1000 + _SLACK:
        raise DataError(f"{path}: has {on_disk:,} bytes, too many for {size:,} bytes compressed")
    try:
        with _opened(path, form, member, size) as stream:
            return _fill(stream, path, size)
    except MemoryError as error:
        raise DataError(f"{path}: {size:,} bytes do not fit into memory; give a smaller file") from error
    except _READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read ({_reason(error)})") from error


def _fill(stream: io.BufferedIOBase, path: Path, size: int) -> tuple[NDArray[np.uint8], str]:
    buffer = np.empty(size, np.uint8)
    view = buffer.data
    digest = hashlib.sha256()
    filled = 0
    while filled < size:
        count = stream.readinto(view[filled : min(filled + CHUNK, size)])
        if not count:
            raise DataError(f"{path}: ends after {filled:,} bytes, expected {size:,}")
        digest.update(view[filled : filled + count])
        filled += count
    # At the end gzip and zip also compare their own checksums.
    if stream.read(1):
        raise DataError(f"{path}: goes on after {size:,} bytes, where it should end")
    return buffer, digest.hexdigest()


@contextmanager
def _opened(path: Path, form: str, member: str, size: int) -> Iterator[io.BufferedIOBase]:
    if form == ".gz":
        with gzip.open(path, "rb") as stream:
            yield stream
    elif form == ".zip":
        with (
            _SmallReads(io.FileIO(path)) as small,
            zipfile.ZipFile(small) as archive,
            archive.open(_checked_member(archive, path, member, size)) as entry,
        ):
            yield cast(zipfile.ZipExtFile, entry)
    else:
        with path.open("rb") as file:
            yield file


class _SmallReads(io.BufferedReader):
    """A file of which a chunk at most is read at a time: zipfile would read any table of contents in one piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            content = super().read(CHUNK + 1)
            size = len(content)
        else:
            content = super().read(size) if size <= CHUNK else b""
        if size > CHUNK:
            raise zipfile.BadZipFile(f"a table of contents or a header of more than {CHUNK:,} bytes")
        return content


def _checked_member(archive: zipfile.ZipFile, path: Path, member: str, size: int) -> zipfile.ZipInfo:
    names = archive.namelist()
    if member not in names:
        listed = ", ".join(repr(name[:80]) for name in names[:5]) or "nothing"
        raise DataError(f"{path}: holds {listed}, expected {member!r}")
    entry = archive.getinfo(member)
    if entry.file_size != size:
        raise DataError(f"{path}: its {member!r} has {entry.file_size:,} bytes, expected {size:,}")
    # zipfile bounds what it decompresses only for these two.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{path}: its {member!r} is neither deflated nor stored (method {entry.compress_type})")
    return entry


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
