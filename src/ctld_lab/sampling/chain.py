"""One chain of `CTLD` on a target whose answer is known, step by step: for `ctld check` and for the study of temperings."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ctld import CTLD, NonFiniteError
from ctld_lab.sampling.targets import Array, Target

CHUNK = 1000
"""Steps between two looks at what was sampled."""


@dataclass
class Chain:
    """Series over all steps that were taken, each of θ before the step."""

    alpha: Array
    ratio: Array
    """1/g(α)."""
    kinetic: Array
    """Kinetic temperature of the step, in units of 1/g."""
    potential: Array
    virial: Array
    """(θ − center)ᵀ∇U/d: the configurational temperature."""
    quantities: dict[str, Array]
    places: NDArray[np.int64] | None
    cells: NDArray[np.int64] | None
    tempering: Any
    diverged: tuple[int, str] | None = None
    """At which step, and why."""
    warnings: list[str] = field(default_factory=list)


def explore(
    target: Target,
    steps: int,
    *,
    lr: float,
    momentum: float,
    num_data: float,
    tempering: Any,
    integrator: Any,
    seed: int,
    temperature: float = 1.0,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    tell: Callable[[int], None] = lambda step: None,
) -> Chain:
    """`steps` of exploration. lr is in units of U's curvature, so lr·N is what the optimizer is given; `tell` hears the step.

    The potential is evaluated in double precision, whatever the parameters are.
    """
    theta = nn.Parameter(torch.tensor(target.start, dtype=dtype, device=device))
    theta.grad = torch.zeros_like(theta)
    prior = num_data * target.weight_decay
    shared = theta.device.type == "cpu"
    place, gradient = (theta.detach().numpy(), theta.grad.numpy()) if shared else (None, None)
    alpha, ratio, kinetic, potential, virial = np.zeros((5, steps))
    quantities = {quantity.name: np.empty(steps) for quantity in target.quantities}
    modes = {look: np.empty(steps, dtype=np.int64) for look in (target.place, target.cell) if look is not None}
    done, diverged = 0, None
    with warnings.catch_warnings(record=True) as heard, np.errstate(over="raise", invalid="raise", divide="raise"):
        warnings.simplefilter("always", UserWarning)
        optimizer = CTLD(
            [theta],
            lr * num_data,
            momentum,
            num_data=num_data,
            weight_decay=target.weight_decay,
            exploration_steps=steps,
            temperature=temperature,
            tempering=tempering,
            integrator=integrator,
            seed=seed,
        )
        control: Any = optimizer.tempering
        moves = control.alpha is not None
        points = np.empty((CHUNK, target.start.size))
        while done < steps and diverged is None:
            tell(done)
            chunk = slice(done, min(done + CHUNK, steps))
            try:
                for step in range(chunk.start, chunk.stop):
                    here = points[step - done]
                    here[:] = theta.detach().cpu().numpy() if place is None else place
                    energy, slope = target.potential(here)
                    potential[step] = energy
                    if prior:
                        slope, energy = slope - prior * here, energy - 0.5 * prior * (here @ here)
                    slope /= num_data
                    if gradient is None:
                        theta.grad.copy_(torch.from_numpy(slope))
                    else:
                        gradient[:] = slope
                    if moves:
                        alpha[step] = control.alpha
                    ratio[step] = control.temperature_ratio
                    optimizer.step(loss=float(energy) / num_data)
                    last = optimizer.last
                    assert last is not None
                    assert last.kinetic_temperature is not None
                    kinetic[step] = last.kinetic_temperature / last.temperature_ratio
            except (NonFiniteError, FloatingPointError, OverflowError) as error:
                diverged = step, str(error)
                break
            seen = points[: chunk.stop - chunk.start]
            virial[chunk] = ((seen - target.center) * target.potential(seen)[1]).mean(axis=1)
            for quantity in target.quantities:
                quantities[quantity.name][chunk] = quantity.of(seen)
            for look, series in modes.items():
                series[chunk] = look(seen)
            done = chunk.stop
        tell(done)
    return Chain(
        alpha=alpha[:done],
        ratio=ratio[:done],
        kinetic=kinetic[:done],
        potential=potential[:done],
        virial=virial[:done],
        quantities={name: series[:done] for name, series in quantities.items()},
        places=None if target.place is None else modes[target.place][:done],
        cells=None if target.cell is None else modes[target.cell][:done],
        tempering=control,
        diverged=diverged,
        warnings=[str(warning.message) for warning in heard],
    )


def crossings(places: NDArray[np.int64]) -> Array:
    """1 at each step at which a mode is entered that is another than the last, else 0; `places` is −1 between modes."""
    events = np.zeros(places.size)
    visits = np.flatnonzero(places >= 0)
    modes = places[visits]
    events[visits[1:][modes[1:] != modes[:-1]]] = 1.0
    return events
