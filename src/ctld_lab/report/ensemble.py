"""Cycles, averaged, beside single models and other ensembles: the answer to the protocol's question, and all numbers."""

from collections.abc import Sequence

from ctld_lab.records import number
from ctld_lab.report import ensemble_curve
from ctld_lab.report.ensemble_curve import COLD, CONSTANT, CURVE, NLL
from ctld_lab.report.ranking import verdict
from ctld_lab.report.reading import StudyRecord
from ctld_lab.report.sections import Cell, Content, Table, marks_note, value_cell
from ctld_lab.report.statistics import Estimate, paired_difference, word
from ctld_lab.report.tables import Row, as_csv, final_table, rows_as_csv
from ctld_lab.report.wording import counted, listed, show, show_estimate

DRIVEN = "cycles_driven"
PRIMARY = ((DRIVEN, CONSTANT), (DRIVEN, COLD), (CONSTANT, COLD))
SECONDARY = (("cycles_paper", CONSTANT), ("cycles_calibrated", CONSTANT), (CONSTANT, "sgd"), (COLD, "snapshot"))
JUDGED = {NLL: "Test nll", "test error": "Error, %", "test ece": "ECE, %", "test brier": "Brier score"}
BESIDE = {
    "test last_nll": "Nll of the last member alone",
    "train nll": "Its training nll",
    "train nats": "Its training nll",
}


def content(study: StudyRecord) -> Content:
    rows = [row for row in final_table(study) if row.done or row.failed or row.variant != CURVE]
    found = Content()
    by_workload = {name: _of_method(study, rows, name) for name in _workloads(study, rows)}
    found.summary.append(_answer(study, by_workload))
    for name, of_method in by_workload.items():
        competing = list(of_method.values())
        if any(row.done for row in competing):
            said = verdict(competing, NLL, name="test nll")
            found.summary.append(" ".join(filter(None, (f"{study.title(name)}: {said}", _credit(of_method)))))
    found.tables += [_final(study, name, list(of_method.values())) for name, of_method in by_workload.items()]
    found.tables.append(_differences(study, by_workload))
    ensemble_curve.add(study, [row for row in rows if row.variant == CURVE], found)
    return found


def _workloads(study: StudyRecord, rows: Sequence[Row]) -> list[str]:
    """In the order of the settings; and those that only runs have."""
    asked = (study.description.get("settings") or {}).get("workloads") or {}
    return list(dict.fromkeys([*map(str, asked), *(row.variant for row in rows if row.variant != CURVE)]))


def _of_method(study: StudyRecord, rows: Sequence[Row], name: str) -> dict[str, Row]:
    """All methods that were asked for; those without a run on this workload have empty rows."""
    own = {row.method: row for row in rows if row.variant == name}
    seeds = len(study.seeds)
    return {
        method: own.get(method) or Row(method, study.title(method), name, {}, seeds, 0, 0, 0, {})
        for method in study.methods
    }


# ---- the question ----


def difference(rows: dict[str, Row], one: str, other: str, metric: str = NLL) -> Estimate | None:
    """one − other, seed by seed; None where either is missing or diverged, which is no number to subtract."""
    if one not in rows or other not in rows or rows[one].diverged or rows[other].diverged:
        return None
    return paired_difference(rows[one].values.get(metric, {}), rows[other].values.get(metric, {}))


def said(rows: dict[str, Row], one: str, other: str, metric: str = NLL) -> str:
    """lower, higher, tie or unclear; "" where that is unknown."""
    found = difference(rows, one, other, metric)
    return "" if found is None else word(found, rows[other].estimate(metric).mean)


def _answer(study: StudyRecord, by_workload: dict[str, dict[str, Row]]) -> str:
    """Of all workloads at once."""
    words = {name: said(rows, DRIVEN, CONSTANT) for name, rows in by_workload.items()}
    known = [name for name, found in words.items() if found]
    if not known:
        return "Does the tempering deserve the credit? Too few runs are finished to say."
    parts = []
    for kind, sentence in (
        ("lower", "it does on {}"),
        ("tie", "a constant temperature of the same mean cannot be told from it on {}"),
        ("higher", "it does harm on {}"),
        ("unclear", "seeds differ too much to tell on {}"),
    ):
        names = [study.title(name) for name in known if words[name] == kind]
        if names:
            parts.append(sentence.format(listed(names)))
    open_cases = [study.title(name) for name in words if name not in known]
    rest = f" Of {listed(open_cases)} nothing can be said." if open_cases else ""
    return f"Does the tempering deserve the credit? By test nll, {'; '.join(parts)}.{rest}"


def _credit(rows: dict[str, Row]) -> str:
    """The primary comparisons of a workload, in words, with their intervals."""
    parts = []
    tempering, noise = difference(rows, DRIVEN, CONSTANT), difference(rows, CONSTANT, COLD)
    kind = said(rows, DRIVEN, CONSTANT)
    if tempering is not None and kind:
        part = f"driven − constant is {show_estimate(tempering)} ({counted(tempering.count, 'seed')})"
        if kind == "tie":
            low, high = (show(value, 2) for value in (tempering.low or 0.0, tempering.high or 0.0))
            part += f", a tie: differences outside {low} to {high} are excluded"
        parts.append(part + (", unclear" if kind == "unclear" else ""))
    kind = said(rows, CONSTANT, COLD)
    if noise is not None and kind:
        credit = {
            "lower": "the noise deserves credit",
            "tie": "cycles without any cannot be told from noise",
            "higher": "the noise does harm",
            "unclear": "seeds differ too much to tell",
        }
        seeds = "" if parts else f" ({counted(noise.count, 'seed')})"
        parts.append(f"constant − no noise (T = 0) is {show_estimate(noise)}{seeds}: {credit[kind]}")
    return f"Of cycles, {'; '.join(parts)}." if parts else ""


# ---- tables ----


def _final(study: StudyRecord, name: str, rows: Sequence[Row]) -> Table:
    members = {
        run.method: int(number(run.result.get("members")))
        for run in study.finals
        if run.variant == name and run.result.get("members") is not None
    }
    beside = {metric: title for metric, title in BESIDE.items() if any(metric in row.values for row in rows)}
    body = [
        [
            Cell(row.title),
            Cell(str(members.get(row.method, "–"))),
            Cell(row.state),
            *(value_cell(row, metric) for metric in JUDGED),
            *(Cell(value_cell(row, metric).text) for metric in beside),
        ]
        for row in rows
    ]
    columns = ["Method", "Members", "Runs", *JUDGED.values(), *beside.values()]
    notes = [
        *marks_note(rows),
        "Of the members' averaged prediction on test data. All methods have the same number of gradients.",
        *_same_text(study, name),
        *_heat(study, name),
        *_edges(study, name),
    ]
    return Table(
        f"final-{name}", f"{study.title(name)}: the averaged prediction", columns, body, rows_as_csv(rows), notes
    )


def _same_text(study: StudyRecord, name: str) -> list[str]:
    """What seeds do not decide."""
    size = ((study.description.get("settings") or {}).get("workloads") or {}).get(name) or {}
    if "text" not in size:
        return []
    return ["Every seed reads the same text in the same order: intervals are over initial weights and noise alone."]


def _heat(study: StudyRecord, name: str) -> list[str]:
    """What temperature each really had: an α that moves by itself need not be uniform."""
    parts = []
    for method in study.methods:
        ratios = [
            (number(tempering.get("mean_ratio")), number(run.result.get("temperature")))
            for run in study.finals
            if (run.method, run.variant) == (method, name) and (tempering := run.result.get("tempering"))
        ]
        if ratios and ratios[0][1] > 0:
            mean = sum(ratio for ratio, _ in ratios) / len(ratios)
            parts.append(f"{study.title(method)} {show(mean, 3)} (T = {show(ratios[0][1], 3)})")
    return [f"Mean temperature while exploring, as a multiple of T: {', '.join(parts)}."] if parts else []


def _edges(study: StudyRecord, name: str) -> list[str]:
    """A choice that is the lowest or the highest of what was tried may not be the best there is."""
    at_edge = []
    for method in study.methods:
        record = study.tuning.get(f"{name}-{method}") or {}
        chosen, trials = record.get("chosen"), record.get("trials") or ()
        if not isinstance(chosen, dict) or len(trials) < 3:
            continue
        for option, value in chosen.items():
            tried = [number((trial.get("parameters") or {}).get(option)) for trial in trials]
            if number(value) in (min(tried), max(tried)):
                end = "lowest" if number(value) == min(tried) else "highest"
                at_edge.append(f"{study.title(method)} ({end} {option})")
    return [f"Chosen at the edge of what was tried: {', '.join(at_edge)}."] if at_edge else []


def _differences(study: StudyRecord, by_workload: dict[str, dict[str, Row]]) -> Table:
    body, lines = [], []
    for name, rows in by_workload.items():
        for pair in (*PRIMARY, *SECONDARY):
            found = {metric: difference(rows, *pair, metric) for metric in JUDGED}
            title = " − ".join(study.title(method) for method in pair)
            role = "primary" if pair in PRIMARY else "secondary"
            cells = [Cell("–" if each is None else show_estimate(each)) for each in found.values()]
            body.append([Cell(study.title(name)), Cell(title), Cell(role), Cell(said(rows, *pair) or "–"), *cells])
            for metric, each in found.items():
                numbers = ["", "", "", 0] if each is None else [each.mean, each.low, each.high, each.count]
                lines.append([name, *pair, role, metric, *numbers, said(rows, *pair, metric)])
    header = ["workload", "one", "other", "role", "metric", "mean", "low", "high", "count", "word"]
    columns = ["Workload", "Difference", "Planned as", "By nll", *JUDGED.values()]
    notes = [
        "Paired by seed, with 95 % t intervals; “tie” if the interval holds zero, “unclear” if it does so because it is wider "
        "than half the mean of what is subtracted. No correction for several comparisons."
    ]
    return Table("differences", "The comparisons that were planned", columns, body, as_csv(header, lines), notes)
