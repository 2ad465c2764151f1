"""Two thermometers of a recorded run, with errors that know about autocorrelation.

The kinetic one sees the momenta: exact on a Gaussian at any stable step, hence blind to step-size bias. The
configurational one sees the parameters and does notice it. Read them together.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ctld.diagnostics.errors import Estimate, as_series, finite_array, selected_estimate

# Room for ratios recorded in single precision.
RATIO_TOLERANCE = 1e-6


def kinetic_temperature(
    readings: ArrayLike, temperature_ratio: ArrayLike, *, temperature: float, cold: bool = True
) -> Estimate:
    """Mean of ``reading/(T · ratio)``, a pure number that is 1 when the sampler is right.

    Parameters
    ----------
    readings
        What the optimizer's thermometer read at each step, in units of temperature, with target
        ``T/g(α) = temperature · temperature_ratio``. Shape ``(steps,)`` or ``(chains, steps)``.
    temperature_ratio
        ``1/g(α)`` at the same steps, 1 or more.
    temperature
        T, the posterior temperature.
    cold
        Use only the steps at ratio 1, the ones that count as samples. Their error is that of a ratio, batched by
        position in the whole series.
    """
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be positive and finite; got {temperature}")
    series = as_series(readings, "readings")
    ratio = _ratio(temperature_ratio, series.shape, of="readings")
    selected = _at_one(ratio) if cold else np.ones(series.shape, dtype=np.bool_)
    return selected_estimate(series / (temperature * ratio), selected)


def configurational_temperature(
    parameters: ArrayLike,
    gradients: ArrayLike,
    *,
    center: ArrayLike = 0.0,
    temperature_ratio: ArrayLike | None = None,
) -> Estimate:
    """Mean of ``(θ − center)ᵀ∇U/d``, in units of temperature: the target is T at g = 1.

    By parts, ``⟨(θ − c)ᵀ∇U⟩ = T d`` under ``exp(−U/T)`` for any constant ``c``, if the density vanishes far out.

    Parameters
    ----------
    parameters
        θ where the gradient was taken. Shape ``(draws, d)`` or ``(chains, draws, d)``; for d = 1 pass ``x[:, None]``.
    gradients
        ∇U at these θ, same shape, U the potential summed over the data (num_data × the mean loss, plus the prior).
        Minibatch gradients serve as well, at the price of a larger error.
    center
        A number or an array of shape ``(d,)``. The nearer to the mean of θ, the smaller the error.
    temperature_ratio
        ``1/g(α)`` of each draw, shape ``(draws,)`` or ``(chains, draws)``. When given, only the draws at ratio 1 count.
    """
    shapes = "(draws, d) or (chains, draws, d)"
    theta = finite_array(parameters, "parameters", dimensions=(2, 3), shapes=shapes)
    slope = finite_array(gradients, "gradients", dimensions=(2, 3), shapes=shapes)
    if theta.shape != slope.shape:
        raise ValueError(f"parameters and gradients must have one shape; got {theta.shape} and {slope.shape}")
    middle = finite_array(center, "center", dimensions=(0, 1), shapes="() or (d,)")
    if middle.ndim == 1 and middle.size != theta.shape[-1]:
        raise ValueError(f"center must be a number or have d = {theta.shape[-1]} entries; got {middle.size}")
    series = np.atleast_2d(np.einsum("...i,...i->...", theta - middle, slope) / theta.shape[-1])
    if temperature_ratio is None:
        return selected_estimate(series, np.ones(series.shape, dtype=np.bool_))
    return selected_estimate(series, _at_one(_ratio(temperature_ratio, series.shape, of="parameters")))


def _ratio(temperature_ratio: ArrayLike, shape: tuple[int, ...], *, of: str) -> NDArray[np.float64]:
    ratio = as_series(temperature_ratio, "temperature_ratio")
    if ratio.shape != shape:
        raise ValueError(
            f"temperature_ratio and {of} must cover the same (chains, steps); got {ratio.shape} and {shape}"
        )
    if ratio.min() < 1 - RATIO_TOLERANCE:
        raise ValueError(f"temperature_ratio is 1/g(α), never below 1; got {ratio.min()}: is this g(α) itself?")
    return ratio


def _at_one(ratio: NDArray[np.float64]) -> NDArray[np.bool_]:
    cold = ratio <= 1 + RATIO_TOLERANCE
    if not cold.any():
        raise ValueError(
            f"none of {ratio.size} steps has temperature_ratio 1, the lowest is {ratio.min()}: record a longer run, or "
            "use every step (cold=False, or no temperature_ratio)"
        )
    return cold
