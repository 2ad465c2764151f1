"""Run kind "theorem": the paper's Theorem 2 measured, on how far an average over samples is from the minimum U*.

The bounds for Û_L = (1/L) Σ U(θ_t), with β̃ = g(α), and s the size of the minibatch noise, of which ‖ΔG‖ and ‖ΔB‖ are
multiples:

    |E Û_L − U*|    ≤  constant  + C/(Lη)  + C s    + O(η)
    E (Û_L − U*)²   ≤  constant² + C²/(Lη) + C² s²/L + O(η²)

The constant does not vanish, however long the run: a sampler samples a law, not its minimum. The proof splits

    Û_L − U*  =  (1/L) Σ [U(θ_t) − Ū(g(α_t))]  +  (1/L) Σ [Ū(g(α_t)) − U*],      Ū(g) = ⟨U⟩ under exp(−gU),

and so does this measurement, Ū being known by quadrature: the second part is the constant, and the first, the
*sampling error*, is what the rates are about. It tends to a limit, the O(η), which is measured on the second half of
a run; what is left of it in Û_L *decays*, as 1/(Lη). Hundreds of independent chains start at x = 1.5 (U = 12.5) with
r ~ N(0, 1) and α = 0; expectations are means over chains, and errors their standard errors. Step sizes are compared
at the same time Lη, not at the same L: then the term 1/(Lη) is the same for all, and what differs is the O(η). The
chains have friction γ = 1 throughout. There are three temperings: "none", g ≡ 1; "paper", whose γ_α = 1/η, C = δ′/η²
and w are others at each η; and "fixed", where they are those of the largest η, so that all step sizes integrate one
equation, as the proof has it.

Minibatch noise is normal, of standard deviation s on U and on each element of ∇U. It enters the steps, not the averages.
*Compensated* chains know s and inject so much less noise, as in the paper's Eq. 10.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab.control import Control
from ctld_lab.records import RunDirectory
from ctld_lab.sampling.replicas import DELTA, DEPTH, Alphas, Replicas
from ctld_lab.sampling.targets import MINIMUM, DoubleWell
from ctld_lab.streams import numpy_generator

Array = NDArray[np.float64]

FRICTION = 1.0
START = 1.5
TEMPERINGS = ("none", "paper", "fixed")
SHORTEST = 0.5
"""Time Lη of the shortest average."""
BOUNDS = {"decaying_bias": -1.0, "decaying_variance": -1.0, "decaying_mse": -1.0}
"""Exponents of Lη in the theorem."""
RESAMPLES = 200


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    """One line of metrics.jsonl for each step size, or for each size of the noise; those that are there are not repeated."""
    began = time.perf_counter()
    noises = [float(noise) for noise in config.get("noises") or [0.0]]
    sizes = [float(size) for size in config.get("step_sizes") or [config["step_size"]] for _ in noises]
    noises = noises * (len(sizes) // len(noises))
    tempering, duration, seed = str(config["tempering"]), float(config["time"]), int(config["seed"])
    counts = [round(duration / size) for size in sizes]
    lines, appender = directory.reopen()
    try:
        for index in range(len(lines), len(sizes)):
            averages = simulate(
                DoubleWell(int(config["dimensions"])),
                step_size=sizes[index],
                duration=duration,
                replicas=int(config["replicas"]),
                generator=numpy_generator(seed, "noise", index),
                tempering=tempering,
                alpha_eta=max(sizes) if tempering == "fixed" else None,
                noise=noises[index],
                compensated=bool(config.get("compensated", False)),
                tell=control.teller(directory, sum(counts), sum(counts[:index])),
            )
            lines.append(describe(averages, sizes[index]) | {"noise": noises[index]})
            appender.append(lines[-1])
            appender.flush(to_disk=True)
    finally:
        appender.close()
    return {
        "variant": config["variant"],
        "tempering": tempering,
        "minimum": MINIMUM,
        "exact_energy": DoubleWell(int(config["dimensions"])).mean_energy(),
        "step_sizes": lines,
        "slopes": _slopes(lines),
        "seconds": time.perf_counter() - began,
    }


# ---- numbers: bias, mean square error, and the powers with which they fall ----


@dataclass(frozen=True)
class Averages:
    """Averages of each chain (columns), over the first L steps for every L (rows)."""

    steps: list[int]
    energy: Array
    """Û_L."""
    sampling_error: Array
    """Mean of U − Ū(g(α))."""
    limit: Array
    """The same over the second half of the run, by chain."""
    cold: tuple[Array, Array]
    """Sums over the second half, by chain: U − Ū(1) over the steps with g = 1, and the number of these."""


def describe(averages: Averages, step_size: float) -> dict[str, Any]:
    """Limits, bias and mean square error of one step size for each L, and the slopes against Lη."""
    limit, limit_error = _mean(averages.limit)
    cold_error, cold_steps = averages.cold
    cold_limit = float(cold_error.sum() / cold_steps.sum())
    residual = (cold_error - cold_limit * cold_steps) / cold_steps.mean()  # of a ratio, linearised
    decaying = averages.sampling_error - averages.limit
    about_limit = averages.sampling_error - limit
    lengths = []
    for row, steps in enumerate(averages.steps):
        distance = averages.energy[row] - MINIMUM
        line: dict[str, Any] = {"steps": steps, "time": steps * step_size}
        for name, values in (
            ("bias", distance),
            ("mse", distance**2),
            ("constant", distance - averages.sampling_error[row]),
            ("sampling_error", averages.sampling_error[row]),
            ("decaying_bias", decaying[row]),
            ("decaying_mse", about_limit[row] ** 2),
        ):
            line[name], line[f"{name}_error"] = _mean(values)
        line["decaying_variance"] = float(averages.sampling_error[row].var(ddof=1))
        lengths.append(line)
    return {
        "step_size": step_size,
        "steps": averages.steps[-1],
        "replicas": averages.limit.size,
        "limit": limit,
        "limit_error": limit_error,
        "cold_limit": cold_limit,
        "cold_limit_error": _mean(residual)[1],
        "decaying_variance": lengths[-1]["decaying_variance"],
        "decaying_variance_error": lengths[-1]["decaying_variance"] * math.sqrt(2.0 / (averages.limit.size - 1)),
        "lengths": lengths,
        "slopes": _against_time(averages, step_size),
    }


def _against_time(averages: Averages, step_size: float) -> dict[str, Any]:
    """Exponents of Lη, with errors from chains drawn again and again: averages over L and 2L share half their steps.

    The bias from the time 8 on, when the start is forgotten, to an eighth of the run, after which it is lost in noise; the
    others over the last four octaves, where the variance outweighs the squared bias.
    """
    times = step_size * np.array(averages.steps)
    late, early = times >= 0.99 * times[-1] / 16.0, (times >= 7.9) & (times <= 1.01 * times[-1] / 8.0)
    chosen = {"decaying_bias": early, "decaying_variance": late, "decaying_mse": late}
    count = averages.limit.size
    generator = np.random.default_rng(0)

    def exponents(rows: NDArray[np.intp]) -> dict[str, float]:
        errors, limit = averages.sampling_error[:, rows], averages.limit[rows]
        bias = (errors - limit).mean(axis=1)
        bias_error = (errors - limit).std(axis=1) / math.sqrt(count)
        variance, squares = errors.var(axis=1), np.square(errors - limit.mean()).mean(axis=1)
        curves = {
            "decaying_bias": (bias, bias_error),
            "decaying_variance": (variance, variance),
            "decaying_mse": (squares, squares),
        }
        return {
            name: power_law(times[chosen[name]], values[chosen[name]], weights[chosen[name]]).exponent
            for name, (values, weights) in curves.items()
            if chosen[name].sum() >= 3
        }

    found = exponents(np.arange(count))
    again = [exponents(generator.integers(count, size=count)) for _ in range(RESAMPLES)]
    return {
        name: {
            "slope": slope,
            "error": float(np.std([each[name] for each in again], ddof=1)),
            "bound": BOUNDS[name],
            "from": float(times[chosen[name]][0]),
            "to": float(times[chosen[name]][-1]),
        }
        for name, slope in found.items()
    }


def against_step_size(lines: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The exponent of η in a limit; the theorem's bound is 1 (and 2 in the mean square error, which has the limit's square)."""
    sizes, values, errors = (
        np.array([line[key] for line in lines], dtype=np.float64) for key in ("step_size", name, f"{name}_error")
    )
    found = power_law(sizes, values, errors)
    return {
        "slope": found.exponent,
        "error": found.error,
        "misfit": found.misfit,
        "bound": 1.0,
        "from": float(sizes.min()),
        "to": float(sizes.max()),
    }


def _slopes(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return exponents against what was varied, the step size or the noise, if there are enough of them."""
    if len(lines) < 3:
        return {}
    if len({line["step_size"] for line in lines}) > 1:
        return {name: against_step_size(lines, name) for name in ("limit", "cold_limit")}
    return {name: against_noise(lines, name) for name in ("limit", "cold_limit", "decaying_variance")}


def against_noise(lines: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the exponent of s in what the noise adds to a limit or to the variance of the longest average.

    The theorem's bound is 1 in the bias, and 2 in the mean square error. The first line must be without noise.
    """
    values, errors = (np.array([line[key] for line in lines]) for key in (name, f"{name}_error"))
    noises = np.array([line["noise"] for line in lines])
    found = power_law(noises[1:], values[1:] - values[0], np.hypot(errors[1:], errors[0]))
    return {
        "slope": found.exponent,
        "error": found.error,
        "misfit": found.misfit,
        "bound": 2.0 if name == "decaying_variance" else 1.0,
        "from": float(noises[1]),
        "to": float(noises[-1]),
    }


@dataclass(frozen=True)
class PowerLaw:
    """Result of `power_law`. A misfit far above 1 says that there is no such law."""

    exponent: float
    error: float
    misfit: float
    """χ² per degree of freedom."""


def power_law(x: Array, y: Array, error: Array) -> PowerLaw:
    """y = c·xᵖ by weighted least squares; the error of p is right if those of y are independent.

    In y itself, not in its logarithm, which a value with a large error may not have. p is sought between −4 and 4; NaN if
    it is not there.
    """
    exponents = np.linspace(-4.0, 4.0, 8001)
    shapes = np.exp(np.outer(exponents, np.log(x / np.exp(np.log(x).mean())))) / error
    scaled = y / error
    explained = np.square(shapes @ scaled) / np.square(shapes).sum(axis=1)
    best = int(explained.argmax())
    misfit = float(np.square(scaled).sum() - explained[best]) / max(x.size - 2, 1)
    if best in (0, exponents.size - 1):
        return PowerLaw(math.nan, math.nan, misfit)
    within = exponents[explained >= explained[best] - 1.0]
    return PowerLaw(float(exponents[best]), float(within[-1] - within[0]) / 2.0, misfit)


def _mean(values: Array) -> tuple[float, float]:
    """Mean over chains, with its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))


# ---- the chains ----


def simulate(
    potential: DoubleWell,
    *,
    step_size: float,
    duration: float,
    replicas: int,
    generator: np.random.Generator,
    tempering: str = "none",
    alpha_eta: float | None = None,
    noise_factor: float = 1.0,
    noise: float = 0.0,
    compensated: bool = False,
    tell: Callable[[int], None] = lambda step: None,
) -> Averages:
    """Averages over the times duration, duration/2, … down to SHORTEST. `noise_factor` is for mistakes made on purpose."""
    if tempering not in TEMPERINGS:
        raise ValueError(f"tempering = {tempering!r} is unknown; give one of {', '.join(TEMPERINGS)}")
    if duration < 2 * SHORTEST or replicas < 2:
        raise ValueError(
            f"time = {duration}, replicas = {replicas}: give a time of {2 * SHORTEST} and 2 replicas, or more"
        )
    steps = round(duration / step_size)
    octaves = int(math.log2(duration / SHORTEST))
    lengths = sorted({round(duration / step_size / 2**octave) for octave in range(octaves + 1)})
    theta = np.zeros((replicas, potential.dimensions))
    theta[:, 0] = START
    r, tempered = generator.standard_normal(theta.shape), tempering != "none"
    drawn = generator.standard_normal(replicas) if tempered else np.zeros(0)
    known = {"known_noise": noise if compensated else 0.0}
    alphas = Alphas(drawn, step_size, steps, alpha_eta=alpha_eta, **known) if tempered else None
    chains = Replicas(theta, r, alphas, eta=step_size, friction=FRICTION, noise_factor=noise_factor, **known)
    expected = _expected_energy(potential, depth=DEPTH if tempered else 0.0)
    coldest = potential.mean_energy()
    energy, error, cold_error, cold_steps = np.zeros((4, replicas))
    energies, errors = [], []
    middle = np.zeros(replicas)
    for step in range(1, steps + 1):
        if step % 500 == 1:
            tell(step)
        U, grad_U = potential(chains.theta)
        g = chains.g()
        energy += U
        error += U - expected(g)
        if step > steps // 2:
            cold = np.abs(chains.alpha) <= DELTA
            cold_error += np.where(cold, U - coldest, 0.0)
            cold_steps += cold
        if noise:
            U = U + noise * generator.standard_normal(replicas)
            grad_U = grad_U + noise * generator.standard_normal(theta.shape)
        chains.step(
            U, grad_U, g, lambda: generator.standard_normal(theta.shape), lambda: generator.standard_normal(replicas)
        )
        if step == steps // 2:
            middle = error.copy()
        if step in lengths:
            energies.append(energy / step)
            errors.append(error / step)
    if not np.isfinite(energy).all():
        raise FloatingPointError(f"chains diverge at step size {step_size}; give a smaller one")
    limit = (error - middle) / (steps - steps // 2)
    return Averages(lengths, np.array(energies), np.array(errors), limit, (cold_error, cold_steps))


def _expected_energy(potential: DoubleWell, *, depth: float) -> Callable[[Array], Array]:
    """Ū(g) from a table over 1/g, in which it is nearly straight: the error is below 1e-4."""
    if depth == 0.0:
        constant = potential.mean_energy()
        return lambda g: np.full(g.shape, constant)
    nodes = np.linspace(1.0, 1.0 / (1.0 - depth), 100)
    table = np.array([potential.mean_energy(float(node)) for node in nodes])
    return lambda g: np.interp(1.0 / g, nodes, table)
