"""Run kind "tempering": what each tempering samples where the answer is known, with the library's own optimizer.

A run is one of three, by its `variant`:

    chain       one chain of `CTLD`, tempered or not
    rate        how often the double well is crossed without tempering, by many chains
    reference   the answer for the network, by replica exchange

T = 1 throughout. Averages of a chain are over the steps at g = 1, |α| ≤ 0.4, the first tenth dropped; errors are batch-means
standard errors. A run is a function of its seed and takes minutes; one that was killed starts again.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ctld
from ctld import Tempering, diagnostics
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory
from ctld_lab.sampling.chain import CHUNK, Chain, crossings, explore
from ctld_lab.sampling.targets import DoubleWell, Target, build

Tell = Callable[[int], None]
Array = NDArray[np.float64]
OfMany = Callable[[Array], tuple[Array, Array]]
"""U, of shape (n,), and ∇U, of shape (n, d), of many θ, of shape (n, d)."""

COLD, EDGE = 0.4, 1.5
PER = 400_000
"""Steps to which rates of crossings refer."""


class HalfTheForce(ctld.tempering.CalibratedTempering):
    """Calibrated tempering with half the force on α, wrong on purpose: a comparison that does not see it sees nothing."""

    def derivative(self, alpha: float, scaling: float) -> float:
        return 0.5 * super().derivative(alpha, scaling)


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    torch.set_num_threads(1)  # a thousand numbers are summed three times slower by two
    tell = control.teller(directory, int(config["steps"]))
    began = time.perf_counter()
    found = {"chain": chain, "rate": rate, "reference": reference}[config["variant"]](config, tell)
    return found | {"seconds": time.perf_counter() - began}


# ---- one chain ----


def chain(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Thermometers, averages, α and crossings of a chain; "diverged" if it did. What the library warned of is kept."""
    target = build(config["target"], int(config.get("dimensions") or 3))
    found = explore(
        target,
        int(config["steps"]),
        lr=target.lr,
        momentum=target.momentum,
        num_data=1.0,
        tempering=build_tempering(config, target),
        integrator=config["integrator"],
        seed=int(config["seed"]),
        tell=tell,
    )
    if found.diverged is not None:
        return {"diverged": True, "reason": found.diverged[1]}
    return measure(target, found) | {"warnings": found.warnings}


def build_tempering(config: Mapping[str, Any], target: Target) -> Any:
    name, steps = config["tempering"], int(config["steps"])
    if name == "calibrated":
        return Tempering.calibrated(config["depth"], warm_up=config["warm_up"])
    if name == "half-the-force":
        return HalfTheForce(config["depth"], warm_up=config["warm_up"])
    if name == "paper":
        return Tempering.paper(math.sqrt(target.lr), steps, mass=1)
    if name == "driven":
        return Tempering.driven(config["period"])
    if name == "constant":
        return Tempering.constant(1.0)
    raise ValueError(f"tempering = {name!r} is unknown; give calibrated, half-the-force, paper, driven or constant")


def measure(target: Target, chain: Chain) -> dict[str, Any]:
    """Return the numbers that `explore` found. `means` holds every average at g = 1, with its error and its true value."""
    steps = chain.alpha.size
    start = steps // 10
    alpha = chain.alpha[start:]
    cold = np.abs(alpha) <= COLD
    means = {
        "kinetic temperature": _mean(chain.kinetic[start:], cold, 1.0),
        "configurational temperature": _mean(chain.virial[start:], cold, 1.0),
        "U": _mean(chain.potential[start:], cold, target.mean_energy),
    }
    for quantity in target.quantities:
        if not quantity.across:
            series = chain.quantities[quantity.name][start:]
            means[quantity.name] = found = _mean(series, cold, quantity.expected)
            if target.spreads:
                means[f"var {quantity.name}"] = _mean((series - found["mean"]) ** 2, cold)
    result: dict[str, Any] = {"steps": steps, "means": means, "cold_share": float(cold.mean())}
    if chain.tempering.alpha is not None:
        result["total_variation"] = diagnostics.total_variation(alpha, edge=EDGE, num_bins=15, folded=True)
        result["share_outside"] = diagnostics.share_outside(alpha, edge=EDGE)
        result["half_trips"] = diagnostics.half_trips(chain.alpha, plateau=COLD, edge=EDGE).count
    if hasattr(chain.tempering, "depth"):
        result["depth"] = chain.tempering.depth
    if chain.places is not None:
        result |= crossing_rate(chain.places)
    if chain.cells is not None and target.weights is not None:
        cells = chain.cells[start:]
        result["shares"] = [
            _mean((cells == mode).astype(np.float64), cold, float(weight)) for mode, weight in enumerate(target.weights)
        ]
    return result


def _mean(series: Array, selected: NDArray[np.bool_], expected: float = math.nan) -> dict[str, float]:
    """NaN for an error that so few, or so few separate, steps do not give."""
    try:
        estimate = diagnostics.estimate(series, selected=selected)
        found = {"mean": estimate.mean, "error": estimate.standard_error}
    except ValueError:
        found = {"mean": float(series[selected].mean()) if selected.any() else math.nan, "error": math.nan}
    return found if math.isnan(expected) else found | {"expected": expected}


def crossing_rate(places: NDArray[np.int64]) -> dict[str, Any]:
    """Changes from one mode to another, and their rate per `PER` steps."""
    events = crossings(places)
    found = diagnostics.estimate(events)
    rate = {"mean": PER * found.mean, "error": PER * found.standard_error}
    return {"crossings": int(events.sum()), "crossing_rate": rate}


# ---- many chains at fixed temperatures, in numpy: what tempered chains are measured against ----
#
# The step is BAOAB, as in `ctld.stepping.integrators`, with lr and momentum in the same meaning; there is no α. With replica
# exchange (Geyer 1991) they sample a posterior of several modes, by another algorithm and other code than the one to be judged.


class Chains:
    """n chains of θ, each at a temperature of its own.

    Parameters
    ----------
    theta : array of shape (n, d)
    temperature : array of shape (n,)
    lr, momentum
        η² (N = 1) and 1 − ηγ.
    """

    def __init__(
        self, potential: OfMany, theta: Array, temperature: Array, *, lr: float, momentum: float, seed: int
    ) -> None:
        self.potential, self.momentum = potential, momentum
        self.kick = math.sqrt(2.0 * lr / (1.0 + momentum))
        self.generator = np.random.default_rng(seed)
        self.theta, self.temperature = theta.copy(), temperature[:, None]
        self.r = self.generator.standard_normal(theta.shape) * np.sqrt(self.temperature)
        self._deviation = np.sqrt((1.0 - momentum**2) * self.temperature)
        self.energy, self._slope = potential(self.theta)

    def step(self) -> None:
        self.r -= self.kick * self._slope
        self.theta += 0.5 * self.kick * self.r
        self.r *= self.momentum
        self.r += self._deviation * self.generator.standard_normal(self.r.shape)
        self.theta += 0.5 * self.kick * self.r
        self.energy, self._slope = self.potential(self.theta)

    def exchange(self, ladders: int, first: int) -> None:
        """Offer neighbours of every ladder to change places, beginning at rung `first`; momenta go along, rescaled."""
        rungs = len(self.theta) // ladders
        lower = (np.arange(first, rungs - 1, 2)[:, None] * ladders + np.arange(ladders)).ravel()
        upper = lower + ladders
        cold, hot = self.temperature[lower, 0], self.temperature[upper, 0]
        gain = (1.0 / cold - 1.0 / hot) * (self.energy[lower] - self.energy[upper])
        accepted = np.log(self.generator.random(len(lower))) < gain
        lower, upper = lower[accepted], upper[accepted]
        scale = np.sqrt(hot[accepted] / cold[accepted])[:, None]
        self.r[lower], self.r[upper] = self.r[upper] / scale, self.r[lower] * scale
        for series in (self.theta, self._slope, self.energy):
            series[lower], series[upper] = series[upper].copy(), series[lower].copy()


def coldest(chains: Chains, *, ladders: int, steps: int, every: int) -> Iterator[tuple[Array, Array]]:
    """θ and U of the first rung, once for each of the `steps` that `every` divides; exchanges happen as often."""
    for step in range(1, steps + 1):
        chains.step()
        if step % every == 0:
            chains.exchange(ladders, step // every % 2)
            yield chains.theta[:ladders].copy(), chains.energy[:ladders].copy()


def rate(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Crossings of the double well at T = 1. Without tempering its dimensions do not see each other: one is enough.

    Chains start in one well, and are counted after a tenth of their steps. Both wells are left alike, so it does not matter
    that the chains have not been shared out between them by then.
    """
    steps, count = int(config["steps"]), int(config["chains"])
    target = build("double-well", 1)
    chains = Chains(
        DoubleWell(1),
        np.ones((count, 1)),
        np.ones(count),
        lr=target.lr,
        momentum=target.momentum,
        seed=int(config["seed"]),
    )
    dropped = steps // 10
    side, crossings, squares = np.ones(count), np.zeros(count), np.zeros(count)
    for step in range(steps):
        if step % CHUNK == 0:
            tell(step)
        chains.step()
        x = chains.theta[:, 0]
        arrived = x * side < -0.5
        side[arrived] *= -1.0
        if step >= dropped:
            crossings += arrived
            squares += x * x
    counted = steps - dropped
    return {
        "steps": counted * count,
        "crossings": int(crossings.sum()),
        "crossing_rate": _over_chains(crossings * (PER / counted)),
        "means": {"x²": _over_chains(squares / counted) | {"expected": target.quantities[0].expected}},
    }


def reference(config: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Averages for the network, each ladder of temperatures an independent chain; a quarter is dropped."""
    target = build("network")
    steps, ladders, rungs = (int(config[name]) for name in ("steps", "ladders", "rungs"))
    generator = np.random.default_rng([int(config["seed"]), 1])
    chains = Chains(
        target.potential,
        generator.standard_normal((ladders * rungs, target.start.size)),  # the prior's
        np.repeat(np.geomspace(1.0, config["hottest"], rungs), ladders),
        lr=target.lr,
        momentum=target.momentum,
        seed=int(config["seed"]),
    )
    every = int(config["every"])
    draws: dict[str, list[Array]] = {}
    for place, (theta, energy) in enumerate(coldest(chains, ladders=ladders, steps=steps, every=every), start=1):
        tell(place * every)
        if place * every > steps // 4:
            values = {quantity.name: quantity.of(theta) for quantity in target.quantities}
            for name, series in {"U": energy, **values}.items():
                draws.setdefault(name, []).append(series)
    means = {}
    for name, rows in draws.items():
        all_draws = np.array(rows)
        means[name] = _over_chains(all_draws.mean(axis=0))
        if name != "U":
            means[f"var {name}"] = _over_chains(np.square(all_draws - all_draws.mean()).mean(axis=0))
    return {"steps": steps * ladders * rungs, "means": means}


def _over_chains(values: Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "error": float(values.std(ddof=1)) / math.sqrt(values.size)}
