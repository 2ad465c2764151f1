"""Tables of the study of peers, from its stored runs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ctld_lab.files import write_bytes
from ctld_lab.peers.methods import EVERY, METHODS, MOVING, NEVER_COLD, OLDER, THEIRS
from ctld_lab.peers.scores import equivalent
from ctld_lab.peers.study import REFERENCE, Plan, read
from ctld_lab.report.markdown import table
from ctld_lab.report.statistics import LEVEL, UNDECIDED, Estimate, estimate, holm, within_margin

OURS = "ensemble"
CONSTANT = "ensemble_tuned"
"""What temperatures that move are compared with: one that does not, tuned as they are."""
Cells = dict[str, dict[str, Any]]


def load(directory: Path, name: str, plan: Plan, methods: Iterable[str] = (*METHODS, REFERENCE)) -> Cells:
    """What is complete, by method."""
    found = {method: read(directory, name, method, plan) for method in methods}
    return {method: cell for method, cell in found.items() if cell is not None}


def values(cell: Mapping[str, Any], metric: str) -> list[float]:
    """By seed; infinite where the run diverged."""
    return [float(run.get(metric, math.inf)) for run in cell["final"]]


def compare(cells: Cells, metric: str = "nll", ours: str = OURS) -> dict[str, tuple[Estimate, str]]:
    """`ctld.Ensemble` less each other method, paired by seed and corrected for how many there are (Holm)."""
    own, found, words = values(cells[ours], metric), {}, {}
    others = [method for method in cells if method not in (ours, REFERENCE)]
    for method in others:
        theirs = values(cells[method], metric)
        found[method] = estimate([mine - other for mine, other in zip(own, theirs, strict=True)])
        if not all(map(math.isfinite, own)):
            words[method] = "behind: ours diverged" if all(map(math.isfinite, theirs)) else UNDECIDED
        elif not all(map(math.isfinite, theirs)):
            words[method] = f"ahead: it {_fate(cells[method])}"
    corrected = holm({method: 0.0 if method in words else each.probability for method, each in found.items()})
    for method, p in corrected.items():
        if method in words:
            continue
        if p < 1.0 - LEVEL:
            words[method] = "ahead" if found[method].mean < 0 else "behind"
        else:
            words[method] = within_margin(found[method], estimate(values(cells[method], metric)).mean)
    return {method: (found[method], words[method]) for method in found}


def machines(cells: Cells) -> set[str]:
    """Those that made the final runs; seconds of one say nothing about another's."""
    runs = [
        (run, cell.get("environment", {})) for name, cell in cells.items() if name in EVERY for run in cell["final"]
    ]
    return {str(run.get("machine") or environment.get("machine")) for run, environment in runs}


def worth(cells: Cells, method: str) -> list[float]:
    """By seed, in networks of a deep ensemble of which each has all the gradients."""
    pairs = zip(cells[method]["final"], cells[REFERENCE]["final"], strict=True)
    return [equivalent(float(run.get("scaled_nll", math.inf)), other["curve"]) for run, other in pairs]


def results_text(cells: Cells) -> str:
    """One line for each method, the lowest nll first; with the processor's seconds, where one machine did it all."""
    compared = compare(cells) if OURS in cells else {}
    timed, rows = len(machines(cells)) == 1, []
    for method in sorted((name for name in cells if name in EVERY), key=lambda name: _order(cells[name])):
        cell = cells[method]
        diverged = sum(not math.isfinite(value) for value in values(cell, "nll"))
        verdict = compared[method][1] if method in compared else ""
        seconds = [f"{estimate(values(cell, 'seconds')).mean:.1f}"] if timed else []
        if diverged:
            rows.append(
                [
                    EVERY[method].title,
                    f"{diverged} of {len(cell['final'])} {_fate(cell)}",
                    verdict,
                    *["–"] * 4,
                    *seconds,
                ]
            )
            continue
        counted = worth(cells, method) if REFERENCE in cells else []
        rows.append(
            [
                EVERY[method].title,
                _shown(values(cell, "nll"), 4),
                verdict,
                _shown(values(cell, "scaled_nll"), 4),
                _shown([100 * value for value in values(cell, "error")], 2),
                f"{100 * estimate(values(cell, 'ece')).mean:.1f}",
                _networks(counted, cells),
                *seconds,
            ]
        )
    head = [
        "method",
        "nll (± 95 %)",
        f"{METHODS[OURS].title} is",
        "scaled nll",
        "error %",
        "ECE %",
        "worth, networks",
        *(["CPU s"] if timed else []),
    ]
    return table(head, rows)


def moving_text(cells: Cells) -> str:
    """Temperatures that move, beside the constant one; with how hot they were on average while they explored."""
    compared, rows = compare(cells, ours=CONSTANT), []
    for method in (CONSTANT, *MOVING):
        cell = cells[method]
        difference, verdict = compared.get(method, (None, ""))
        half = "" if difference is None or difference.half_width is None else f" ± {difference.half_width:.4f}"
        less = "" if difference is None else f"{-difference.mean:+.4f}{half}"
        nll = _shown(values(cell, "nll"), 4)
        if lost := sum(not math.isfinite(value) for value in values(cell, "nll")):
            nll, less = f"{lost} of {len(cell['final'])} {_fate(cell)}", "–"
        ratios = [run["mean_ratio"] for run in cell["final"] if "mean_ratio" in run]
        mean = cell["chosen"]["temperature"] * (estimate(ratios).mean if ratios else 1.0)
        rows.append(
            [
                EVERY[method].title,
                nll,
                less,
                verdict,
                f"{cell['chosen']['temperature']:.3g}",
                f"{mean:.3g}",
            ]
        )
    return table(["", "nll (± 95 %)", "less that of the constant T", "constant T is", "T chosen", "mean T"], rows)


def strange_text(cells: Cells) -> str:
    """AUROC of telling strange inputs from known ones, in per cent."""
    keys = dict.fromkeys(key for cell in cells.values() for run in cell["final"] for key in run)
    kinds = [key.removesuffix(", entropy") for key in keys if key.endswith(", entropy")]
    rows = []
    for method in (name for name in METHODS if name in cells):
        runs = cells[method]["final"]
        entries = [
            _shown([100 * run[f"{kind}, {by}"] for run in runs], 1)
            if all(f"{kind}, {by}" in run for run in runs)
            else "–"
            for kind in kinds
            for by in ("entropy", "mutual information")
        ]
        rows.append([METHODS[method].title, *entries])
    return table(["method", *(f"{kind}, {by}" for kind in kinds for by in ("entropy", "mutual information"))], rows)


def chosen_text(cells: Cells, plan: Plan) -> str:
    """What the trials chose, with a star at an end of what was searched."""
    rows = []
    for method in (name for name in EVERY if name in cells):
        ranges, entries = plan.searched(method), []
        for name, value in cells[method]["chosen"].items():
            low, high = ranges[name]
            at_end = min(value / low, high / value) < (high / low) ** 0.0625
            entries.append(f"{name} {value:.3g}" + ("\\*" if at_end else ""))
        best = min(float(trial["nll"]) for trial in cells[method]["trials"])
        told = f"{best:.4f}" if math.isfinite(best) else f"all trials {_fate(cells[method])}"
        rows.append([EVERY[method].title, ", ".join(entries), told])
    return table(["method", "chosen", "validation nll"], rows)


def texts(directory: Path, plans: Mapping[str, Plan]) -> dict[str, str]:
    """By the name of the place in docs/peers.md; problems that are not complete are left out."""
    found = {}
    for name, plan in plans.items():
        moving = load(directory, name, plan, (CONSTANT, *MOVING))
        if len(moving) == len(MOVING) + 1:
            found[f"{name}-moving"] = moving_text(moving)
        for group, planned in (("older", OLDER), ("theirs", THEIRS)):
            wanted = [method for method, row in planned.items() if name not in row.not_for]
            later = load(directory, name, plan, (OURS, *wanted, REFERENCE))
            if wanted and len(later) == len(wanted) + 2:
                chosen = {method: later[method] for method in wanted}
                found[f"{name}-{group}"] = f"{results_text(later)}\n\n{chosen_text(chosen, plan)}"
        cells = load(directory, name, plan)
        if cells.keys() >= {REFERENCE, *(method for method, row in METHODS.items() if name not in row.not_for)}:
            found[name] = results_text(cells)
            found[f"{name}-chosen"] = chosen_text(cells, plan)
            if name.startswith("digits"):
                found[f"{name}-strange"] = strange_text(cells)
    return found


def write(directory: Path, plans: Mapping[str, Plan]) -> dict[str, str]:
    """Writes DIRECTORY/tables.md, and returns the tables by name."""
    made = texts(directory, plans)
    page = "\n\n".join(f"## {name}\n\n{text}" for name, text in made.items())
    write_bytes(directory / "tables.md", (page + "\n").encode())
    return made


def _fate(cell: Mapping[str, Any]) -> str:
    """What became of a method's runs that have no prediction."""
    reasons = {run.get("failed") for run in cell["final"] if not math.isfinite(float(run["nll"]))}
    return "had no cold draw" if reasons == {NEVER_COLD} else "diverged"


def _order(cell: Mapping[str, Any]) -> float:
    found = values(cell, "nll")
    return sum(found) / len(found)


def _shown(numbers: Sequence[float], digits: int) -> str:
    found = estimate(numbers)
    spread = f" ± {found.half_width:.{digits}f}" if found.half_width is not None else ""
    return f"{found.mean:.{digits}f}{spread}"


def _networks(counted: Sequence[float], cells: Cells) -> str:
    if not counted:
        return "–"
    most = len(cells[REFERENCE]["final"][0]["curve"])
    mean = sum(counted) / len(counted)
    return f"{mean:.1f}" + (" or more" if any(value >= most for value in counted) else "")
