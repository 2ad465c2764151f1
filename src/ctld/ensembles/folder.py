"""A folder of samples: one safetensors file for each, and index.json, which says what they are.

A file counts once the index names it. Each is written whole beside its name, to the disk, then renamed, the sample before
the index: a kill leaves the old collection or the new one, and at most a file that no index names, which the next change
removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

INDEX = "index.json"
FORMAT = 1
LARGEST_INDEX = 2**26  # bytes
NAME = re.compile(r"[0-9]{6,18}\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class File:
    """A sample's file, as the index has it."""

    name: str
    sha256: str


class Folder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def create(self, *, overwrite: bool = False) -> None:
        """Make room for a collection that starts: where anything lies already, nothing is touched.

        With `overwrite` a collection may lie there: its files go when the first index is written. Strangers' files may not.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / INDEX).exists():
            if overwrite:
                self.read_index()  # else it is not ours to remove
                return
            raise FileExistsError(
                f"{self.path} has samples already: SampleCollector.open goes on with them, overwrite=True replaces them"
            )
        if any(not entry.name.endswith(".unfinished") for entry in self.path.iterdir()):
            raise FileExistsError(f"{self.path} is not empty and has no {INDEX}: give a folder of its own")

    # ---- writing ----

    def write_sample(self, serial: int, state: dict[str, Tensor]) -> File:
        content: bytes = needs_safetensors().save({name: tensor.contiguous() for name, tensor in state.items()})
        file = File(f"{serial:06d}.safetensors", hashlib.sha256(content).hexdigest())
        write_whole(self.path, file.name, content)
        return file

    def write_index(self, index: dict[str, Any], keep: Iterable[str]) -> None:
        """Write the index, then remove the files of samples that `keep` does not name."""
        text = json.dumps({"format": FORMAT} | index, indent=1, allow_nan=False)
        write_whole(self.path, INDEX, text.encode())
        kept = set(keep)
        for entry in self.path.iterdir():
            if NAME.fullmatch(entry.name) and entry.name not in kept:
                entry.unlink(missing_ok=True)

    # ---- reading ----

    def read_index(self) -> dict[str, Any]:
        """Return the index of a collection of samples."""
        index = read_index(self.path)
        if index.get("format") != FORMAT:
            raise ValueError(f"{self.path / INDEX} is an index of an Ensemble: Ensemble.load reads it")
        return index

    def file(self, value: Any) -> File:
        """Return a file as the index describes it; its name cannot lead out of the folder."""
        if not isinstance(value, dict) or value.keys() != {"name", "sha256"}:
            raise ValueError("a file has the fields name, sha256")
        if not isinstance(value["name"], str) or not NAME.fullmatch(value["name"]):
            raise ValueError(f"{value['name']!r} is not the name of a sample's file")
        return File(value["name"], str(value["sha256"]))

    def read_sample(self, file: File) -> dict[str, Tensor]:
        """Return a sample's tensors, to the bit as they were written; refuse anything else."""
        path = self.path / file.name
        try:
            self._check_size(path)
            content = read_bounded(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing, though {INDEX} names it; restore it") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(f"{path} is damaged or another file: its checksum is not the one in {INDEX}; restore it")
        library = needs_safetensors()
        try:
            state: dict[str, Tensor] = library.load(content)
        except import_module("safetensors").SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file ({error})") from None
        return state

    def _check_size(self, path: Path) -> None:
        """Refuse a file of another length than its own header says, before it is read: it may be long and empty."""
        if not stat.S_ISREG(path.lstat().st_mode):
            return  # `read_bounded` says so
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if 0 < length <= LARGEST_INDEX else b""
        try:
            entries = json.loads(header)
            ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            ends = [-1]
        if path.stat().st_size != 8 + length + max(ends, default=0):
            raise ValueError(f"{path} is damaged or another file: its length is not the one in its header; restore it")


def read_index(path: Path) -> dict[str, Any]:
    """Return the index of a folder, of samples or of an ensemble."""
    file = path / INDEX
    try:
        index = json.loads(read_bounded(file, at_most=LARGEST_INDEX))
    except FileNotFoundError:
        raise FileNotFoundError(f"{file} does not exist: {path} is no folder of samples") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); restore it, or collect anew in another folder") from None
    known = (FORMAT, 2) if isinstance(index, dict) and "ensemble" in index else (FORMAT,)
    if not isinstance(index, dict) or index.get("format") not in known:
        raise ValueError(f"{file} is no index of samples of format {FORMAT}")
    return index


def read_bounded(path: Path, *, at_most: int | None = None, size: Any = None) -> bytes:
    """Return the bytes of a regular file of allowed length. A link leads elsewhere, and a pipe may never end."""
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path} is a link or no file at all")
    if at_most is not None and facts.st_size > at_most:
        raise ValueError(f"{path} has {facts.st_size:,} bytes, more than any index has")
    if size is not None and facts.st_size != size:
        raise ValueError(f"{path} is damaged or another file: it has {facts.st_size:,} bytes, and {size} in {INDEX}")
    return path.read_bytes()


def write_whole(path: Path, name: str, content: bytes | memoryview) -> None:
    """Write a file beside its name, to the disk, then rename it: whoever reads finds the old one or the new one."""
    unfinished = path / f".{name}.{os.getpid()}.unfinished"
    unfinished.unlink(missing_ok=True)  # of a killed process of this number, or a stranger's link
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path / name)
    finally:
        unfinished.unlink(missing_ok=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)  # else the rename itself could be lost with the power
    finally:
        os.close(handle)


def needs_safetensors() -> Any:
    """Return the library that reads and writes samples, or raise an error that says how to get it."""
    try:
        return import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError(
            "samples on disk need safetensors; python -m pip install safetensors, or keep them in memory (no folder)"
        ) from error
