"""Numbers from the chains of Theorem 2: bias, mean square error, and the powers with which they fall."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab.sampling.targets import MINIMUM

Array = NDArray[np.float64]

BOUNDS = {"decaying_bias": -1.0, "decaying_variance": -1.0, "decaying_mse": -1.0}
"""Exponents of Lη in the theorem."""
RESAMPLES = 200


@dataclass(frozen=True)
class Averages:
    """Of each chain (columns), over the first L steps for every L (rows)."""

    steps: list[int]
    energy: Array
    """Û_L."""
    sampling_error: Array
    """Mean of U − Ū(g(α))."""
    limit: Array
    """The same over the second half of the run, by chain."""
    cold: tuple[Array, Array]
    """Over the second half, by chain: sum of U − Ū(1) over the steps with g = 1, and the number of these."""


def describe(averages: Averages, step_size: float) -> dict[str, Any]:
    """Of one step size: the limits, bias and mean square error for each L, and the slopes against Lη."""
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


@dataclass(frozen=True)
class PowerLaw:
    """What `power_law` found. A misfit far above 1 says that there is no such law."""

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
    """Over chains, with its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(values.size))
