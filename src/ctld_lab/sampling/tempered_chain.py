"""One chain of `CTLD` on a target of `targets_tempered`, under one of the temperings that are compared, and what it says.

Averages are over the steps at g = 1, |α| ≤ 0.4, the first tenth dropped; errors are batch-means standard errors.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import ctld
from ctld import CTLD, NonFiniteError, Tempering, diagnostics
from ctld_lab.sampling.targets_tempered import Known, build

Array = NDArray[np.float64]
Tell = Callable[[int], None]

COLD, EDGE = 0.4, 1.5
PER = 400_000
"""Steps to which rates of crossings refer."""
CHUNK = 1000
"""Steps between two looks at the control."""


class HalfTheForce(ctld.tempering.CalibratedTempering):
    """Calibrated tempering with half the force on α, wrong on purpose: a comparison that does not see it sees nothing."""

    def _derivative(self, alpha: float) -> float:
        return 0.5 * super()._derivative(alpha)


def chain(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Thermometers, averages, α and crossings of a chain; "diverged" if it did. What the library warned of is kept."""
    known = build(config["target"], int(config.get("dimensions", 0)))
    tempering = build_tempering(config, known)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        try:
            series = explore(known, tempering, config, tell)
        except (NonFiniteError, FloatingPointError, OverflowError) as error:
            return {"diverged": True, "reason": str(error)}
    found = measure(known, tempering, *series)
    return found | {"warnings": [str(warning.message) for warning in heard]}


def build_tempering(config: Mapping[str, Any], known: Known) -> Any:
    name, steps = config["tempering"], int(config["steps"])
    if name == "calibrated":
        return Tempering.calibrated(config["depth"], warm_up=config["warm_up"])
    if name == "half-the-force":
        return HalfTheForce(config["depth"], warm_up=config["warm_up"])
    if name == "paper":
        return Tempering.paper(math.sqrt(known.lr), steps, mass=1)
    if name == "driven":
        return Tempering.driven(config["period"])
    if name == "constant":
        return Tempering.constant(1.0)
    raise ValueError(f"tempering = {name!r} is unknown; give calibrated, half-the-force, paper, driven or constant")


def explore(
    known: Known, tempering: Any, config: Mapping[str, Any], tell: Tell
) -> tuple[Array, Array, Array, Array, Array]:
    """Step by step: α, the kinetic temperature in units of T/g, U, θᵀ∇U/d, and the coordinates that are kept."""
    steps = int(config["steps"])
    theta = nn.Parameter(torch.from_numpy(known.start.copy()))
    theta.grad = torch.zeros_like(theta)
    optimizer = CTLD(
        [theta],
        known.lr,
        known.momentum,
        num_data=1.0,
        exploration_steps=steps,
        temperature=1.0,
        tempering=tempering,
        integrator=config["integrator"],
        seed=int(config["seed"]),
    )
    place, gradient = theta.detach().numpy(), theta.grad.numpy()
    alpha, kinetic, potential, virial = np.zeros((4, steps))
    kept = np.empty((steps, known.kept))
    moves = hasattr(tempering, "alpha")
    for step in range(steps):
        if step % CHUNK == 0:
            tell(step)
        loss, slope = known.evaluate(place)
        gradient[:] = slope
        if moves:
            alpha[step] = tempering.alpha
        potential[step] = loss
        virial[step] = place @ gradient
        kept[step] = place[: known.kept]
        optimizer.step(loss=loss)
        last = optimizer.last
        assert last is not None
        assert last.kinetic_temperature is not None
        kinetic[step] = last.kinetic_temperature / last.temperature_ratio
    return alpha, kinetic, potential, virial / place.size, kept


def measure(
    known: Known, tempering: Any, alpha: Array, kinetic: Array, potential: Array, virial: Array, kept: Array
) -> dict[str, Any]:
    """What `explore` found, as numbers. `means` holds every average at g = 1, with its error and what it should be."""
    steps = alpha.size
    start = steps // 10
    cold = np.abs(alpha[start:]) <= COLD
    series = {"kinetic temperature": kinetic[start:], "configurational temperature": virial[start:]}
    series |= {"U": potential[start:], **known.quantities(kept[start:])}
    means = {name: _mean(values, cold) for name, values in series.items()}
    if known.spreads:
        for name in known.quantities(kept[:1]):
            means[f"var {name}"] = _mean((series[name] - means[name]["mean"]) ** 2, cold)
    expected = {"kinetic temperature": 1.0, "configurational temperature": 1.0, **known.expected}
    for name, value in expected.items():
        means[name]["expected"] = value
    found: dict[str, Any] = {"steps": steps, "means": means, "cold_share": float(cold.mean())}
    if hasattr(tempering, "alpha"):
        found["total_variation"] = diagnostics.total_variation(alpha[start:], edge=EDGE, num_bins=15, folded=True)
        found["share_outside"] = diagnostics.share_outside(alpha[start:], edge=EDGE)
        found["half_trips"] = diagnostics.half_trips(alpha, plateau=COLD, edge=EDGE).count
    if hasattr(tempering, "depth"):
        found["depth"] = tempering.depth
    if known.place is not None:
        found |= crossing_rate(known.place(kept))
    if known.cell is not None and known.weights is not None:
        cells = known.cell(kept[start:])
        shares = [_mean((cells == mode).astype(np.float64), cold) for mode in range(len(known.weights))]
        found["shares"] = [
            share | {"expected": float(weight)} for share, weight in zip(shares, known.weights, strict=True)
        ]
    return found


def _mean(series: Array, selected: NDArray[np.bool_]) -> dict[str, float]:
    """NaN for an error that so few, or so few separate, steps do not give."""
    try:
        found = diagnostics.estimate(series, selected=selected)
    except ValueError:
        return {"mean": float(series[selected].mean()) if selected.any() else math.nan, "error": math.nan}
    return {"mean": found.mean, "error": found.standard_error}


def crossing_rate(places: NDArray[np.int64]) -> dict[str, Any]:
    """Changes from one mode to another, and their rate per `PER` steps; `places` is −1 between modes."""
    events = np.zeros(places.size)
    visits = np.flatnonzero(places >= 0)
    modes = places[visits]
    events[visits[1:][modes[1:] != modes[:-1]]] = 1.0
    found = diagnostics.estimate(events)
    rate = {"mean": PER * found.mean, "error": PER * found.standard_error}
    return {"crossings": int(events.sum()), "crossing_rate": rate}
