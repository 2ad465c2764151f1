"""Does the paper's sampler keep its promise? Exploration against exactness on a double well with a known answer.

Varied: the dimension d, and the tempering (the paper's, or none). Tuned: nothing. Fixed: U = 8(x² − 1)² + ½Σy², N = T = 1,
η = 0.02, γ = 1 (momentum 0.98), the paper's formulas with mass 1, start at x = 1, first tenth dropped.

At g = 1 the kinetic temperature should read 2/(1 + momentum) = 1.01 for rᵀr/d, and ⟨x²⟩ its quadrature value. Runs
Algorithm 1 line by line (`ctld.optimizers.reference`), to which `CTLD` is tested equal; `python -m
ctld_lab.studies.double_well` prints the table and stores it as JSON.
"""

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ctld import __version__, diagnostics
from ctld.optimizers.reference import ReferenceCTLD, Vector, simulate

STEP_SIZE, MOMENTUM, COLD = 0.02, 0.98, 0.4
KINETIC_TARGET = 2.0 / (1.0 + MOMENTUM)


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


def potential(theta: Vector) -> tuple[float, Vector]:
    """U and ∇U."""
    x = theta[0]
    gradient = theta.copy()
    gradient[0] = 32.0 * x * (x * x - 1.0)
    rest = theta[1:]
    return float(8.0 * (x * x - 1.0) ** 2 + 0.5 * (rest @ rest)), gradient


def exact_mean_square() -> float:
    """⟨x²⟩ by quadrature."""
    x = np.linspace(-3.0, 3.0, 200_001)
    density = np.exp(-8.0 * (x * x - 1.0) ** 2)
    return float((x * x * density).sum() / density.sum())


def measure(dimensions: int, steps: int, *, seed: int = 0, tempered: bool = True) -> Measurement:
    """One run; untempered is plain Langevin dynamics (depth 0, no hills)."""
    began = time.perf_counter()
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

    records = simulate(reference, potential, MOMENTUM, steps, generator=generator, observe=observe)
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
        mean_square_exact=exact_mean_square(),
        total_variation=diagnostics.total_variation(alpha, num_bins=60),
        cold_share=float(cold.mean()),
        crossings=diagnostics.crossings(position),
        seconds=time.perf_counter() - began,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path, default=Path("double_well.json"))
    options = parser.parse_args()
    print(
        f"{'d':>5} {'tempered':>8} {'seed':>4} {'kinetic T at g = 1':>20} {'<x²>':>16} {'TV':>5} {'g = 1':>6} {'crossings':>9}"
    )
    rows: list[dict[str, Any]] = []
    for dimensions in options.dimensions:
        for tempered in (True, False):
            for seed in options.seeds:
                # A quarter of the steps at d = 1,000, as in the study that found this.
                steps = options.steps // 4 if dimensions >= 1000 else options.steps
                row = measure(dimensions, steps, seed=seed, tempered=tempered)
                rows.append(asdict(row))
                print(
                    f"{dimensions:>5} {tempered!s:>8} {seed:>4} {row.kinetic_temperature:>12.3f} ± {row.kinetic_error:.3f} "
                    f"{row.mean_square:>8.4f} ± {row.mean_square_error:.4f} {row.total_variation:>6.2f} {row.cold_share:>6.2f} "
                    f"{row.crossings:>9}",
                    flush=True,
                )
    record = {
        "study": "double-well",
        "version": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "kinetic_target": KINETIC_TARGET,
        "runs": rows,
    }
    temporary = options.output.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(temporary, options.output)
    print(f"stored in {options.output}")


if __name__ == "__main__":
    main()
