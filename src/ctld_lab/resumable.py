"""Runs whose metrics.jsonl is their checkpoint: each line is a piece of work that is done."""

from typing import Any

from ctld_lab.records import Appender, RunDirectory


def reopen(directory: RunDirectory) -> tuple[list[dict[str, Any]], Appender]:
    """The lines of a run that was stopped, without one that was cut off, and what appends the next."""
    path = directory.path / "metrics.jsonl"
    if path.exists():
        directory.cut(path.name, path.read_bytes().rfind(b"\n") + 1)
    return directory.metrics(), Appender(path)
