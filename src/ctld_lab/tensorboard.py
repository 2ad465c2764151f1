"""`export`: the curves of a study's runs as TensorBoard's event files, made from the records alone."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctld_lab.records import RecordError, RunDirectory, StudyDirectory, number

# Where a line belongs, rather than a curve of its own.
_PLACES = {"step", "stage", "stage_step", "round"}


def export(directory: StudyDirectory) -> Path:
    """Writes DIR/tensorboard/RUN for each run that has metrics, in place of what was there; returns DIR/tensorboard."""
    target = directory.path / "tensorboard"
    fresh, old = (directory.path / f".tensorboard.{os.getpid()}.{word}" for word in ("unfinished", "old"))
    try:
        fresh.mkdir()
        for run in directory.runs():
            _export_run(run, fresh / run.name)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
    return target


def _export_run(run: RunDirectory, folder: Path) -> None:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as missing:
        raise RecordError(f'curves need {missing.name}, which is not installed: pip install "ctld[lab]"') from None
    events = [Event(file_version="brain.Event:2")]
    for name, above in (("metrics.jsonl", ""), ("trace.jsonl", "exploration/")):
        for line in run.lines(name):
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(line, above)]
            step = int(line.get("step", line.get("round", 0)))
            events.append(Event(step=step, wall_time=_elapsed(line), summary=Summary(value=values)))
    if len(events) > 1:
        folder.mkdir()
        # Their readers want this name; the numbers in it would be the time and the machine, which say nothing here.
        with (folder / "events.out.tfevents.0.ctld").open("wb") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())


def scalars(line: dict[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """Each number of a record's line with its tag, such as test/mse. What diverged is NaN."""
    for key, value in line.items():
        if isinstance(value, dict):
            yield from scalars(value, f"{above}{key}/")
        elif key not in _PLACES and not isinstance(value, bool):
            try:
                yield f"{above}{key}", number(value)
            except (TypeError, ValueError):
                continue  # a list or a word


def _elapsed(line: dict[str, Any]) -> float:
    """By the run's clocks, from its beginning; a round of the timing study has clocks of another kind."""
    seconds = line.get("seconds")
    return sum(map(number, seconds.values())) if isinstance(seconds, dict) and "round" not in line else 0.0
