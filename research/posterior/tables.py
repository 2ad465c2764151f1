"""The stored tables of the study, and what is read from them: distances to NUTS, and UCI regression."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cells import origins, packed, read_csv
from ctld_lab.statistics import AHEAD, BEHIND, TIE, UNDECIDED, Estimate, estimate, unpaired_difference, verdicts
from render import finding, tabled

from .agreement import floor
from .problems import PROBLEMS
from .reference import read
from .regression import METHODS, TRIALS
from .samplers import SAMPLERS

PUBLISHED = Path(__file__).parent
TITLES = {"sgd": "SGD-M", "ensemble": "`ctld.Ensemble`"} | {name: one.title for name, one in SAMPLERS.items()}
LONG, LONG_TIE = 40_000, 0.05  # gradients of part 3; nats a row
PROBLEM_TITLES = {
    "hats": "hats, two explanations",
    "wine": "wine, three classes",
    "diabetes": "diabetes, regression",
    "diabetes-batch": "diabetes, batches drawn with replacement",
    "diabetes-epochs": "diabetes, reshuffled batches",
}
Rows = dict[str, pd.DataFrame]
"""Sampler or method → its final runs on one problem."""


def pack(directory: Path, results: Path) -> None:
    """Write agreement.csv, a row for each chain; regression.csv, a row for each trial and split; origins.csv."""
    tables: dict[str, list[dict[str, Any]]] = {"agreement": [], "regression": [], "origins": origins(directory)}
    for name, cell in packed(directory):
        part, _, method = name.split("/")
        key = {"problem": cell["problem"], "method": method, "gradients": cell["steps"]}
        for stage in ("tuning", "final"):
            for number, rows in enumerate(cell[stage]):
                if part == "agreement":
                    tables[part].append(key | {"stage": stage, "number": number, "curvature": cell["curvature"]} | rows)
                    continue
                tried = enumerate(rows) if stage == "tuning" else [(cell["chosen"][number], rows)]
                for trial, row in tried:
                    at = {"stage": stage, "split": number} | dict(zip(("lr", "prior"), TRIALS[trial], strict=True))
                    tables[part].append(key | at | row | {"cpu_seconds": cell["cpu_seconds"]})
    results.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():  # scores were computed in single precision: nine digits are all of them
        pd.DataFrame(rows).to_csv(
            results / f"{name}.csv", index=False, float_format="%.9g" if name == "regression" else None
        )


def finals(table: pd.DataFrame, problem: str, order: Sequence[str], gradients: Any = None) -> Rows:
    if table.empty:
        return {}
    mine = table[(table.problem == problem) & (table.stage == "final")]
    mine = mine if gradients is None else mine[mine.gradients == gradients]
    return {method: rows for method in order if len(rows := mine[mine.method == method])}


# ---- part 1 ----


def agreement_table(name: str, found: Rows) -> dict[str, Any]:
    """Return a row for each sampler, nearest first, and what independent draws of the reference would have."""
    problem, rows = PROBLEMS[name](), []
    for sampler, each in sorted(found.items(), key=lambda item: item[1].w2.mean()):
        row = {"sampler": SAMPLERS[sampler].title, "tempered": "yes" if SAMPLERS[sampler].tempered else "no"}
        row |= {
            "rate": f"{each.rate.iloc[0]:g}",
            "W2": w2_of(each),
            "total variation": f"{each.total_variation.mean():.3f}",
        }
        if problem.noise is None:
            row["agreement"] = f"{each.agreement.mean():.3f}"
        if problem.mirrored:
            row["right hat, in each chain"] = " ".join(f"{value:.2f}" for value in each.right.dropna())
        trips = [each[of] for of in ("half_trips", "swaps") if of in each and each[of].notna().all()]
        row["cold draws"] = f"{each.draws.mean():.0f}"
        rows.append(row | {"half-trips or swaps": " ".join(f"{count:.0f}" for counts in trips for count in counts)})
    for number in (100, 1000):
        w2, variation = floor(problem, read(problem)[0], number)
        row = {"sampler": f"{number} independent draws", "W2": f"{w2:.3f}", "total variation": f"{variation:.3f}"}
        rows.append(row | {"cold draws": f"{number}"})
    return tabled(rows)


def order_table(orders: Mapping[str, Rows]) -> dict[str, Any]:
    """Return W2 and rate of each sampler on diabetes, by the order of its batches."""
    rows = []
    for sampler in (sampler for sampler in SAMPLERS if all(sampler in found for found in orders.values())):
        cells = {
            title: f"{w2_of(found[sampler])} at {found[sampler].rate.iloc[0]:g}" for title, found in orders.items()
        }
        rows.append({"W2 at rate": SAMPLERS[sampler].title} | cells)
    return tabled(rows)


def references_table() -> dict[str, Any]:
    """Return how well the references have converged."""
    rows = []
    for name in ("hats", "wine", "diabetes"):
        about = read(PROBLEMS[name]())[1]
        row = {
            "problem": name,
            "draws": f"{about['chains']} × {about['draws']:,}",
            "worst R-hat": f"{about['worst_r_hat']:.4f}",
        }
        row |= {"least effective size": f"{about['least_ess_bulk']:,.0f}", "gradients": f"{about['gradients']:,.0f}"}
        rows.append(row | {"divergent": f"{100 * about['divergent']:.2g} %"})
    return tabled(rows)


def tempering_finding(name: str, found: Rows) -> list[dict[str, str]]:
    """Return the best tempered sampler beside the best untempered one: nearer by two standard errors, or a tie."""
    best: dict[bool, tuple[str, Estimate]] = {}
    for sampler, rows in sorted(found.items(), key=lambda item: -item[1].w2.mean()):
        if not rows.w2.map(math.isinf).any():
            best[SAMPLERS[sampler].tempered] = SAMPLERS[sampler].title, estimate(list(rows.w2))
    if len(best) < 2:
        return []
    (hot, near), (cold, other) = best[True], best[False]
    ahead = near.mean < other.mean - 2 * math.hypot(near.error, other.error)
    verdict = AHEAD if ahead else TIE if near.mean < other.mean else BEHIND
    problem = f"{PROBLEM_TITLES[name]}: best tempered beside best untempered"
    return [finding(name, problem, verdict, f"W2 {near.mean:.3f} ({hot}) against {other.mean:.3f} ({cold})")]


# ---- parts 2 and 3 ----


def paired(found: Rows, method: str, other: str) -> Estimate:
    return estimate(list(found[method].log_likelihood.to_numpy() - found[other].log_likelihood.to_numpy()))


def against_sgd(found: Rows) -> dict[str, tuple[Estimate, str]]:
    """Return log-likelihood less that of SGD-M, paired by split; no margin for a tie was fixed beforehand."""
    pairs = {method: paired(found, method, "sgd") for method in found if method != "sgd" and "sgd" in found}
    words = verdicts(pairs, 0.0, lower_is_better=False, planned=len(METHODS) - 1)
    return {method: (pair, words.get(method, UNDECIDED)) for method, pair in pairs.items()}


def scores(each: pd.DataFrame) -> list[str]:
    """Return log-likelihood and RMSE with their standard errors, or why there are none."""
    if without := int((each.draws == 0).sum()):
        return [f"none: no cold draw in {without} of {len(each)} splits", ""]
    return [with_error(each.log_likelihood), with_error(each.rmse)]


def regression_table(name: str, found: Rows) -> dict[str, Any]:
    """Return log-likelihood, paired difference to SGD-M and RMSE of each method, then published numbers."""
    head = ["method", "test log-likelihood ± standard error", "less that of SGD-M (95 %)", "", "RMSE ± standard error"]
    compared, rows = against_sgd(found), []
    for method, each in found.items():
        likelihood, rmse = scores(each)
        difference = [interval(compared[method][0]), compared[method][1]] if method in compared and rmse else ["", ""]
        rows.append([TITLES[method], likelihood, *difference, rmse])
    published = read_csv(PUBLISHED, "published", dtype=str)
    for _, row in published[published.data == name].iterrows():
        rows.append([f"{row.method} ({row.source})", row.log_likelihood, "", "", row.rmse])
    return {"head": head, "rows": rows}


def long_table(found: Rows) -> dict[str, Any]:
    """Return calibrated tempering beside the same sampler without it, where there are many gradients."""
    rows = []
    for method, each in found.items():
        row = dict(zip(("test log-likelihood ± standard error", "RMSE ± standard error"), scores(each), strict=True))
        row = {"sampler": TITLES[method]} | row | {"cold draws": f"{each.draws.mean():.0f}"}
        if method == "calibrated":
            trips = each.half_trips
            row["half-trips, median (least to most)"] = f"{trips.median():.0f} ({trips.min():.0f} to {trips.max():.0f})"
            row["promised"] = f"{each.promised_half_trips.median():.0f}"
            row["splits with a warning"] = f"{each.warned.astype(bool).sum()} of {len(each)}"
        rows.append(row)
    return tabled(rows)


# ---- findings ----


def findings(results: Path) -> dict[str, Any]:
    """Read the findings and every published table from the stored tables."""
    agreement, regression = read_csv(results, "agreement"), read_csv(results, "regression")
    tables, rows = {"references": references_table()}, []
    near = {name: finals(agreement, name, tuple(SAMPLERS)) for name in PROBLEM_TITLES}
    for name, found in near.items():
        if found:
            tables[name] = agreement_table(name, found)
            rows += tempering_finding(name, found)
    if near["diabetes-epochs"]:
        titles = {"diabetes": "all data", "diabetes-batch": "with replacement", "diabetes-epochs": "reshuffled"}
        tables["order"] = order_table({title: near[name] for name, title in titles.items()})
    if {"baoab"} <= near["diabetes-batch"].keys() & near["diabetes-epochs"].keys():
        drawn, epochs = (estimate(list(near[f"diabetes-{order}"]["baoab"].w2)) for order in ("batch", "epochs"))
        verdict = verdicts({0: unpaired_difference(epochs, drawn)}, 0.0)[0]
        numbers = f"W2 {epochs.mean:.3f} against {drawn.mean:.3f}"
        rows.append(finding("order", "diabetes, BAOAB: reshuffled batches beside drawn ones", verdict, numbers))
    for name in [] if regression.empty else list(dict.fromkeys(regression.problem)):
        if found := finals(regression, name, METHODS, regression.gradients.min()):
            tables[name] = regression_table(name, found)
            if pair := against_sgd(found).get("ensemble"):
                what = f"log-likelihood {interval(pair[0])}"
                rows.append(finding(name, f"{name}: ctld.Ensemble beside SGD-M", pair[1], what))
        if len(found := finals(regression, name, ("baoab", "calibrated"), LONG)) == 2:
            tables[f"{name}-long"] = long_table(found)
            rows.append(long_finding(name, found))
    return {"study": "posterior", "title": "Real posteriors", "findings": rows, "tables": tables}


def long_finding(name: str, found: Rows) -> dict[str, str]:
    """Return calibrated less untempered, paired by split; a tie lies within 0.05."""
    pair = paired(found, "calibrated", "baoab")
    verdict = verdicts({name: pair}, LONG_TIE, lower_is_better=False)[name]
    problem = f"{name}, {LONG:,} gradients: calibrated tempering beside none"
    return finding(f"{name}-long", problem, verdict, f"log-likelihood {interval(pair)}")


def w2_of(each: pd.DataFrame) -> str:
    return "none: too few cold draws in a chain" if each.w2.map(math.isinf).any() else with_error(each.w2)


def with_error(values: pd.Series) -> str:
    found = estimate(list(values))
    return f"{found.mean:.3f} ± {found.error:.3f}"


def interval(found: Estimate) -> str:
    low, high = found.ends
    return f"{found.mean:+.3f} ({low:+.3f} to {high:+.3f})"
