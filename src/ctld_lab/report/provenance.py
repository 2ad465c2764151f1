"""Where numbers come from: what was asked, how it was tuned and at what cost, on which machine, and how to repeat it."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Prose, Table, cells
from ctld_lab.report.shapes import TABLES
from ctld_lab.report.wording import counted, shortened, show, show_seconds, show_setting, show_settings

TUNING, TRIALS = TABLES["tuning"], TABLES["trials"]
CLOCKS = {"train": "training", "evaluate": "evaluating", "log": "recording"}


@dataclass(frozen=True)
class Provenance:
    facts: list[tuple[str, str]]
    commands: list[str]
    environments: list[str]
    failures: list[tuple[str, str]]
    """Run and error."""
    tuning: list[Table] = field(default_factory=list)
    tuning_words: str = ""


def provenance(study: StudyRecord) -> Provenance:
    tuning, trials = _frames(study)
    machine = [study.description["machine"]] if "machine" in study.description else []
    return Provenance(
        facts=_facts(study),
        commands=without_places(study.description.get("commands", [])),
        environments=_environments(study.runs) or machine,
        failures=[(run.name, shortened(run.error or "no error was recorded")) for run in study.failed]
        + [(f"tuning/{name}.json", x["problem"]) for name, x in study.tuning.items() if "problem" in x],
        tuning=[] if tuning.empty else [_cost(study, tuning), _trials(study, trials)],
        tuning_words=_words(study, tuning),
    )


def without_places(commands: Sequence[str]) -> list[str]:
    """Where the data lay on that machine is nobody's business."""
    return [re.sub(r" --data-dir ('[^']*'|\S+)", "", command) for command in commands]


def run_states(study: StudyRecord) -> str:
    """12 of 14 runs done, 1 failed, 1 waiting."""
    if study.published:
        return str(study.description["published"])
    states = Counter(run.state for run in study.runs)
    if not states:
        return "no runs yet"
    rest = [f"{states[state]} {state}" for state in ("failed", "started", "waiting") if states[state]]
    whole = f"{states['done']} of " if rest else ""
    return ", ".join([f"{whole}{counted(len(study.runs), 'run')} done", *rest])


def _facts(study: StudyRecord) -> list[tuple[str, str]]:
    description = study.description
    facts = [(name.capitalize(), description.get(name) or "–") for name in ("varied", "tuned", "fixed")]
    data = [description.get("data"), *(run.config.get("data") for run in study.runs)]
    facts += [("Data", text) for text in dict.fromkeys(map(_data, data)) if text]
    facts.append(("Scale", description.get("scale", "–")))
    facts.append(("Seeds", ", ".join(map(str, study.seeds)) or "–"))
    facts.append(("Runs", run_states(study)))
    clocks = (
        pd.DataFrame([run.clocks for run in study.runs], dtype=float).sum() if study.runs else pd.Series(dtype=float)
    )
    if clocks.sum() > 0:
        parts = [
            f"{show_seconds(seconds)} {CLOCKS.get(name, name)}" for name, seconds in clocks.items() if name and seconds
        ]
        facts.append(
            ("Time", f"{show_seconds(clocks.sum())} in all finished runs" + (f" ({', '.join(parts)})" if parts else ""))
        )
    facts += [
        ("Note", f"{run.name}: {shortened(note)}") for run in study.runs for note in run.environment.get("notes", [])
    ]
    return facts


def _data(record: Any) -> str:
    """What the study names, or a run: some studies read more than one data set."""
    if not isinstance(record, dict) or not record.get("name"):
        return ""
    digest = f", SHA-256 {str(record['sha256'])[:12]}…" if record.get("sha256") else ""
    return shortened(f"{record['name']}{digest}")


def _environments(runs: Sequence[RunRecord]) -> list[str]:
    """Each once, with the number of runs that had it."""
    found = Counter(_environment(run.environment) for run in runs if run.environment)
    return [f"{text} ({counted(count, 'run')})" if len(found) > 1 else text for text, count in sorted(found.items())]


def _environment(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items())
    commit = record.get("commit", "unknown")[:12] + (" with uncommitted changes" if record.get("dirty") else "")
    size = f"{counted(record.get('threads', 0), 'thread')}, {counted(record.get('cores', 0), 'core')}"
    return f"{versions}; commit {commit}; {record.get('machine', 'unknown machine')}; {size}"


# ---- tuning ----


def _frames(study: StudyRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One line per search, and one per trial."""
    if study.published:
        return study.table("tuning"), study.table("trials")
    train = {run.name: run.clocks.get("train", math.nan) for run in study.runs}
    searches, lines = [], []
    for method in sorted(study.tuning, key=lambda method: [*study.methods, method].index(method)):
        record = study.tuning[method]
        trials, chosen = record.get("trials", []), record.get("chosen")
        if not trials:
            continue
        bad = sum(trial.get("diverged", False) or trial.get("failed", False) for trial in trials)
        ends = {name: ends for name, ends in record.get("space", {}).items() if len(ends) > 1}
        searched = ", ".join(
            f"{name} {show_setting(low)} to {show_setting(high)}" for name, (low, high, *_) in ends.items()
        )
        training = sum(train.get(trial.get("run", ""), math.nan) for trial in trials)
        seconds = sum(trial.get("seconds", 0.0) for trial in trials)
        told = show_settings(chosen) if chosen is not None else "none: all diverged or failed"
        searches.append([method, len(trials), bad, searched, told, record.get("value", math.nan), training, seconds])
        for trial in trials:
            parameters = trial.get("parameters", {})
            flags = {"failed": trial.get("failed"), "diverged": trial.get("diverged"), "chosen": parameters == chosen}
            state = next((name for name, flag in flags.items() if flag), "")
            numbers = trial.get("value", math.nan), state, trial.get("seconds", math.nan)
            lines.append([method, show_settings(parameters), *numbers])
    return pd.DataFrame(searches, columns=TUNING), pd.DataFrame(lines, columns=TRIALS)


def _words(study: StudyRecord, tuning: pd.DataFrame) -> str:
    if tuning.empty:
        return ""
    first = next((record for record in study.tuning.values() if record.get("trials")), {})
    counts = {
        study.title(method): int(trials) for method, trials in zip(tuning["method"], tuning["trials"], strict=True)
    }
    searches = counted(len(tuning), "method")
    if not set(tuning["method"]) <= set(study.methods):
        searches = f"{counted(len(tuning), 'search', 'searches')}, one for each method and workload"
    trials = f"{counted(next(iter(counts.values())), 'trial')} for each of {searches}"
    if len(set(counts.values())) > 1:
        trials = "trials differ: " + ", ".join(f"{title} {count}" for title, count in counts.items())
    search = "" if study.published else first.get("search", "not recorded")
    criterion = first.get("criterion", "not recorded")
    return Prose("common")("tuning", search=search, criterion=criterion, trials=trials)


def _cost(study: StudyRecord, tuning: pd.DataFrame) -> Table:
    body = [
        cells(
            study.title(x["method"]), int(x["trials"]), int(x["bad"]), x["searched"] or "–", x["chosen"], show(x["value"]),
            show_seconds(x["train_seconds"]), show_seconds(x["seconds"]),
        )
        for _, x in tuning.iterrows()
    ]  # fmt: skip
    columns = ["Method", "Trials", "Diverged or failed", "Searched", "Chosen", "Value", "Training", "All clocks"]
    return Table("tuning", "What tuning chose, and what it cost", columns, body, tuning)


def _trials(study: StudyRecord, trials: pd.DataFrame) -> Table:
    body = [
        cells(study.title(x["method"]), x["parameters"], show(x["value"]), x["state"], show_seconds(x["seconds"]))
        for _, x in trials.iterrows()
    ]
    return Table("trials", "All trials", ["Method", "Parameters", "Value", "", "Time"], body, trials)
