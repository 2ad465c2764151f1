"""What a study leaves on disk. Records are data: JSON, JSON lines and safetensors, nothing that can execute.

    STUDY/                  study.json                 what was asked: study, scale, methods, seeds, data, settings
      runs/RUN/             config.json                everything that decides the run's numbers; never changes
                            environment.json           versions, commit, machine, threads
                            metrics.jsonl              one line per evaluation
                            trace.jsonl                one line per recorded step: α, temperature ratio, energies
                            checkpoint.safetensors     where to go on (gone when the run is done)
                            progress.json              step and rate of a live run, once a second; for eyes only
                            result.json                written last: its presence says that the run is done
                            failure.json               the error, if the last attempt failed

Whole files are replaced at once (`write_json`). Lines are appended, and a checkpoint says how long the files were when
it was taken: `RunDirectory.cut` takes away what came later, so a killed run goes on as if nothing had happened.
No torch here: the report reads records alone.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1
LARGEST_JSON = 64 * 2**20  # bytes; a larger one is not ours


class RecordError(Exception):
    """A record that is missing, broken or not ours; the message names the file and the remedy."""


class MissingRecord(RecordError):
    """There is no such file."""


def write_json(path: Path, value: Any) -> None:
    """Beside the file, to the disk, then renamed: a reader sees the old one or the new one, never a part."""
    write_bytes(path, (json.dumps(plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """As `write_json`, for any content. What is not `durable` may be lost with the machine's power, never be torn."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
        if durable:
            _to_disk(path.parent)  # else the rename itself could be lost with the power
    finally:
        unfinished.unlink(missing_ok=True)


def _to_disk(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; anything else is refused with a sentence."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise RecordError(f"{path} has {path.stat().st_size} bytes, more than any record has; remove it")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingRecord(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read as JSON ({error}); remove it and run again") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path} holds {type(value).__name__}, not an object; remove it and run again")
    return value


def plain(value: Any) -> Any:
    """With numbers that JSON lacks written as strings: what diverged says "nan", "inf" or "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def number(value: Any) -> float:
    """The float that `plain` wrote; NaN for what is not there."""
    return float("nan" if value is None else value)


# ---- a run ----


@dataclass(frozen=True)
class RunDirectory:
    """Files of one run."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    def environment(self) -> dict[str, Any]:
        return self._if_present("environment.json")

    def result(self) -> dict[str, Any] | None:
        """None until the run is done."""
        return self._if_present("result.json") or None

    def failure(self) -> dict[str, Any] | None:
        return self._if_present("failure.json") or None

    def progress(self) -> dict[str, Any]:
        """What a live run last said; empty if it said nothing readable."""
        try:
            return self._if_present("progress.json")
        except RecordError:
            return {}

    def state(self) -> str:
        """done, failed, started or waiting."""
        if self.result() is not None:
            return "done"
        if self.failure() is not None:
            return "failed"
        return "started" if (self.path / "metrics.jsonl").exists() or self.checkpoint.exists() else "waiting"

    def prepare(self, config: dict[str, Any]) -> None:
        """Make the directory, or see that what it holds was made with the same settings."""
        config = plain({"format": FORMAT, **config})
        path = self.path / "config.json"
        if path.exists():
            kept = read_json(path)
            differing = sorted(key for key in kept.keys() | config.keys() if kept.get(key) != config.get(key))
            if differing:
                what = "; ".join(
                    f"{key} was {_short(kept.get(key))}, is now {_short(config.get(key))}" for key in differing
                )
                raise RecordError(
                    f"{self.path} was made with other settings ({what}). Give another --dir, or remove it"
                )
            return
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(path, config)

    def write(self, name: str, value: dict[str, Any]) -> None:
        """`name` is one of the whole files, such as result.json."""
        write_json(self.path / name, value)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Of metrics.jsonl or trace.jsonl; a last line that was cut off is left out."""
        path = self.path / name
        if not path.exists():
            return
        with path.open("rb") as file:
            for line_number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise RecordError(
                        f"{path}, line {line_number}: {error}; remove {self.path} and run again"
                    ) from None
                if not isinstance(value, dict):
                    raise RecordError(f"{path}, line {line_number} is no object; remove {self.path} and run again")
                yield value

    def metrics(self) -> list[dict[str, Any]]:
        return list(self.lines("metrics.jsonl"))

    def trace(self) -> list[dict[str, Any]]:
        return list(self.lines("trace.jsonl"))

    def cut(self, name: str, length: int) -> None:
        """Take away what was appended after a checkpoint that saw `length` bytes."""
        if Path(name).name != name or length < 0:  # a checkpoint is data: it must not empty other files
            raise RecordError(f"{name!r} cut to {length} bytes: no file of {self.path}")
        path = self.path / name
        held = path.stat().st_size if path.exists() else 0
        if held < length:
            raise RecordError(f"{path} has {held} bytes, the checkpoint saw {length}; remove {self.path} and run again")
        if held > length:
            os.truncate(path, length)

    def _if_present(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.path / name)
        except MissingRecord:  # also of a live run, which may remove it at any moment
            return {}


class Appender:
    """Appends lines to a file; `length` is what a checkpoint remembers."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    @property
    def length(self) -> int:
        return self._file.tell()

    def append(self, value: dict[str, Any]) -> None:
        self._file.write((json.dumps(plain(value), ensure_ascii=False, allow_nan=False) + "\n").encode())

    def flush(self, *, to_disk: bool = False) -> None:
        self._file.flush()
        if to_disk:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


# ---- a study ----


@dataclass(frozen=True)
class StudyDirectory:
    """Files of one study."""

    path: Path

    def description(self) -> dict[str, Any]:
        """study.json."""
        return read_json(self.path / "study.json")

    def run(self, name: str) -> RunDirectory:
        if not name or name in (".", "..") or Path(name).name != name:
            raise RecordError(f"{name!r} is no name of a run: it must not leave {self.path}")
        return RunDirectory(self.path / "runs" / name)

    def runs(self) -> list[RunDirectory]:
        """By name. What has no configuration yet (killed before it was written) is left out."""
        found = sorted((self.path / "runs").glob("*/config.json"))
        return [RunDirectory(path.parent) for path in found]

    def prepare(self, description: dict[str, Any]) -> None:
        """Write study.json, or see that what is there fits; methods and seeds of an older command are kept beside new ones."""
        description = plain({"format": FORMAT, **description})
        path = self.path / "study.json"
        if path.exists():
            kept = read_json(path)
            for key in ("study", "scale", "data", "settings"):
                if kept.get(key) != description.get(key):
                    raise RecordError(
                        f"{self.path} holds {key} = {_short(kept.get(key))}, not {_short(description.get(key))}; "
                        "give another --dir"
                    )
            for key in ("methods", "seeds", "commands"):
                description[key] = [
                    *kept.get(key, ()),
                    *(item for item in description[key] if item not in kept.get(key, ())),
                ]
            if kept == description:
                return
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(path, description)


def find_studies(root: Path) -> list[StudyDirectory]:
    """`root` itself if it is one, else those right below it."""
    if (root / "study.json").exists():
        return [StudyDirectory(root)]
    return [StudyDirectory(path.parent) for path in sorted(root.glob("*/study.json"))]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
