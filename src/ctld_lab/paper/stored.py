"""The one place that knows how results are stored: everything the page shows of ours comes through here."""

import re
from pathlib import Path

import pandas as pd

from ctld_lab.records import RecordError
from ctld_lab.report.reading import read_study

PAPER, LAPTOP = "paper", "laptop"


class Stored:
    """Published tables below `results`, by scale ("paper", "laptop") and study."""

    def __init__(self, results: Path) -> None:
        self._results = results

    def _table(self, scale: str, study: str, name: str) -> pd.DataFrame:
        path = self._results / scale / study
        if not (path / "study.json").is_file():
            raise RecordError(f"{path} must hold a published study (study.json). Give --results its parent's folder.")
        record = read_study(path)
        if record.problem:
            raise RecordError(record.problem)
        return record.table(name)

    def curves(self, study: str, split: str, metric: str) -> pd.DataFrame:
        """Return curves at the paper's size: method, variant, stage, step, mean, and the number of seeds."""
        frame = self._table(PAPER, study, "curves")
        chosen = frame[(frame["split"] == split) & (frame["metric"] == metric)]
        return chosen.rename(columns={"count": "seeds"})[["method", "variant", "stage", "step", "mean", "seeds"]]

    def finals(self, study: str, scale: str = PAPER, table: str = "final") -> pd.DataFrame:
        """Return what finished runs came to, a row for each metric: mean, low, high, seeds, planned, diverged, mark."""
        frame = self._table(scale, study, table).rename(columns={"count": "seeds"})
        return frame[frame["metric"] != ""]

    def temperatures(self) -> pd.DataFrame:
        """Return CTLD's exploration of the autoencoder by layer: cold_share and highest_ratio."""
        return self._table(PAPER, "sda", "temperature")

    def ratios(self) -> pd.DataFrame:
        """Return 1/g(α) by step, in the last layer of the autoencoder while it explores."""
        return self._table(PAPER, "sda", "trace")

    def chosen_rates(self, study: str) -> dict[str, float]:
        """Return the learning rate that equal trials chose at laptop size, by method."""
        frame = self._table(LAPTOP, study, "tuning")
        found = {}
        for method, text in zip(frame["method"], frame["chosen"], strict=True):
            if match := re.match(r"lr ([\d.e+\-−]+)", text):
                found[method] = float(match[1].replace("−", "-"))
        return found

    def trials(self, study: str) -> int:
        """Return how many trials each of these rates was chosen from."""
        return int(self._table(LAPTOP, study, "tuning")["trials"].max())

    def steps(self, study: str) -> int:
        """Return the iterations of one run at laptop size."""
        settings = read_study(self._results / LAPTOP / study).settings
        if study == "timing":
            return int(settings["rounds"]) * int(settings["batches"])
        return int(settings["steps"])

    def laws(self) -> pd.DataFrame:
        """Return the chains on the double well: sampler, dimensions, and two averages as ratios to the exact ones."""
        finals = self.finals("double-well", LAPTOP, "exactness")
        wide = finals.pivot(index=["method", "variant"], columns="metric", values=["mean", "low", "high", "seeds"])
        lines = []
        for (label, variant), row in wide.iterrows():
            dimensions = int(str(label).removeprefix("d = ").replace(",", ""))
            for name, exact in (("kinetic_temperature", "kinetic_target"), ("mean_square", "mean_square_exact")):
                values = [row[column, name] / row["mean", exact] for column in ("mean", "low", "high")]
                lines.append([str(variant), dimensions, name, *values, int(row["seeds", name])])
        wells = self._table(LAPTOP, "tempering", "wells")
        for _, row in wells[wells["tempering"] == "calibrated"].iterrows():
            for name, column in (("kinetic_temperature", "kinetic_temperature"), ("mean_square", "mean_square_ratio")):
                mean, error = float(row[column]), 1.96 * float(row[f"{column}_error"])
                lines.append(
                    ["calibrated", int(row["dimensions"]), name, mean, mean - error, mean + error, int(row["runs"])]
                )
        return pd.DataFrame(lines, columns=["sampler", "dimensions", "average", "mean", "low", "high", "seeds"])

    def chains(self, tempering: str) -> int:
        """Return how many chains of Theorem 2 ran at once."""
        return int(read_study(self._results / LAPTOP / "double-well").settings["theorem"][tempering]["replicas"])

    def rates(self) -> pd.DataFrame:
        """Return the exponents of Theorem 2: tempering, quantity, variable, slope, standard_error, bound, misfit."""
        return self._table(LAPTOP, "double-well", "theorem")

    def rate_points(self) -> pd.DataFrame:
        """Return what they were fitted to: tempering, quantity, variable, at, value, standard_error."""
        return self._table(LAPTOP, "double-well", "theorem-points")
