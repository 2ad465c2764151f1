"""Chains whose answer is known: averages at g = 1 put together over runs, beside the exact ones."""

import numpy as np
import pandas as pd

from ctld_lab.report import tidy
from ctld_lab.report.reading import StudyRecord

ORDER = ("calibrated", "calibrated auto", "half-the-force", "paper", "driven", "constant")
"""In which temperings are shown."""
WELL = "double-well"
RATIOS = {
    "kinetic temperature": "kinetic_temperature",
    "configurational temperature": "configurational_temperature",
    "x²": "mean_square_ratio",
}


def averages(study: StudyRecord) -> pd.DataFrame:
    """Return a row for each tempering, target, dimension and average: mean, error, runs, expected and expected_error.

    Runs are independent and of equal length. Their standard errors are those that they measured, from batch means.
    """
    table = study.table[study.table["at"] == ""]
    values = table[~table["metric"].str.endswith(tidy.SE)].set_index(tidy.COLUMNS[:-1])["value"]
    errors = table[table["metric"].str.endswith(tidy.SE)]
    errors = errors.assign(metric=errors["metric"].str.removesuffix(tidy.SE)).set_index(tidy.COLUMNS[:-1])["value"]
    keys = ["method", "variant", "point", "metric"]
    groups = pd.DataFrame({"value": values, "error": errors}).groupby(keys, sort=False)
    found = groups["value"].agg(mean="mean", least="min", most="max", runs="size")
    found["error"] = groups["error"].agg(lambda own: np.sqrt((own**2).sum(skipna=False)) / len(own))
    found = found.reset_index().rename(columns={"method": "tempering", "variant": "target", "metric": "average"})
    found["dimensions"] = found["point"].str.removeprefix("d=").replace("", "0").astype(int)
    known = pd.concat([found[found["tempering"] == name] for name in ("exact", "reference")]).fillna({"error": 0.0})
    places = ["target", "point", "average"]
    right = known.drop_duplicates(places).set_index(places)[["mean", "error"]].add_prefix("expected_")
    found = found[~found["tempering"].isin(["exact", "reference"])].join(right, on=places)
    return found.rename(columns={"expected_mean": "expected"}).sort_values(
        ["target", "dimensions", "tempering"], key=lambda column: column.map(_rank) if column.name == "tempering" else column,
        kind="stable", ignore_index=True,
    )  # fmt: skip


def _rank(label: str) -> tuple[int, int]:
    word, _, period = label.partition(" over ")
    return [*ORDER, word].index(word), int(period or 0)


def targets(study: StudyRecord) -> pd.DataFrame:
    """Return the averages on targets other than the double well whose right value is known, with `errors_away`."""
    found = averages(study)
    found = found[(found["target"] != WELL) & found["expected"].notna()]
    away = (found["mean"] - found["expected"]) / np.hypot(found["error"], found["expected_error"])
    return found.assign(errors_away=away)


def wells(study: StudyRecord) -> pd.DataFrame:
    """Return a row for each dimension and tempering on the double well, with ratios to the exact averages and their errors.

    `crossing_ratio` is that to chains without tempering.
    """
    found = averages(study)
    found = found[found["target"] == WELL]
    alone = found[(found["tempering"] == "constant") & (found["dimensions"] == 0)].set_index("average")
    lines = []
    for (dimensions, tempering), own in found[found["dimensions"] > 0].groupby(["dimensions", "tempering"], sort=False):
        by = own.set_index("average")
        line = {"dimensions": dimensions, "tempering": tempering, "runs": int(by["runs"].max())}
        for name, column in RATIOS.items():
            exact = by.at[name, "expected"] if name in by.index else np.nan
            line[column] = by["mean"].get(name, np.nan) / exact
            line[f"{column}_error"] = by["error"].get(name, np.nan) / abs(exact)
        rate, error = (by[column].get("crossing rate", np.nan) for column in ("mean", "error"))
        base, base_error = (alone[column].get("crossing rate", np.nan) for column in ("mean", "error"))
        line["crossing_ratio"] = ratio = rate / base
        line["crossing_ratio_error"] = np.hypot(error, ratio * base_error) / base
        line["largest_total_variation"] = by["most"].get("total variation", np.nan)
        line["fewest_half_trips"] = by["least"].get("half trips", np.nan)
        lines.append(line)
    steps = study.table[
        (study.table["at"] == "run") & (study.table["metric"] == "steps") & (study.table["variant"] == WELL)
    ]
    made = steps.groupby(["method", "point"])["value"].max()
    return pd.DataFrame(lines).assign(steps=[made.get((x["tempering"], f"d={x['dimensions']}"), np.nan) for x in lines])
