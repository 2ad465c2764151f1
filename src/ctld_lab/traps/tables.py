"""What the stored runs say: shares solved, paired comparisons, and the range of temperatures that do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from ctld_lab.files import MissingRecord, read_json
from ctld_lab.report.statistics import holm
from ctld_lab.traps.methods import LEVELS, METHODS, NOISY, ONE_PASS
from ctld_lab.traps.study import cell_path

MARGIN = 0.05
"""A difference of less is a tie, if the interval says so."""
LEVEL = 0.05
LATER = ("rbf32-batch", "relu16-batch", "relu24-batch")
"""Problems that were planned when the others had been read: their comparisons are corrected by themselves."""
LEAST_SUCCESS = 0.1
"""Of the best method, for a range of good temperatures to mean something."""


@dataclass(frozen=True)
class Cell:
    """One method on one problem."""

    solved_at: NDArray[np.int64]
    """Gradients until solved in the final runs, 0 if never."""
    chosen: Mapping[str, Any]
    scan: NDArray[np.float64] | None
    """Share solved at each temperature, None where that was not looked at."""
    budget: int

    @property
    def solved(self) -> NDArray[np.bool_]:
        return self.solved_at > 0

    @property
    def success(self) -> float:
        return float(self.solved.mean())

    @property
    def at_edge(self) -> bool:
        """Whether the choice lies at an end of the thirteen levels, where better ones may lie beyond."""
        return self.chosen["level"] in (0, LEVELS - 1)


Results = dict[str, dict[str, Cell]]
"""By problem and method; complete problems alone."""


def load(directory: Path, problems: Sequence[str]) -> tuple[Results, list[str]]:
    """Returns what is complete, and the names of the problems that are not."""
    results: Results = {}
    missing = []
    for problem in problems:
        cells = {method: _cell(cell_path(directory, problem, method)) for method in METHODS}
        if all(cell is not None for cell in cells.values()):
            results[problem] = {method: cell for method, cell in cells.items() if cell is not None}
        else:
            missing.append(problem)
    return results, missing


def _cell(path: Path) -> Cell | None:
    try:
        stored = read_json(path)
    except MissingRecord:
        return None
    if "final" not in stored:
        return None
    scan = (np.array(stored["scan"]["solved_at"]) > 0).mean(axis=1) if "scan" in stored else None
    return Cell(np.array(stored["final"]["solved_at"]), stored["tuning"]["chosen"], scan, stored["size"]["budget"])


# ---- shares ----


def success(results: Results) -> pd.DataFrame:
    """One row for each problem and method: the share solved with its 95 % interval (Wilson), how soon, and the tuned point."""
    rows = []
    for problem, cells in results.items():
        for method, cell in cells.items():
            interval = stats.binomtest(int(cell.solved.sum()), len(cell.solved)).proportion_ci(method="wilson")
            times = cell.solved_at[cell.solved]
            chosen = cell.chosen["setting"]
            rows.append(
                {
                    "problem": problem,
                    "method": method,
                    "solved": cell.success,
                    "low": interval.low,
                    "high": interval.high,
                    "median_gradients": float(np.median(times)) if len(times) else np.nan,
                    "lr": chosen["lr"],
                    "momentum": chosen["momentum"],
                    "temperature": chosen["temperature"],
                    "runs": chosen["runs"],
                    "fading": chosen["fading"],
                    "at_edge": cell.at_edge,
                    "tuning_solved": cell.chosen["solved"],
                }
            )
    return pd.DataFrame(rows)


# ---- comparisons ----


def _pair(results: Results, problem: str, method: str, against: str) -> dict[str, Any]:
    """McNemar's exact test, and the paired difference with Agresti and Min's interval, which is not empty at 0 : 0."""
    mine, other = (results[problem][name].solved for name in (method, against))
    only, not_mine, count = int((mine & ~other).sum()), int((other & ~mine).sum()), len(mine)
    p = float(stats.binomtest(only, only + not_mine).pvalue) if only + not_mine else 1.0
    centre = (only - not_mine) / (count + 2)
    spread = 1.96 * np.sqrt((only + not_mine + 1) - (only - not_mine) ** 2 / (count + 2)) / (count + 2)
    return {
        "problem": problem,
        "method": method,
        "against": against,
        "difference": (only - not_mine) / count,
        "low": float(centre - spread),
        "high": float(centre + spread),
        "only_method": only,
        "only_other": not_mine,
        "p": p,
    }


def compare(results: Results, methods: Sequence[str], against: str) -> pd.DataFrame:
    """Each of the methods against one other, on all problems, corrected over those that were planned together."""
    frame = pd.DataFrame([_pair(results, problem, method, against) for problem in results for method in methods])
    corrected: dict[int, float] = {}
    for _, family in frame.groupby(frame["problem"].isin(LATER)):
        corrected |= holm(family["p"].to_dict())
    frame["corrected_p"] = [corrected[place] for place in frame.index]
    frame["verdict"] = [_verdict(row) for row in frame.to_dict("records")]
    return frame


def _verdict(row: Mapping[Any, Any]) -> str:
    if row["corrected_p"] < LEVEL:
        return "ahead" if row["difference"] > 0 else "behind"
    return "tie" if row["low"] > -MARGIN and row["high"] < MARGIN else "undecided"


# ---- temperatures ----


def ranges(results: Results) -> pd.DataFrame:
    """The levels of T at which at least half as many are solved as by the best method; a quarter decade each."""
    rows = []
    for problem, cells in results.items():
        best = max(cell.success for cell in cells.values())
        for method, cell in cells.items():
            if cell.scan is None:
                continue
            good = np.flatnonzero(cell.scan >= 0.5 * best) if best >= LEAST_SUCCESS else np.array([], dtype=int)
            coldest = cell.chosen["setting"]["temperature"] / 10.0 ** (cell.chosen["level"] / 4.0)
            rows.append(
                {
                    "problem": problem,
                    "method": method,
                    "decades": 0.25 * len(good) if best >= LEAST_SUCCESS else np.nan,
                    "lowest": coldest * 10.0 ** (good[0] / 4.0) if len(good) else np.nan,
                    "highest": coldest * 10.0 ** (good[-1] / 4.0) if len(good) else np.nan,
                    "open": bool(len(good) and (good[0] == 0 or good[-1] == LEVELS - 1)),
                    "best_in_scan": float(cell.scan.max()),
                }
            )
    return pd.DataFrame(rows)


# ---- as text ----


def _grid(methods: Sequence[str], problems: Sequence[str], entry: Callable[[str, str], str]) -> str:
    """In Markdown, methods down and problems across; an entry is made of a problem and a method."""
    rows = [[METHODS[method].title, *(entry(problem, method) for problem in problems)] for method in methods]
    header, *body = (f"| {' | '.join(line)} |" for line in [["method", *problems], *rows])
    return "\n".join([header, f"|{'---|' * (len(problems) + 1)}", *body])


def success_text(results: Results) -> str:
    """Per cent solved; the highest in bold, a choice at the edge of its levels with a star."""
    highest = {problem: max(cell.success for cell in cells.values()) for problem, cells in results.items()}

    def entry(problem: str, method: str) -> str:
        cell = results[problem][method]
        text = f"{100 * cell.success:.0f}"
        text = f"**{text}**" if cell.success == highest[problem] else text
        return text + ("\\*" if cell.at_edge else "")

    return _grid(list(METHODS), list(results), entry)


def _of_frame(frame: pd.DataFrame, entry: Callable[[Mapping[Any, Any]], str]) -> str:
    """A problem and method that has no row gets a dash."""
    known = {(row["problem"], row["method"]): row for row in frame.to_dict("records")}
    problems, methods = (list(dict.fromkeys(frame[name])) for name in ("problem", "method"))

    def found(problem: str, method: str) -> str:
        return entry(known[problem, method]) if (problem, method) in known else "–"

    return _grid(methods, problems, found)


def comparison_text(frame: pd.DataFrame) -> str:
    """The difference in percentage points and the verdict."""
    return _of_frame(frame, lambda row: f"{100 * row['difference']:+.0f} {row['verdict']}")


def range_text(frame: pd.DataFrame) -> str:
    """Width in decades; ≥ where the range reaches an end of the grid."""
    return _of_frame(
        frame, lambda row: "–" if np.isnan(row["decades"]) else f"{'≥ ' if row['open'] else ''}{row['decades']:.2f}"
    )


def chosen_text(results: Results) -> str:
    """What tuning chose: lr, momentum, and T, the number of runs or the end of lr."""

    def entry(problem: str, method: str) -> str:
        point = results[problem][method].chosen["setting"]
        more = f"T {point['temperature']:.2g}" if method in NOISY else f"× {point['fading']:.2g}"
        more = f"{point['runs']} runs" if method == "restarts" else more
        return f"{point['lr']:.2g}, {point['momentum']:g}, {more}"

    return _grid(list(METHODS), list(results), entry)


def texts(results: Results) -> dict[str, str]:
    """Returns the tables of docs/traps.md by name."""
    return {
        "success": success_text(results),
        "restarts": comparison_text(compare(results, NOISY, "restarts")),
        "constant": comparison_text(compare(results, ONE_PASS[1:], "constant")),
        "ranges": range_text(ranges(results)),
        "chosen": chosen_text(results),
    }
