"""Temperings where the answer is known: what does each sample at g = 1? `ctld run research/tempering.py`.

varied   the tempering (calibrated, the paper's, driven, none), the target, the dimension
tuned    nothing
fixed    T = 1, depth 0.85 unless the run chooses it; BAOAB, but Euler and mass 1 for the paper's

Targets are the double well in 1 to 1,000 dimensions, a funnel, nine modes and a small Bayesian network, all sampled by `CTLD`
itself. A twin that is wrong on purpose has to be found out. The findings are in tempering/README.md.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ctld_lab.records import StudyDirectory
from ctld_lab.report import chains
from ctld_lab.report.reading import read_study
from ctld_lab.studies import Request, Run, Study

DEPTH = 0.85
"""The paper's, so that all temperings reach the same temperature."""


def plan(request: Request, _: StudyDirectory) -> Iterator[list[Run]]:
    """All runs at once, the longest first: none depends on another."""
    settings = request.settings
    runs = []
    for line in settings["wells"]:
        seeds = request.seeds[: line.get("seeds")]
        runs += [_chain(request, "double-well", line, seed) for seed in seeds]
    for variant in ("reference", "rate"):
        runs.append(request.final("tempering", variant, "tempering", variant=variant, seed=0, **settings[variant]))
    for target, steps in settings["targets"].items():
        for name in ("calibrated", "paper", "constant"):
            line = _line(name, 0, steps, settings["warm_up"])
            runs += [_chain(request, target, line, seed) for seed in request.seeds]
    yield runs


def _chain(request: Request, target: str, line: Mapping[str, Any], seed: int) -> Run:
    config = {"variant": "chain", "target": target, **line, "seed": seed}
    config.pop("seeds", None)
    # The paper's step is Euler's.
    config["integrator"] = "euler" if line["tempering"] == "paper" else "baoab"
    words = [target if target != "double-well" else f"d{line['dimensions']}", line["tempering"]]
    words += ["auto"] * (line.get("depth") == "auto") + [str(line[key]) for key in ("period",) if key in line]
    return request.final("tempering", "-".join([*words, f"seed{seed}"]), "tempering", **config)


def _line(name: str, dimensions: int, steps: int, warm_up: int, **more: Any) -> dict[str, Any]:
    line = {"tempering": name, "dimensions": dimensions, "steps": steps}
    if name in ("calibrated", "half-the-force"):
        line |= {"depth": DEPTH, "warm_up": warm_up}
    return line | more


def _wells(
    steps: int,
    *,
    dimensions: tuple[int, ...],
    warm_up: int,
    long: Mapping[str, int],
    short: int,
    periods: tuple[int, ...],
) -> list[dict[str, Any]]:
    """Runs on the double well; in the most dimensions the calibrated ones are `long`, the paper's `short`."""
    most = dimensions[-1]
    lines = [_line("calibrated", most, long["steps"], warm_up, seeds=long["seeds"])]
    lines += [_line("calibrated", d, steps, warm_up) for d in dimensions[:-1]]
    lines.append(_line("calibrated", most, steps, warm_up, depth="auto"))
    lines.append(_line("half-the-force", 1, steps, warm_up))
    lines += [_line("paper", d, steps if d < most else short, warm_up) for d in dimensions]
    lines += [_line("driven", d, steps, warm_up, period=period) for d in dimensions for period in periods]
    return lines


_LADDER = {"rungs": 10, "hottest": 10.0, "every": 20}
_DIMENSIONS, _PERIODS = (1, 10, 100, 1000), (1_000, 10_000, 100_000)
_LONG: dict[str, Any] = {"dimensions": _DIMENSIONS, "warm_up": 4000, "short": 100_000, "periods": _PERIODS}
_LAPTOP = {
    "seeds": 3, "warm_up": 4000, "wells": _wells(400_000, long={"steps": 2_500_000, "seeds": 2}, **_LONG),
    "targets": {"funnel": 400_000, "nine-modes": 800_000, "network": 400_000},
    "rate": {"chains": 1000, "steps": 200_000}, "reference": {"ladders": 48, "steps": 100_000, **_LADDER},
}  # fmt: skip
_PAPER = _LAPTOP | {
    "seeds": 10, "wells": _wells(400_000, long={"steps": 2_500_000, "seeds": 10}, **_LONG),
    "rate": {"chains": 1000, "steps": 400_000}, "reference": {"ladders": 48, "steps": 400_000, **_LADDER},
}  # fmt: skip

STUDY = Study(
    name="tempering",
    title="Temperings compared where the answer is known",
    figure="Theorem 1",
    varied="tempering (calibrated, the paper's, driven, none), target, dimension",
    tuned="nothing",
    fixed="T = 1, depth 0.85 unless chosen by the run; double well: N = 1, η = 0.02, momentum 0.98, start at x = 1; BAOAB, but "
    "Euler and mass 1 for the paper's",
    methods=(),
    scales={
        "smoke": {
            "seeds": 1,
            "warm_up": 400,
            "wells": _wells(
                1500,
                dimensions=(1, 10),
                warm_up=400,
                long={"steps": 2000, "seeds": 1},
                short=1200,
                periods=(20, 200, 1000),
            ),
            "targets": dict.fromkeys(("funnel", "nine-modes", "network"), 1200),
            "rate": {"chains": 100, "steps": 2000},
            "reference": {"ladders": 4, "steps": 400, **_LADDER},
        },
        "laptop": _LAPTOP,
        "paper": _PAPER,
    },
    plan=plan,
)


# ---- findings ----

RESULTS = Path(__file__).resolve().parents[1] / "results" / "laptop" / "tables"
NAMES = {
    "calibrated": "calibrated, depth 0.85",
    "calibrated auto": "calibrated, its default depth",
    "half-the-force": "twin with half the force on α",
    "paper": "the paper's",
}
OFF = 3.0
"""Standard errors from which on an average counts as wrong."""


def findings(results: Path) -> dict[str, Any]:
    """Return the kinetic temperature at g = 1 by tempering and dimension, and the other targets' averages."""
    study = read_study(results.parent / "tempering")
    wells = chains.wells(study)
    rows = []
    for name, own in wells.groupby("tempering", sort=False):
        title = _title(str(name))
        away = (own["kinetic_temperature"] - 1.0) / own["kinetic_temperature_error"]
        right = int((away.abs() < OFF).sum())
        shown = []
        for row in own.itertuples():
            places = 4 if row.dimensions == 1000 else 3
            shown.append(f"{row.kinetic_temperature:.{places}f} ± {row.kinetic_temperature_error:.{places}f}")
        verdict = f"right in {right} of {len(own)} dimensions"
        slug = title.replace(", ", "-").replace(" ", "-")
        rows.append({"id": slug, "problem": f"Double well, {title}", "verdict": verdict, "numbers": ", ".join(shown)})
    targets = chains.targets(study).dropna(subset="errors_away")
    for name, own in targets.groupby("tempering", sort=False):
        wrong = own[own["errors_away"].abs() >= OFF]
        verdict = f"{len(wrong)} of {len(own)} averages are off by {OFF:g} errors or more"
        most = f"at most {own['errors_away'].abs().max():.1f} standard errors"
        title = "no tempering" if name == "constant" else NAMES.get(str(name), str(name))
        rows.append(
            {"id": f"targets-{name}", "problem": f"Other targets, {title}", "verdict": verdict, "numbers": most}
        )
    crossings = wells.pivot_table(index="tempering", columns="dimensions", values="crossing_ratio", sort=False)
    trips = wells.set_index(["tempering", "dimensions"])["fewest_half_trips"]
    body = [
        [
            _title(str(name)),
            *("–" if pd.isna(ratio) else f"{ratio:.0f}" for ratio in row),
            f"{trips[name, 1000]:.0f}" if (name, 1000) in trips.index else "–",
        ]
        for name, row in zip(crossings.index, crossings.to_numpy(), strict=True)
    ]
    dimensions = [f"d = {d:,}" for d in crossings.columns]
    table = {"head": ["crossings, in those of no tempering", *dimensions, "half-trips, d = 1,000"], "rows": body}
    return {"study": "tempering", "title": "Temperings", "findings": rows, "tables": {"wells": table}}


def _title(name: str) -> str:
    return NAMES.get(name, f"driven, period {name.rpartition(' ')[2]}")
