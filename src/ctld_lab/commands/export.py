"""`ctld export`: a study's runs as CSV, finished or not, with a figure and a page that say what is missing. No torch.

Records become four tables: runs, curves, finals (errors at the end of each stage) and temperature. Page and figure are made
from the tables alone, so what is kept in a repository can be checked and drawn again without the runs.
"""

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ctld_lab.commands.options import StudyPath, examples
from ctld_lab.records import RunDirectory, StudyDirectory, write_bytes

Row = dict[str, str]
TABLES = ("runs", "curves", "finals", "temperature")
DIGITS = 8  # significant ones of a table's numbers

export_app = typer.Typer()


@export_app.command(epilog=examples("ctld export runs/sda-paper --to results/paper"))
def export(
    path: StudyPath,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the tables, the figure and the page go.")],
) -> None:
    """Write a study's runs as tables, finished or not, beside the paper's values."""
    from ctld_lab.commands.overview import study_in

    study = study_in(path)
    name = str(study.description().get("study"))
    tables = tables_of(study)
    to.mkdir(parents=True, exist_ok=True)
    for table, rows in tables.items():
        write_bytes(to / f"{name}-{table}.csv", as_csv(rows))
    present(to, name)
    Console().print(f"written: {to / name}.md", markup=False, highlight=False, soft_wrap=True)


def present(folder: Path, name: str) -> None:
    """The page and the figure, from the tables in `folder`."""
    from ctld_lab.commands import export_page

    tables = {table: read_csv(folder / f"{name}-{table}.csv") for table in TABLES}
    write_bytes(folder / f"{name}.md", export_page.page(name, tables).encode())
    for kind, content in export_page.figure(name, tables).items():
        write_bytes(folder / f"{name}.{kind}", content)


# ---- from records to tables ----


def tables_of(study: StudyDirectory) -> dict[str, list[Row]]:
    """The final runs of a study; trials are left out."""
    description = study.description()
    tables: dict[str, list[Row]] = {table: [] for table in TABLES}
    place = {method: index for index, method in enumerate(description.get("methods", ()))}
    runs = [run for run in study.runs() if run.config().get("role") == "final"]
    for run in sorted(runs, key=lambda run: (place.get(run.config().get("method"), len(place)), run.name)):
        facts = _facts(run, description)
        tables["runs"].append(facts)
        tables["curves"] += _curve(run)
        tables["finals"] += _finals(run, facts, description.get("paper") or {})
        tables["temperature"] += _temperature(run)
    return tables


def _facts(run: RunDirectory, description: Mapping[str, Any]) -> Row:
    """One run: how far it is, and what made it."""
    config, environment, result, lines = run.config(), run.environment(), run.result(), run.metrics()
    planned = sum(config["steps"])
    last = lines[-1] if lines else {}
    step = result["steps"] if result else last.get("step", 0)
    state = "partial" if lines else "not begun"
    if result is not None:
        state = "diverged" if result.get("diverged") else "done"
    seconds = (result or last).get("seconds") or {}
    method = str(config.get("method"))
    options = ", ".join(f"{key} {_text(value)}" for key, value in (config.get("optimizer") or {}).items())
    schedule = config.get("schedule")
    return {
        "run": run.name,
        "method": method,
        "title": str((description.get("titles") or {}).get(method, method)),
        "variant": str(config.get("variant")),
        "seed": _text(config.get("seed")),
        "options": options + (f", lr × {schedule['factor']} every {schedule['every']} steps" if schedule else ""),
        "state": state,
        "step": _text(step),
        "steps": _text(planned),
        "train_seconds": _text(seconds.get("train")),
        "seconds": _text(sum(seconds.values())),
        "threads": _text(environment.get("threads")),
        "commit": str(environment.get("commit") or ""),
        "versions": ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items()),
        "machine": str(environment.get("machine", "")),
        "began": str(environment.get("started", "")),
        "attempts": _text(environment.get("attempts")),
        "paper": str(((description.get("paper") or {}).get("values") or {}).get(method, "")),
        "command": _command(description),
    }


def _command(description: Mapping[str, Any]) -> str:
    """What repeats it; where the data lay on that machine is nobody's business."""
    commands = description.get("commands") or [""]
    words = shlex.split(str(commands[-1]))
    while "--data-dir" in words:
        at = words.index("--data-dir")
        del words[at : at + 2]
    return shlex.join(words)


def _splits(record: Mapping[str, Any]) -> Iterable[tuple[str, str, float]]:
    for split in ("train", "valid", "test"):
        for metric, value in (record.get(split) or {}).items():
            yield split, str(metric), value


def _curve(run: RunDirectory) -> list[Row]:
    """One row for each evaluation."""
    rows = []
    for line in run.metrics():
        row = {"run": run.name} | {key: _text(line.get(key)) for key in ("step", "stage", "stage_step", "epoch")}
        row |= {f"{split} {metric}": _text(value) for split, metric, value in _splits(line)}
        rows.append(row | {"train_seconds": _text((line.get("seconds") or {}).get("train"))})
    return rows


def _finals(run: RunDirectory, facts: Row, paper: Mapping[str, Any]) -> list[Row]:
    """Errors of each stage: at its end, on all that is held out, where the run is done; else the last point of its curve."""
    stages = len(run.config()["steps"])
    result = run.result() or {}
    ended = result.get("stages") or ([result] if result and not result.get("diverged") else [])
    found = {stage: ("end", record) for stage, record in enumerate(ended, start=1)}
    for line in run.metrics():
        stage = int(line["stage"])
        if stage > len(ended):
            whole = line["stage_step"] == run.config()["steps"][stage - 1]
            found[stage] = ("end of curve" if whole else "partial", line)
    rows = []
    for stage, (what, record) in sorted(found.items()):
        for split, metric, value in _splits(record):
            told = stage == stages and metric == paper.get("metric")
            rows.append(
                {"run": run.name, "method": facts["method"], "variant": facts["variant"], "stage": str(stage)}
                | {"evaluation": what, "split": split, "metric": metric, "value": _text(value)}
                | {"paper": _printed(facts["paper"], split, paper) if told else ""}
            )
    return rows


def _printed(value: str, split: str, paper: Mapping[str, Any]) -> str:
    """The paper's number for a split; "1.99 / 1.91" is one for training data and one for test data."""
    if "/" in value:
        return value.split("/")[split == "test"].strip()
    return value if split == paper.get("split", "test") else ""


def _temperature(run: RunDirectory) -> list[Row]:
    """α, 1/g(α) and what the thermometers of the first group read, for each recorded step of exploration."""
    rows = []
    for line in run.trace():
        group = (line.get("thermometers") or {}).get("0") or {}
        columns = ("step", "stage", "alpha", "temperature_ratio", "kinetic_temperature", "potential")
        row = {"run": run.name} | {key: _text(line.get(key)) for key in columns}
        row |= {name: _text((group.get(name) or {}).get("mean")) for name in ("kinetic", "configurational")}
        rows.append(row)
    return rows


def _text(value: Any) -> str:
    """A number to DIGITS significant digits; nothing for what is not there."""
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


# ---- files ----


def as_csv(rows: Sequence[Row]) -> bytes:
    columns = list(dict.fromkeys(column for row in rows for column in row)) or ["run"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
