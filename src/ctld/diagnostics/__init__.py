"""Diagnostics of a recorded run: arrays in, numbers out.

A series is an array of shape ``(steps,)``, or ``(chains, steps)`` for independent runs of equal length.

* how far to trust a mean: `estimate` (an `Estimate`), `batch_means_error`, `effective_sample_size`
* the tempering variable: `occupancy`, `total_variation`, `share_outside`, `cold_share`, `half_trips`
* barriers of the target: `crossings`
* the temperature: `kinetic_temperature`, `configurational_temperature`
* whether chains agree: `convergence` (a `Convergence` for each quantity), `to_arviz`
* how much heat the order of the batches leaves: `remaining_heat`
* how singular a minimum is: `learning_coefficient`
* how flat a minimum is, from a loss and its parameters: `top_eigenvalues`, `hessian_trace`, `sharpness`, `perturbed_loss`
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctld.diagnostics.alpha import (
    ColdShare,
    HalfTrips,
    cold_share,
    half_trips,
    occupancy,
    share_outside,
    total_variation,
)
from ctld.diagnostics.batch_order import remaining_heat
from ctld.diagnostics.convergence import Convergence, convergence, to_arviz
from ctld.diagnostics.crossings import crossings
from ctld.diagnostics.errors import Estimate, batch_means_error, effective_sample_size, estimate
from ctld.diagnostics.flatness import (
    Eigenvalues,
    Sharpness,
    hessian_trace,
    perturbed_loss,
    sharpness,
    top_eigenvalues,
)
from ctld.diagnostics.thermometers import configurational_temperature, kinetic_temperature

if TYPE_CHECKING:
    from ctld.sampling.coefficient import LearningCoefficient, learning_coefficient


def __getattr__(name: str) -> Any:
    """Return what samples, and hence needs the optimizers, which need this package."""
    if name in ("LearningCoefficient", "learning_coefficient"):
        return getattr(import_module("ctld.sampling.coefficient"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ColdShare",
    "Convergence",
    "Eigenvalues",
    "Estimate",
    "HalfTrips",
    "LearningCoefficient",
    "Sharpness",
    "batch_means_error",
    "cold_share",
    "configurational_temperature",
    "convergence",
    "crossings",
    "effective_sample_size",
    "estimate",
    "half_trips",
    "hessian_trace",
    "kinetic_temperature",
    "learning_coefficient",
    "occupancy",
    "perturbed_loss",
    "remaining_heat",
    "share_outside",
    "sharpness",
    "to_arviz",
    "top_eigenvalues",
    "total_variation",
]
