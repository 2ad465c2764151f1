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
        """Makes room for a collection that starts: where anything lies already, nothing is touched.

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
        content: bytes = _safetensors().save({name: tensor.contiguous() for name, tensor in state.items()})
        file = File(f"{serial:06d}.safetensors", hashlib.sha256(content).hexdigest())
        self._write(file.name, content)
        return file

    def write_index(self, index: dict[str, Any], keep: Iterable[str]) -> None:
        """After which files of samples that it does not name are removed."""
        text = json.dumps({"format": FORMAT} | index, indent=1, allow_nan=False)
        self._write(INDEX, text.encode())
        kept = set(keep)
        for entry in self.path.iterdir():
            if NAME.fullmatch(entry.name) and entry.name not in kept:
                entry.unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        unfinished = self.path / f".{name}.{os.getpid()}.unfinished"
        unfinished.unlink(missing_ok=True)  # of a killed process of this number, or a stranger's link
        try:
            with unfinished.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, self.path / name)
        finally:
            unfinished.unlink(missing_ok=True)
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)  # else the rename itself could be lost with the power
        finally:
            os.close(handle)

    # ---- reading ----

    def read_index(self) -> dict[str, Any]:
        path = self.path / INDEX
        try:
            index = json.loads(self._bytes(INDEX, largest=LARGEST_INDEX))
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist: {self.path} is no folder of samples") from None
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error}); restore it, or collect anew in another folder") from None
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            raise ValueError(f"{path} is no index of samples of format {FORMAT}")
        return index

    def file(self, value: Any) -> File:
        """What the index says of a file. Its name can't lead out of the folder."""
        if not isinstance(value, dict) or value.keys() != {"name", "sha256"}:
            raise ValueError("a file has the fields name, sha256")
        if not isinstance(value["name"], str) or not NAME.fullmatch(value["name"]):
            raise ValueError(f"{value['name']!r} is not the name of a sample's file")
        return File(value["name"], str(value["sha256"]))

    def read_sample(self, file: File) -> dict[str, Tensor]:
        """To the bit what was written: anything else is refused."""
        path = self.path / file.name
        try:
            content = self._bytes(file.name)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is missing, though {INDEX} names it; restore it") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise ValueError(f"{path} is damaged or another file: its checksum is not the one in {INDEX}; restore it")
        library = _safetensors()
        try:
            state: dict[str, Tensor] = library.load(content)
        except import_module("safetensors").SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file ({error})") from None
        return state

    def _bytes(self, name: str, *, largest: int | None = None) -> bytes:
        path = self.path / name
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode):  # a link leads elsewhere, and a pipe may never end
            raise ValueError(f"{path} is a link or no file at all")
        if largest is not None and facts.st_size > largest:
            raise ValueError(f"{path} has {facts.st_size:,} bytes, more than any index has")
        return path.read_bytes()


def _safetensors() -> Any:
    try:
        return import_module("safetensors.torch")
    except ImportError as error:
        raise ImportError(
            "samples on disk need safetensors; python -m pip install safetensors, or keep them in memory (no folder)"
        ) from error
