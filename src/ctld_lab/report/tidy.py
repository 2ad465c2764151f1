"""The tidy table of a study: one row for each number that its runs measured. Reports publish it and are made from it.

    method, variant, point   what ran; `point` has the settings that the study varies, as in "w=1.0 sigma=0.04"
    at                       where in the run: "stage=1 step=100", "trial=3", "round=0"; empty for what the run came to
    metric, seed, value      `seed` lists several seeds where only their mean was kept, and none where there is no seed

Where a metric has a standard error of its own, another row has it, as "NAME s.e.". Numbers that are none have no row.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ctld_lab.files import RecordError, printable, write_bytes
from ctld_lab.report.wording import shortened

if TYPE_CHECKING:
    from ctld_lab.report.reading import RunRecord

COLUMNS = ["method", "variant", "point", "at", "metric", "seed", "value"]
RUN = ["method", "variant", "point", "seed"]
TRIAL = "trial"
"""The variant of runs that tuning made."""
MINIMUM = "minimum"
"""Where `ctld flatness` measures."""
SE = " s.e."
DIVERGED, FAILED, UNFINISHED = "diverged", "failed", "unfinished"
"""Each run has a row with one of these: 1 or 0 if it is finished, 1 if it failed, 1 if it waits or was begun."""
DRAWN = {"sda": ("test image_mse", "train mse"), "charrnn": ("train nats", "test nats")}
"""Metrics whose learning curves are kept."""
TEMPERING = ("cold_share", "share_outside", "highest_ratio", "mean_ratio")
THERMOMETERS = ("kinetic", "configurational", "minibatch_heat")
# Fields of a double-well result that say how it was made, not what came out.
NOT_MEASURED = {"dimensions", "steps", "seed", "tempered", "seconds", "diverged", "format"}
LARGEST = 16 * 2**20  # bytes
Line = list[Any]


def frame(lines: Iterable[Line]) -> pd.DataFrame:
    """Return these rows as a table, without numbers that are none."""
    made = pd.DataFrame(list(lines), columns=COLUMNS)
    made["value"] = pd.to_numeric(made["value"]).astype(float)
    return made[made["value"].notna()].drop_duplicates(COLUMNS[:-1], ignore_index=True)


def place(**coordinates: Any) -> str:
    """Return "stage=1 step=100" for stage=1, step=100.0."""
    return " ".join(
        f"{name}={int(value) if isinstance(value, float) and value.is_integer() and name != 'η' else value}"
        for name, value in coordinates.items()
    )


def point_text(point: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def parts(text: str) -> dict[str, Any]:
    """Return {"w": 1.0, "T": "auto"} for "w=1.0 T=auto"."""
    found: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = value
    return found


# ---- files ----


def read(path: Path) -> pd.DataFrame:
    """Return a stored table. Refuse a link, a file that is too large, other columns, and words where numbers belong."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
        raise RecordError(f"{path} is no table of a report; remove it and make the report again")
    try:
        lines = list(csv.reader(io.StringIO(path.read_bytes().decode()), strict=True))
        if not lines or lines[0] != COLUMNS or any(len(line) != len(COLUMNS) for line in lines):
            raise ValueError(f"its columns must be {', '.join(COLUMNS)}")
        texts = pd.DataFrame(lines[1:], columns=COLUMNS, dtype=str)
        numbers = pd.to_numeric(texts["value"], errors="coerce")
        if not texts["seed"].str.fullmatch(r"[\d ]{0,60}").all():
            raise ValueError("column seed holds what is no seed")
        if numbers.isna().any():
            raise ValueError(f"column value holds {texts['value'][numbers.isna()].iloc[0]!r}, not a number")
    except (ValueError, csv.Error) as error:
        words = shortened(printable(str(error)))
        raise RecordError(f"{path} cannot be read as a table ({words}); make the report again") from None
    for column in COLUMNS[:-1]:
        texts[column] = texts[column].map({text: printable(text) for text in texts[column].unique()})
    return texts.assign(value=numbers.astype(float))


def write(path: Path, table: pd.DataFrame) -> None:
    write_bytes(path, str(table[COLUMNS].to_csv(index=False, lineterminator="\n")).encode())


def join(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both tables. A run in both comes from `new`, unless it is further in `old`.

    What was measured of a run's minimum stays where `new` has nothing of it.
    """
    before, now = _progress(old), _progress(new)
    taken = {run for run, far in now.items() if far >= before.get(run, far)}
    came = new[[run in taken for run in new[RUN].itertuples(index=False, name=None)]]
    replaced = taken | {
        run for run in before if " " in run[3] and {(*run[:3], seed) for seed in run[3].split()} <= taken
    }
    stays = [run not in replaced for run in old[RUN].itertuples(index=False, name=None)]
    both = pd.concat([came, old[pd.Series(stays, index=old.index, dtype=bool) | (old["at"] == MINIMUM)]])
    return both.drop_duplicates(COLUMNS[:-1], ignore_index=True)


def _progress(table: pd.DataFrame) -> dict[tuple[str, ...], tuple[bool, int]]:
    """Run → is it finished, and how much of it was measured."""
    rows = table[table["at"] != MINIMUM]
    groups = rows.assign(done=rows["metric"] == DIVERGED).groupby(RUN, sort=False)["done"].agg(["any", "size"])
    return {tuple(run): (bool(done), int(size)) for run, done, size in groups.itertuples(name=None)}


# ---- from runs ----


def of_runs(study: str, runs: Sequence["RunRecord"]) -> list[Line]:
    """Return the rows of a study's final runs, with 1/g(α) of one of them."""
    traced = sorted(runs, key=lambda run: (run.state != "done", run.variant != "tuned", run.seed))
    lines = [line for run in runs for line in _of_run(study, run)]
    return [*lines, *next((found for run in traced if run.method == "ctld" and (found := _trace(run))), [])]


def _of_run(study: str, run: "RunRecord") -> Iterator[Line]:
    kinds = {"train": _training, "double_well": _chain, "theorem": _theorem, "timing": _rounds, "tempering": _averages}
    make = kinds.get(run.kind)
    if make is None:
        return
    if run.kind in ("train", "double_well"):
        names = {"method": _dimensions(run)} if run.kind == "double_well" else {}
        state = {"done": DIVERGED, "failed": FAILED}.get(run.state, UNFINISHED)
        yield _line(run, state, float(run.diverged) if state == DIVERGED else 1.0, **names)
    yield from make(study, run)


def _line(run: "RunRecord", metric: str, value: Any, at: str = "", **names: str) -> Line:
    method, variant = names.get("method", run.method), names.get("variant", run.variant)
    return [method, variant, point_text(run.point), at, metric, str(run.seed), value]


def _training(study: str, run: "RunRecord") -> Iterator[Line]:
    if run.state == "done" and not run.diverged:
        layers = enumerate(run.result.get("stages", []), start=1)
        for part, layer in [(run.result, ""), *((part, f" of layer {number}") for number, part in layers)]:
            for split in ("train", "test", "valid"):
                for metric, value in part.get(split, {}).items():
                    yield _line(run, f"{split} {metric}{layer}", value)
        if "members" in run.result:
            yield _line(run, "members", run.result["members"], "run")
    for stage, record in _stages(run).items():
        readings = {name: record["tempering"].get(name, math.nan) for name in TEMPERING}
        readings |= {name: _reading(record, name) for name in THERMOMETERS}
        for name, value in ({"temperature": record.get("temperature", math.nan)} | readings).items():
            if math.isfinite(value):
                yield _line(run, name, value, place(stage=stage))
    for line in run.metrics:
        # What was evaluated on more data than the other points is no point of the same curve.
        for metric in DRAWN.get(study, ()) if not line.get("thorough") else ():
            split, name = metric.split()
            value = line.get(split, {}).get(name, math.nan)
            if math.isfinite(value):
                yield _line(run, metric, value, place(stage=line.get("stage", 1), step=line.get("step", math.nan)))


def _stages(run: "RunRecord") -> dict[int, dict[str, Any]]:
    """Tempered stages by number. What stands at the top of the result is of the last stage that was begun."""
    stages = enumerate(run.result.get("stages", []), start=1)
    found = {number: record for number, record in stages if isinstance(record.get("tempering"), dict)}
    if isinstance(run.result.get("tempering"), dict):
        ended = sum(end <= run.result.get("steps", math.nan) for end in accumulate(run.stages))
        found.setdefault(min(ended + 1, len(run.stages)), run.result)
    return found


def _reading(record: dict[str, Any], name: str) -> float:
    """The reading of the first group that has it. NaN where there is none, as in a run that was too short."""
    groups = record.get("thermometers", {}).values()
    return next((group[name].get("mean", math.nan) for group in groups if isinstance(group.get(name), dict)), math.nan)


def _trace(run: "RunRecord") -> list[Line]:
    """1/g(α) in the last stage that was traced."""
    stage = max((line.get("stage", 1) for line in run.trace), default=1)
    before = sum(run.stages[: stage - 1])
    return [
        _line(run, "temperature_ratio", line.get("temperature_ratio"), place(stage=stage, step=line["step"] - before))
        for line in run.trace
        if line.get("stage", 1) == stage and "step" in line
    ]


def _dimensions(run: "RunRecord") -> str:
    return f"d = {run.config.get('dimensions', 0):,}"


def _chain(study: str, run: "RunRecord") -> Iterator[Line]:
    names = {"method": _dimensions(run)}
    steps = run.result.get("steps", run.config.get("steps", math.nan))
    if not run.diverged:
        for name, value in run.result.items():
            if name not in NOT_MEASURED and isinstance(value, int | float) and not isinstance(value, bool):
                yield _line(run, name, value, **names)
        if run.state == "done":
            yield _line(
                run, "crossings per 100,000 steps", run.result.get("crossings", math.nan) * 1e5 / steps, **names
            )
    yield _line(run, "steps", steps if isinstance(steps, int | float) else math.nan, "run", **names)


def _averages(study: str, run: "RunRecord") -> Iterator[Line]:
    """Averages at g = 1 with their standard errors, by tempering and target; "exact" has what is known of them."""
    config, result = run.config, run.result
    if run.state != "done" or run.diverged:
        return
    label = {"rate": "constant", "reference": "reference"}.get(run.variant, str(config.get("tempering")))
    label += " auto" * (config.get("depth") == "auto")
    label += f" over {config['period']}" if label == "driven" and "period" in config else ""
    target = "network" if run.variant == "reference" else str(config.get("target", "double-well"))
    key = [label, target, place(d=config["dimensions"]) if config.get("dimensions") else ""]
    measured = {**result.get("means", {}), **{f"share {n}": x for n, x in enumerate(result.get("shares", []))}}
    for metric, found in (measured | {"crossing rate": result.get("crossing_rate", {})}).items():
        yield [*key, "", metric, str(run.seed), found.get("mean")]
        yield [*key, "", metric + SE, str(run.seed), found.get("error")]
        yield ["exact", *key[1:], "", metric, "", found.get("expected")]
    for name in ("half_trips", "total_variation"):
        yield [*key, "", name.replace("_", " "), str(run.seed), result.get(name)]
    yield [*key, "run", "steps", str(run.seed), config["steps"] if isinstance(config.get("steps"), int) else None]


def _theorem(study: str, run: "RunRecord") -> Iterator[Line]:
    """Slopes at "fit", and the points that they were fitted to; of runs against L, those of the first step size.

    L is the number of steps, η the step size, and s the minibatch noise.
    """
    sizes = run.result.get("step_sizes", [])
    if run.state != "done" or not sizes:
        return
    against, field_of, whole = {"step_size": ("η", "step_size", True), "noise": ("s", "noise", True)}.get(
        run.variant, ("L", "steps", False)
    )
    names = {"method": str(run.config.get("tempering", "none")), "variant": against}
    for quantity, fit in (run.result if whole else sizes[0]).get("slopes", {}).items():
        for name, field in (
            ("slope", "slope"),
            (f"slope{SE}", "error"),
            *((x, x) for x in ("bound", "from", "to", "misfit")),
        ):
            yield _line(run, f"{quantity} {name}", fit.get(field, math.nan), "fit", **names)
    quantities = ("limit", "cold_limit") if whole else ("decaying_bias", "decaying_mse")
    for line in sizes if whole else sizes[0].get("lengths", []):
        at = place(**{against: line.get(field_of)})
        for quantity in quantities:
            yield _line(run, quantity, line.get(quantity), at, **names)
            yield _line(run, quantity + SE, line.get(f"{quantity}_error"), at, **names)


def _rounds(study: str, run: "RunRecord") -> Iterator[Line]:
    """Each round, and what they came to: the median ratio with its interval."""
    for line in run.metrics:
        for metric in ("seconds", "waiting") if "round" in line else ():
            for method, value in line.get(metric, {}).items():
                yield _line(run, metric, value, place(round=line["round"]), method=method)
    for method, measured in run.result.get("methods", {}).items():
        # Rounds that something else disturbed are left out, for each method on its own.
        rounds = measured.get("rounds", run.result.get("rounds", 0))
        # Fewer than six values have no 95 % interval of their median.
        ends = {"ratio low": "low", "ratio high": "high"} if rounds >= 6 else {}
        for metric, field in ({"ratio": "ratio", "seconds per epoch": "seconds_per_epoch"} | ends).items():
            yield _line(run, metric, measured.get(field, math.nan), method=method)
        yield _line(run, "rounds", rounds, method=method)


def of_trials(tuning: Mapping[str, Mapping[str, Any]], clocks: Mapping[str, float]) -> list[Line]:
    """Return the rows of all searches. `clocks` are the seconds of training of each run."""
    lines: list[Line] = []
    for search, record in tuning.items():
        for number, trial in enumerate(record.get("trials", [])):
            key = [search, TRIAL, point_text(trial.get("parameters", {})), place(trial=number)]
            seconds = {"seconds": trial.get("seconds"), "train seconds": clocks.get(trial.get("run", ""))}
            flags = {name: float(trial.get(name, False)) for name in (DIVERGED, FAILED)}
            lines += [[*key, name, "", x] for name, x in ({"value": trial.get("value")} | seconds | flags).items()]
    return lines
