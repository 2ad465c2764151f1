"""`ctld check`: sample what is known exactly with a user's own settings, and say of each quantity, in one word, what came out.

unconverged   fewer than 20 half-trips of α, or crossings of a barrier; or an error bar above 5 % of the scale
fail          off by 4 standard errors or more, and by more than the tolerance
biased        off by 4 standard errors or more, and within the tolerance
pass          anything else
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctld import Tempering, diagnostics
from ctld_lab.sampling.chain import crossings, explore
from ctld_lab.sampling.targets import CHECKED, Target, build
from ctld_lab.streams import stream_seed

WARM_UP = 4000  # the tempering's own default
PERIOD = 20_000  # steps, of driven tempering
KINETIC, CONFIGURATIONAL = "kinetic T", "configurational T"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
UNIFORMITY = "α from uniform (TV)"

TOLERANCE = 0.02
"""Share of the scale: a bias below it does not fail."""
SIGNIFICANT = 4.0
TRIPS = 20
COARSEST = 0.05
"""Share of the scale: with a larger standard error nothing is known."""
UNIFORM = 0.1
"""Total variation of α beyond what a uniform α of the same length shows."""
BINS, BATCHES, RESAMPLES = 15, 50, 400


@dataclass(frozen=True)
class Settings:
    """Settings that are checked. `lr` is times the stiffest curvature; steps are stable below 2(1 + momentum)."""

    lr: float = 0.1
    momentum: float = 0.9
    tempering: str = "calibrated"
    integrator: str = "baoab"
    dtype: str = "float64"
    device: str = "cpu"
    seed: int = 0


@dataclass
class Run:
    """Series over the steps that count, the first tenth left out."""

    target: Target
    settings: Settings
    steps: int
    alpha: NDArray[np.float64]
    cold: NDArray[np.bool_]
    """True where the temperature was T when θ was recorded."""
    edge: float | None
    """Edge of α, if it moves."""
    plateau: float
    series: dict[str, NDArray[np.float64]]
    """Series in units of the quantity; the kinetic temperature in units of 1/g."""
    crossings: int | None = None
    """Crossings of the target's barrier, if it has one, hot steps too."""
    diverged_at: int | None = None
    warnings: list[str] = field(default_factory=list)


def tempering_of(settings: Settings, steps: int) -> Any:
    """The tempering that is named; None is CTLD's own default, the paper's."""
    made: dict[str, Callable[[], Any]] = {
        "paper": lambda: None,
        "calibrated": lambda: Tempering.calibrated(warm_up=min(WARM_UP, max(steps // 10, 100))),
        "driven": lambda: Tempering.driven(PERIOD),
        "constant": Tempering.constant,
    }
    return made[settings.tempering]()


def sample(
    name: str,
    settings: Settings,
    steps: int,
    *,
    tempering: Any = None,
    temperature: float = 1.0,
    tell: Callable[[int], None] = lambda step: None,
) -> Run:
    """`steps` of exploration; `tell` hears how many are done.

    Another `tempering` than the settings' and another `temperature` than 1 are for those who check the check.
    """
    target, index = build(name), CHECKED.index(name)
    chain = explore(
        target,
        steps,
        lr=settings.lr / target.stiffness,
        momentum=settings.momentum,
        num_data=target.num_data,
        tempering=tempering_of(settings, steps) if tempering is None else tempering,
        integrator=settings.integrator,
        seed=stream_seed(settings.seed, "noise", index),
        temperature=temperature,
        dtype=DTYPES[settings.dtype],
        device=settings.device,
        tell=tell,
    )
    control = chain.tempering
    kept = slice(max(steps // 10, getattr(control, "warm_up_steps", 0)), None)
    found = {KINETIC: chain.kinetic, CONFIGURATIONAL: chain.virial}
    found |= {quantity.name: chain.quantities[quantity.name] for quantity in target.quantities if quantity.checked}
    return Run(
        target=target,
        settings=settings,
        steps=steps,
        alpha=chain.alpha[kept],
        cold=chain.ratio[kept] <= 1 + 1e-6,
        edge=getattr(control, "edge", None),
        plateau=getattr(control if hasattr(control, "plateau") else getattr(control, "scaling", None), "plateau", 0.0),
        series={key: values[kept] for key, values in found.items()},
        crossings=None if chain.places is None or chain.diverged else int(crossings(chain.places[kept]).sum()),
        diverged_at=chain.diverged and chain.diverged[0],
        warnings=chain.warnings,
    )


# ---- verdicts ----


@dataclass(frozen=True)
class Row:
    """One line of the table. `half_trips` is None where α does not move by itself; a run that diverged has no numbers."""

    target: str
    quantity: str
    expected: float
    measured: float | None
    standard_error: float | None
    z: float | None
    half_trips: int | None
    verdict: str
    note: str = ""


def judge(run: Run, *, tolerance: float = TOLERANCE) -> list[Row]:
    """All rows of a run."""
    expected = {KINETIC: (1.0, 1.0), CONFIGURATIONAL: (1.0, 1.0)}
    expected |= {
        quantity.name: (quantity.expected, quantity.scale) for quantity in run.target.quantities if quantity.checked
    }
    trips = None
    if run.settings.tempering in ("paper", "calibrated") and run.edge is not None and run.alpha.size:
        trips = diagnostics.half_trips(run.alpha, plateau=run.plateau, edge=run.edge).count
    if run.diverged_at is not None:
        note = f"diverged at step {run.diverged_at}"
        return [
            Row(run.target.name, name, value, None, None, None, trips, "fail", note)
            for name, (value, _) in expected.items()
        ]
    few_trips = f"{trips} half-trips of {TRIPS}" if trips is not None and trips < TRIPS else ""
    few_crossings = ""
    if run.crossings is not None and run.crossings < TRIPS:
        few_crossings = f"{run.crossings} crossings of {TRIPS}"
    across = {quantity.name for quantity in run.target.quantities if quantity.across}
    rows = []
    for name, (value, scale) in expected.items():
        try:
            found = diagnostics.estimate(run.series[name], selected=run.cold)
        except ValueError as too_few:
            rows.append(Row(run.target.name, name, value, None, None, None, trips, "unconverged", str(too_few)))
            continue
        doubt = few_trips or (few_crossings if name in across else "")
        rows.append(_row(run, name, value, found, trips, scale=scale, tolerance=tolerance, doubt=doubt))
    if trips is not None and run.edge is not None:
        measured, uniform = uniformity(run.alpha, run.edge)
        found = diagnostics.Estimate(measured, uniform.standard_error)
        rows.append(_row(run, UNIFORMITY, uniform.mean, found, trips, scale=1.0, tolerance=UNIFORM, doubt=few_trips))
    return rows


def uniformity(alpha: NDArray[np.float64], edge: float) -> tuple[float, diagnostics.Estimate]:
    """Total variation of |α| from uniform in 15 bins; and mean and deviation of what a uniform α so long would show.

    The second by resampling batches of the series about their mean, so that autocorrelation counts.
    """
    distance = np.minimum(np.abs(alpha), edge)  # what is beyond the edge is at it
    shares = np.array(
        [np.histogram(batch, BINS, (0.0, edge))[0] / batch.size for batch in np.array_split(distance, BATCHES)]
    )
    mean = shares.mean(axis=0)
    drawn = np.random.default_rng(0).integers(BATCHES, size=(RESAMPLES, BATCHES))
    shown = 0.5 * np.abs((shares - mean)[drawn].mean(axis=1)).sum(axis=1)
    return 0.5 * float(np.abs(mean - 1 / BINS).sum()), diagnostics.Estimate(float(shown.mean()), float(shown.std()))


def exit_code(rows: Iterable[Row]) -> int:
    """Return 0 if nothing fails, 1 if something does, 3 if nothing fails and something is unconverged."""
    verdicts = {row.verdict for row in rows}
    return 1 if "fail" in verdicts else 3 if "unconverged" in verdicts else 0


def remedies(rows: Sequence[Row], settings: Settings) -> list[str]:
    """Which knob to turn, a sentence for each cause."""
    failed = [row for row in rows if row.verdict == "fail"]
    found = []
    if any(row.measured is None for row in failed):
        found.append(
            f"diverged: --lr {settings.lr:g} is lr × curvature, and steps are stable below 2(1 + momentum) = "
            f"{2 * (1 + settings.momentum):g} where the curvature is constant: a smaller --lr"
        )
    failed = [row for row in failed if row.measured is not None]
    heated = {row.target for row in failed if row.quantity in (KINETIC, UNIFORMITY)}
    biased = {row.target for row in failed} - heated
    if heated:
        remedy = {
            "paper": "the paper's tempering does not sample the posterior at g = 1: --tempering calibrated",
            "driven": "a schedule drags its heat along: --tempering calibrated",
        }.get(settings.tempering, "the temperature is wrong: a smaller --lr")
        found.append(f"{', '.join(sorted(heated))}: {remedy}")
    if biased:
        law = settings.lr / (2 * (1 + settings.momentum))
        factor = f" (Euler's variance in the stiffest direction is × {1 / (1 - law):.3g})" if law < 1 else ""
        other = "" if settings.integrator == "baoab" else ", or --integrator baoab"
        if settings.integrator == "euler":
            other += factor
        found.append(f"{', '.join(sorted(biased))}: the step is too large: a smaller --lr{other}")
    small = {row.quantity for row in rows if row.verdict == "biased"}
    if settings.integrator == "ubu" and KINETIC in small:
        small.remove(KINETIC)
        found.append(
            f"{KINETIC}: ubu's thermometer itself reads high, by about lr × curvature / 10; judge by the variances"
        )
    if small:
        found.append(f"{', '.join(sorted(small))}: the bias is certain and small; a smaller --lr makes it smaller")
    unsettled = dict.fromkeys(f"{row.target}: {row.note}" for row in rows if row.verdict == "unconverged")
    if unsettled:
        other = "" if settings.tempering == "calibrated" else ", or --tempering calibrated"
        found.append(f"unconverged is neither yes nor no ({'; '.join(unsettled)}): --thorough{other}")
    return found


def _row(
    run: Run,
    name: str,
    expected: float,
    found: diagnostics.Estimate,
    trips: int | None,
    *,
    scale: float,
    tolerance: float,
    doubt: str,
) -> Row:
    error = found.mean - expected
    z = error / found.standard_error if found.standard_error else None
    bias = f"{100 * error / scale:+.2g} %"
    certain = z is not None and abs(z) >= SIGNIFICANT
    if doubt or z is None:
        verdict, note = "unconverged", doubt or "nothing moved"
    elif certain and abs(error) > tolerance * scale:
        verdict, note = "fail", bias
    elif found.standard_error > COARSEST * scale:
        verdict, note = "unconverged", f"{name} ± {100 * found.standard_error / scale:.2g} %"
    else:
        verdict, note = ("biased", bias) if certain else ("pass", "")
    return Row(run.target.name, name, expected, found.mean, found.standard_error, z, trips, verdict, note)
