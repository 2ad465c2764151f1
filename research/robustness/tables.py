"""From cells to one tidy table, and from the table to findings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from .problems import PROBLEMS

REFERENCE = "SGD"
POINT = ["problem", "lr", "weight_decay", "epochs"]
COLUMNS = [*POINT, "method", "seed", "valid", "test", "members", "seconds"]
WORDS = ("better", "tie", "undecided", "worse")
MARGIN = 0.05


def pack(directory: Path, results: Path) -> None:
    """Write one row for each run, of all complete cells."""
    rows = []
    for path in sorted(directory.glob("*/*.json")):
        cell = json.loads(path.read_text(encoding="utf-8"))
        if cell.get("done"):
            rows += [{"problem": cell["problem"], **run} for run in cell["runs"]]
    results.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows, columns=COLUMNS).sort_values([*POINT, "method", "seed"])
    table.to_csv(results / "runs.csv", index=False, float_format="%.6g")


def load(results: Path) -> pd.DataFrame:
    """Return the runs; `score` is comparable within a problem: log nll of classes, nll of numbers, whose sign is free."""
    table = pd.read_csv(results / "runs.csv")
    number = table["problem"].map(lambda name: PROBLEMS[name].task == "number")
    for kind in ("valid", "test"):
        values = pd.to_numeric(table[kind], errors="coerce")
        table[f"{kind}_score"] = np.where(number, values, np.log(values.where(~number)))
    return table


def verdicts(table: pd.DataFrame, method: str, reference: str = REFERENCE) -> pd.DataFrame:
    """Return a row for each point: mean difference, its 95 % interval by seeds, and a word after Holm's correction."""
    wide = table.set_index([*POINT, "seed", "method"])["test_score"].unstack("method")
    both = (wide[method] - wide[reference]).unstack("seed")
    count = both.notna().sum(axis=1)
    failed = wide[method].unstack("seed").isna().sum(axis=1) > wide[reference].unstack("seed").isna().sum(axis=1)
    mean, error = both.mean(axis=1), both.std(axis=1, ddof=1) / np.sqrt(count)
    half = pd.Series(stats.t.ppf(0.975, count - 1), index=both.index) * error
    p = pd.Series(2 * stats.t.sf((mean / error).abs(), count - 1), index=both.index).fillna(1.0)
    ordered = p.sort_values()
    adjusted = (ordered * np.arange(len(ordered), 0, -1)).cummax().clip(upper=1).reindex(p.index)
    low, high = mean - half, mean + half
    word = np.where(
        high < 0, "better", np.where(low > 0, "worse", np.where((low > -MARGIN) & (high < MARGIN), "tie", "undecided"))
    )
    found = pd.DataFrame({"mean": mean, "low": low, "high": high, "p": p, "holm": adjusted, "word": word})
    found.loc[failed, "word"] = "worse"
    return found.reset_index()


def counts(table: pd.DataFrame, method: str, reference: str = REFERENCE) -> dict[str, int]:
    words = verdicts(table, method, reference)["word"]
    return {word: int((words == word).sum()) for word in WORDS}


def percent(score: float) -> str:
    return f"{100 * np.expm1(score):+.1f} %".replace("-", "−")


def nats(score: float) -> str:
    return f"{score:+.3f}".replace("-", "−")


def regret(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return, by problem and budget, scores against SGD at the lr and weight decay that its validation rows chose."""
    mean = table.groupby([*POINT, "method"])[["valid_score", "test_score"]].mean().reset_index()
    rows = []
    for (problem, epochs), part in mean.groupby(["problem", "epochs"]):
        base = part[part["method"] == REFERENCE]
        tuned = base.loc[base["valid_score"].idxmin(), "test_score"]
        mine = part[part["method"] == method]
        if mine["valid_score"].notna().any():
            rows.append(
                {
                    "problem": problem, "epochs": epochs,
                    "mean": mine["test_score"].mean() - tuned, "worst": mine["test_score"].max(skipna=False) - tuned,
                    "tuned": mine.loc[mine["valid_score"].idxmin(), "test_score"] - tuned,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def findings(results: Path) -> dict[str, Any]:
    table = load(results)
    methods = [name for name in table["method"].unique() if name != REFERENCE]
    order = ["auto cycles, T = 0", "auto cycles, T auto", *[n for n in methods if not n.startswith("auto")]]
    order = [name for name in order if name in methods]
    head = ["method", "better", "tie", "undecided", "worse", "worse after Holm"]
    rows = []
    for method in order:
        found = verdicts(table, method)
        words = [str(int((found["word"] == word).sum())) for word in WORDS]
        rows.append([method, *words, str(int(((found["word"] == "worse") & (found["holm"] < 0.05)).sum()))])
    classes = [name for name in table["problem"].unique() if PROBLEMS[name].task == "classes"]
    numbers = [name for name in table["problem"].unique() if PROBLEMS[name].task == "number"]
    figures = []
    for method in [REFERENCE, *order]:
        found = regret(table, method)
        line = [method]
        for names, show in ((classes, percent), (numbers, nats)):
            part = found[found["problem"].isin(names)]
            line += [show(part[kind].mean()) if len(part) else "–" for kind in ("mean", "worst", "tuned")]
        figures.append(line)
    default = order[0]
    by_problem = []
    for problem in table["problem"].unique():
        show = nats if problem in numbers else percent
        part = verdicts(table[table["problem"] == problem], default)
        cells = [
            f"{show(part.loc[part['epochs'] == epochs, 'mean'].mean())}" for epochs in sorted(part["epochs"].unique())
        ]
        by_problem.append([problem, *cells, *[str(int((part["word"] == word).sum())) for word in WORDS]])
    found = counts(table, default)
    total = sum(found.values())
    certain = int(rows[0][-1])
    noise = counts(table, "auto cycles, T auto", "auto cycles, T = 0")
    own = verdicts(table, default)
    long = own[own["problem"].isin(classes) & (own["epochs"] == own.groupby("problem")["epochs"].transform("max"))]
    by_problem_mean = long.groupby("problem")["mean"].mean()
    spread = stats.t.ppf(0.975, len(by_problem_mean) - 1) * by_problem_mean.sem()
    gain = by_problem_mean.mean()
    ends = f"{percent(gain - spread)} to {percent(gain + spread)}"
    lines = [
        {
            "id": "default", "problem": f"the default beside SGD, {total} settings that nobody tuned",
            "verdict": f"better in {found['better']}, worse in {found['worse']}",
            "numbers": ", ".join(f"{found[word]} {word}" for word in WORDS) + f"; {certain} worse after Holm's correction",
        },
        {
            "id": "long",
            "problem": f"the default beside SGD, long budgets, {len(by_problem_mean)} problems with classes",
            "verdict": "ahead" if gain + spread < 0 else "undecided",
            "numbers": f"nll {percent(gain)} ({ends}, by problems)",
        },
        {
            "id": "noise", "problem": "noise on against noise off, same cycles",
            "verdict": "noise adds nothing" if noise["better"] <= noise["worse"] else "noise helps",
            "numbers": ", ".join(f"{noise[word]} {word}" for word in WORDS),
        },
    ]  # fmt: skip
    return {
        "study": "robustness",
        "title": "The ensemble's default",
        "findings": lines,
        "tables": {
            "verdicts": {"head": head, "rows": rows},
            "figures": {
                "head": ["method", "classes: mean", "worst", "tuned", "numbers: mean", "worst", "tuned"],
                "rows": figures,
            },
            "problems": {"head": ["problem", "short", "long", *WORDS], "rows": by_problem},
        },
    }
