"""Diagnostics of a recorded run: arrays in, numbers out.

A series is an array of shape ``(steps,)``, or ``(chains, steps)`` for independent runs of equal length.

* how far to trust a mean: `estimate` (an `Estimate`), `batch_means_error`, `effective_sample_size`
* the tempering variable: `occupancy`, `total_variation`, `share_outside`, `cold_share`, `half_trips`
* barriers of the target: `crossings`
* the temperature: `kinetic_temperature`, `configurational_temperature`
* whether chains agree, by ArviZ: `convergence` (a `Convergence` for each quantity), `to_arviz`
* how flat a minimum is, from a loss and its parameters: `top_eigenvalues`, `hessian_trace`, `sharpness`, `perturbed_loss`
"""

from ctld.diagnostics.alpha import (
    ColdShare,
    HalfTrips,
    cold_share,
    half_trips,
    occupancy,
    share_outside,
    total_variation,
)
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

__all__ = [
    "ColdShare",
    "Convergence",
    "Eigenvalues",
    "Estimate",
    "HalfTrips",
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
    "occupancy",
    "perturbed_loss",
    "share_outside",
    "sharpness",
    "to_arviz",
    "top_eigenvalues",
    "total_variation",
]
