"""Tables of the study of bad minima: packed from cells, judged, drawn, and summed up as findings.

Each problem is one CSV file. A row is one point of the design in one stage: `solved_at` has the gradients until each replica
was solved, 0 if never. The final row of a method has its loss for each replica, and the setting that tuning chose.
"""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from cells import read
from render import write
from traps.methods import LEVELS, METHODS, NOISY, ONE_PASS, Setting
from verdicts import AHEAD, counted, judged

MARGIN = 0.05
"""A difference of less is a tie, if the interval says so."""
LATER = ("rbf32-batch", "relu16-batch", "relu24-batch")
"""Problems that were planned when the others had been read: their comparisons are corrected by themselves."""
LEAST_SUCCESS = 0.1
"""Share that the best method must solve for a range of good temperatures to mean something."""
COLUMNS = [
    "method",
    "stage",
    "pair",
    "level",
    "solved",
    "gradients",
    "loss",
    "solved_at",
    *Setting.__dataclass_fields__,
]


# ---- packing ----


def pack(directory: Path, results: Path, problems: Sequence[str]) -> None:
    """Write the CSV of each complete problem, what made it, the tables and the figures."""
    runs, stamps = [], []
    for problem in problems:
        cells = {method: read(directory, f"{problem}/{method}") for method in METHODS}
        if not all(cell.get("done") for cell in cells.values()):
            continue
        rows = [row for method, cell in cells.items() for row in _rows(method, cell)]
        write(results / f"{problem}.csv", pd.DataFrame(rows, columns=COLUMNS).to_csv(index=False))
        for method, cell in cells.items():
            stamps += [stamp for stamp in cell["environments"] if stamp not in stamps]
            places = " ".join(str(stamps.index(stamp)) for stamp in cell["environments"])
            facts = {"problem": problem, "method": method, **cell["size"], "seconds": cell["seconds"]}
            runs.append(facts | {"environments": places})
    if runs:
        write(results / "runs.csv", pd.DataFrame(runs).to_csv(index=False))
        write(results / "environments.json", json.dumps(stamps, indent=0) + "\n")
        show(results, load(results))


def _rows(method: str, cell: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    for trial in cell["tuning"]["trials"]:
        shown = {name: f"{float(trial[name]):.8g}" for name in ("gradients", "loss")}
        yield {"method": method, "stage": "tuning", **trial, **shown}
    chosen = cell["tuning"]["chosen"]
    for level, times in enumerate(cell.get("scan", {}).get("solved_at", ())):
        yield {"method": method, "stage": "scan", "pair": chosen["pair"], "level": level, **_times(times)}
    final = {
        "loss": " ".join(f"{float(loss):.5g}" for loss in cell["final"]["loss"]),
        **_times(cell["final"]["solved_at"]),
    }
    point = {"pair": chosen["pair"], "level": chosen["level"], **chosen["setting"]}
    yield {"method": method, "stage": "final", **point, **final}


def _times(times: Sequence[int]) -> dict[str, Any]:
    return {"solved": sum(map(bool, times)), "solved_at": " ".join(map(str, times))}


# ---- reading ----


@dataclass(frozen=True)
class Cell:
    """One method on one problem."""

    solved_at: NDArray[np.int64]
    """Gradients until solved in the final runs, 0 if never."""
    setting: Setting
    level: int
    tuning_solved: int
    scan: NDArray[np.float64] | None
    """Share solved at each temperature; None where the temperature was not scanned."""
    budget: int

    @property
    def solved(self) -> NDArray[np.bool_]:
        return self.solved_at > 0

    @property
    def success(self) -> float:
        return float(self.solved.mean())

    @property
    def at_edge(self) -> bool:
        """True if the choice lies at an end of the thirteen levels, where better ones may lie beyond."""
        return self.level in (0, LEVELS - 1)


Results = dict[str, dict[str, Cell]]
"""By problem and method."""


def load(results: Path, problems: Sequence[str] = ()) -> Results:
    """Return the stored problems, in the order given."""
    runs = pd.read_csv(results / "runs.csv").set_index(["problem", "method"])
    names = [name for name in problems or dict.fromkeys(runs.index.get_level_values(0)) if name in runs.index]
    found: Results = {}
    for problem in names:
        frame = pd.read_csv(results / f"{problem}.csv", dtype={"solved_at": str, "loss": str})
        cells = {}
        for method, rows in frame.groupby("method", sort=False):
            final = rows[rows["stage"] == "final"].iloc[0]
            trial = rows[
                (rows["stage"] == "tuning") & (rows["pair"] == final["pair"]) & (rows["level"] == final["level"])
            ]
            scan = [_share(times) for times in rows[rows["stage"] == "scan"]["solved_at"]]
            cells[str(method)] = Cell(
                _numbers(final["solved_at"]),
                Setting(**{name: final[name] for name in Setting.__dataclass_fields__} | {"runs": int(final["runs"])}),
                int(final["level"]),
                int(trial["solved"].iloc[0]),
                np.array(scan) if scan else None,
                int(runs.loc[(problem, method), "budget"]),
            )
        found[problem] = cells
    return found


def _numbers(text: str) -> NDArray[np.int64]:
    return np.array(text.split(), dtype=np.int64)


def _share(text: str) -> float:
    return float((_numbers(text) > 0).mean())


# ---- judging ----


def success(results: Results) -> pd.DataFrame:
    """Return the share solved with its 95 % interval (Wilson), how soon, and the tuned point."""
    rows = []
    for problem, cells in results.items():
        for method, cell in cells.items():
            interval = stats.binomtest(int(cell.solved.sum()), len(cell.solved)).proportion_ci(method="wilson")
            times = cell.solved_at[cell.solved]
            row = {
                "problem": problem,
                "method": method,
                "solved": cell.success,
                "low": interval.low,
                "high": interval.high,
            }
            row["median_gradients"] = float(np.median(times)) if len(times) else np.nan
            rows.append(row | asdict(cell.setting) | {"at_edge": cell.at_edge, "tuning_solved": cell.tuning_solved})
    return pd.DataFrame(rows)


def compare(results: Results, methods: Sequence[str], against: str) -> pd.DataFrame:
    """Judge each method against one other, on all problems."""
    rows = []
    for problem, cells in results.items():
        for method in methods:
            mine, other = cells[method].solved, cells[against].solved
            rows.append({"problem": problem, "method": method, "against": against} | paired(mine, other))
    frame = pd.DataFrame(rows)
    return judged(frame, MARGIN, frame["problem"].isin(LATER))


def paired(mine: NDArray[np.bool_], other: NDArray[np.bool_]) -> dict[str, Any]:
    """Return McNemar's exact test, and the paired difference with Agresti and Min's interval, not empty at 0 : 0."""
    only, not_mine, count = int((mine & ~other).sum()), int((other & ~mine).sum()), len(mine)
    p = float(stats.binomtest(only, only + not_mine).pvalue) if only + not_mine else 1.0
    centre = (only - not_mine) / (count + 2)
    spread = 1.96 * np.sqrt((only + not_mine + 1) - (only - not_mine) ** 2 / (count + 2)) / (count + 2)
    interval = {"low": float(centre - spread), "high": float(centre + spread)}
    return {"difference": (only - not_mine) / count, **interval, "only_method": only, "only_other": not_mine, "p": p}


def ranges(results: Results) -> pd.DataFrame:
    """Return the levels of T at which at least half as many are solved as by the best method; a quarter decade each."""
    rows = []
    for problem, cells in results.items():
        best = max(cell.success for cell in cells.values())
        for method, cell in cells.items():
            if cell.scan is None:
                continue
            known = best >= LEAST_SUCCESS
            good = np.flatnonzero(cell.scan >= 0.5 * best) if known else np.array([], dtype=int)
            coldest = cell.setting.temperature / 10.0 ** (cell.level / 4.0)
            row = {"problem": problem, "method": method, "decades": 0.25 * len(good) if known else np.nan}
            row["lowest"] = coldest * 10.0 ** (good[0] / 4.0) if len(good) else np.nan
            row["highest"] = coldest * 10.0 ** (good[-1] / 4.0) if len(good) else np.nan
            row["open"] = bool(len(good) and (good[0] == 0 or good[-1] == LEVELS - 1))
            rows.append(row | {"best_in_scan": float(cell.scan.max())})
    return pd.DataFrame(rows)


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """Return the published tables by name."""
    return {
        "success": success(results),
        "against-restarts": compare(results, NOISY, "restarts"),
        "against-constant": compare(results, ONE_PASS[1:], "constant"),
        "ranges": ranges(results),
    }


# ---- findings ----


def findings(directory: Path, titles: Mapping[str, str]) -> dict[str, Any]:
    """Return one finding for each problem, and those over all problems."""
    results = load(directory, tuple(titles))
    made = frames(results)
    restarts, moving = made["against-restarts"], made["against-constant"]
    rows = []
    for problem, cells in results.items():
        best = max(NOISY, key=lambda method: cells[method].success)
        shares = {name: f"{100 * cells[name].success:.0f} %" for name in ("restarts", best)}
        numbers = f"{shares[best]} {METHODS[best].title}; {shares['restarts']} restarts"
        verdict = counted(restarts[restarts["problem"] == problem]["verdict"])
        rows.append({"id": problem, "problem": titles[problem], "verdict": verdict, "numbers": numbers})
    for name, title, part in (
        ("paper", "The paper's α against restarts, all problems", restarts[restarts["method"] == "paper"]),
        ("moving", "A moving temperature against a constant one, one pass", moving),
    ):
        won = part[part["verdict"] == AHEAD].sort_values("difference", ascending=False)
        shown = [
            f"{row.problem} {100 * row.difference:+.0f}{f' ({row.method})' * (name == 'moving')}"
            for row in won.itertuples()
        ]
        numbers = f"ahead, in points: {', '.join(shown) or 'none'}"
        rows.append({"id": name, "problem": title, "verdict": counted(part["verdict"]), "numbers": numbers})
    if "relu24" in results:
        scans = [results["relu24"][f"cycles-{keep}-constant"] for keep in ("state", "best")]
        at = [f"{100 * cell.scan[cell.level]:.0f}" for cell in scans if cell.scan is not None]
        other = max(np.delete(cell.scan, cell.level).max() for cell in scans if cell.scan is not None)
        numbers = f"{' and '.join(at)} % of 24 at the chosen T, at most {100 * other:.0f} % at any other of thirteen"
        title = "How exactly T must be chosen for cycles with 24 ReLU units"
        rows.append({"id": "sharpness", "problem": title, "verdict": "within a quarter decade", "numbers": numbers})
    return {"study": "traps", "title": "Bad minima", "findings": rows, "tables": {}}


# ---- figures ----

STYLE = {
    "font.size": 8,
    "svg.fonttype": "none",
    "svg.hashsalt": "traps",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SHOWN = dict(
    zip(
        (
            "sgd",
            "restarts",
            "constant",
            "paper",
            "cycles-state-constant",
            "cycles-best-constant",
            "cycles-new-constant",
        ),
        ("#777777", "#000000", "#56B4E9", "#E69F00", "#0072B2", "#009E73", "#D55E00"),
        strict=True,
    )
)


def show(directory: Path, results: Results) -> None:
    """Write the tables as CSV and the figures as SVG."""
    for name, frame in frames(results).items():
        write(directory / "tables" / f"{name}.csv", frame.to_csv(index=False, float_format="%.5g"))
    write(directory / "figures" / "within.svg", figure(results, [*SHOWN], _within, "gradients"))
    noisy = [method for method in SHOWN if method != "sgd"]
    drawn = figure(results, noisy, _by_temperature, "T/N, in units of the loss", log=True)
    write(directory / "figures" / "temperature.svg", drawn)


def figure(results: Results, methods: Sequence[str], points: Any, xlabel: str, log: bool = False) -> str:
    """Return an SVG: the share solved, a panel for each problem."""
    columns = min(4, len(results))
    with rc_context(STYLE):
        sheet = Figure(figsize=(2.4 * columns, 1.9 * -(-len(results) // columns) + 0.6), layout="constrained")
        axes = sheet.subplots(-(-len(results) // columns), columns, sharey=True, squeeze=False).flat
        for axis, (problem, cells) in zip(axes, results.items(), strict=False):
            for method in methods:
                axis.plot(*points(cells, method), color=SHOWN[method], lw=1, label=METHODS[method].title)
            axis.set(
                title=problem, xlabel=xlabel, ylim=(-0.03, 1.03), yticks=(0, 0.5, 1), xscale="log" if log else "linear"
            )
        handles, labels = sheet.axes[0].get_legend_handles_labels()
        sheet.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        made = io.StringIO()
        sheet.savefig(made, format="svg", metadata={"Date": None})
    # A tenth of a point is all that a curve needs, and a third of the file.
    rounded = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\d+\.\d)\d+", r"\1", found[0]), made.getvalue())
    return "".join(f"{line.rstrip()}\n" for line in rounded.splitlines())


def _within(cells: Mapping[str, Cell], method: str) -> tuple[Any, Any]:
    """Return the share solved within t gradients."""
    cell = cells[method]
    gradients = np.linspace(0, cell.budget, 61)
    times = np.sort(cell.solved_at[cell.solved])
    return gradients, np.searchsorted(times, gradients, side="right") / len(cell.solved_at)


def _by_temperature(cells: Mapping[str, Cell], method: str) -> tuple[Any, Any]:
    """Return the share solved at each T of the scan; for restarts, which have no T, the share of the final runs."""
    cell, scanned = cells[method], cells[method if cells[method].scan is not None else "constant"]
    levels = scanned.setting.temperature * 10.0 ** ((np.arange(LEVELS) - scanned.level) / 4.0)
    return levels, np.full(LEVELS, cell.success) if cell.scan is None else cell.scan
