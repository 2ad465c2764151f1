"""The one place that knows how results are stored: everything the page shows of ours comes through here."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pandas as pd

from ctld_lab.records import RecordError
from ctld_lab.report.chains import wells
from ctld_lab.report.curves import curves
from ctld_lab.report.double_well import theorem
from ctld_lab.report.provenance import Search, searches
from ctld_lab.report.reading import StudyRecord, read_study
from ctld_lab.report.tables import final_table
from ctld_lab.report.temperature import temperatures
from ctld_lab.report.tidy import SE, parts, point_text

PAPER, LAPTOP = "paper", "laptop"
COLUMNS = ["method", "variant", "point", "metric", "mean", "low", "high", "seeds", "planned", "diverged", "mark"]


@cache
def _read(path: Path) -> StudyRecord:
    if not (path / "study.json").is_file():
        raise RecordError(f"{path} must hold a published study (study.json). Give --results its parent's folder.")
    record = read_study(path)
    if record.problem:
        raise RecordError(record.problem)
    return record


class Stored:
    """Published tables below `results`, by scale ("paper", "laptop") and study."""

    def __init__(self, results: Path) -> None:
        self._results = results

    def _study(self, scale: str, study: str) -> StudyRecord:
        return _read(self._results / scale / study)

    def curves(self, study: str, split: str, metric: str) -> pd.DataFrame:
        """Return curves at the paper's size: method, variant, stage, step, mean, and the number of seeds."""
        found = curves(self._study(PAPER, study), f"{split} {metric}").rename(columns={"count": "seeds"})
        return found[["method", "variant", "stage", "step", "mean", "seeds"]]

    def finals(self, study: str, scale: str = PAPER) -> pd.DataFrame:
        """Return what finished runs came to, a row for each metric: mean, low, high, seeds, planned, diverged, mark."""
        lines, rows = [], final_table(self._study(scale, study))
        every = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
        for row in rows:
            for metric in every if row.diverged else row.metrics:  # what diverged has no numbers, and is told
                found, names = row.estimate(metric), [row.method, row.variant, point_text(row.point), metric]
                states = [row.planned, row.diverged, row.marks.get(metric, "")]
                lines.append([*names, found.mean, *found.ends, found.count, *states])
        return pd.DataFrame(lines, columns=COLUMNS)

    def temperatures(self) -> pd.DataFrame:
        """Return CTLD's exploration of the autoencoder by layer: cold_share and highest_ratio."""
        return temperatures(self._study(PAPER, "sda"))

    def ratios(self) -> pd.DataFrame:
        """Return 1/g(α) by step, in the last layer of the autoencoder while it explores."""
        found = self._study(PAPER, "sda").places("temperature_ratio").rename(columns={"value": "temperature_ratio"})
        return found[found["stage"] == found["stage"].max()]

    def _searches(self, study: str) -> Sequence[Search]:
        return searches(self._study(LAPTOP, study))

    def chosen_rates(self, study: str) -> dict[str, float]:
        """Return the learning rate that equal trials chose at laptop size, by method."""
        return {search.name: search.chosen["lr"] for search in self._searches(study) if search.chosen}

    def steps(self, study: str) -> int:
        """Return the iterations of one run at laptop size."""
        settings = self._study(LAPTOP, study).settings
        if study == "timing":
            return int(settings["rounds"]) * int(settings["batches"])
        return int(settings["steps"])

    def laws(self) -> pd.DataFrame:
        """Return the chains on the double well: sampler, dimensions, and two averages as ratios to the exact ones."""
        finals = self.finals("double-well", LAPTOP)
        wide = finals.pivot(index=["method", "variant"], columns="metric", values=["mean", "low", "high", "seeds"])
        lines = []
        for (label, variant), row in wide.iterrows():
            dimensions = int(str(label).removeprefix("d = ").replace(",", ""))
            for name, exact in (("kinetic_temperature", "kinetic_target"), ("mean_square", "mean_square_exact")):
                values = [row[column, name] / row["mean", exact] for column in ("mean", "low", "high")]
                lines.append([str(variant), dimensions, name, *values, int(row["seeds", name])])
        found = wells(self._study(LAPTOP, "tempering"))
        for _, row in found[found["tempering"] == "calibrated"].iterrows():
            for name, column in (("kinetic_temperature", "kinetic_temperature"), ("mean_square", "mean_square_ratio")):
                mean, error = float(row[column]), 1.96 * float(row[f"{column}_error"])
                lines.append(
                    ["calibrated", int(row["dimensions"]), name, mean, mean - error, mean + error, int(row["runs"])]
                )
        return pd.DataFrame(lines, columns=["sampler", "dimensions", "average", "mean", "low", "high", "seeds"])

    def chains(self, tempering: str) -> int:
        """Return how many chains of Theorem 2 ran at once."""
        return int(self._study(LAPTOP, "double-well").settings["theorem"][tempering]["replicas"])

    def rates(self) -> pd.DataFrame:
        """Return the exponents of Theorem 2: tempering, quantity, variable, slope, standard_error, bound, misfit."""
        return theorem(self._study(LAPTOP, "double-well"))[0]

    def rate_points(self) -> pd.DataFrame:
        """Return what they were fitted to: tempering, quantity, variable, at, value, standard_error."""
        return theorem(self._study(LAPTOP, "double-well"))[1]

    def noise(self) -> pd.DataFrame:
        """Return what minibatch noise of size s adds to the bias that stays.

        The columns are tempering, d, compensated, s, added, half (of its 95 % interval), slope and slope_error.
        """
        study = self._study(LAPTOP, "double-well")
        table = study.table[study.table["variant"] == "s"]
        lines = []
        for (tempering, text), own in table.groupby(["method", "point"], sort=False):
            point, fit = parts(str(text)), own[own["at"] == "fit"].set_index("metric")["value"]
            runs = own[own["at"] != "fit"].pivot_table(index="at", columns="metric", values="value", sort=False)
            runs.index = [parts(str(at))["s"] for at in runs.index]
            none, error = runs.loc[0.0], f"limit{SE}"
            for s, row in runs[runs.index > 0].iterrows():
                half = 1.96 * (row[error] ** 2 + none[error] ** 2) ** 0.5
                numbers = [row["limit"] - none["limit"], half, fit["limit slope"], fit[f"limit slope{SE}"]]
                lines.append([tempering, int(point["d"]), bool(point["compensated"]), s, *numbers])
        return pd.DataFrame(
            lines, columns=["tempering", "d", "compensated", "s", "added", "half", "slope", "slope_error"]
        )

    def noise_chains(self, dimensions: int) -> int:
        """Return how many chains with minibatch noise ran at once."""
        return int(self._study(LAPTOP, "double-well").settings["noise"]["replicas"][str(dimensions)])
