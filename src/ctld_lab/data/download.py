"""Fetching: each file from the first of its public homes that sends the right bytes. The only code that uses the network.

A file is put together in a hidden folder beside its place and renamed into it when its SHA-256 is right, so no reader
ever sees a part of it; when anything fails the hidden folder goes, and so do folders that were made for it.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from ctld_lab.data import containers
from ctld_lab.data.load import read_known
from ctld_lab.data.locate import destination, lookup
from ctld_lab.data.table import DataError, DataFile, DataSet, Download, dataset_named

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all

_TIMEOUT = 30  # seconds without a single byte
_CHUNK = 2**16  # bytes between two reports of progress


def fetch(
    name: str, data_dir: Path | None = None, progress: Progress | None = None, *, force: bool = False
) -> list[Path]:
    """Download what is missing of a data set, and return the path of each of its files.

    Files go into `data_dir`, else `$CTLD_DATA`, else the cache folder, which is made if need be. Good files that are
    there already stay; a damaged one is an error, or is replaced if `force`, which downloads everything anew. A data
    set that comes with a package has no files.
    """
    dataset = dataset_named(name)
    root = destination(data_dir)
    return [
        _present(dataset, file, root, data_dir, force) or _fetch_file(dataset, file, root, progress)
        for file in dataset.files
    ]


def _present(dataset: DataSet, file: DataFile, root: Path, data_dir: Path | None, force: bool) -> Path | None:
    path, _ = lookup(dataset, file, [root])
    if path is None or force:
        return None
    read_known(dataset, file, path, data_dir)
    return path


def _fetch_file(dataset: DataSet, file: DataFile, root: Path, progress: Progress | None) -> Path:
    folder = root / dataset.name
    target = folder / file.forms[0]
    try:
        with workspace(folder) as place:
            complete = _download(file.download, place, target, progress)
            if file.download.name != target.name:
                complete = _extract(file, complete, place / target.name)
            os.replace(complete, target)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror or error}); free or unlock the place, or choose another "
            "folder with --data-dir"
        ) from error
    return target


@contextmanager
def workspace(folder: Path) -> Iterator[Path]:
    """Yields a hidden folder within `folder`. It goes in the end; when that fails, folders made for it do too."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as place:
            yield Path(place)
    except BaseException:
        for path in made:
            with suppress(OSError):  # not empty: someone else uses it by now
                path.rmdir()
        raise


def _download(download: Download, place: Path, target: Path, progress: Progress | None) -> Path:
    from http.client import HTTPException  # which takes longer than all else here, where help is to come at once

    path = place / download.name
    failures = []
    for url in download.urls:
        with path.open("wb") as file:
            try:
                digest = hashlib.sha256()
                so_far = 0
                for so_far, chunk in received(url, at_most=download.size):
                    digest.update(chunk)
                    try:
                        file.write(chunk)
                    except OSError as error:  # no other mirror will help
                        raise _DiskError from error
                    if progress is not None:
                        progress(download.name, so_far, download.size)
                if so_far != download.size:
                    raise DataError(f"sent {so_far:,} bytes, expected {download.size:,}")
                if digest.hexdigest() != download.sha256:
                    raise DataError(f"sent SHA-256 {digest.hexdigest()}, expected {download.sha256}")
                return path
            except _DiskError as error:
                raise error.__cause__ from None  # type: ignore[misc]
            except (DataError, OSError, ValueError, HTTPException) as error:
                failures.append(f"  {url}: {error}")
    raise DataError(
        "\n".join([f"{download.name} could not be downloaded:", *failures])
        + f"\nCheck the network and try again, or put the file into {target.parent} by hand"
    )


class _DiskError(Exception):
    """Writing failed."""


def received(url: str, *, at_most: int) -> Iterator[tuple[int, bytes]]:
    """The chunks that come, each with the number of bytes so far, which must not be more than `at_most`."""
    import urllib.request

    # Accept-Encoding: a .gz that is decompressed on the way has another SHA-256.
    asked = urllib.request.Request(url, headers={"Accept-Encoding": "identity", "User-Agent": "ctld"})
    so_far = 0
    with urllib.request.urlopen(asked, timeout=_TIMEOUT) as response:
        while chunk := response.read(_CHUNK):
            so_far += len(chunk)
            if so_far > at_most:
                raise DataError(f"sends more than the {at_most:,} bytes expected")
            yield so_far, chunk


def _extract(file: DataFile, archive: Path, target: Path) -> Path:
    content, found = containers.read(archive, size=file.size, member=file.name)
    if found != file.sha256:
        raise DataError(f"{archive.name}: its {file.name} has SHA-256 {found}, expected {file.sha256}")
    with target.open("wb") as output:
        output.write(content.data)
    return target
