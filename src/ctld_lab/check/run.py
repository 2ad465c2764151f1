"""One target sampled by CTLD with a user's settings: what is known of every step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctld import Tempering
from ctld.stepping import integrators
from ctld_lab.sampling.chain import crossings, explore
from ctld_lab.sampling.targets import CHECKED, Target, build
from ctld_lab.streams import numpy_generator, stream_seed

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
    """In units of the quantity; the kinetic temperature in units of 1/g."""
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
    tell: Callable[[int], None] = lambda step: None,
) -> Run:
    """`steps` of exploration; `tell` hears how many are done.

    Another `tempering` than the settings' and another `temperature` than 1 are for those who check the check.
    """
    target, index = build(name), CHECKED.index(name)
    batches = numpy_generator(settings.seed, "data", index)

    def rows() -> NDArray[np.int64]:
        return batches.permutation(target.rows)[: settings.batch]

    chain = explore(
        target,
        steps,
        lr=settings.lr / target.stiffness,
        momentum=settings.momentum,
        num_data=target.num_data,
        tempering=tempering_of(settings, steps) if tempering is None else tempering,
        integrator=settings.integrator,
        seed=stream_seed(settings.seed, "noise", index),
        temperature=temperature,
        dtype=DTYPES[settings.dtype],
        device=settings.device,
        rows=rows if settings.batch is not None and target.rows else None,
        tell=tell,
    )
    control = chain.tempering
    kept = slice(max(steps // 10, getattr(control, "warm_up_steps", 0)), None)
    found = {KINETIC: chain.kinetic, CONFIGURATIONAL: chain.virial}
    found |= {quantity.name: chain.quantities[quantity.name] for quantity in target.quantities if quantity.checked}
    return Run(
        target=target,
        settings=settings,
        steps=steps,
        alpha=chain.alpha[kept],
        cold=chain.ratio[kept] <= 1 + 1e-6,
        edge=getattr(control, "edge", None),
        plateau=getattr(control if hasattr(control, "plateau") else getattr(control, "scaling", None), "plateau", 0.0),
        series={key: values[kept] for key, values in found.items()},
        crossings=None if chain.places is None or chain.diverged else int(crossings(chain.places[kept]).sum()),
        diverged_at=chain.diverged and chain.diverged[0],
        warnings=chain.warnings,
    )
