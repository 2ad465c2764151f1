"""The stored tables of the study, and what is read from them: pandas frames in, Markdown cells and findings out."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.statistics import AHEAD, BEHIND, MARGIN, TIE, UNDECIDED, Estimate, estimate, verdicts

from .methods import EVERY, METHODS, MOVING, NEVER_COLD, OLDER, THEIRS
from .plans import PLANS, Plan
from .scores import equivalent

REFERENCE = "reference"
OURS, CONSTANT = "ensemble", "ensemble_tuned"
AGAIN = Path(__file__).parent / "again"
"""The runs of `ctld.Ensemble` with 60,000 digits, repeated on a second machine."""
TITLES = {"wine": "Wines", "digits5k": "5,000 digits", "digits60k": "60,000 digits", "text": "Characters of a text"}
HALVES = ("entropy", "mutual information")
Rows = dict[str, pd.DataFrame]
"""Method → its final runs on one problem, by seed."""


# ---- from cells to tables ----


def pack(directory: Path, results: Path) -> None:
    """Write runs.csv, a row for each trial and final run; reference.csv, a row for each number of networks; origins.csv."""
    runs, curves, origins = [], [], []
    for path in sorted(directory.glob("*/*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        if not cell.get("done") or "problem" not in cell:
            continue
        key = {"problem": path.parent.name, "method": path.stem}
        origins += [key | _flat(stamp) for stamp in cell["environments"]]
        machine = {"machine": cell["environments"][0].get("machine")}
        for run in cell["final"] if path.stem == REFERENCE else ():
            point = key | machine | {name: value for name, value in run.items() if name != "curve"}
            curves += [point | {"networks": count} | row for count, row in enumerate(run["curve"], start=1)]
        for stage in ("trials", "final") if path.stem != REFERENCE else ():
            for number, run in enumerate(cell[stage]):
                options = run.get("options", cell["chosen"])
                third = next((value for name, value in options.items() if name not in ("lr", "weight_decay")), None)
                point = {"stage": stage, "number": number, "lr": options["lr"], "weight_decay": options["weight_decay"]}
                scores = {name: value for name, value in run.items() if name not in ("options", "seed")}
                runs.append(key | point | {"third": third} | machine | scores)
    results.mkdir(parents=True, exist_ok=True)
    for name, rows in (("runs", runs), ("reference", curves), ("origins", origins)):
        if rows:
            pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False)


def _flat(stamp: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in stamp.items() if name != "versions"}
    return rest | {f"{name} version": value for name, value in stamp["versions"].items()}


def read(results: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(results / f"{name}.csv")


# ---- comparisons ----


def finals(runs: pd.DataFrame, problem: str, methods: Iterable[str] = METHODS) -> Rows:
    chosen = runs[(runs.problem == problem) & (runs.stage == "final")]
    return {method: rows for method in methods if len(rows := chosen[chosen.method == method])}


def compare(found: Rows, ours: str = OURS) -> dict[str, tuple[Estimate, str]]:
    """Return our nll less each other method's, paired by seed, and what ours is beside it; all are corrected together.

    A method that has no prediction in some seed is behind, ours too. A tie lies within 5 % of the other's nll.
    """
    own, others = list(found[ours].nll), {method: rows for method, rows in found.items() if method != ours}
    differences = {
        method: estimate([mine - other for mine, other in zip(own, rows.nll, strict=True)])
        for method, rows in others.items()
    }
    if lost(found[ours]):
        words = {method: UNDECIDED if lost(rows) else f"{BEHIND}: ours diverged" for method, rows in others.items()}
    else:
        margins = {method: MARGIN * estimate(list(rows.nll)).mean for method, rows in others.items() if not lost(rows)}
        words = verdicts({method: differences[method] for method in margins}, margins)
        words |= {method: f"{AHEAD}: it {fate(rows)}" for method, rows in others.items() if lost(rows)}
    return {method: (differences[method], words[method]) for method in others}


def worth(rows: pd.DataFrame, reference: pd.DataFrame) -> list[float]:
    """Return by seed the number of networks, each with all the gradients, that reach the scaled nll."""
    curves = [list(curve.scaled_nll) for _, curve in reference.groupby("seed")]
    return [equivalent(value, curve) for value, curve in zip(rows.scaled_nll.fillna(math.inf), curves, strict=True)]


def lost(rows: pd.DataFrame) -> int:
    """Return how many runs have no prediction."""
    return int(rows.nll.map(math.isinf).sum())


def fate(rows: pd.DataFrame) -> str:
    """Say what became of runs that have no prediction."""
    return "had no cold draw" if set(rows.failed[rows.nll.map(math.isinf)]) == {NEVER_COLD} else "diverged"


# ---- tables ----


def results_table(found: Rows, reference: pd.DataFrame) -> dict[str, Any]:
    """Return a row for each method, the lowest nll first; seconds only where one machine did everything."""
    compared = compare(found) if OURS in found else {}
    timed, rows = len({machine for each in found.values() for machine in each.machine}) == 1, []
    for method, each in sorted(found.items(), key=lambda item: item[1].nll.mean()):
        verdict = compared[method][1] if method in compared else ""
        seconds = [f"{estimate(list(each.seconds)).mean:.1f}"] if timed else []
        if none := lost(each):
            rows.append([EVERY[method].title, f"{none} of {len(each)} {fate(each)}", verdict, *["–"] * 4, *seconds])
            continue
        scores = [shown(each.scaled_nll, 4), shown(100 * each.error, 2), f"{100 * estimate(list(each.ece)).mean:.1f}"]
        networks = worth(each, reference)
        more = " or more" if max(networks) >= reference.networks.max() else ""
        counted = f"{sum(networks) / len(networks):.1f}{more}"
        rows.append([EVERY[method].title, shown(each.nll, 4), verdict, *scores, counted, *seconds])
    head = ["method", "nll (± 95 %)", "ctld.Ensemble is", "scaled nll", "error %", "ECE %", "worth, networks"]
    return {"head": head + ["CPU s"] * timed, "rows": rows}


def moving_table(found: Rows) -> dict[str, Any]:
    """Return temperatures that move beside the constant one, with the mean temperature while they explored."""
    compared, rows = compare(found, CONSTANT), []
    for method, each in found.items():
        verdict, less, nll = "", "", shown(each.nll, 4)
        if method in compared:
            verdict, less = compared[method][1], signed(compared[method][0])
        if none := lost(each):
            nll, less = f"{none} of {len(each)} {fate(each)}", "–"
        chosen = float(each.third.iloc[0])
        ratios = each.mean_ratio.dropna() if "mean_ratio" in each else []
        mean = chosen * (estimate(list(ratios)).mean if len(ratios) else 1.0)
        rows.append([EVERY[method].title, nll, less, verdict, f"{chosen:.3g}", f"{mean:.3g}"])
    return {
        "head": ["", "nll (± 95 %)", "less that of the constant T", "constant T is", "T chosen", "mean T"],
        "rows": rows,
    }


def strange_table(found: Rows) -> dict[str, Any]:
    """Return the AUROC of telling strange inputs from known ones, in per cent."""
    columns = [f"{kind}, {by}" for kind in ("halves of two digits", "photographs") for by in HALVES]
    rows = [
        [EVERY[method].title, *(shown(100 * each[c], 1) if each[c].notna().all() else "–" for c in columns)]
        for method, each in found.items()
    ]
    return {"head": ["method", *columns], "rows": rows}


def chosen_table(runs: pd.DataFrame, problem: str, methods: Iterable[str], plan: Plan) -> dict[str, Any]:
    """Return what the trials chose, with a star near an end of what was searched."""
    rows = []
    for method in methods:
        mine = runs[(runs.problem == problem) & (runs.method == method)]
        chosen, entries = mine[mine.stage == "final"].iloc[0], []
        for name, (low, high) in plan.searched(method).items():
            value = chosen[name if name in ("lr", "weight_decay") else "third"]
            at_end = min(value / low, high / value) < (high / low) ** 0.0625
            entries.append(f"{name} {value:.3g}" + ("\\*" if at_end else ""))
        trials = mine[mine.stage == "trials"]
        best = trials.nll.min()
        told = f"{best:.4f}" if math.isfinite(best) else f"all trials {fate(trials)}"
        rows.append([EVERY[method].title, ", ".join(entries), told])
    return {"head": ["method", "chosen", "validation nll"], "rows": rows}


def overview(runs: pd.DataFrame, problems: Sequence[str]) -> dict[str, Any]:
    """Return nll and verdict of every method on every problem; each group is corrected by itself."""
    columns: dict[str, dict[str, str]] = {}
    for problem in problems:
        entries = columns[problem] = {}
        for group in (METHODS, {OURS: METHODS[OURS]} | OLDER, {OURS: METHODS[OURS]} | THEIRS):
            found = finals(runs, problem, group)
            compared = compare(found) if OURS in found else {}
            for method, each in found.items():
                mean = fate(each) if lost(each) else f"{each.nll.mean():.4f}"
                verdict = compared[method][1].split(":")[0] if method in compared else ""
                entries.setdefault(method, f"{mean} {verdict}".strip())
    methods = [method for method in METHODS | OLDER | THEIRS if any(method in column for column in columns.values())]
    rows = [[EVERY[method].title, *(columns[problem].get(method, "–") for problem in problems)] for method in methods]
    return {"head": ["method", *(TITLES[problem] for problem in problems)], "rows": rows}


# ---- findings ----


def findings(results: Path) -> dict[str, Any]:
    """Read the findings and every published table from the stored tables."""
    runs, reference = read(results, "runs"), read(results, "reference")
    trials = runs.number[runs.stage == "trials"].max() + 1
    plans = next(plans for plans in PLANS.values() if plans["wine"].trials == trials)
    problems = [name for name in plans if name in set(runs.problem)]
    tables: dict[str, Any] = {"overview": overview(runs, problems)}
    rows = []
    for name in problems:
        curve, found, moving = (
            reference[reference.problem == name],
            finals(runs, name),
            finals(runs, name, (CONSTANT, *MOVING)),
        )
        tables[name] = results_table(found, curve)
        tables[f"{name}-chosen"] = chosen_table(runs, name, found, plans[name])
        if name.startswith("digits"):
            tables[f"{name}-strange"] = strange_table(found)
        for group, planned in (("older", OLDER), ("theirs", THEIRS)):
            if other := finals(runs, name, planned):
                tables[f"{name}-{group}"] = results_table(finals(runs, name, (OURS, *planned)), curve)
                tables[f"{name}-{group}-chosen"] = chosen_table(runs, name, other, plans[name])
        if len(moving) > 1:
            tables[f"{name}-moving"] = moving_table(moving)
        rows += summaries(name, found, moving)
    if "digits60k" in problems:
        tables["digits60k-again"] = again_table(read(AGAIN, "runs"), finals(runs, "digits60k"))
    return {"study": "peers", "title": "Beside today's alternatives", "findings": rows, "tables": tables}


def summaries(name: str, found: Rows, moving: Rows) -> list[dict[str, str]]:
    """Return the findings of one problem: beside SGD-M, noise on against off, a moving temperature."""
    if not {OURS, "sgd", "ensemble_cold"} <= found.keys():
        return []
    words = {method: word.split(":")[0] for method, (_, word) in compare(found).items()}
    mean = {method: f"{each.nll.mean():.4f}" for method, each in found.items()}
    title, cold = TITLES[name], mean["ensemble_cold"]
    told = [
        (name, f"{title}: ctld.Ensemble beside SGD-M", words["sgd"], f"nll {mean[OURS]} against {mean['sgd']}"),
        (
            f"{name}-all",
            f"{title}: ctld.Ensemble beside {len(words)} peers",
            counted(words.values()),
            f"nll {mean[OURS]}",
        ),
        (f"{name}-noise", f"{title}: noise on beside off", words["ensemble_cold"], f"nll {mean[OURS]} against {cold}"),
    ]
    for method, (difference, word) in compare(moving, CONSTANT).items() if len(moving) > 1 else ():
        # The comparison is of the constant T; a finding is about the temperature that moves.
        turned = {AHEAD: BEHIND, BEHIND: AHEAD}.get(word, word)
        problem = f"{title}: {EVERY[method].title} beside a constant T"
        told.append((f"{name}-{method}", problem, turned, f"nll {signed(difference)}"))
    return [dict(zip(("id", "problem", "verdict", "numbers"), row, strict=True)) for row in told]


def again_table(again: pd.DataFrame, found: Rows) -> dict[str, Any]:
    """Return nll by seed of `ctld.Ensemble` on two machines."""
    rows = [
        [machine, *(f"{value:.4f}" for value in each), f"{each.mean():.4f}"]
        for machine, each in (
            ("first machine", found[OURS].nll),
            ("second machine", again[again.stage == "final"].nll),
        )
    ]
    return {"head": ["", *(f"seed {seed}" for seed in range(len(rows[0]) - 2)), "mean"], "rows": rows}


def counted(words: Iterable[str]) -> str:
    counts = Counter(words)
    return ", ".join(f"{counts[word]} {word}" for word in (AHEAD, BEHIND, TIE, UNDECIDED) if counts[word])


def signed(difference: Estimate) -> str:
    """Show the difference the other way round: the other less ours."""
    return f"{-difference.mean:+.4f} ± {difference.half_width or math.nan:.4f}"


def shown(numbers: Iterable[float], digits: int) -> str:
    found = estimate(list(numbers))
    spread = f" ± {found.half_width:.{digits}f}" if found.half_width is not None else ""
    return f"{found.mean:.{digits}f}{spread}"
