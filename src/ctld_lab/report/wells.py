"""Runs of the study of temperings put together over seeds, and what is asked of them on the double well.

Standard errors are those that the runs measured themselves, from batch means.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.statistics import Estimate
from ctld_lab.report.wording import MINUS, PLUS_MINUS, counted, show, show_estimate

KINETIC, CONFIGURATIONAL = "kinetic temperature", "configurational temperature"
SQUARE_WITHIN, KINETIC_WITHIN, LARGEST_VARIATION, LEAST_RATIO, LEAST_TRIPS = 0.01, 0.02, 0.10, 100.0, 20
ERRORS_IN_ONE_DIMENSION = 2.0
"""Standard errors that the kinetic temperature may be off besides, at d = 1, where one run knows it to no better."""
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "is undecided"
ORDER = ("calibrated", "calibrated auto", "half-the-force", "paper", "driven", "constant")
TITLES = {
    "calibrated auto": "calibrated, depth chosen", "half-the-force": "twin: half the force", "paper": "the paper's",
    "constant": "none",
}  # fmt: skip


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

    @property
    def percent(self) -> str:
        """+0.31 ± 0.12 %, of a ratio to what is exact."""
        off = 100.0 * (self.mean - 1.0)
        error = f"{PLUS_MINUS}{100 * self.error:.2f}" if math.isfinite(self.error) else ""
        return f"{'+' if off >= 0 else MINUS}{abs(off):.2f}{error} %" if math.isfinite(off) else "not known"

    def over(self, other: "Found") -> "Found":
        """The quotient of two that do not depend on each other."""
        if not other.mean:
            return NOTHING
        ratio = self.mean / other.mean
        return Found(ratio, math.hypot(self.error, ratio * other.error) / abs(other.mean))

    def away(self, expected: "Found") -> float:
        """How many standard errors it is from what is expected, signed; infinite for one that did not move and is wrong."""
        difference, error = self.mean - expected.mean, math.hypot(self.error, expected.error)
        return difference / error if error else math.copysign(math.inf, difference) if difference else 0.0


NOTHING = Found(math.nan, math.nan)


def found_in(record: dict[str, float]) -> Found:
    return Found(record.get("mean", math.nan), record.get("error", math.nan))


def together(parts: Sequence[Found]) -> Found:
    """The mean over independent runs of equal length."""
    if not parts:
        return NOTHING
    error = math.sqrt(math.fsum(part.error**2 for part in parts)) / len(parts)
    return Found(math.fsum(part.mean for part in parts) / len(parts), error)


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
        count = sum(run.result.get("diverged", False) for run in self.runs)
        return f"diverged in {count} of {counted(count + len(self.done), 'run')}" if count else ""

    def each(self, name: str) -> list[Found]:
        return [found_in(run.result.get("means", {}).get(name, {})) for run in self.done]

    def expected(self, name: str) -> Found:
        """NaN where nobody knows."""
        records = [run.result.get("means", {}).get(name, {}) for run in self.done]
        return next((Found(record["expected"], 0.0) for record in records if "expected" in record), NOTHING)

    def crossing_rate(self) -> Found:
        return together([found_in(run.result.get("crossing_rate", {})) for run in self.done])

    def numbers(self, name: str) -> list[float]:
        """Of each run that has it."""
        return [float(run.result[name]) for run in self.done if name in run.result]

    @property
    def state(self) -> str:
        done, count = len(self.done), len(self.runs)
        diverged = sum(run.result.get("diverged", False) for run in self.runs)
        failed = sum(run.state == "failed" for run in self.runs)
        parts = [counted(count, "run") if done == count else f"{done} of {counted(count, 'run')}"]
        parts += [f"{many} {word}" for many, word in ((diverged, "diverged"), (failed, "failed")) if many]
        return ", ".join(parts)


def groups(study: StudyRecord) -> list[Group]:
    """By target, dimension and tempering."""
    found: dict[tuple[str, int, str], list[RunRecord]] = {}
    for run in study.finals:
        if run.kind == "tempering" and run.variant == "chain":
            config = run.config
            key = str(config.get("target")), config.get("dimensions", 0), _label(config)
            found.setdefault(key, []).append(run)
    return [Group(*key, found[key]) for key in sorted(found, key=lambda key: (*key[:2], rank(key[2])))]


def rank(label: str) -> tuple[int, int]:
    """The order in which temperings are shown."""
    word, _, period = label.partition(" over ")
    return ORDER.index(word) if word in ORDER else len(ORDER), int(period or 0)


def _label(config: dict[str, Any]) -> str:
    name = str(config.get("tempering"))
    if config.get("depth") == "auto":
        return f"{name} auto"
    return f"{name} over {config['period']}" if name == "driven" and "period" in config else name


def title(label: str) -> str:
    name, _, period = label.partition(" over ")
    return f"driven, {int(period):,} steps" if period else TITLES.get(name, name)


# ---- the double well ----

WELLS = TABLES["wells"]


@dataclass(frozen=True)
class Well:
    """One tempering on the double well: from its runs, or from the table that was published."""

    dimensions: int
    tempering: str
    kinetic: Found
    configurational: Found
    square: Found
    """⟨x²⟩ over the exact one."""
    rate: Found
    variation: float
    trips: tuple[float, float]
    steps: int
    done: int
    diverged: str = ""
    state: str = ""
    depth: float = math.nan
    scatter: tuple[float, float] = (math.nan, math.nan)
    """Between seeds, as standard errors: beside those from batch means they show whether those are honest."""

    @property
    def title(self) -> str:
        return title(self.tempering)

    @property
    def place(self) -> str:
        return f"d\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}{self.dimensions:,}"


def wells(study: StudyRecord) -> list[Well]:
    if study.published:
        frame = study.tables.get("wells", pd.DataFrame(columns=WELLS))
        return [_stored(line) for _, line in frame[frame["dimensions"].str.isdecimal()].iterrows()]
    return [well(group) for group in groups(study) if group.target == "double-well"]


def well(group: Group) -> Well:
    kinetic, square = group.each(KINETIC), group.each("x²")
    trips, depths = group.numbers("half_trips"), group.numbers("depth")
    known = bool(trips) and not any(map(math.isnan, trips))
    variations = group.numbers("total_variation")
    sound = variations and not any(map(math.isnan, variations))
    return Well(
        group.dimensions, group.tempering, together(kinetic).over(group.expected(KINETIC)),
        together(group.each(CONFIGURATIONAL)),
        together(square).over(group.expected("x²")), group.crossing_rate(), max(variations) if sound else math.nan,
        (min(trips), max(trips)) if known else (math.nan, math.nan),
        max((run.config["steps"] for run in group.runs if isinstance(run.config.get("steps"), int)), default=0),
        len(group.done), group.diverged, group.state,
        sum(depths) / len(depths) if depths and group.tempering.endswith("auto") else math.nan,
        (_scatter([x.mean for x in kinetic]), _scatter([x.mean for x in square])),
    )  # fmt: skip


def _scatter(means: Sequence[float]) -> float:
    return float(pd.Series(means).sem()) if len(means) > 1 else math.nan


def _stored(line: Any) -> Well:
    def found(name: str) -> Found:
        return Found(line[name], line[f"{name}_error"])

    runs, trips = int(float(line["runs"])), float(line["fewest_half_trips"])
    return Well(
        int(line["dimensions"]), str(line["tempering"]), found("kinetic_temperature"), found("configurational_temperature"),
        found("mean_square_ratio"), found("crossing_rate"), float(line["largest_total_variation"]), (trips, trips),
        int(float(line["steps"])), runs, state=counted(runs, "run"),
        scatter=(float(line["kinetic_scatter"]), float(line["square_scatter"])),
    )  # fmt: skip


# ---- what is asked of calibrated tempering ----


@dataclass(frozen=True)
class Verdict:
    """Whether a requirement holds in these dimensions, and the number it rests on."""

    well: Well
    outcome: str
    value: str
    distance: float
    """From what is ideal, to find the worst."""


def _outcome(beyond: float, error: float) -> str:
    """Of how far an estimate is beyond its limit, negative if within. An error that is not known decides nothing."""
    return HOLDS if beyond + error <= 0 else FAILS if beyond - 2 * error > 0 else UNDECIDED


def square_verdict(well: Well) -> Verdict:
    off = abs(well.square.mean - 1.0)
    return Verdict(well, _outcome(off - SQUARE_WITHIN, well.square.error), well.square.percent, off)


def kinetic_verdict(well: Well) -> Verdict:
    off, error = abs(well.kinetic.mean - 1.0), well.kinetic.error
    outcome = _outcome(off - KINETIC_WITHIN, error)
    if well.dimensions == 1 and off - KINETIC_WITHIN <= ERRORS_IN_ONE_DIMENSION * error:
        outcome = HOLDS if error <= KINETIC_WITHIN else UNDECIDED
    return Verdict(well, outcome, well.kinetic.percent, off)


def variation_verdict(well: Well) -> Verdict:
    return Verdict(well, _outcome(well.variation - LARGEST_VARIATION, 0.0), show(well.variation, 2), well.variation)


def trips_verdict(well: Well) -> Verdict:
    fewest = well.trips[0]
    return Verdict(well, _outcome(LEAST_TRIPS - fewest, 0.0), "–" if math.isnan(fewest) else f"{fewest:,.0f}", -fewest)


def ratio_verdict(well: Well, rate: Found) -> Verdict:
    ratio = well.rate.over(rate)
    return Verdict(well, _outcome(LEAST_RATIO - ratio.mean, ratio.error), str(ratio), -ratio.mean)


@dataclass(frozen=True)
class Requirement:
    words: str
    extreme: str
    verdicts: list[Verdict]

    def of(self, outcome: str) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome == outcome]

    @property
    def worst(self) -> Verdict:
        return max(self.verdicts, key=lambda verdict: verdict.distance)


def requirements(found: Sequence[Well], rate: Found) -> list[Requirement]:
    """Each of them, at the depth of the paper."""
    calibrated = [well for well in found if well.tempering == "calibrated" and (well.done or well.diverged)]
    asked: list[tuple[str, str, Callable[[Well], Verdict]]] = [
        ("⟨x²⟩ at g = 1 within 1 % of exact", "largest deviation", square_verdict),
        (
            "kinetic temperature at g = 1 within 2 % (at d = 1, and two standard errors)",
            "largest deviation",
            kinetic_verdict,
        ),
        ("total variation of |α| at most 0.10 in each run", "largest", variation_verdict),
        ("at least 20 half-trips in each run", "fewest", trips_verdict),
    ]
    if math.isfinite(rate.mean):
        words = f"at least 100 times the crossings without tempering ({rate} per 400,000 steps)"
        asked.append((words, "smallest ratio", lambda well: ratio_verdict(well, rate)))
    return [
        Requirement(
            words[0].upper() + words[1:], extreme,
            [Verdict(w, FAILS, w.diverged, math.inf) if w.diverged else verdict(w) for w in calibrated],
        )
        for words, extreme, verdict in (asked if calibrated else ())
    ]  # fmt: skip
