"""Measurements where the answer is known: averages at g = 1 with their errors, by target, dimension and tempering.

Runs are combined over seeds; standard errors are those that each run measured, from batch means.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.wording import counted, show_estimate
from ctld_lab.statistics import Estimate

KINETIC, CONFIGURATIONAL = "kinetic temperature", "configurational temperature"
ORDER = ("calibrated", "calibrated auto", "half-the-force", "paper", "driven", "constant")
"""In which temperings are shown."""
MODES, CHANGES, TRIPS = "total variation of the modes", "changes of mode", "fewest half-trips"
MEASURED = (
    "kinetic_temperature",
    "configurational_temperature",
    "mean_square_ratio",
    "crossing_rate",
    "crossing_ratio",
)
WELLS = [
    "dimensions", "tempering", "kinetic_temperature", "kinetic_temperature_error", "configurational_temperature",
    "configurational_temperature_error", "mean_square_ratio", "mean_square_ratio_error", "crossing_rate",
    "crossing_rate_error", "crossing_ratio", "crossing_ratio_error", "kinetic_scatter", "square_scatter",
    "largest_total_variation", "fewest_half_trips", "steps", "runs",
]  # fmt: skip
TARGETS = ["target", "tempering", "average", "mean", "error", "expected", "expected_error", "errors_away"]
RUNS = ["target", "dimensions", "tempering", "seed", "average", "mean", "error"]
BESIDE = ["state", "depth", "most_half_trips"]  # of runs, and not stored


@dataclass(frozen=True)
class Found:
    """A mean, and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        known = math.isfinite(self.error)
        low, high = (self.mean - self.error, self.mean + self.error) if known else (None, None)
        return show_estimate(Estimate(self.mean, low, high, int(math.isfinite(self.mean))))

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
    def state(self) -> str:
        done, count = len(self.done), len(self.runs)
        lost = sum(run.result.get("diverged", False) for run in self.runs)
        failed = sum(run.state == "failed" for run in self.runs)
        parts = [counted(count, "run") if done == count else f"{done} of {counted(count, 'run')}"]
        parts += [f"{many} {word}" for many, word in ((lost, "diverged"), (failed, "failed")) if many]
        return ", ".join(parts)

    def each(self, name: str) -> list[Found]:
        return [found_in(run.result.get("means", {}).get(name, {})) for run in self.done]

    def expected(self, name: str) -> Found:
        """NaN where nobody knows."""
        records = [run.result.get("means", {}).get(name, {}) for run in self.done]
        return next((Found(record["expected"], 0.0) for record in records if "expected" in record), NOTHING)

    def crossing_rate(self) -> Found:
        return together([found_in(run.result.get("crossing_rate", {})) for run in self.done])

    def numbers(self, name: str) -> list[float]:
        """Return the value of each run that has it; a single NaN if there are none or one is NaN."""
        found = [float(run.result[name]) for run in self.done if name in run.result]
        return found if found and not any(map(math.isnan, found)) else [math.nan]


def groups(study: StudyRecord, *, wells: bool) -> list[Group]:
    """Return the groups of runs on the double well, or on the other targets."""
    found: dict[tuple[str, int, str], list[RunRecord]] = {}
    for run in study.finals:
        if run.variant == "chain" and wells == (run.config.get("target") == "double-well"):
            config, label = run.config, str(run.config.get("tempering"))
            label += " auto" * (config.get("depth") == "auto")
            label += f" over {config['period']}" if label == "driven" and "period" in config else ""
            found.setdefault((str(config.get("target")), config.get("dimensions", 0), label), []).append(run)
    return [Group(*key, found[key]) for key in sorted(found, key=lambda key: (*key[:2], rank(key[2])))]


def rank(label: str) -> tuple[int, int]:
    """The order in which temperings are shown."""
    word, _, period = label.partition(" over ")
    return [*ORDER, word].index(word), int(period or 0)


def _result(study: StudyRecord, variant: str) -> dict[str, Any]:
    """Return the result of the run of this variant, "rate" or "reference"; empty until it is done."""
    return next((run.result for run in study.finals if run.variant == variant), {})


def _stored(study: StudyRecord, name: str, columns: Sequence[str]) -> pd.DataFrame:
    folder, title = study.directory.path.parent / "tables", study.directory.path.resolve().name
    path = folder / f"{title}-{name}.csv"
    texts = dict.fromkeys(("dimensions", "tempering", "target", "average"), str)
    return pd.read_csv(path, dtype=texts) if path.is_file() else pd.DataFrame(columns=list(columns))


def wells_frame(study: StudyRecord) -> pd.DataFrame:
    """One line per dimension and tempering, the last without tempering: as it was published, or from the runs."""
    if study.published:
        frame = _stored(study, "wells", WELLS)
        whole: dict[str, list[Any]] = {
            x: [int(y) if y == y else "" for y in pd.to_numeric(frame[x])] for x in ("steps", "runs")
        }
        states = [counted(count, "run") if count else "" for count in whole["runs"]]
        frame = frame.astype(dict.fromkeys(whole, object)).assign(**whole)
        return frame.assign(state=states, depth=math.nan, most_half_trips=frame["fewest_half_trips"])
    rate = found_in(_result(study, "rate").get("crossing_rate", {}))
    lines: list[list[Any]] = []
    for group in groups(study, wells=True):
        kinetic, square, trips = group.each(KINETIC), group.each("x²"), group.numbers("half_trips")
        measured = [
            together(kinetic).over(group.expected(KINETIC)), together(group.each(CONFIGURATIONAL)),
            together(square).over(group.expected("x²")), group.crossing_rate(), group.crossing_rate().over(rate),
        ]  # fmt: skip
        steps = max((run.config["steps"] for run in group.runs if isinstance(run.config.get("steps"), int)), default=0)
        # Between seeds: beside errors from batch means they show whether those are honest.
        scatter = [pd.Series([x.mean for x in each], dtype=float).sem() for each in (kinetic, square)]
        depth = (
            math.fsum(depths := group.numbers("depth")) / len(depths) if group.tempering.endswith("auto") else math.nan
        )
        lines.append([
            str(group.dimensions), group.tempering, *(x for each in measured for x in (each.mean, each.error)), *scatter,
            max(group.numbers("total_variation")), min(trips), steps, len(group.done), group.state, depth, max(trips),
        ])  # fmt: skip
    if lines:
        nothing = [math.nan] * 6
        lines.append(["any", "none", *nothing, rate.mean, rate.error, *nothing, "", "", "", math.nan, math.nan])
    return pd.DataFrame(lines, columns=[*WELLS, *BESIDE])


def targets_frame(study: StudyRecord) -> pd.DataFrame:
    """One line per target, tempering and average: as it was published, or from the runs."""
    if study.published:
        return _stored(study, "targets", TARGETS)
    answers = _result(study, "reference").get("means", {})
    lines: list[list[Any]] = []
    for group in groups(study, wells=False):
        key, nothing = [group.target, group.tempering], [math.nan] * 3
        names = dict.fromkeys(name for run in group.done for name in run.result.get("means", {}))
        for name in sorted(names, key=lambda name: [KINETIC, CONFIGURATIONAL, "U", name].index(name)):
            found, exact = together(group.each(name)), group.expected(name)
            exact = exact if math.isfinite(exact.mean) else found_in(answers.get(name, {}))
            lines.append([*key, name, found.mean, found.error, exact.mean, exact.error, found.away(exact)])
        rows = [run.result["shares"] for run in group.done if "shares" in run.result]
        if rows:
            shares = [together([found_in(share) for share in column]) for column in zip(*rows, strict=True)]
            off = sum(abs(x.mean - y.get("expected", math.nan)) for x, y in zip(shares, rows[0], strict=True))
            # The mean of |z| of a standard normal number is √(2/π): so much is off by chance where all is right.
            chance = 0.5 * math.sqrt(2.0 / math.pi) * sum(share.error for share in shares)
            lines.append([*key, MODES, 0.5 * off, chance, 0.0, math.nan, math.nan])
            lines.append([*key, CHANGES, group.crossing_rate().mean, group.crossing_rate().error, *nothing])
        if math.isfinite(fewest := min(group.numbers("half_trips"))):
            lines.append([*key, TRIPS, fewest, math.nan, *nothing])
    return pd.DataFrame(lines, columns=TARGETS)


def runs_frame(study: StudyRecord) -> pd.DataFrame:
    """One line per run and average, of which the others are made: as it was published, or from the runs."""
    if study.published:
        return _stored(study, "runs", RUNS)
    lines: list[list[Any]] = []
    for group in [*groups(study, wells=True), *groups(study, wells=False)]:
        for run in group.done:
            key = [group.target, group.dimensions, group.tempering, run.config.get("seed", 0)]
            averages = {name: found_in(record) for name, record in run.result.get("means", {}).items()}
            if "crossing_rate" in run.result:
                averages["crossing rate"] = found_in(run.result["crossing_rate"])
            for name in ("half_trips", "total_variation"):
                if name in run.result:
                    averages[name.replace("_", " ")] = Found(float(run.result[name]), math.nan)
            lines += [[*key, name, found.mean, found.error] for name, found in averages.items()]
    return pd.DataFrame(lines, columns=RUNS)
