"""Run kind "double_well": does the paper's sampler have the law that Theorem 1 gives it, where that law is known?

One chain of `CTLD` on the double well of `ctld_lab.sampling.targets`: N = T = 1, η = 0.02, γ = 1 (momentum 0.98), Euler's step
and the paper's formulas with mass 1, start at x = 1, first tenth dropped. At g = 1 rᵀr/d should read 2/(1 + momentum) = 1.01,
and ⟨x²⟩ its quadrature value. A run takes a minute or less and is a function of its seed; one that was killed starts again.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ctld import Tempering, diagnostics
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory
from ctld_lab.sampling.chain import crossings, explore
from ctld_lab.sampling.targets import DoubleWell, double_well

COLD = 0.4
KINETIC_TARGET = 2.0 / (1.0 + 0.98)


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    steps, tell = int(config["steps"]), control.teller(directory, int(config["steps"]))
    tempered = config["variant"] == "tempered"
    return measure(int(config["dimensions"]), steps, seed=int(config["seed"]), tempered=tempered, tell=tell)


def measure(
    dimensions: int,
    steps: int,
    *,
    seed: int = 0,
    tempered: bool = True,
    tell: Callable[[int], None] = lambda step: None,
) -> dict[str, Any]:
    """One run; untempered is plain Langevin dynamics. Errors are batch-means standard errors. `tell` hears the step."""
    began = time.perf_counter()
    target = double_well(dimensions)
    tempering = Tempering.paper(math.sqrt(target.lr), steps, mass=1) if tempered else Tempering.constant()
    options: dict[str, Any] = {"lr": target.lr, "momentum": target.momentum, "num_data": 1.0, "integrator": "euler"}
    chain = explore(target, steps, tempering=tempering, seed=seed, tell=tell, **options)
    if chain.diverged or chain.places is None:
        raise FloatingPointError(f"the chain diverged: {chain.diverged}")
    kept = slice(steps // 10, None)
    alpha = chain.alpha[kept]
    cold = np.abs(alpha) <= COLD
    # In units of T/g, the step's own 2/(1 + momentum) divided out; rᵀr/d has it.
    kinetic = diagnostics.estimate(KINETIC_TARGET * (chain.kinetic * chain.ratio)[kept], selected=cold)
    square = diagnostics.estimate(chain.quantities["x²"][kept], selected=cold)
    return {
        "dimensions": dimensions,
        "steps": steps,
        "seed": seed,
        "tempered": tempered,
        "kinetic_temperature": kinetic.mean,
        "kinetic_error": kinetic.standard_error,
        "mean_square": square.mean,
        "mean_square_error": square.standard_error,
        "mean_square_exact": DoubleWell(dimensions).mean_square(),
        "total_variation": diagnostics.total_variation(alpha, num_bins=60),
        "cold_share": float(cold.mean()),
        "crossings": int(crossings(chain.places[kept]).sum()),
        "kinetic_target": KINETIC_TARGET,
        "seconds": time.perf_counter() - began,
    }
