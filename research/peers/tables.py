"""The stored tables of the study, and the findings and tables that are read from them."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from cells import origins, packed, read_csv
from ctld_lab.statistics import AHEAD, BEHIND, MARGIN, UNDECIDED, Estimate, estimate, verdicts
from render import finding, tabled
from verdicts import counted

from .methods import EVERY, METHODS, MOVING, NEVER_COLD, OLDER, THEIRS
from .plans import PLANS, Plan
from .scores import equivalent

REFERENCE, OURS, CONSTANT = "reference", "ensemble", "ensemble_tuned"
AGAIN = Path(__file__).parent / "again"
"""The runs of `ctld.Ensemble` with 60,000 digits, repeated on a second machine."""
TITLES = {"wine": "Wines", "digits5k": "5,000 digits", "digits60k": "60,000 digits", "text": "Characters of a text"}
STRANGE = [
    f"{kind}, {by}" for kind in ("halves of two digits", "photographs") for by in ("entropy", "mutual information")
]
Rows = dict[str, pd.DataFrame]
"""Method → its final runs on one problem, by seed."""


def pack(directory: Path, results: Path) -> None:
    """Write runs.csv, a row for each trial and final run; reference.csv, a row for each number of networks; origins.csv."""
    runs, curves = [], []
    for _, cell in packed(directory):
        key = {name: cell[name] for name in ("problem", "method")} | {"machine": cell["environments"][0].get("machine")}
        for stage in ("trials", "final"):
            for number, run in enumerate(cell.get(stage, ())):
                curve = run.pop("curve", ())
                curves += [key | run | {"networks": count} | row for count, row in enumerate(curve, start=1)]
                run.pop("seed", None)
                options = dict(run.pop("options", cell["chosen"]))
                point = {"stage": stage, "number": number} | {
                    name: options.pop(name) for name in ("lr", "weight_decay")
                }
                runs += [] if curve else [key | point | {"third": next(iter(options.values()), None)} | run]
    results.mkdir(parents=True, exist_ok=True)
    for name, rows in (("runs", runs), ("reference", curves), ("origins", origins(directory))):
        pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False)


# ---- comparisons ----


def finals(runs: pd.DataFrame, problem: str, methods: Iterable[str] = METHODS) -> Rows:
    chosen = runs[(runs.problem == problem) & (runs.stage == "final")]
    return {method: rows for method in methods if len(rows := chosen[chosen.method == method])}


def compare(found: Rows, ours: str = OURS) -> dict[str, tuple[Estimate, str]]:
    """Return our nll less each other method's, paired by seed, and what ours is beside it; all are corrected together.

    A method that has no prediction in some seed is behind, ours too. A tie lies within 5 % of the other's nll.
    """
    own, others = found[ours], {method: rows for method, rows in found.items() if method != ours}
    differences = {m: estimate([a - b for a, b in zip(own.nll, rows.nll, strict=True)]) for m, rows in others.items()}
    if lost(own):
        words = {method: UNDECIDED if lost(rows) else f"{BEHIND}: ours diverged" for method, rows in others.items()}
    else:
        margins = {method: MARGIN * rows.nll.mean() for method, rows in others.items() if not lost(rows)}
        words = verdicts({method: differences[method] for method in margins}, margins)
        words |= {method: f"{AHEAD}: it {fate(rows)}" for method, rows in others.items() if lost(rows)}
    return {method: (differences[method], words[method]) for method in others}


def lost(rows: pd.DataFrame) -> int:
    """Return how many runs have no prediction."""
    return int(rows.nll.map(math.isinf).sum())


def fate(rows: pd.DataFrame) -> str:
    """Say what became of runs that have no prediction."""
    return "had no cold draw" if set(rows.failed[rows.nll.map(math.isinf)]) == {NEVER_COLD} else "diverged"


# ---- tables ----


def results_table(found: Rows, reference: pd.DataFrame) -> dict[str, Any]:
    """Return a row for each method, the lowest nll first; seconds only where one machine did everything."""
    compared, rows = compare(found), []
    timed = len({machine for each in found.values() for machine in each.machine}) == 1
    for method, each in sorted(found.items(), key=lambda item: item[1].nll.mean()):
        verdict = compared[method][1] if method in compared else ""
        row = {"method": EVERY[method].title, "nll (± 95 %)": nll_of(each), "ctld.Ensemble is": verdict}
        if lost(each):
            row |= dict.fromkeys(("scaled nll", "error %", "ECE %", "worth, networks"), "–")
        else:
            row |= {"scaled nll": shown(each.scaled_nll, 4), "error %": shown(100 * each.error, 2)}
            row |= {"ECE %": f"{100 * each.ece.mean():.1f}", "worth, networks": worth(each, reference)}
        rows.append(row | ({"CPU s": f"{each.seconds.mean():.1f}"} if timed else {}))
    return tabled(rows)


def worth(rows: pd.DataFrame, reference: pd.DataFrame) -> str:
    """Return the number of networks, each with all the gradients, that reach the scaled nll: the mean over seeds."""
    curves = [list(curve.scaled_nll) for _, curve in reference.groupby("seed")]
    found = [equivalent(value, curve) for value, curve in zip(rows.scaled_nll, curves, strict=True)]
    return f"{sum(found) / len(found):.1f}" + (" or more" if max(found) >= reference.networks.max() else "")


def moving_table(found: Rows) -> dict[str, Any]:
    """Return temperatures that move beside the constant one, with the mean temperature while they explored."""
    compared, rows = compare(found, CONSTANT), []
    for method, each in found.items():
        chosen, (difference, verdict) = each.third.iloc[0], compared.get(method, (None, ""))
        ratio = each.mean_ratio.mean() if "mean_ratio" in each and each.mean_ratio.notna().any() else 1.0
        less = "" if difference is None else "–" if lost(each) else turned(difference)
        row = {"": EVERY[method].title, "nll (± 95 %)": nll_of(each), "less that of the constant T": less}
        rows.append(row | {"constant T is": verdict, "T chosen": f"{chosen:.3g}", "mean T": f"{chosen * ratio:.3g}"})
    return tabled(rows)


def strange_table(found: Rows) -> dict[str, Any]:
    """Return the AUROC of telling strange inputs from known ones, in per cent."""

    def told(each: pd.DataFrame, column: str) -> str:
        return shown(100 * each[column], 1) if each[column].notna().all() else "–"

    return tabled([{"method": EVERY[m].title} | {c: told(each, c) for c in STRANGE} for m, each in found.items()])


def chosen_table(runs: pd.DataFrame, problem: str, methods: Iterable[str], plan: Plan) -> dict[str, Any]:
    """Return what the trials chose, with a star near an end of what was searched."""
    rows = []
    for method in methods:
        mine = runs[(runs.problem == problem) & (runs.method == method)]
        chosen, trials, entries = mine[mine.stage == "final"].iloc[0], mine[mine.stage == "trials"], []
        for name, (low, high) in plan.searched(method).items():
            value = chosen.get(name if name in ("lr", "weight_decay") else "third")
            at_end = min(value / low, high / value) < (high / low) ** 0.0625
            entries.append(f"{name} {value:.3g}" + ("\\*" if at_end else ""))
        best = f"{trials.nll.min():.4f}" if math.isfinite(trials.nll.min()) else f"all trials {fate(trials)}"
        rows.append({"method": EVERY[method].title, "chosen": ", ".join(entries), "validation nll": best})
    return tabled(rows)


def overview(runs: pd.DataFrame, problems: Iterable[str]) -> dict[str, Any]:
    """Return nll and verdict of every method on every problem; each group is corrected by itself."""
    rows = {method: {"method": EVERY[method].title} for method in METHODS | OLDER | THEIRS}
    for problem in problems:
        for group in (METHODS, {OURS: None} | OLDER, {OURS: None} | THEIRS):
            found = finals(runs, problem, group)
            words = {method: f" {word.split(':')[0]}" for method, (_, word) in compare(found).items()} | {OURS: ""}
            for method, each in found.items():
                mean = fate(each) if lost(each) else f"{each.nll.mean():.4f}"
                rows[method][TITLES[problem]] = mean + words[method]
    return tabled([row for row in rows.values() if len(row) > 1], missing="–")


# ---- findings ----


def findings(results: Path) -> dict[str, Any]:
    """Read the findings and every published table from the stored tables."""
    runs, reference = read_csv(results, "runs"), read_csv(results, "reference")
    trials = runs.number[runs.stage == "trials"].max() + 1
    plans = next(plans for plans in PLANS.values() if plans["wine"].trials == trials)
    problems = [name for name in plans if name in set(runs.problem)]
    tables: dict[str, Any] = {"overview": overview(runs, problems)}
    rows: list[dict[str, str]] = []
    for name in problems:
        curve, found, moving = (
            reference[reference.problem == name],
            finals(runs, name),
            finals(runs, name, [CONSTANT, *MOVING]),
        )
        tables |= {name: results_table(found, curve), f"{name}-chosen": chosen_table(runs, name, found, plans[name])}
        if name.startswith("digits"):
            tables[f"{name}-strange"] = strange_table(found)
        for group, planned in ((f"{name}-older", OLDER), (f"{name}-theirs", THEIRS)):
            if other := finals(runs, name, planned):
                tables[group] = results_table({OURS: found[OURS]} | other, curve)
                tables[f"{group}-chosen"] = chosen_table(runs, name, other, plans[name])
        if len(moving) > 1:
            tables[f"{name}-moving"] = moving_table(moving)
        rows += summaries(name, found, moving)
    if "digits60k" in problems:
        again = {
            "first machine": finals(runs, "digits60k"),
            "second machine": finals(read_csv(AGAIN, "runs"), "digits60k"),
        }
        both = {machine: [f"{value:.4f}" for value in found[OURS].nll] for machine, found in again.items()}
        tables["digits60k-again"] = {
            "head": ["", *map(str, range(5))],
            "rows": [[name, *row] for name, row in both.items()],
        }
    return {"study": "peers", "title": "Beside today's alternatives", "findings": rows, "tables": tables}


def summaries(name: str, found: Rows, moving: Rows) -> list[dict[str, str]]:
    """Return the findings of one problem: beside SGD-M and all peers, noise on against off, a moving temperature."""
    words = {method: word.split(":")[0] for method, (_, word) in compare(found).items()}
    nll, title = {method: f"{each.nll.mean():.4f}" for method, each in found.items()}, TITLES[name]
    others = {"sgd": (name, "ctld.Ensemble beside SGD-M"), "ensemble_cold": (f"{name}-noise", "noise on beside off")}
    told = [
        finding(where, f"{title}: {what}", words[method], f"nll {nll[OURS]} against {nll[method]}")
        for method, (where, what) in others.items()
    ]
    told.append(
        finding(
            f"{name}-all",
            f"{title}: ctld.Ensemble beside {len(words)} peers",
            counted(pd.Series(words)),
            f"nll {nll[OURS]}",
        )
    )
    for method, (difference, word) in compare(moving, CONSTANT).items():
        # The comparison is of the constant T; a finding is about the temperature that moves.
        word = {AHEAD: BEHIND, BEHIND: AHEAD}.get(word, word)
        problem = f"{title}: {EVERY[method].title} beside a constant T"
        told.append(finding(f"{name}-{method}", problem, word, f"nll {turned(difference)}"))
    return told


def nll_of(rows: pd.DataFrame) -> str:
    return f"{lost(rows)} of {len(rows)} {fate(rows)}" if lost(rows) else shown(rows.nll, 4)


def turned(difference: Estimate) -> str:
    """Show a difference the other way round: the other less ours."""
    return f"{-difference.mean:+.4f} ± {difference.half_width or math.nan:.4f}"


def shown(numbers: pd.Series, digits: int) -> str:
    found = estimate(list(numbers))
    return f"{found.mean:.{digits}f}" + (f" ± {found.half_width:.{digits}f}" if found.half_width is not None else "")
