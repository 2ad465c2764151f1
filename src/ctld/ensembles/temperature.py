"""Which temperature an ensemble's cycles are given: `Ensemble(temperature="auto")`."""

from __future__ import annotations

import math
from typing import Any

from ctld.ensembles.collapse import size_of_weights
from ctld.tempering import TemperatureControl

RELATIVE_SPREAD = 1.0
# ⟨1/g⟩ of the paper's tempering over uniform α.
PAPERS_MEAN_RATIO = 2.138


def spread_per_temperature(lr: float, momentum: float, weight_decay: float, steps: int) -> float:
    """Returns N⟨Δθ²⟩/T after `steps` of a parameter that the data do not hold.

    Noise of variance 2(1 − momentum)·lr·T/N a step makes it diffuse by 2·lr·T/(N(1 − momentum)) a step, and the weight decay λ
    pulls it back at the rate lr·λ/(1 − momentum): (1 − exp(−2 lr λ steps/(1 − momentum)))/λ, at most 1/λ.
    """
    diffusion = 2.0 * lr * steps / (1.0 - momentum)
    return -math.expm1(-weight_decay * diffusion) / weight_decay if weight_decay else diffusion


def ensemble_temperature(
    groups: list[dict[str, Any]], *, num_data: float, steps: int, mean_temperature_ratio: float
) -> float:
    """Returns T for these groups, those with `explore=False` left out: the smallest that a group asks for.

    Each has `params` as (name, parameter), and lr, momentum, weight_decay. `steps` are those of exploration, of all cycles.
    """
    groups = [group for group in groups if group.get("explore", True) and group["params"]]
    temperatures = []
    for group in groups:
        spread = spread_per_temperature(
            float(group["lr"]), float(group["momentum"]), float(group["weight_decay"]), steps
        )
        size = RELATIVE_SPREAD * size_of_weights([parameter for _, parameter in group["params"]])
        if spread:
            temperatures.append(size**2 * num_data / (spread * mean_temperature_ratio))
    return min(temperatures, default=0.0)


def mean_ratio(control: TemperatureControl | None) -> float:
    """Returns the mean of what multiplies T; None is the paper's tempering."""
    if control is None:
        return PAPERS_MEAN_RATIO
    return float(getattr(control, "mean_temperature_ratio", control.temperature_ratio))
