"""The stored tables of the study, and what is read from them: distances to NUTS, and UCI regression."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ctld_lab.statistics import BEHIND, UNDECIDED, Estimate, estimate, verdicts

from .agreement import floor
from .problems import PROBLEMS
from .reference import read
from .regression import METHODS, TRIALS
from .samplers import SAMPLERS

PUBLISHED = Path(__file__).parent / "published.csv"
TITLES = {"sgd": "SGD-M", "ensemble": "`ctld.Ensemble`"} | {name: one.title for name, one in SAMPLERS.items()}
LONG, LONG_TIE = 40_000, 0.05  # gradients of part 3; nats a row
PROBLEM_TITLES = {
    "hats": "two explanations",
    "wine": "three classes",
    "diabetes": "regression",
    "diabetes-batch": "regression, batches drawn with replacement",
    "diabetes-epochs": "regression, reshuffled batches",
}


# ---- from cells to tables ----


def pack(directory: Path, results: Path) -> None:
    """Write agreement.csv, a row for each chain; regression.csv, a row for each trial and split; origins.csv."""
    tables: dict[str, list[dict[str, Any]]] = {"agreement": [], "regression": [], "origins": []}
    for path in sorted(directory.glob("*/*/*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        part = path.parent.parent.name
        if not cell.get("done") or part not in tables:
            continue
        key = {"problem": cell["problem"], "method": path.stem, "gradients": cell["steps"]}
        for stamp in cell["environments"]:
            versions = {f"{name} version": value for name, value in stamp["versions"].items()}
            rest = {name: value for name, value in stamp.items() if name != "versions"}
            tables["origins"].append({"part": part} | key | rest | versions)
        tables[part] += (_chains if part == "agreement" else _splits)(cell, key)
    results.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        if rows:
            pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False)


def _chains(cell: Mapping[str, Any], key: Mapping[str, Any]) -> list[dict[str, Any]]:
    stages = [(stage, number, row) for stage in ("tuning", "final") for number, row in enumerate(cell[stage])]
    return [
        {**key, "stage": stage, "number": number, "curvature": cell["curvature"], **row}
        for stage, number, row in stages
    ]


def _splits(cell: Mapping[str, Any], key: Mapping[str, Any]) -> list[dict[str, Any]]:
    trials = [("tuning", split, at, row) for split, each in enumerate(cell["tuning"]) for at, row in enumerate(each)]
    finals = [("final", split, cell["chosen"][split], row) for split, row in enumerate(cell["final"])]
    return [
        {**key, "stage": stage, "split": split, "lr": TRIALS[at][0], "prior": TRIALS[at][1], **row}
        | {"cpu_seconds": cell["cpu_seconds"]}
        for stage, split, at, row in (*trials, *finals)
    ]


def stored(results: Path, name: str) -> pd.DataFrame:
    path = results / f"{name}.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame()


def finals(table: pd.DataFrame, problem: str, order: Sequence[str], gradients: Any = None) -> dict[str, pd.DataFrame]:
    """Return the final rows of one problem by method."""
    if table.empty:
        return {}
    mine = table[(table.problem == problem) & (table.stage == "final")]
    mine = mine if gradients is None else mine[mine.gradients == gradients]
    return {method: rows for method in order if len(rows := mine[mine.method == method])}


# ---- part 1 ----


def agreement_table(name: str, found: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return a row for each sampler, nearest first, and what independent draws of the reference would have."""
    problem = PROBLEMS[name]()
    reference, _ = read(problem)
    third = "agreement" if problem.noise is None else "right" if problem.mirrored else ""
    rows = []
    for sampler, each in sorted(found.items(), key=lambda item: item[1].w2.mean()):
        far = each.w2.map(math.isinf).any()
        more = each[third].dropna() if third and third in each else pd.Series(dtype=float)
        extra = (
            f"{more.mean():.3f}" if third == "agreement" and len(more) else " ".join(f"{value:.2f}" for value in more)
        )
        trips = [
            row[of] for _, row in each.iterrows() for of in ("half_trips", "swaps") if of in each and row[of] == row[of]
        ]
        rows.append(
            [
                SAMPLERS[sampler].title,
                "yes" if SAMPLERS[sampler].tempered else "no",
                f"{each.rate.iloc[0]:g}",
                "none: too few cold draws in a chain" if far else with_error(estimate(list(each.w2))),
                f"{each.total_variation.mean():.3f}",
                *([extra] if third else []),
                f"{each.draws.mean():.0f}",
                " ".join(f"{count:.0f}" for count in trips),
            ]
        )
    for number in (100, 1000):
        w2, variation = floor(problem, reference, number)
        independent = [f"{number} independent draws", "", "", f"{w2:.3f}", f"{variation:.3f}"]
        rows.append([*independent, *([""] if third else []), f"{number}", ""])
    extra_head = {"agreement": ["agreement"], "right": ["right hat, in each chain"], "": []}[third]
    head = ["sampler", "tempered", "rate", "W2", "total variation", *extra_head, "cold draws", "half-trips or swaps"]
    return {"head": head, "rows": rows}


def order_table(orders: Mapping[str, Mapping[str, pd.DataFrame]]) -> dict[str, Any]:
    """Return W2 and rate of each sampler on diabetes with all data, with batches drawn, and with reshuffled epochs."""
    rows = []
    for sampler in SAMPLERS:
        cells = [SAMPLERS[sampler].title]
        for found in orders.values():
            each = found.get(sampler)
            far = each is None or each.w2.map(math.isinf).any()
            cells.append("–" if far else f"{with_error(estimate(list(each.w2)))} at {each.rate.iloc[0]:g}")
        rows.append(cells)
    return {"head": ["sampler: W2 at rate", "all data", "with replacement", "reshuffled"], "rows": rows}


def references_table() -> dict[str, Any]:
    """Return how well the references have converged."""
    rows = []
    for name in ("hats", "wine", "diabetes"):
        _, about = read(PROBLEMS[name]())
        rows.append(
            [
                name,
                f"{about['chains']} × {about['draws']:,}",
                f"{about['worst_r_hat']:.4f}",
                f"{about['least_ess_bulk']:,.0f}",
                f"{about['gradients']:,.0f}",
                f"{100 * about['divergent']:.2g} %",
            ]
        )
    return {"head": ["problem", "draws", "worst R-hat", "least effective size", "gradients", "divergent"], "rows": rows}


def nearest(found: Mapping[str, pd.DataFrame], tempered: bool) -> tuple[str, Estimate] | None:
    """Return the sampler with the least mean W2 among those that have a predictive in every chain."""
    mine = {name: estimate(list(rows.w2)) for name, rows in found.items() if SAMPLERS[name].tempered == tempered}
    mine = {name: each for name, each in mine.items() if not found[name].w2.map(math.isinf).any()}
    return min(mine.items(), key=lambda item: item[1].mean, default=None)


def tempering_finding(name: str, found: Mapping[str, pd.DataFrame]) -> list[dict[str, str]]:
    """Return the best tempered sampler beside the best untempered one: nearer by two standard errors, or a tie."""
    pair = nearest(found, True), nearest(found, False)
    if pair[0] is None or pair[1] is None:
        return []
    (hot, best), (cold, other) = pair[0], pair[1]
    error = math.hypot(best.error, other.error)
    verdict = "ahead" if best.mean < other.mean - 2 * error else "tie" if best.mean < other.mean else BEHIND
    numbers = f"W2 {best.mean:.3f} ({SAMPLERS[hot].title}) against {other.mean:.3f} ({SAMPLERS[cold].title})"
    problem = f"{name}, {PROBLEM_TITLES[name]}: best tempered beside best untempered"
    return [{"id": name, "problem": problem, "verdict": verdict, "numbers": numbers}]


# ---- parts 2 and 3 ----


def likelihoods(rows: pd.DataFrame) -> list[float]:
    return list(rows.log_likelihood)


def against_sgd(found: Mapping[str, pd.DataFrame]) -> dict[str, tuple[Estimate, str]]:
    """Return log-likelihood less that of SGD-M, paired by split; no margin for a tie was fixed beforehand."""
    base = likelihoods(found["sgd"])
    pairs = {
        method: estimate([mine - other for mine, other in zip(likelihoods(rows), base, strict=True)])
        for method, rows in found.items()
        if method != "sgd"
    }
    words = verdicts(pairs, 0.0, lower_is_better=False, planned=len(METHODS) - 1)
    return {method: (pair, words.get(method, UNDECIDED)) for method, pair in pairs.items()}


def regression_table(name: str, found: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return log-likelihood, paired difference to SGD-M and RMSE of each method, then published numbers."""
    compared, rows = against_sgd(found) if "sgd" in found else {}, []
    for method, each in found.items():
        difference, verdict = "", ""
        if method in compared:
            pair, verdict = compared[method]
            difference = interval(pair)
        rmse = with_error(estimate(list(each.rmse)))
        cells = [with_error(estimate(likelihoods(each))), difference, verdict, rmse]
        if without := int((each.draws == 0).sum()):
            cells = [f"none: no cold draw in {without} of {len(each)} splits", "", "", ""]
        rows.append([TITLES[method], *cells])
    published = pd.read_csv(PUBLISHED, dtype=str)
    for _, row in published[published.data == name].iterrows():
        rows.append([f"{row.method} ({row.source})", row.log_likelihood, "", "", row.rmse])
    head = ["method", "test log-likelihood ± standard error", "less that of SGD-M (95 %)", "", "RMSE ± standard error"]
    return {"head": head, "rows": rows}


def long_table(found: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """Return calibrated tempering beside the same sampler without it, where there are many gradients."""
    rows = []
    for method, each in found.items():
        travels = ["", "", ""]
        if method == "calibrated":
            trips = each.half_trips
            made = f"{trips.median():.0f} ({trips.min():.0f} to {trips.max():.0f})"
            travels = [
                made,
                f"{each.promised_half_trips.median():.0f}",
                f"{each.warned.astype(bool).sum()} of {len(each)}",
            ]
        shown = [with_error(estimate(list(each[of]))) for of in ("log_likelihood", "rmse")]
        if without := int((each.draws == 0).sum()):
            shown = [f"none: no cold draw in {without} of {len(each)} splits", ""]
        rows.append([TITLES[method], *shown, f"{each.draws.mean():.0f}", *travels])
    head = ["sampler", "test log-likelihood ± standard error", "RMSE ± standard error", "cold draws"]
    return {"head": [*head, "half-trips, median (least to most)", "promised", "splits with a warning"], "rows": rows}


def long_finding(name: str, found: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """Return calibrated less untempered, paired by split; a tie lies within 0.05."""
    pair = estimate(list(np.subtract(likelihoods(found["calibrated"]), likelihoods(found["baoab"]))))
    verdict = verdicts({name: pair}, LONG_TIE, lower_is_better=False)[name]
    problem = f"{name}, {LONG:,} gradients: calibrated tempering beside none"
    return {"id": f"{name}-long", "problem": problem, "verdict": verdict, "numbers": f"log-likelihood {interval(pair)}"}


# ---- findings ----


def findings(results: Path) -> dict[str, Any]:
    """Read the findings and every published table from the stored tables."""
    agreement, regression = stored(results, "agreement"), stored(results, "regression")
    tables, rows = {"references": references_table()}, []
    for name in PROBLEM_TITLES:
        if found := finals(agreement, name, tuple(SAMPLERS)):
            tables[name] = agreement_table(name, found)
            rows += tempering_finding(name, found)
    orders = {
        name: finals(agreement, name, tuple(SAMPLERS)) for name in ("diabetes", "diabetes-batch", "diabetes-epochs")
    }
    if orders["diabetes"]:
        tables["order"] = order_table(orders)
    sets = [] if regression.empty else list(dict.fromkeys(regression.problem))
    for name in sets:
        if found := finals(regression, name, METHODS, regression.gradients.min()):
            tables[name] = regression_table(name, found)
        if found and {"sgd", "ensemble"} <= found.keys():
            pair, verdict = against_sgd(found)["ensemble"]
            problem = f"{name}: ctld.Ensemble beside SGD-M"
            rows.append(
                {"id": name, "problem": problem, "verdict": verdict, "numbers": f"log-likelihood {interval(pair)}"}
            )
    for name in sets:
        if found := finals(regression, name, ("baoab", "calibrated"), LONG):
            tables[f"{name}-long"] = long_table(found)
            rows.append(long_finding(name, found))
    return {"study": "posterior", "title": "Real posteriors", "findings": rows, "tables": tables}


def with_error(found: Estimate) -> str:
    return f"{found.mean:.3f} ± {found.error:.3f}"


def interval(found: Estimate) -> str:
    low, high = found.ends
    return f"{found.mean:+.3f} ({low:+.3f} to {high:+.3f})"
