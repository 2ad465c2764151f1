"""Where numbers come from: what was asked, how it was tuned and at what cost, on which machine, and how to repeat it."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes

from ctld_lab.records import notes_in, number, plain
from ctld_lab.report.plots import Panel, Plot, method_key, no_data, plain_log, powers
from ctld_lab.report.reading import RunRecord, StudyRecord
from ctld_lab.report.sections import Cell, Table
from ctld_lab.report.tables import as_csv
from ctld_lab.report.wording import counted, shortened, show, show_seconds, show_setting

MOST_PANELS = 24  # of a figure that can be read; the table of trials has them all


@dataclass(frozen=True)
class Provenance:
    facts: list[tuple[str, str]]
    commands: list[str]
    environments: list[str]
    failures: list[tuple[str, str]]
    """Run and error."""
    tuning: list[Table] = field(default_factory=list)
    tuning_plot: Plot | None = None
    tuning_words: str = ""


def provenance(study: StudyRecord) -> Provenance:
    order = sorted(study.tuning, key=lambda method: [*study.methods, method].index(method))
    tuned = {method: study.tuning[method] for method in order if study.tuning[method].get("trials")}
    return Provenance(
        facts=_facts(study),
        commands=[str(command) for command in study.description.get("commands") or ()],
        environments=_environments(study.runs),
        failures=[(run.name, shortened(run.error or "no error was recorded")) for run in study.failed]
        + [
            (f"tuning/{method}.json", record["problem"])
            for method, record in study.tuning.items()
            if "problem" in record
        ],
        tuning=[_cost(study, tuned), _trials(study, tuned)] if tuned else [],
        tuning_plot=_plot(study, tuned) if 0 < len(tuned) <= MOST_PANELS else None,
        tuning_words=_words(study, tuned),
    )


def run_states(study: StudyRecord) -> str:
    """12 of 14 runs done, 1 failed, 1 waiting."""
    states = Counter(run.state for run in study.runs)
    if not states:
        return "no runs yet"
    rest = [f"{states[state]} {state}" for state in ("failed", "started", "waiting") if states[state]]
    whole = f"{states['done']} of " if rest else ""
    return ", ".join([f"{whole}{counted(len(study.runs), 'run')} done", *rest])


def _facts(study: StudyRecord) -> list[tuple[str, str]]:
    description = study.description
    facts = [(name.capitalize(), str(description.get(name) or "–")) for name in ("varied", "tuned", "fixed")]
    data = [description.get("data"), *(run.config.get("data") for run in study.runs)]
    facts += [("Data", text) for text in dict.fromkeys(map(_data, data)) if text]
    facts.append(("Scale", str(description.get("scale", "–"))))
    facts.append(("Seeds", ", ".join(map(str, study.seeds)) or "–"))
    facts.append(("Runs", run_states(study)))
    clocks: dict[str, float] = {}
    for run in study.runs:
        for clock, value in run.clocks.items():
            clocks[clock] = clocks.get(clock, 0.0) + value
    total = sum(clocks.values())
    parts = [f"{show_seconds(value)} {_clock(name)}" for name, value in clocks.items() if name and value]
    if total:
        facts.append(
            ("Time", f"{show_seconds(total)} in all finished runs" + (f" ({', '.join(parts)})" if parts else ""))
        )
    facts += [("Note", f"{run.name}: {shortened(note)}") for run in study.runs for note in notes_in(run.environment)]
    return facts


def _data(record: Any) -> str:
    """What the study names, or a run: some studies read more than one data set."""
    if not isinstance(record, dict) or not record.get("name"):
        return ""
    digest = f", SHA-256 {str(record['sha256'])[:12]}…" if record.get("sha256") else ""
    return shortened(f"{record['name']}{digest}")


def _clock(name: str) -> str:
    return {"train": "training", "evaluate": "evaluating", "log": "recording"}.get(name, name)


def _environments(runs: Sequence[RunRecord]) -> list[str]:
    """Each once, with the number of runs that had it."""
    found: Counter[str] = Counter()
    for run in runs:
        if run.environment:
            found[_environment(run.environment)] += 1
    several = len(found) > 1
    return [f"{text} ({counted(count, 'run')})" if several else text for text, count in sorted(found.items())]


def _environment(record: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in (record.get("versions") or {}).items())
    commit = str(record.get("commit") or "unknown")[:12] + (" with uncommitted changes" if record.get("dirty") else "")
    threads, cores = int(record.get("threads") or 0), int(record.get("cores") or 0)
    size = f"{counted(threads, 'thread')}, {counted(cores, 'core')}"
    return f"{versions}; commit {commit}; {record.get('machine', 'unknown machine')}; {size}"


# ---- tuning ----


def _words(study: StudyRecord, tuned: dict[str, dict[str, Any]]) -> str:
    if not tuned:
        return ""
    first = next(iter(tuned.values()))
    counts = {study.title(method): len(record["trials"]) for method, record in tuned.items()}
    equal = len(set(counts.values())) == 1
    of_methods = set(tuned) <= set(study.methods)
    searches = (
        counted(len(tuned), "method")
        if of_methods
        else f"{counted(len(tuned), 'search', 'searches')}, one for each method and workload"
    )
    how_many = (
        f"{counted(next(iter(counts.values())), 'trial')} for each of {searches}"
        if equal
        else "trials differ: " + ", ".join(f"{title} {count}" for title, count in counts.items())
    )
    judged = f"Judged by {first.get('criterion', 'not recorded')}; {how_many}."
    words = f"Search: {first.get('search', 'not recorded')}. {judged}"
    if len(tuned) > MOST_PANELS:
        words += f" More than {MOST_PANELS} searches make no figure; the table has all trials."
    return words


def _cost(study: StudyRecord, tuned: dict[str, dict[str, Any]]) -> Table:
    train = {run.name: run.clocks.get("train", math.nan) for run in study.runs}
    body, lines = [], []
    for method, record in tuned.items():
        trials = record["trials"]
        bad = sum(bool(trial.get("diverged")) or bool(trial.get("failed")) for trial in trials)
        seconds = sum(number(trial.get("seconds", 0.0)) for trial in trials)
        training = sum(train.get(str(trial.get("run")), math.nan) for trial in trials)
        searched = ", ".join(
            f"{name} {show_setting(number(ends[0]))} to {show_setting(number(ends[1]))}"
            for name, ends in _space(record)
        )
        cells = [
            study.title(method),
            str(len(trials)),
            str(bad),
            searched or "–",
            _parameters(record.get("chosen")),
            show(number(record.get("value"))),
            show_seconds(training),
            show_seconds(seconds),
        ]
        body.append([Cell(text) for text in cells])
        lines.append(
            [
                method,
                len(trials),
                bad,
                searched,
                _parameters(record.get("chosen")),
                record.get("value"),
                training,
                seconds,
            ]
        )
    columns = ["Method", "Trials", "Diverged or failed", "Searched", "Chosen", "Value", "Training", "All clocks"]
    header = ["method", "trials", "bad", "searched", "chosen", "value", "train_seconds", "seconds"]
    return Table("tuning", "What tuning chose, and what it cost", columns, body, as_csv(header, lines))


def _space(record: dict[str, Any]) -> list[tuple[str, Sequence[Any]]]:
    return [
        (name, ends) for name, ends in (record.get("space") or {}).items() if isinstance(ends, list) and len(ends) > 1
    ]


def _trials(study: StudyRecord, tuned: dict[str, dict[str, Any]]) -> Table:
    body, lines = [], []
    for method, record in tuned.items():
        for trial in record["trials"]:
            parameters = trial.get("parameters") or {}
            chosen = parameters == record.get("chosen")
            state = (
                "failed" if trial.get("failed") else "diverged" if trial.get("diverged") else "chosen" if chosen else ""
            )
            value = number(trial.get("value"))
            cells = [
                study.title(method),
                _parameters(parameters),
                show(value),
                state,
                show_seconds(number(trial.get("seconds"))),
            ]
            body.append([Cell(text) for text in cells])
            lines.append([method, _parameters(parameters), plain(value), state, trial.get("seconds")])
    columns = ["Method", "Parameters", "Value", "", "Time"]
    return Table(
        "trials", "All trials", columns, body, as_csv(["method", "parameters", "value", "state", "seconds"], lines)
    )


def _parameters(parameters: Any) -> str:
    if not isinstance(parameters, dict):
        return "none: all diverged or failed"
    return ", ".join(f"{name} {show_setting(number(value))}" for name, value in parameters.items())


def _plot(study: StudyRecord, tuned: dict[str, dict[str, Any]]) -> Plot:
    everything = [number(trial.get("value")) for record in tuned.values() for trial in record["trials"]]
    finite = [value for value in everything if math.isfinite(value) and value > 0]
    panels = [Panel(study.title(method), _scatter(study, method, record, finite)) for method, record in tuned.items()]
    caption = (
        "Every trial: the value that tuning judged by, against the learning rate; ringed is the one chosen, crosses at the top "
        "diverged or failed. Where momentum was tuned as well, points at neighbouring learning rates differ in it."
    )
    return Plot("tuning", caption, panels, columns=3, size=(2.2, 1.8))


def _scatter(
    study: StudyRecord, method: str, record: dict[str, Any], everything: Sequence[float]
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        trials = record["trials"]
        name = "lr" if any("lr" in (trial.get("parameters") or {}) for trial in trials) else ""
        x = [number((trial.get("parameters") or {}).get(name)) for trial in trials]
        if not everything or not any(map(math.isfinite, x)):
            return no_data(axes, "no value")
        colour = method_key(method, "", study.methods).colour
        top = max(everything) * (max(everything) / min(everything)) ** 0.12 * 1.02
        for position, trial in zip(x, trials, strict=True):
            value = number(trial.get("value"))
            if math.isfinite(value):
                axes.plot([position], [value], "o", color=colour, markersize=4)
                if trial.get("parameters") == record.get("chosen"):
                    axes.plot([position], [value], "o", markersize=9, markerfacecolor="none", markeredgecolor="0.3")
            else:
                axes.plot([position], [top], "x", color=colour, markersize=5, clip_on=False)
        plain_log(axes, "y", [*everything, top])
        powers(axes, "x")
        axes.set_ylim(min(everything) / (max(everything) / min(everything)) ** 0.1 / 1.02, top)
        axes.margins(x=0.15)
        axes.set(xlabel="learning rate", ylabel="validation")
        return None

    return draw
