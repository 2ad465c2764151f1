"""Defaults of an ensemble: its cycles, and the temperature that `temperature="auto"` chooses.

Noise makes the members of an ensemble differ, mostly where the data do not hold the weights. Two things decide what it is
worth (docs/ensembles.md has the measurements):

* How far it spreads such weights: with few data a spread of about six times their initial RMS did best.
* Whether it is forgotten from one cycle to the next. The weight decay λ pulls free weights back by exp(−κ) in a cycle,
  κ = lr·λ·cycle_steps/(1 − momentum). If κ ≪ 1 the members share what noise they have, it does not average out, and it does
  harm instead.

So T is such that the spread is SPREAD·min(1, κ)² times the initial RMS, and at most 1, the posterior itself. How much noise a
network bears depends on its curvature too, which goes with the scale of the inputs: `Ensemble` starts with a tenth of this T,
and adapts it from cycle to cycle. Networks with norm layers get none: noise inflates weights that have no scale.

A cycle must be long enough to train the network. With few steps or few epochs one long run is better than several short
cycles, so the number of cycles follows from both (research/robustness).
"""

from __future__ import annotations

import logging
import math
from typing import Any, Literal

from torch import nn

from ctld.checks import integer, real
from ctld.ensembles.collapse import size_of_weights
from ctld.ensembles.cycles import Cycles
from ctld.optimizers import CTLD
from ctld.tempering import TemperatureControl

_log = logging.getLogger("ctld")

MOST_CYCLES = 6
EPOCHS, STEPS = 5, 75  # of a cycle, at least
EXPLORATION = 0.6  # of each cycle
SPREAD = 6.0
# ⟨1/g⟩ of the paper's tempering over uniform α.
PAPERS_MEAN_RATIO = 2.138


def cycles_that_fit(total_steps: int, steps_per_epoch: float | None) -> int:
    """Return how many cycles of EPOCHS passes and STEPS steps at least fit. Without `steps_per_epoch` steps alone decide."""
    fit = total_steps // STEPS
    if steps_per_epoch is not None:
        fit = min(fit, int(total_steps / (EPOCHS * steps_per_epoch)))
    return max(1, min(MOST_CYCLES, fit))


def chosen_cycles(
    total_steps: int, cycles: int | Literal["auto"], steps_per_epoch: float | None, exploration: float | None
) -> Cycles:
    """Return the cycles of a run, those that were left out by the rule."""
    total_steps = integer("total_steps", total_steps, at_least=1)
    if steps_per_epoch is not None:
        steps_per_epoch = real("steps_per_epoch", steps_per_epoch, above=0)
    if cycles == "auto":
        cycles = cycles_that_fit(total_steps, steps_per_epoch)
        _log.info('cycles="auto": %s', f"{cycles} cycles" if cycles > 1 else "the run is short: one long run")
        if exploration is None and cycles == 1:
            exploration = 0.0
    return Cycles(total_steps, cycles, EXPLORATION if exploration is None else exploration)


def has_norm_layers(model: nn.Module) -> bool:
    """True if a module of the model is named as a norm: batch, layer, group, instance, RMS, or one of its own."""
    return any("norm" in type(module).__name__.lower() for module in model.modules())


def spread_per_temperature(lr: float, momentum: float, weight_decay: float, steps: int) -> float:
    """Return N⟨Δθ²⟩/T after `steps` of a parameter that the data do not hold.

    Noise of variance 2(1 − momentum)·lr·T/N a step makes it diffuse by 2·lr·T/(N(1 − momentum)) a step, and the weight decay λ
    pulls it back at the rate lr·λ/(1 − momentum): (1 − exp(−2 lr λ steps/(1 − momentum)))/λ, at most 1/λ.
    """
    diffusion = 2.0 * lr * steps / (1.0 - momentum)
    return -math.expm1(-weight_decay * diffusion) / weight_decay if weight_decay else diffusion


def forgetting(lr: float, momentum: float, weight_decay: float, cycle_steps: int) -> float:
    """Return κ: a parameter that the data do not hold shrinks by exp(−κ) in a cycle."""
    return lr * weight_decay * cycle_steps / (1.0 - momentum)


def ensemble_temperature(
    groups: list[dict[str, Any]],
    *,
    num_data: float,
    exploration_steps: int,
    cycle_steps: int,
    mean_temperature_ratio: float,
) -> float:
    """Return T for these groups: the smallest that a group asks for. Frozen weights and `explore=False` do not count.

    Each has `params` as (name, parameter), and lr, momentum, weight_decay. `exploration_steps` are those of all cycles.
    """
    temperatures = []
    for group in groups:
        weights = [parameter for _, parameter in group["params"] if parameter.requires_grad]
        if not group.get("explore", True) or not weights:
            continue
        rates = (
            real("lr", group["lr"], at_least=0),
            real("momentum", group["momentum"], at_least=0, below=1),
            real("weight_decay", group["weight_decay"], at_least=0),
        )
        unit = spread_per_temperature(*rates, exploration_steps) * mean_temperature_ratio
        forgotten = forgetting(*rates, cycle_steps)
        spread = SPREAD * min(1.0, forgotten) ** 2
        size = size_of_weights(weights)
        temperatures.append(min(1.0, (spread * size) ** 2 * num_data / unit) if unit else 0.0)
    temperature = min(temperatures, default=0.0)
    _log.info('temperature="auto" of an ensemble: T = %.3g', temperature)
    return temperature


def mean_ratio(control: TemperatureControl | None) -> float:
    """Return the mean of what multiplies T; None is the paper's tempering."""
    if control is None:
        return PAPERS_MEAN_RATIO
    return control.mean_temperature_ratio


def noise_spread(optimizer: CTLD) -> float:
    """Return the largest spread that the noise of one exploration gives to a parameter that the data do not hold."""
    group = next(group for group in optimizer.param_groups if group["explore"])
    rates = float(group["lr"]), float(group["momentum"]), float(group["weight_decay"])
    heat = optimizer.temperature * mean_ratio(optimizer.tempering) / optimizer.num_data
    return math.sqrt(heat * spread_per_temperature(*rates, optimizer.exploration_steps))
