"""The samplers that are compared: rows of `ctld.OPTIMIZERS`, and CTLD with other temperings. All at T = 1."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.nn import Module

from ctld import CTLD, Tempering
from methods import create

RATES = (0.05, 0.2, 0.8)
"""Learning rates that are tried for every sampler, in units of 1/curvature."""
MOMENTUM = 0.9


@dataclass(frozen=True)
class Setting:
    """Facts that a sampler needs about a problem, and how long it runs."""

    num_data: int
    weight_decay: float
    curvature: float
    """The largest curvature of mean loss and prior."""
    rate: float
    steps: int

    @property
    def lr(self) -> float:
        return self.rate / self.curvature


Build = Callable[[Module, Setting, int], Any]


@dataclass(frozen=True)
class Sampler:
    """A row of the comparison."""

    title: str
    build: Build
    """Make the optimizer of a model, given its setting and a seed."""
    cold: Callable[[Any], bool] = lambda optimizer: True
    """True if what the model holds after a step counts as a draw."""
    tempered: bool = False


def _row(name: str, **options: Any) -> Build:
    def build(model: Module, setting: Setting, seed: int) -> Any:
        given = {"num_data": setting.num_data, "weight_decay": setting.weight_decay, "seed": seed, "lr": setting.lr}
        if name == "psgld":
            # Its step is lr·∇/√⟨∇²⟩, and ∇² is about curvature/N where exp(−U) has its mass.
            given["lr"] = setting.rate / math.sqrt(setting.curvature * setting.num_data)
        if name == "csghmc":
            given |= {"num_steps": setting.steps, "num_cycles": 8, "exploration_share": 0.5}
        return create(name, model.parameters(), **given, **options)

    return build


def _tempered(tempering: Callable[[Setting], Any], integrator: str) -> Build:
    def build(model: Module, setting: Setting, seed: int) -> Any:
        return CTLD(
            model.parameters(),
            setting.lr,
            MOMENTUM,
            num_data=setting.num_data,
            weight_decay=setting.weight_decay,
            exploration_steps=setting.steps,
            temperature=1.0,
            tempering=tempering(setting),
            integrator=integrator,
            seed=seed,
        )

    return build


def _at_ratio_one(optimizer: Any) -> bool:
    moving = optimizer.tempering if isinstance(optimizer, CTLD) else optimizer
    return bool(moving.temperature_ratio == 1.0)


def _calibrated(setting: Setting) -> Any:
    return Tempering.calibrated(warm_up=min(4000, max(setting.steps // 5, 100)))


def _paper(setting: Setting) -> Any:
    return Tempering.paper(math.sqrt(setting.lr / setting.num_data), setting.steps)


SAMPLERS: Mapping[str, Sampler] = {
    "sgld": Sampler("SGLD", _row("sgld")),
    "psgld": Sampler("pSGLD", _row("psgld")),
    "sghmc": Sampler("SGHMC", _row("sghmc", momentum=MOMENTUM)),
    "sgnht": Sampler("SGNHT", _row("sgnht", momentum=MOMENTUM)),
    "langevin": Sampler("Langevin", _row("langevin", momentum=MOMENTUM)),
    "baoab": Sampler("CTLD untempered, BAOAB", _tempered(lambda _: Tempering.constant(), "baoab")),
    "csghmc": Sampler("cSGHMC", _row("csghmc", momentum=MOMENTUM), lambda optimizer: bool(optimizer.sampling)),
    "driven": Sampler(
        "driven T, BAOAB", _tempered(lambda s: Tempering.driven(s.steps // 10), "baoab"), _at_ratio_one, True
    ),
    "paper": Sampler("the paper's tempering", _tempered(_paper, "euler"), _at_ratio_one, True),
    "calibrated": Sampler("calibrated tempering, BAOAB", _tempered(_calibrated, "baoab"), _at_ratio_one, True),
    "tact_hmc": Sampler("TACT-HMC", _row("tact_hmc", momentum=MOMENTUM), _at_ratio_one, True),
    "resgld": Sampler("replica exchange", _row("resgld", momentum=MOMENTUM), _at_ratio_one, True),
}


def told(optimizer: Any) -> dict[str, Any]:
    """Return what a sampler knows of its own travels: half-trips beside those promised, swaps."""
    tempering = getattr(optimizer, "tempering", optimizer)
    names = ("half_trips", "promised_half_trips", "warned", "depth", "swaps")
    return {name: value for name in names if (value := getattr(tempering, name, None)) is not None}
