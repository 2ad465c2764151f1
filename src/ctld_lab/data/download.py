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
from typing import IO, Any

from ctld_lab.data import containers
from ctld_lab.data.errors import DataError
from ctld_lab.data.locate import destination, fetch_command, lookup
from ctld_lab.data.table import DataFile, DataSet, Download, dataset_named

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
    remedy = f"To replace it: {fetch_command(dataset, data_dir, force=True)}"
    try:
        _, found = containers.read(path, size=file.size, member=file.name)
    except DataError as damage:
        raise DataError(f"{damage}.\n{remedy}") from damage
    if found != file.sha256:
        raise DataError(f"{path}: is there with SHA-256 {found}, expected {file.sha256}.\n{remedy}")
    return path


def _fetch_file(dataset: DataSet, file: DataFile, root: Path, progress: Progress | None) -> Path:
    folder = root / dataset.name
    target = folder / file.forms[0]
    try:
        with _workspace(folder) as workspace:
            complete = _download(file.download, workspace, target, progress)
            if file.download.name != target.name:
                complete = _extract(file, complete, workspace / target.name)
            os.replace(complete, target)
    except OSError as error:
        raise DataError(
            f"{target}: cannot be written ({error.strerror or error}); free or unlock the place, or choose another "
            "folder with --data-dir"
        ) from error
    return target


@contextmanager
def _workspace(folder: Path) -> Iterator[Path]:
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".fetch-", dir=folder) as workspace:
            yield Path(workspace)
    except BaseException:
        for path in made:
            with suppress(OSError):  # not empty: someone else uses it by now
                path.rmdir()
        raise


def _download(download: Download, workspace: Path, target: Path, progress: Progress | None) -> Path:
    try:
        import pooch  # type: ignore[import-untyped, unused-ignore]
    except ImportError as missing:
        raise DataError('fetching needs pooch, which is not installed: pip install "ctld[lab]"') from missing
    responses: list[Any] = []

    def remember(response: Any, **_: Any) -> None:
        responses.append(response)

    # Accept-Encoding: a .gz that is decompressed on the way has another SHA-256.
    # hooks: pooch leaves the connection open when a download breaks off.
    downloader: Any = pooch.HTTPDownloader(
        chunk_size=_CHUNK,
        timeout=_TIMEOUT,
        headers={"Accept-Encoding": "identity"},
        hooks={"response": remember},
    )
    path = workspace / download.name
    failures = []
    for url in download.urls:
        with path.open("wb") as file:
            sink = _Sink(file, download, progress)
            try:
                downloader(url, sink, None)
                sink.check()
                return path
            except _DiskError as error:
                raise error.cause from None
            except (DataError, OSError, ValueError) as error:  # requests' errors are OSErrors
                failures.append(f"  {url}: {error}")
            finally:
                while responses:
                    responses.pop().close()
    raise DataError(
        "\n".join([f"{download.name} could not be downloaded:", *failures])
        + f"\nCheck the network and try again, or put the file into {target.parent} by hand"
    )


class _DiskError(Exception):
    """Writing failed: no other mirror will help."""

    def __init__(self, cause: OSError):
        super().__init__(str(cause))
        self.cause = cause


class _Sink:
    """Takes the chunks of a download, and no more than there should be."""

    def __init__(self, file: IO[bytes], download: Download, progress: Progress | None):
        self._file, self._download, self._progress = file, download, progress
        self._received = 0
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._received > self._download.size:
            raise DataError(f"sends more than the {self._download.size:,} bytes expected")
        self._digest.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise _DiskError(error) from error
        if self._progress is not None:
            self._progress(self._download.name, self._received, self._download.size)

    def flush(self) -> None:
        """Called after each chunk; closing the file is enough."""

    def check(self) -> None:
        if self._received != self._download.size:
            raise DataError(f"sent {self._received:,} bytes, expected {self._download.size:,}")
        if self._digest.hexdigest() != self._download.sha256:
            raise DataError(f"sent SHA-256 {self._digest.hexdigest()}, expected {self._download.sha256}")


def _extract(file: DataFile, archive: Path, target: Path) -> Path:
    content, found = containers.read(archive, size=file.size, member=file.name)
    if found != file.sha256:
        raise DataError(f"{archive.name}: its {file.name} has SHA-256 {found}, expected {file.sha256}")
    with target.open("wb") as output:
        output.write(content.data)
    return target
