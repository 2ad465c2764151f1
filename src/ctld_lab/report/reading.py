"""The reader of studies, from their runs or as published. Records have the shapes of `shapes`, or are told as a problem."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.files import printable
from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, read_json
from ctld_lab.report import minima, shapes, tidy
from ctld_lab.report.shapes import fit, fitted
from ctld_lab.report.wording import show_setting

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
    """One study: its description, and the tidy table of what was measured. `problem` is why it could not be read, if so.

    A study that was published has no `runs`: its table lies beside it.
    """

    directory: StudyDirectory
    description: dict[str, Any]
    table: pd.DataFrame = field(default_factory=lambda: tidy.frame([]))
    runs: Sequence[RunRecord] = ()
    problem: str | None = None
    broken: Sequence[tuple[str, str]] = ()
    """Records besides those of runs that could not be read, and why."""

    @property
    def name(self) -> str:
        return str(self.description.get("study") or self.directory.path.resolve().name)

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
        """The methods that were asked for, then further ones that runs have."""
        made = self.table.loc[self.table["at"].isin(["", "run"]) | self.table["at"].str.startswith("stage="), :]
        found = made.loc[made["variant"] != tidy.TRIAL, "method"]
        return list(dict.fromkeys([*self.description.get("methods", []), *filter(None, found)]))

    @property
    def seeds(self) -> list[int]:
        return list(self.description.get("seeds", []))

    @property
    def finals(self) -> list[RunRecord]:
        return [run for run in self.runs if run.final]

    @property
    def failed(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "failed"]

    def title(self, method: str) -> str:
        """The name that people know; "ctld (exploration)" becomes "CTLD (exploration)"."""
        titles = {**TITLES, **self.description.get("titles", {})}
        word, bracket, rest = method.partition(" (")
        return str(titles.get(method) or titles.get(word, word) + bracket + rest)

    def places(self, metric: str | Sequence[str]) -> pd.DataFrame:
        """Return the rows of these metrics with the coordinates of `at` as columns, such as stage and step."""
        chosen = self.table[self.table["metric"].isin([metric] if isinstance(metric, str) else metric)]
        coordinates = {text: tidy.parts(text) for text in chosen["at"].unique()}
        return chosen.join(pd.DataFrame([coordinates[text] for text in chosen["at"]], index=chosen.index))


def read_study(directory: StudyDirectory | Path) -> StudyRecord:
    """Read a study. What cannot be read is told, not raised: one broken file must not hide the rest of the report."""
    directory = StudyDirectory(directory) if isinstance(directory, Path) else directory
    try:
        description = fitted(directory.description(), shapes.STUDY, directory.path / "study.json", "correct it")
        if "published" in description:
            path = directory.path.parent / "tables" / f"{directory.path.resolve().name}.csv"
            return StudyRecord(directory, description, tidy.read(path))
    except (RecordError, OSError) as error:
        return StudyRecord(directory, {}, problem=printable(str(error)))
    runs = [read_run(run) for run in directory.runs()]
    tuning, broken = {}, []
    for path in sorted((directory.path / "tuning").glob("*.json")):
        try:
            tuning[printable(path.stem)] = fitted(read_json(path), shapes.TUNING, path, "remove it and tune again")
        except (RecordError, OSError) as error:
            broken.append((f"tuning/{printable(path.name)}", printable(str(error))))
    order = [*description.get("methods", []), *tuning]
    tuning = {name: tuning[name] for name in sorted(tuning, key=order.index)}
    description["searches"] = {name: _search(record) for name, record in tuning.items()}
    clocks = {run.name: run.clocks["train"] for run in runs if "train" in run.clocks}
    finals = [run for run in runs if run.final]
    lines, description["flatness"], unread = minima.of_runs(finals)
    broken += [(f"{name}/flatness.json", words) for name, words in unread]
    lines = [*tidy.of_runs(description.get("study", ""), finals), *tidy.of_trials(tuning, clocks), *lines]
    return StudyRecord(directory, description, tidy.frame(lines), runs, broken=broken)


def _search(record: dict[str, Any]) -> dict[str, str]:
    """Return as text what was searched, how, and by which criterion."""
    ends = {name: ends for name, ends in record.get("space", {}).items() if len(ends) > 1}
    texts = [f"{name} {show_setting(low)} to {show_setting(high)}" for name, (low, high, *_) in ends.items()]
    return {
        "searched": ", ".join(texts),
        "search": record.get("search", "not recorded"),
        "criterion": record.get("criterion", "not recorded"),
    }


def read_run(directory: RunDirectory) -> RunRecord:
    """Read a run. One whose records are broken counts as failed."""
    config: dict[str, Any] = {}
    remedy = f"remove {directory.path} and run again"
    try:
        config = directory.config()
        known = fitted(config, shapes.CONFIG, directory.path / "config.json", remedy)
        result = fitted(directory.result() or {}, shapes.RESULT, directory.path / "result.json", remedy)
        failure = directory.failure()
        environment = fitted(directory.environment(), shapes.ENVIRONMENT, directory.path / "environment.json", remedy)
        metrics = [fitted(x, shapes.LINE, directory.path / "metrics.jsonl", remedy) for x in directory.metrics()]
        told = None if result or failure is None else printable(str(failure.get("error", "no error was recorded")))
        return RunRecord(directory, known, directory.state(), result, environment, metrics, told)
    except (RecordError, OSError) as problem:
        return RunRecord(directory, _sound(config), "failed", {}, {}, [], printable(str(problem)))


def _sound(config: dict[str, Any]) -> dict[str, Any]:
    """A broken run's configuration, as far as it can still say which row the run belongs to."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        try:
            found |= fit({key: value}, shapes.CONFIG)
        except RecordError:
            continue
    return found
