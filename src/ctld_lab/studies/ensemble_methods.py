"""The methods of the study `ensemble`: how each spends its gradients, what it keeps, and what of it is tuned beside lr.

All have the same number of gradients. Those that keep several models share the gradients among them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ctld import Tempering

HOT = 0.6  # share of a cycle that explores
DEEP = 3  # members of the deep ensemble
SWA_FROM = 0.75  # share of the steps before averaging
SWA_RATE = 0.2  # lr from there on, relative
SWA_MODELS = 20  # averaged
CSGHMC_SHARE, CSGHMC_SAMPLES = 0.8, 3  # of a cycle before sampling, as in its paper; samples of each cycle
SANTA_SHARE = 0.2  # of the steps that explore
MOMENTUM = 0.9
LEAST_WARM_UP = 100  # steps, of calibrated tempering


@dataclass(frozen=True)
class Budget:
    """What every method of a workload has."""

    steps: int
    """Gradients in all."""
    cycles: int
    kept: int
    """Of the cycles, the last ones, whose models are averaged: where training is short the first are hardly trained."""

    @property
    def cycle_steps(self) -> int:
        return self.steps // self.cycles

    def ends(self) -> list[int]:
        """Steps at which cycles that are kept end."""
        return [self.cycle_steps * place for place in range(self.cycles - self.kept + 1, self.cycles + 1)]


Configure = Callable[[Budget], dict[str, Any]]


@dataclass(frozen=True)
class Method:
    """A row of the study."""

    title: str
    second: str
    """What is tuned beside lr: the temperature where there is noise; else the weight decay, or Santa's λ."""
    configure: Configure
    """The part of a run's configuration that is the method's."""
    rates: str = "sgd"
    """Whose learning rates are of the same size."""


def _cosine(cycle_steps: int, hold_steps: int = 0) -> dict[str, Any]:
    return {"kind": "cycles", "cycle_steps": cycle_steps, "hold_steps": hold_steps}


def _cycles(tempering: Callable[[int], dict[str, Any]] | None) -> Configure:
    """Exploration, then fine-tuning with lr to zero, again and again; without a tempering T = 0, the same lr."""

    def configure(budget: Budget) -> dict[str, Any]:
        explored = round(HOT * budget.cycle_steps)
        heat = {"temperature": 0.0} if tempering is None else {"tempering": tempering(explored)}
        return {
            "algorithm": "ctld",
            "optimizer": {"momentum": MOMENTUM, "cycle_steps": budget.cycle_steps} | heat,
            "exploration_steps": explored,
            "schedule": _cosine(budget.cycle_steps, explored),
            "members": {"steps": budget.ends()},
        }

    return configure


def _driven(explored: int) -> dict[str, Any]:
    # |α| goes up and down twice in a period.
    return {"kind": "driven", "period": 2 * explored}


def _constant(explored: int) -> dict[str, Any]:
    """As hot, on average, as the driven one."""
    return {"kind": "constant", "ratio": round(Tempering.driven(2).mean_temperature_ratio, 6)}


def _calibrated(explored: int) -> dict[str, Any]:
    """Its warm-up is the exploration of the first cycle; the rest would not be enough for the usual 4,000 steps."""
    return {"kind": "calibrated", "warm_up": max(explored, LEAST_WARM_UP)}


def _single(algorithm: str, **options: Any) -> Configure:
    def configure(budget: Budget) -> dict[str, Any]:
        return {
            "algorithm": algorithm,
            "optimizer": dict(options),
            "exploration_steps": 0,
            "schedule": _cosine(budget.steps),
            "members": {"steps": [budget.steps]},
        }

    return configure


_sgd = _single("sgd", momentum=MOMENTUM)


def _santa(budget: Budget) -> dict[str, Any]:
    explored = round(SANTA_SHARE * budget.steps)
    return _single("santa")(budget) | {"exploration_steps": explored, "schedule": _cosine(budget.steps, explored)}


def _snapshot(budget: Budget) -> dict[str, Any]:
    """A cosine to zero in each cycle (Huang et al. 2017)."""
    return _sgd(budget) | {"schedule": _cosine(budget.cycle_steps), "members": {"steps": budget.ends()}}


def _csghmc(budget: Budget) -> dict[str, Any]:
    """Its own cosine cycles; samples are taken while it injects noise (Zhang et al. 2020)."""
    sampled = (1.0 - CSGHMC_SHARE) * budget.cycle_steps
    before = [round(sampled * place / CSGHMC_SAMPLES) for place in reversed(range(CSGHMC_SAMPLES))]
    return {
        "algorithm": "csghmc",
        "optimizer": {"momentum": MOMENTUM, "num_cycles": budget.cycles, "exploration_share": CSGHMC_SHARE},
        "exploration_steps": 0,
        "members": {"steps": sorted({end - steps for end in budget.ends() for steps in before})},
    }


def _swa(budget: Budget) -> dict[str, Any]:
    """A cosine down to a fifth of lr, then the mean of the weights along the rest (Izmailov et al. 2018)."""
    start = round(SWA_FROM * budget.steps)
    places = {start + round((budget.steps - start) * place / SWA_MODELS) for place in range(1, SWA_MODELS + 1)}
    return _sgd(budget) | {
        "schedule": {"kind": "settle", "settle_steps": start, "factor": SWA_RATE},
        "members": {"steps": sorted(places), "average": True},
    }


def _deep(budget: Budget) -> dict[str, Any]:
    """Networks with initial weights of their own, each with its share of the gradients (Lakshminarayanan et al. 2017)."""
    each = budget.steps // DEEP
    return _sgd(replace(budget, steps=each)) | {"steps": [each] * DEEP}


METHODS: dict[str, Method] = {
    "cycles_paper": Method("cycles (paper)", "temperature", _cycles(lambda explored: {"kind": "paper"})),
    "cycles_calibrated": Method("cycles (calibrated)", "temperature", _cycles(_calibrated)),
    "cycles_driven": Method("cycles (driven)", "temperature", _cycles(_driven)),
    "cycles_constant": Method("cycles (constant T)", "temperature", _cycles(_constant)),
    "cycles_cold": Method("cycles (T = 0)", "weight_decay", _cycles(None)),
    "sgd": Method("SGD-M", "weight_decay", _sgd),
    "adam": Method("Adam", "weight_decay", _single("adam"), rates="adam"),
    "santa": Method("Santa", "epsilon", _santa, rates="santa"),
    "snapshot": Method("snapshot ensemble", "weight_decay", _snapshot),
    "csghmc": Method("cyclical SGHMC", "temperature", _csghmc),
    "swa": Method("SWA", "weight_decay", _swa),
    "deep": Method("deep ensemble", "weight_decay", _deep),
}
