"""Run kind "double_well": does the paper's sampler have the law that Theorem 1 gives it, where that law is known?

One chain of Algorithm 1, line by line (`ctld.optimizers.reference`, to which `CTLD` is tested equal), on the double well of
`ctld_lab.sampling.targets`: N = T = 1, η = 0.02, γ = 1 (momentum 0.98), the paper's formulas with mass 1, start at
x = 1, first tenth dropped. At g = 1 rᵀr/d should read 2/(1 + momentum) = 1.01, and ⟨x²⟩ its quadrature value.

A run takes a minute or less and is a function of its seed; one that was killed starts again.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ctld import diagnostics
from ctld.optimizers.reference import ReferenceCTLD, Vector, simulate
from ctld_lab.control import Control
from ctld_lab.records import RunDirectory
from ctld_lab.sampling.targets import DoubleWell

STEP_SIZE, MOMENTUM, COLD = 0.02, 0.98, 0.4
KINETIC_TARGET = 2.0 / (1.0 + MOMENTUM)
CHUNK = 1000
"""Steps between two looks at the control."""


@dataclass(frozen=True)
class Measurement:
    """What one run says; errors are batch-means standard errors."""

    dimensions: int
    steps: int
    seed: int
    tempered: bool
    kinetic_temperature: float
    kinetic_error: float
    mean_square: float
    mean_square_error: float
    mean_square_exact: float
    total_variation: float
    cold_share: float
    crossings: int
    seconds: float


def run(directory: RunDirectory, config: dict[str, Any], control: Control) -> dict[str, Any]:
    """The fields of `Measurement`, and what the kinetic temperature should be."""
    steps = int(config["steps"])

    made = measure(
        int(config["dimensions"]),
        steps,
        seed=int(config["seed"]),
        tempered=config["variant"] == "tempered",
        tell=control.teller(directory, steps),
    )
    return asdict(made) | {"kinetic_target": KINETIC_TARGET}


def measure(
    dimensions: int,
    steps: int,
    *,
    seed: int = 0,
    tempered: bool = True,
    tell: Callable[[int], None] = lambda step: None,
) -> Measurement:
    """One run; untempered is plain Langevin dynamics (depth 0, no hills). `tell` hears the step now and then."""
    began = time.perf_counter()
    potential = DoubleWell(dimensions)
    generator = np.random.default_rng(seed)
    theta = np.zeros(dimensions)
    theta[0] = 1.0
    theta[1:] = generator.standard_normal(dimensions - 1)
    reference = ReferenceCTLD(
        theta=theta,
        r=generator.standard_normal(dimensions),
        r_alpha=float(generator.standard_normal()),
        eta=STEP_SIZE,
        N=1.0,
        L_s=steps,
        S=0.85 if tempered else 0.0,
        height_factor=20.0 if tempered else 0.0,
    )

    def observe(state: ReferenceCTLD, _: Vector) -> tuple[float, float, float]:
        return float(state.theta[0]), state.alpha, float(state.r @ state.r) / dimensions

    records: list[tuple[float, float, float]] = []
    while len(records) < steps:
        tell(len(records))
        count = min(CHUNK, steps - len(records))
        records += simulate(reference, potential, MOMENTUM, count, generator=generator, observe=observe)
    position, alpha, kinetic = np.array(records)[steps // 10 :].T
    cold = np.abs(alpha) <= COLD if tempered else np.ones(alpha.size, dtype=bool)
    temperature = diagnostics.estimate(kinetic, selected=cold)
    square = diagnostics.estimate(position**2, selected=cold)
    return Measurement(
        dimensions=dimensions,
        steps=steps,
        seed=seed,
        tempered=tempered,
        kinetic_temperature=temperature.mean,
        kinetic_error=temperature.standard_error,
        mean_square=square.mean,
        mean_square_error=square.standard_error,
        mean_square_exact=potential.mean_square(),
        total_variation=diagnostics.total_variation(alpha, num_bins=60),
        cold_share=float(cold.mean()),
        crossings=diagnostics.crossings(position),
        seconds=time.perf_counter() - began,
    )
