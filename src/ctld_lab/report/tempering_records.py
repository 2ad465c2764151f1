"""Runs of the study of temperings, put together over seeds: means, and standard errors that the runs themselves measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ctld_lab.records import number
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.statistics import Estimate
from ctld_lab.report.wording import MINUS, PLUS_MINUS, counted, show, show_estimate

KINETIC, CONFIGURATIONAL = "kinetic temperature", "configurational temperature"


@dataclass(frozen=True)
class Found:
    """A mean, and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        known = math.isfinite(self.error)
        low, high = (self.mean - self.error, self.mean + self.error) if known else (None, None)
        return show_estimate(Estimate(self.mean, low, high, int(math.isfinite(self.mean))))

    @property
    def right(self) -> str:
        """As a value to compare with: exact ones have no error to show."""
        return show(self.mean) if self.error == 0 else str(self)

    def over(self, other: "Found") -> "Found":
        """The quotient of two that do not depend on each other."""
        if not other.mean:
            return NOTHING
        ratio = self.mean / other.mean
        return Found(ratio, math.hypot(self.error, ratio * other.error) / abs(other.mean))

    def away(self, expected: "Found") -> float:
        """How many standard errors it is from what is expected, signed; infinite for one that did not move and is wrong."""
        difference, error = self.mean - expected.mean, math.hypot(self.error, expected.error)
        if error:
            return difference / error
        return math.copysign(math.inf, difference) if difference else 0.0


NOTHING = Found(math.nan, math.nan)


def found_in(record: Any) -> Found:
    """What a record says; nothing, if it does not."""
    if not isinstance(record, dict):
        return NOTHING
    return Found(number(record.get("mean")), number(record.get("error")))


def together(parts: Sequence[Found]) -> Found:
    """The mean over independent runs of equal length."""
    if not parts:
        return NOTHING
    count = len(parts)
    return Found(
        math.fsum(part.mean for part in parts) / count,
        math.sqrt(math.fsum(part.error**2 for part in parts)) / count,
    )


@dataclass(frozen=True)
class Group:
    """The runs of one tempering on one target, in so many dimensions."""

    target: str
    dimensions: int
    tempering: str
    runs: Sequence[RunRecord]

    @property
    def done(self) -> list[RunRecord]:
        return [run for run in self.runs if run.state == "done" and not run.result.get("diverged")]

    @property
    def diverged(self) -> str:
        """In how many of the runs that came to an end, in words; "" where none did."""
        count = sum(bool(run.result.get("diverged")) for run in self.runs)
        return f"diverged in {count} of {counted(count + len(self.done), 'run')}" if count else ""

    def mean(self, name: str) -> Found:
        return together([found_in((run.result.get("means") or {}).get(name)) for run in self.done])

    def expected(self, name: str) -> Found:
        """NaN where nobody knows."""
        for run in self.done:
            record = (run.result.get("means") or {}).get(name) or {}
            if "expected" in record:
                return Found(number(record["expected"]), 0.0)
        return NOTHING

    def crossing_rate(self) -> Found:
        return together([found_in(run.result.get("crossing_rate")) for run in self.done])

    def numbers(self, name: str) -> list[float]:
        """Of each run that has it."""
        return [number(run.result[name]) for run in self.done if name in run.result]

    @property
    def steps(self) -> int:
        return max((int(run.config.get("steps", 0)) for run in self.runs), default=0)

    @property
    def state(self) -> str:
        done, count = len(self.done), len(self.runs)
        diverged = sum(bool(run.result.get("diverged")) for run in self.runs)
        failed = sum(run.state == "failed" for run in self.runs)
        parts = [counted(count, "run") if done == count else f"{done} of {counted(count, 'run')}"]
        parts += [f"{many} {word}" for many, word in ((diverged, "diverged"), (failed, "failed")) if many]
        return ", ".join(parts)

    @property
    def title(self) -> str:
        return title(self.tempering)

    @property
    def place(self) -> str:
        return f"d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{self.dimensions:,}"


def groups(study: StudyRecord) -> list[Group]:
    """By target, dimension and tempering."""
    found: dict[tuple[str, int, str], list[RunRecord]] = {}
    for run in study.finals:
        if run.kind == "tempering" and run.variant == "chain":
            config = run.config
            key = str(config.get("target")), int(config.get("dimensions") or 0), _label(config)
            found.setdefault(key, []).append(run)
    return [Group(*key, found[key]) for key in sorted(found, key=lambda key: (*key[:2], rank(key[2])))]


def rank(label: str) -> tuple[int, int]:
    """The order in which temperings are shown."""
    order = ("calibrated", "calibrated auto", "half-the-force", "paper", "driven", "constant")
    word, _, period = label.partition(" over ")
    return order.index(word) if word in order else len(order), int(period or 0)


def special(study: StudyRecord, variant: str) -> dict[str, Any]:
    """The result of the run of this variant, "rate" or "reference"; empty until it is done."""
    return next((run.result for run in study.finals if run.kind == "tempering" and run.variant == variant), {})


def absent(study: StudyRecord, variant: str) -> str:
    """Why there is no result of that run, in words."""
    run = next((run for run in study.finals if run.kind == "tempering" and run.variant == variant), None)
    if run is None:
        return "is missing"
    if run.state == "done":
        return "diverged" if run.result.get("diverged") else "holds no such number"
    return "failed" if run.state == "failed" else "is not finished"


def _label(config: dict[str, Any]) -> str:
    name = str(config.get("tempering"))
    if config.get("depth") == "auto":
        return f"{name} auto"
    return f"{name} over {int(config['period'])}" if name == "driven" and "period" in config else name


def title(label: str) -> str:
    name, _, period = label.partition(" over ")
    if period:
        return f"driven, {int(period):,} steps"
    words = {
        "calibrated auto": "calibrated, depth chosen",
        "half-the-force": "twin: half the force",
        "paper": "the paper's",
        "constant": "none",
    }
    return words.get(name, name)


def percent(found: Found) -> str:
    """+0.31 ± 0.12 %, of a deviation."""
    if not math.isfinite(found.mean):
        return "not known"
    sign = "+" if found.mean >= 0 else MINUS
    if not math.isfinite(found.error):
        return f"{sign}{abs(100 * found.mean):.2f} %"
    return f"{sign}{abs(100 * found.mean):.2f}{PLUS_MINUS}{100 * found.error:.2f} %"
