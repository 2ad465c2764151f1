"""Readings that a collector takes from an optimizer: progress, thermometer, and whether a sample will ever come."""

from __future__ import annotations

import math

import torch

from ctld.ensembles.samples import Reading
from ctld.optimizers import CTLD
from ctld.tempering.constant import ConstantTemperature

# Room for rounding in 1/g(α), as in `ctld.diagnostics`.
RATIO_TOLERANCE = 1e-6


def reading_of(optimizer: CTLD) -> Reading | None:
    """Return the thermometer; None after a step of fine-tuning, and after one in which all groups rested."""
    last = optimizer.last
    if last is None or last.kinetic_temperature is None:
        return None
    return Reading(
        step=optimizer.steps,
        alpha=last.alpha,
        temperature_ratio=last.temperature_ratio,
        kinetic_temperature=last.kinetic_temperature,
        target_temperature=optimizer.temperature * last.temperature_ratio,
    )


def refuse_what_never_collects(optimizer: CTLD, cold_every: int | None) -> None:
    """Raise a ValueError if no step of `optimizer` ever ends a cycle or gives a cold sample."""
    explores, cycle = optimizer.exploration_steps, optimizer.cycle_steps
    if cycle is None and cold_every is None:
        raise ValueError(
            "update keeps the model at the end of a cycle, and this CTLD has no cycles: give CTLD(cycle_steps=...), "
            "SampleCollector(cold_every=...) for draws of the exploration, or call collect() where a model is to be kept"
        )
    if cold_every is None:
        return
    reason = None
    if explores == 0 or optimizer.temperature == 0:
        reason = "this CTLD does not explore: give exploration_steps and a temperature above 0"
    elif isinstance(optimizer.tempering, ConstantTemperature) and optimizer.temperature_ratio > 1 + RATIO_TOLERANCE:
        reason = f"its temperature ratio is {optimizer.temperature_ratio:g} throughout: give Tempering.constant(1)"
    elif cycle is None and cold_every > explores:
        reason = f"exploration ends after {explores} steps: give fewer"
    elif cycle is not None and math.gcd(cold_every, cycle) > explores:
        reason = f"with cycles of {cycle} steps none of these is among the {explores} that explore: give another number"
    if reason is not None:
        raise ValueError(f"cold_every = {cold_every} never finds a cold sample; {reason}")


def rank() -> int:
    """Return the rank of this process; 0 where there is no other process."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0


def processes() -> int:
    """Return how many processes train together, 1 where there is no group of them."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
