"""One target sampled by CTLD with a user's settings: what is known of every step."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ctld import CTLD, NonFiniteError, Tempering, diagnostics
from ctld.optimizers import integrators
from ctld_lab.check.targets import TARGETS, Target, build
from ctld_lab.streams import stream_seed, torch_generator

CHUNK = 1000  # steps between two looks at what was sampled
WARM_UP = 4000  # the tempering's own default
KINETIC, CONFIGURATIONAL = "kinetic T", "configurational T"
TEMPERINGS = ("calibrated", "paper", "driven", "constant")
INTEGRATORS = integrators.INTEGRATORS
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """What is checked. `lr` is relative: lr·curvature of SGD, in the stiffest direction; stable below 2(1 + momentum)."""

    lr: float = 0.1
    momentum: float = 0.9
    tempering: str = "calibrated"
    integrator: str = "baoab"
    dtype: str = "float64"
    device: str = "cpu"
    seed: int = 0
    period: int = 20_000
    """Of driven tempering, in steps."""
    batch: int | None = None
    """Rows of a minibatch of the regression; all of them if left out."""


@dataclass
class Run:
    """Series over the steps that count, the first tenth left out."""

    target: Target
    settings: Settings
    steps: int
    alpha: NDArray[np.float64]
    cold: NDArray[np.bool_]
    """Whether the temperature was T when θ was recorded."""
    edge: float | None
    """Of α, if it moves."""
    plateau: float
    series: dict[str, NDArray[np.float64]]
    """In units of the quantity; the kinetic temperature in units of T/g."""
    crossings: int | None = None
    """Of the target's barrier, if it has one, hot steps too."""
    diverged_at: int | None = None
    warnings: list[str] = field(default_factory=list)


def tempering_of(settings: Settings, steps: int) -> Any:
    """None is CTLD's own default, the paper's."""
    if settings.tempering == "paper":
        return None
    if settings.tempering == "calibrated":
        return Tempering.calibrated(warm_up=min(WARM_UP, max(steps // 10, 100)))
    if settings.tempering == "driven":
        return Tempering.driven(settings.period)
    if settings.tempering == "constant":
        return Tempering.constant()
    raise ValueError(f"tempering = {settings.tempering!r} is unknown; give one of {', '.join(TEMPERINGS)}")


def sample(
    name: str,
    settings: Settings,
    steps: int,
    *,
    tempering: Any = None,
    temperature: float = 1.0,
    tell: Callable[[int], None] = lambda steps: None,
) -> Run:
    """`steps` of exploration; `tell` hears how many more are done.

    Another `tempering` than the settings' and another `temperature` than 1 are for those who check the check.
    """
    target = build(name, dtype=DTYPES[settings.dtype], device=settings.device)
    judged = build(name)  # what was sampled is looked at in double precision
    rows = np.empty((4, steps))  # α and 1/g where θ was recorded, the thermometer, and the way across the barrier
    series = {key: np.empty(steps) for key in (CONFIGURATIONAL, *(quantity.name for quantity in target.quantities))}
    done, diverged_at = 0, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        theta = nn.Parameter(target.start.clone())
        tempering = tempering_of(settings, steps) if tempering is None else tempering
        optimizer = _optimizer(theta, target, settings, steps, tempering, temperature)
        batches = torch_generator(settings.seed, "data", list(TARGETS).index(name))
        while done < steps and diverged_at is None:
            chunk = slice(done, min(done + CHUNK, steps))
            places = torch.empty((chunk.stop - done, theta.numel()), dtype=theta.dtype, device=theta.device)
            try:
                for step in range(len(places)):
                    chosen = None
                    if settings.batch is not None and target.rows:
                        chosen = torch.randperm(target.rows, generator=batches)[: settings.batch].to(theta.device)
                    places[step] = theta.detach()
                    loss, theta.grad = target.loss(theta.detach(), chosen)
                    rows[:3, done + step] = _step(optimizer, loss)
            except (NonFiniteError, FloatingPointError, OverflowError):
                diverged_at = done + step
            else:
                places = places.to("cpu", torch.float64)
                _look(judged, places, {key: values[chunk] for key, values in series.items()})
                rows[3, chunk] = places[:, target.barrier or 0]
                done = chunk.stop
            tell(len(places))
    control: Any = optimizer.tempering
    kept = slice(max(steps // 10, getattr(control, "warm_up_steps", 0)), done)
    return Run(
        target=judged,
        settings=settings,
        steps=steps,
        alpha=rows[0, kept],
        cold=rows[1, kept] <= 1 + 1e-6,
        edge=getattr(control, "edge", None),
        plateau=getattr(control if hasattr(control, "plateau") else getattr(control, "scaling", None), "plateau", 0.0),
        series={KINETIC: rows[2, kept], **{key: values[kept] for key, values in series.items()}},
        crossings=None if target.barrier is None or done < steps else diagnostics.crossings(rows[3, kept]),
        diverged_at=diverged_at,
        warnings=[str(warning.message) for warning in caught],
    )


def _optimizer(
    theta: nn.Parameter, target: Target, settings: Settings, steps: int, tempering: Any, temperature: float
) -> CTLD:
    return CTLD(
        [theta],
        settings.lr * target.num_data / target.stiffness,
        settings.momentum,
        num_data=target.num_data,
        weight_decay=target.weight_decay,
        exploration_steps=steps,
        temperature=temperature,
        tempering=tempering,
        integrator=settings.integrator,  # type: ignore[arg-type]
        seed=stream_seed(settings.seed, "noise", list(TARGETS).index(target.name)),
    )


def _step(optimizer: CTLD, loss: torch.Tensor) -> tuple[float, float, float]:
    """α and 1/g before the step, and the kinetic temperature in units of T/g."""
    alpha, ratio = getattr(optimizer.tempering, "alpha", 0.0), optimizer.tempering.temperature_ratio
    optimizer.step(loss=loss)
    record = optimizer.last
    assert record is not None
    assert record.kinetic_temperature is not None
    return alpha, ratio, record.kinetic_temperature / record.temperature_ratio


def _look(target: Target, places: torch.Tensor, into: dict[str, NDArray[np.float64]]) -> None:
    found = ((places - target.center) * target.slope(places)).mean(1)
    into[CONFIGURATIONAL][:] = found.numpy()
    for quantity in target.quantities:
        into[quantity.name][:] = quantity.of(places).numpy()
