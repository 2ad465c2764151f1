"""Where numbers come from: what was asked, how it was tuned and at what cost, on which machine, and how to repeat it."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.report import tidy
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Prose, Table, cells
from ctld_lab.report.wording import counted, shortened, show, show_seconds, show_settings

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
    found = searches(study)
    machine = [study.description["machine"]] if "machine" in study.description else []
    return Provenance(
        facts=_facts(study),
        commands=without_places(study.description.get("commands", [])),
        environments=_environments(study.runs) or machine,
        failures=[(run.name, shortened(run.error or "no error was recorded")) for run in study.failed]
        + [(name, words) for name, words in study.broken if name.startswith("tuning/")],
        tuning=[_cost(study, found), _trials(study, found)] if found else [],
        tuning_words=_words(study, found) if found else "",
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
    """Return the data set named by a study or a run: some studies read more than one."""
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


@dataclass(frozen=True)
class Trial:
    parameters: dict[str, float]
    value: float
    seconds: float
    state: str
    """failed, diverged, chosen, or nothing."""


@dataclass(frozen=True)
class Search:
    """Trials of one method, and the one chosen: the lowest value on validation data."""

    name: str
    trials: list[Trial]
    train_seconds: float
    how: dict[str, str]

    @property
    def chosen(self) -> dict[str, float] | None:
        return next((trial.parameters for trial in self.trials if trial.state == "chosen"), None)

    @property
    def value(self) -> float:
        return next((trial.value for trial in self.trials if trial.state == "chosen"), math.nan)


def searches(study: StudyRecord) -> list[Search]:
    """Return the searches of a study in the order of its methods."""
    found = []
    rows = study.table[study.table["variant"] == tidy.TRIAL]
    for name, own in rows.groupby("method", sort=False):
        by_trial = own[own["at"] != ""].pivot_table(
            index=["at", "point"], columns="metric", values="value", aggfunc="first", sort=False
        )
        by_trial = by_trial.reindex(columns=["value", "seconds", tidy.FAILED, tidy.DIVERGED])
        best = (
            by_trial["value"].where(np.isfinite(by_trial["value"])).idxmin()
            if by_trial["value"].notna().any()
            else None
        )
        trials = []
        for key, line in by_trial.iterrows():
            flags = {name: line[name] == 1 for name in (tidy.FAILED, tidy.DIVERGED)} | {"chosen": key == best}
            state = next((name for name, flag in flags.items() if flag), "")
            trials.append(Trial(tidy.parts(key[1]), line["value"], line["seconds"], state))
        seconds = float(own.loc[own["metric"] == "train seconds", "value"].sum(min_count=1))
        found.append(Search(str(name), trials, seconds, study.description.get("searches", {}).get(name, {})))
    order = [*study.methods, *(search.name for search in found)]
    return sorted(found, key=lambda search: order.index(search.name))


def _words(study: StudyRecord, found: Sequence[Search]) -> str:
    counts = {study.title(search.name): len(search.trials) for search in found}
    of = counted(len(found), "method")
    if not {search.name for search in found} <= set(study.methods):
        of = f"{counted(len(found), 'search', 'searches')}, one for each method and workload"
    trials = f"{counted(next(iter(counts.values())), 'trial')} for each of {of}"
    if len(set(counts.values())) > 1:
        trials = "trials differ: " + ", ".join(f"{title} {count}" for title, count in counts.items())
    how = {"search": "", "criterion": ""} | found[0].how
    return Prose("common")("tuning", search=how["search"], criterion=how["criterion"], trials=trials)


def _cost(study: StudyRecord, found: Sequence[Search]) -> Table:
    body = [
        cells(
            study.title(x.name), len(x.trials), sum(trial.state in (tidy.FAILED, tidy.DIVERGED) for trial in x.trials),
            x.how.get("searched") or "–", "none: all diverged or failed" if x.chosen is None else show_settings(x.chosen),
            show(x.value), show_seconds(x.train_seconds), show_seconds(sum(trial.seconds for trial in x.trials)),
        )
        for x in found
    ]  # fmt: skip
    columns = ["Method", "Trials", "Diverged or failed", "Searched", "Chosen", "Value", "Training", "All clocks"]
    return Table("tuning", "What tuning chose, and what it cost", columns, body)


def _trials(study: StudyRecord, found: Sequence[Search]) -> Table:
    body = [
        cells(study.title(search.name), show_settings(x.parameters), show(x.value), x.state, show_seconds(x.seconds))
        for search in found
        for x in search.trials
    ]
    return Table("trials", "All trials", ["Method", "Parameters", "Value", "", "Time"], body)
