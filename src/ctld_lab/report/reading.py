"""A study's records, read once: what was asked, and what its runs left. Nothing here needs torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, number, read_json

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
        return str(self.config.get("role", "final")) == "final"

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
        return dict(self.config.get("point") or {})

    @cached_property
    def diverged(self) -> bool:
        """No number any more, or a loss ten times that of before training: a mean over seeds would say nothing."""
        before = self.metrics[0] if self.metrics else {}

        def began(split: str, metric: str) -> float:
            found = before.get(split) or {}
            return number(
                found.get(metric, found.get("nats") if metric == "nll" else None)
            )  # text is judged by nll at the end

        return bool(self.result.get("diverged", False)) or any(
            number(value) > EXPLOSION * began(split, metric)
            for split in ("train", "test")
            for metric, value in (self.result.get(split) or {}).items()
            if metric in ("mse", "image_mse", "nats", "nll")
        )

    @cached_property
    def trace(self) -> list[dict[str, Any]]:
        """Read when it is first asked for: it is the largest record. Empty if it cannot be read."""
        try:
            return self.directory.trace()
        except RecordError:
            return []

    @property
    def clocks(self) -> dict[str, float]:
        """Seconds by clock: train, evaluate, log; "" where there is one clock. Of a timing, what its rounds took."""
        seconds = self.result.get("seconds")
        if self.kind == "timing":
            seconds = sum(sum(map(number, (line.get("seconds") or {}).values())) for line in self.metrics)
        found = seconds if isinstance(seconds, dict) else {"": seconds or 0.0}
        return {str(clock): number(value) for clock, value in found.items() if math.isfinite(number(value))}


@dataclass(frozen=True)
class StudyRecord:
    """One study; `problem` is why study.json could not be read, if so."""

    directory: StudyDirectory
    description: dict[str, Any]
    runs: Sequence[RunRecord] = ()
    tuning: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str | None = None

    @property
    def name(self) -> str:
        return str(self.description.get("study") or self.directory.path.resolve().name)

    @property
    def methods(self) -> list[str]:
        """Those asked for, and after them those that runs have."""
        asked = list(map(str, self.description.get("methods") or ()))
        return list(dict.fromkeys([*asked, *(run.method for run in self.finals if run.method)]))

    @property
    def seeds(self) -> list[int]:
        return [int(seed) for seed in self.description.get("seeds") or ()]

    @property
    def finals(self) -> list[RunRecord]:
        return [run for run in self.runs if run.final]

    @property
    def failed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "failed"]

    def title(self, method: str) -> str:
        """The name that people know; "ctld (exploration)" becomes "CTLD (exploration)"."""
        titles = {**TITLES, **(self.description.get("titles") or {})}
        word, bracket, rest = method.partition(" (")
        return str(titles.get(method) or titles.get(word, word) + bracket + rest)


def read_study(directory: StudyDirectory | Path) -> StudyRecord:
    """What cannot be read is told, not raised: one broken file must not hide the rest of the report."""
    directory = StudyDirectory(directory) if isinstance(directory, Path) else directory
    try:
        description = directory.description()
    except RecordError as error:
        return StudyRecord(directory, {}, problem=str(error))
    runs = [read_run(run) for run in directory.runs()]
    tuning = {}
    for path in sorted((directory.path / "tuning").glob("*.json")):
        try:
            tuning[path.stem] = read_json(path)
        except RecordError as error:
            tuning[path.stem] = {"problem": str(error)}
    return StudyRecord(directory, description, runs, tuning)


def read_run(directory: RunDirectory) -> RunRecord:
    """A run whose records are broken counts as failed."""
    config: dict[str, Any] = {}
    try:
        config = directory.config()
        result = directory.result()
        failure = directory.failure()
        environment = directory.environment()
        metrics = directory.metrics()
        error = None if result is not None or failure is None else str(failure.get("error", "no error was recorded"))
        record = RunRecord(directory, config, directory.state(), result or {}, environment, metrics, error)
        _check(record)
        return record
    except (RecordError, OSError, RecursionError) as problem:
        return RunRecord(directory, _sound(config), "failed", {}, {}, [], str(problem))


def _check(run: RunRecord) -> None:
    """That numbers are where numbers should be, so that one bad file costs its run and not its study."""
    file = "config.json"
    try:
        _ = run.seed, run.point
        file = "result.json"
        _read_numbers(run.result)
        file = "metrics.jsonl"
        for line in run.metrics:
            _read_numbers(line)
            _ = number(line.get("step")), int(line.get("stage", 1))
        file = "metrics.jsonl" if run.kind == "timing" else "result.json"
        _ = run.clocks
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        path = run.directory.path
        raise RecordError(f"{path / file} is not as it should be ({error}); remove {path} and run again") from None


def _read_numbers(record: dict[str, Any]) -> None:
    """Of each split, of the whole and of stages."""
    for part in (record, *(record.get("stages") or ())):
        for split in ("train", "test", "valid"):
            for value in (part.get(split) or {}).values():
                number(value)


def _sound(config: dict[str, Any]) -> dict[str, Any]:
    """A broken run's configuration, as far as it can still say which row the run belongs to."""
    needed = {"seed": int, "point": dict}
    return {name: value for name, value in config.items() if isinstance(value, needed.get(name, object))}
