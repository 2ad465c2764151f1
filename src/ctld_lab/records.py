"""Records of a study on disk. They are data: JSON, JSON lines and safetensors, nothing that can execute.

    STUDY/                  study.json                 what was asked: study, scale, methods, seeds, data, settings
      runs/RUN/             config.json                everything that decides the run's numbers; never changes
                            environment.json           versions, commit, machine, threads; notes on what went wrong
                            metrics.jsonl              one line per evaluation
                            trace.jsonl                one line per recorded step: α, temperature ratio, energies
                            checkpoint.safetensors     where to go on, and checkpoint.previous.safetensors, should that be
                                                       damaged (gone when the run is done)
                            progress.json              step and rate of a live run, once a second; for eyes only
                            result.json                written last: its presence says that the run is done
                            failure.json               the error, if the last attempt failed
                            parameters.safetensors     of the final model, where the configuration says "keep_parameters"
                            flatness.json              what "ctld flatness" measured of them

Whole files are replaced at once (`write_json`). Lines are appended, and a checkpoint says how long the files were when
it was taken: `RunDirectory.cut` takes away what came later, so a killed run goes on as if nothing had happened.
No torch here: the report reads records alone.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ctld_lab.files import (
    Appender,
    MissingRecord,
    RecordError,
    check_own,
    plain,
    read_json,
    read_lines,
    write_bytes,
    write_json,
)

__all__ = [  # reading and writing is in `files`; what others need of it is had here
    "Appender",
    "RecordError",
    "RunDirectory",
    "StudyDirectory",
    "find_studies",
    "is_name",
    "notes_in",
    "number",
    "plain",
    "read_json",
    "write_bytes",
    "write_json",
]
FORMAT = 1
# What does not decide a run's numbers, and was not in the configurations of older ones, which go on as they began.
SINCE = ("keep_parameters",)
SEALED = ("result.json", "flatness.json")


def number(value: Any) -> float:
    """The float that `plain` wrote; NaN for what is not there."""
    return float("nan" if value is None else value)


def notes_in(environment: dict[str, Any]) -> list[str]:
    """See `RunDirectory.notes`."""
    kept = environment.get("notes")
    return [str(sentence) for sentence in kept] if isinstance(kept, list) else []


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
        return self._sealed("result.json") or None

    def notes(self) -> list[str]:
        """Sentences for whoever looks at the run, such as of a damaged checkpoint; the run itself may be done."""
        try:
            return notes_in(self.environment())
        except RecordError as error:
            return [str(error)]

    def note(self, sentence: str) -> None:
        self.write("environment.json", self.environment() | {"notes": [*self.notes(), sentence]})

    def failure(self) -> dict[str, Any] | None:
        return self._if_present("failure.json") or None

    def flatness(self) -> dict[str, Any]:
        """Empty until it was measured."""
        return self._sealed("flatness.json")

    def progress(self) -> dict[str, Any]:
        """Numbers that a live run last said; empty if it said nothing readable."""
        try:
            said = self._if_present("progress.json")
        except RecordError:
            return {}
        return {name: value for name, value in said.items() if isinstance(value, int | float)}

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
            keys = (kept.keys() | config.keys()) - set(SINCE)
            differing = sorted(key for key in keys if kept.get(key) != config.get(key))
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
        """`name` is one of the whole files, such as result.json; those that hold numbers get a checksum."""
        if name in SEALED:
            value = {**value, "checksum": _checksum(value)}
        write_json(self.path / name, value)

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of metrics.jsonl or trace.jsonl; a last line that was cut off is left out."""
        return read_lines(self.path / name)

    def metrics(self) -> list[dict[str, Any]]:
        return list(self.lines("metrics.jsonl"))

    def trace(self) -> list[dict[str, Any]]:
        return list(self.lines("trace.jsonl"))

    def reopen(self) -> tuple[list[dict[str, Any]], Appender]:
        """The lines of a run whose metrics.jsonl is its checkpoint, without one that was cut off; and what appends the next."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            self.cut(path.name, path.read_bytes().rfind(b"\n") + 1)
        return self.metrics(), Appender(path)

    def cut(self, name: str, length: int) -> None:
        """Take away what was appended after a checkpoint that saw `length` bytes."""
        if not is_name(name) or length < 0:  # a checkpoint is data: it must not empty other files
            raise RecordError(f"{name!r} cut to {length} bytes: no file of {self.path}")
        path = self.path / name
        check_own(path)
        held = path.stat().st_size if path.exists() else 0
        if held < length:
            raise RecordError(f"{path} has {held} bytes, the checkpoint saw {length}; remove {self.path} and run again")
        if held > length:
            os.truncate(path, length)

    def _sealed(self, name: str) -> dict[str, Any]:
        """Whole and as it was written; what is older than checksums has none."""
        value = self._if_present(name)
        claimed = value.pop("checksum", None)
        if claimed is not None and claimed != _checksum(value):
            raise RecordError(
                f"{self.path / name} is not what was written: its checksum is wrong; remove it and run again"
            )
        return value

    def _if_present(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.path / name)
        except MissingRecord:  # also of a live run, which may remove it at any moment
            return {}


# ---- a study ----


@dataclass(frozen=True)
class StudyDirectory:
    """Files of one study."""

    path: Path

    def description(self) -> dict[str, Any]:
        """study.json."""
        return read_json(self.path / "study.json")

    def run(self, name: str) -> RunDirectory:
        if name in (".", "..") or not is_name(name):
            raise RecordError(f"{name!r} is no name of a run: it must not leave {self.path}")
        return RunDirectory(self.path / "runs" / name)

    def runs(self) -> list[RunDirectory]:
        """Runs by name. One without a configuration, killed before it was written, is left out."""
        found = sorted((self.path / "runs").glob("*/config.json"))
        return [RunDirectory(path.parent) for path in found if is_name(path.parent.name)]

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
            for key in ("methods", "seeds", "commands", "orders"):
                before, now = kept.get(key, []), description.get(key, [])
                description[key] = [*before, *(item for item in now if item not in before)]
            if kept == description:
                return
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(path, description)


def find_studies(root: Path) -> list[StudyDirectory]:
    """`root` itself if it is one, else those right below it."""
    if (root / "study.json").exists():
        return [StudyDirectory(root)]
    return [StudyDirectory(path.parent) for path in sorted(root.glob("*/study.json"))]


def _checksum(value: dict[str, Any]) -> str:
    """Digest of what JSON gives back, whatever the order of its keys."""
    text = json.dumps(plain(value), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_name(name: str) -> bool:
    """One step down, and nothing that a terminal would obey."""
    return bool(name) and Path(name).name == name and name.isprintable()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
