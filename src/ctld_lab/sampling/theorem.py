"""Run kind "theorem": the paper's Theorem 2 measured, on how far an average over samples is from the minimum U*.

The bounds for Û_L = (1/L) Σ U(θ_t), without minibatches (whose terms are then zero), with β̃ = g(α):

    |E Û_L − U*|    ≤  constant  + C/(Lη) + O(η)
    E (Û_L − U*)²   ≤  constant² + C²/(Lη) + O(η²)

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
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab.control import Control
from ctld_lab.records import RunDirectory
from ctld_lab.resumable import reopen
from ctld_lab.sampling.rates import Averages, against_step_size, describe
from ctld_lab.sampling.replicas import DELTA, DEPTH, Alphas, Replicas
from ctld_lab.sampling.targets import MINIMUM, DoubleWell
from ctld_lab.streams import numpy_generator

Array = NDArray[np.float64]

FRICTION = 1.0
START = 1.5
TEMPERINGS = ("none", "paper", "fixed")
SHORTEST = 0.5
"""Time Lη of the shortest average."""


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    """One line of metrics.jsonl for each step size; those that are there are not repeated."""
    began = time.perf_counter()
    sizes = [float(size) for size in config.get("step_sizes") or [config["step_size"]]]
    tempering, duration, seed = str(config["tempering"]), float(config["time"]), int(config["seed"])
    counts = [round(duration / size) for size in sizes]
    lines, appender = reopen(directory)
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
                tell=control.teller(directory, sum(counts), sum(counts[:index])),
            )
            lines.append(describe(averages, sizes[index]))
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
        "slopes": {name: against_step_size(lines, name) for name in ("limit", "cold_limit")} if len(lines) > 2 else {},
        "seconds": time.perf_counter() - began,
    }


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
    alphas = Alphas(drawn, step_size, steps, alpha_eta=alpha_eta, mass=1.0) if tempered else None
    chains = Replicas(theta, r, alphas, eta=step_size, friction=FRICTION, noise_factor=noise_factor)
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
