"""The one reader of records. What it hands over has the shapes of `shapes`; what has not is told as a problem, never raised."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, read_json
from ctld_lab.report import shapes
from ctld_lab.report.shapes import fit, printable

TITLES = {
    "sgd": "SGD-M",
    "rmsprop": "RMSprop",
    "adam": "Adam",
    "adadelta": "AdaDelta",
    "anneal_sgd": "AnnealSGD",
    "santa": "Santa",
    "ctld": "CTLD",
}
EXPLOSION = 10.0
LARGEST_TABLE = 8 * 2**20  # bytes


@dataclass(frozen=True)
class RunRecord:
    """One run; `state` is done, failed, started or waiting, and `error` says why it failed."""

    directory: RunDirectory
    config: dict[str, Any]
    state: str
    result: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    error: str | None = None

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def kind(self) -> str:
        return str(self.config.get("kind", ""))

    @property
    def final(self) -> bool:
        return bool(self.config.get("role", "final") == "final")

    @property
    def method(self) -> str:
        return str(self.config.get("method", ""))

    @property
    def variant(self) -> str:
        return str(self.config.get("variant", ""))

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def point(self) -> dict[str, Any]:
        return dict(self.config.get("point", {}))

    @property
    def stages(self) -> list[int]:
        """Steps of each stage."""
        steps = self.config.get("steps", 0)
        return list(steps) if isinstance(steps, list) and steps else [0]

    @cached_property
    def diverged(self) -> bool:
        """No number any more, or a loss ten times that of before training: a mean over seeds would say nothing."""
        before = self.metrics[0] if self.metrics else {}

        def began(split: str, metric: str) -> float:
            found = before.get(split, {})
            return float(found.get(metric, found.get("nats", math.nan) if metric == "nll" else math.nan))

        return bool(self.result.get("diverged", False)) or any(
            value > EXPLOSION * began(split, metric)
            for split in ("train", "test")
            for metric, value in self.result.get(split, {}).items()
            if metric in ("mse", "image_mse", "nats", "nll")  # text is judged by nll at the end
        )

    @cached_property
    def trace(self) -> list[dict[str, Any]]:
        """Read when it is first asked for: it is the largest record. Empty if it cannot be read."""
        try:
            return [fit(line, shapes.LINE) for line in self.directory.trace()]
        except (RecordError, OSError):
            return []

    @property
    def clocks(self) -> dict[str, float]:
        """Seconds by clock: train, evaluate, log; "" where there is one clock. Of a timing, what its rounds took."""
        seconds = self.result.get("seconds", 0.0)
        if self.kind == "timing":
            seconds = sum(sum(line.get("seconds", {}).values()) for line in self.metrics)
        found = seconds if isinstance(seconds, dict) else {"": seconds}
        return {clock: value for clock, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True)
class StudyRecord:
    """One study; `problem` is why study.json could not be read, if so.

    A study that was published has no runs: `tables` holds what a report once made of them, by name.
    """

    directory: StudyDirectory
    description: dict[str, Any]
    runs: Sequence[RunRecord] = ()
    tuning: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str | None = None
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.description.get("study") or printable(self.directory.path.resolve().name))

    @property
    def heading(self) -> str:
        return str(self.description.get("title") or self.name)

    @property
    def published(self) -> bool:
        return "published" in self.description

    @property
    def paper(self) -> dict[str, Any]:
        return dict(self.description.get("paper", {}))

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.description.get("settings", {}))

    @property
    def methods(self) -> list[str]:
        """Those asked for, and after them those that runs have."""
        asked = self.description.get("methods", [])
        return list(dict.fromkeys([*asked, *(run.method for run in self.finals if run.method)]))

    @property
    def seeds(self) -> list[int]:
        return list(self.description.get("seeds", []))

    @property
    def finals(self) -> list[RunRecord]:
        return [run for run in self.runs if run.final]

    @property
    def failed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "failed"]

    def table(self, name: str) -> pd.DataFrame:
        """As it was published; empty, if it was not."""
        return self.tables.get(name, pd.DataFrame(columns=shapes.columns(name)))

    def title(self, method: str) -> str:
        """The name that people know; "ctld (exploration)" becomes "CTLD (exploration)"."""
        titles = {**TITLES, **self.description.get("titles", {})}
        word, bracket, rest = method.partition(" (")
        return str(titles.get(method) or titles.get(word, word) + bracket + rest)


def read_study(directory: StudyDirectory | Path) -> StudyRecord:
    """What cannot be read is told, not raised: one broken file must not hide the rest of the report."""
    directory = StudyDirectory(directory) if isinstance(directory, Path) else directory
    try:
        description = _fitted(directory.description(), shapes.STUDY, directory.path / "study.json", "correct it")
        if "published" in description:
            tables = read_tables(directory.path.parent / "tables", f"{directory.path.resolve().name}-")
            return StudyRecord(directory, description, tables=tables)
    except (RecordError, OSError) as error:
        return StudyRecord(directory, {}, problem=printable(str(error)))
    runs = [read_run(run) for run in directory.runs()]
    tuning = {}
    for path in sorted((directory.path / "tuning").glob("*.json")):
        try:
            tuning[printable(path.stem)] = _fitted(read_json(path), shapes.TUNING, path, "remove it and tune again")
        except (RecordError, OSError) as error:
            tuning[printable(path.stem)] = {"problem": printable(str(error))}
    return StudyRecord(directory, description, runs, tuning)


def read_run(directory: RunDirectory) -> RunRecord:
    """A run whose records are broken counts as failed."""
    config: dict[str, Any] = {}
    remedy = f"remove {directory.path} and run again"
    try:
        config = directory.config()
        fitted = _fitted(config, shapes.CONFIG, directory.path / "config.json", remedy)
        result = _fitted(directory.result() or {}, shapes.RESULT, directory.path / "result.json", remedy)
        failure = directory.failure()
        environment = _fitted(directory.environment(), shapes.ENVIRONMENT, directory.path / "environment.json", remedy)
        metrics = [_fitted(x, shapes.LINE, directory.path / "metrics.jsonl", remedy) for x in directory.metrics()]
        told = None if result or failure is None else printable(str(failure.get("error", "no error was recorded")))
        return RunRecord(directory, fitted, directory.state(), result, environment, metrics, told)
    except (RecordError, OSError) as problem:
        return RunRecord(directory, _sound(config), "failed", {}, {}, [], printable(str(problem)))


def read_flat(directory: RunDirectory) -> dict[str, Any]:
    """flatness.json; empty until it was measured."""
    return _fitted(directory.flatness(), shapes.FLATNESS, directory.path / "flatness.json", "measure it with --again")


def read_tables(folder: Path, prefix: str, kind: str = "") -> dict[str, pd.DataFrame]:
    """The tables of a report that begin with `prefix`, by name; refused, if a column is missing or is not of numbers."""
    found = {}
    for path in sorted(folder.glob(f"{prefix}*.csv")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_TABLE:
            raise RecordError(f"{path} is no table of a report; remove it and make the report again")
        name = path.stem.removeprefix(prefix)
        try:
            lines = list(csv.reader(io.StringIO(path.read_bytes().decode()), strict=True))
            if not lines or len(set(map(len, lines))) > 1 or len(set(lines[0])) < len(lines[0]):
                raise ValueError("lines of different length, or none, or a column twice")
            frame = pd.DataFrame(lines[1:], columns=lines[0], dtype=str)
            missing = [column for column in shapes.columns(kind + name) if column not in frame]
            if missing:
                raise ValueError(f"without {', '.join(missing)}")
            found[name] = frame.apply(_column)
        except (ValueError, csv.Error) as error:
            words = f"cannot be read as a table ({printable(str(error))}); make the report again"
            raise RecordError(f"{path} {words}") from None
    return found


def _column(column: "pd.Series[str]") -> "pd.Series[Any]":
    name = str(column.name)
    if name in shapes.TEXT_COLUMNS:
        return column.map(printable)
    numbers = pd.to_numeric(column.replace("", "nan"), errors="coerce")
    whole = bool(column.str.fullmatch(r"-?\d{1,15}").all())
    wrong = column[numbers.isna() & ~column.isin(["", "nan"])]
    if len(wrong) or (name in shapes.WHOLE_COLUMNS and not whole):
        raise ValueError(f"column {name} holds {printable(repr(next(iter(wrong), '')))}, not a number")
    return numbers.astype(int if whole and len(column) else float)


def _fitted(record: dict[str, Any], shape: dict[Any, Any], path: Path, remedy: str) -> dict[str, Any]:
    try:
        return dict(fit(record, shape))
    except RecordError as error:
        raise RecordError(f"{path} is not as it should be ({error}); {remedy}") from None


def _sound(config: dict[str, Any]) -> dict[str, Any]:
    """A broken run's configuration, as far as it can still say which row the run belongs to."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        try:
            found |= fit({key: value}, shapes.CONFIG)
        except RecordError:
            continue
    return found
