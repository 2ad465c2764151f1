"""An optimizer with two phases, exploration and fine-tuning: what is in force, how parameters start, what its state holds."""

import math
import zlib
from typing import Any

import torch
from torch import Tensor

from ctld import compensation
from ctld.checks import flag, real
from ctld.compensation import NoiseCompensation
from ctld.mass import Mass, RMSPreconditioner
from ctld.optimizers.base import Sampler
from ctld.optimizers.checkpoint import Part
from ctld.optimizers.momenta import UNITS
from ctld.optimizers.record import Journal, StepRecord
from ctld.optimizers.temperature import Temperature, automatic_temperature, warn_of_rounding
from ctld.ranks import Facts
from ctld.stepping.foreach import momentum_dtype, wide_dtype
from ctld.tempering import TemperatureControl
from ctld.thermometers import Thermometers


class Phased(Sampler):
    """An optimizer that explores at a temperature that moves, then fine-tunes; a subclass makes its parts and says how."""

    tempering: TemperatureControl
    integrator: str
    compensation: NoiseCompensation
    mass: Mass
    thermometers: Thermometers
    _posterior: Temperature
    _hidden = frozenset(UNITS)
    _warned_of_rounding: bool

    def __init__(self, params: Any, defaults: dict[str, Any], **options: Any) -> None:
        self.journal = Journal()
        self._warned_of_rounding = False
        super().__init__(params, defaults | UNITS, **options)

    # ---- what is in force ----

    @property
    def exploration_steps(self) -> int:
        """L_s."""
        return self.clock.exploration_steps

    @property
    def cycle_steps(self) -> int | None:
        """How long a cycle is; None without cycles."""
        return self.clock.cycle_steps

    @property
    def cycle_step(self) -> int:
        """How many steps of the present cycle are done; without cycles, how many of all."""
        return self.clock.cycle_step

    @property
    def exploring(self) -> bool:
        """Whether the next step injects noise."""
        return self.clock.exploring and self._posterior.value > 0 and self._explores()

    @property
    def temperature(self) -> float:
        """T, the number that was given or chosen; 0 while "auto" has no group that explores to go by."""
        return self._posterior.value

    @property
    def temperature_ratio(self) -> float:
        """1/g(α) for the next step; 1 in fine-tuning, where nothing is tempered."""
        return self.tempering.temperature_ratio if self.exploring else 1.0

    @property
    def step_size(self) -> float:
        """η = sqrt(lr/N) at the present lr of the first exploring group."""
        return math.sqrt(float(self._leading_group()["lr"]) / self.num_data)

    @property
    def friction(self) -> float:
        """γ = (1 − momentum)/η."""
        return (1.0 - float(self._leading_group()["momentum"])) / self.step_size if self.step_size else math.inf

    @property
    def last(self) -> StepRecord | None:
        """What the last step did; None before the first, and after a state was loaded."""
        self.thermometers.num_groups = len(self.param_groups)
        return self.journal.record(self.thermometers, self.steps)

    @property
    def noise_compensation(self) -> bool:
        """Whether less noise is injected by what the minibatches bring in."""
        return self.compensation.active

    @property
    def clamped_share(self) -> float:
        """Share of the compensated noise variances that had to be clamped at zero; where one is, the run is too hot."""
        return self.compensation.clamped_share

    @property
    def preconditioner(self) -> RMSPreconditioner | None:
        """The options of the diagonal mass matrix."""
        return self.mass.options

    def freeze_preconditioner(self) -> None:
        """From now on the preconditioner rests, and the law is that of the posterior again. Under ranks, on all of them."""
        self.mass.freeze()

    # ---- groups ----

    @property
    def _sign(self) -> float:
        """The sign of the loss in the potential."""
        return -1.0 if self.defaults["maximize"] else 1.0

    def _explores(self) -> bool:
        return True in [group["explore"] for group in self.param_groups]  # in a third of the time that `any` takes

    def _leading_group(self) -> dict[str, Any]:
        return next((group for group in self.param_groups if group["explore"]), self.param_groups[0])

    def _samples(self) -> bool:
        return self.exploring

    def _automatic_temperature(self) -> bool:
        return self._posterior.automatic

    def _needs_loss(self) -> bool:
        self._choose_temperature()
        return self.exploring or self.listener is not None

    def _choose_temperature(self) -> None:
        """Lets "auto" choose, once there is a group that explores; rank 0's choice is everyone's."""
        if self._posterior.known:
            return
        temperature = automatic_temperature(
            self.param_groups,
            num_data=self.num_data,
            exploration_steps=self.exploration_steps,
            mean_temperature_ratio=float(self.tempering.mean_temperature_ratio),
            square_norm=self._square_norm,
        )
        if math.isnan(temperature):
            return  # and no rank has anything to say to the others
        dtype = wide_dtype(self._device())
        chosen = self.ranks.of_first(torch.tensor(temperature, dtype=dtype, device=self._device()))
        self._posterior.choose(float(chosen))

    def _check_initial_lr(self) -> None:
        if not self.step_size:
            raise ValueError(
                "lr = 0.0 in the first group that explores: the constants of the tempering come from the initial lr; give "
                "the lr of the exploration and let a scheduler lower it"
            )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        flag("explore", group["explore"])
        flag("langevin", group["langevin"])
        real("momentum_lr", group["momentum_lr"], at_least=0)
        if self.integrator == "ubu" and group["explore"] and float(group["momentum"]) == 0:
            raise ValueError('integrator="ubu" needs momentum > 0: without, motion between kicks is not free')
        if group["explore"] and group["maximize"] != self.defaults["maximize"]:
            raise ValueError(
                f"a group that explores has maximize = {group['maximize']}, the optimizer {self.defaults['maximize']}: they "
                "share one potential; give maximize to the optimizer, or explore=False to the group"
            )

    def _forget(self) -> None:
        super()._forget()
        self.journal.forget()

    # ---- how a parameter starts ----

    def _start_group(self, group: dict[str, Any]) -> None:
        self._choose_temperature()
        group["langevin"] = self.exploring and group["explore"]
        if group["langevin"] and not self._warned_of_rounding:
            self._warned_of_rounding = warn_of_rounding(group, num_data=self.num_data, temperature=self.temperature)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        buffer = torch.zeros_like(parameter, dtype=momentum_dtype(parameter), requires_grad=False)
        if group["langevin"]:
            # r ~ N(0, T), hence v/√lr ~ N(0, T/N).
            self._draw_momentum(buffer, index, deviation=math.sqrt(self.temperature / self.num_data))
        self.state[parameter] = {"momentum_buffer": buffer}
        if self.compensation.active and self.exploration_steps:
            self.state[parameter] |= compensation.initial_state(buffer)
        if self.mass.options is not None and self.exploration_steps:
            self.state[parameter] |= self.mass.initial_state(buffer)

    # ---- what a state holds, and what ranks must agree on ----

    def _parts(self) -> list[tuple[str, Part]]:
        self.thermometers.num_groups, self.thermometers.sharded = len(self.param_groups), self._sharded
        own: list[Part] = [self._posterior, self.compensation, self.mass, self.thermometers]
        return [*super()._parts(), *(("", part) for part in own), ("tempering_", self.tempering)]

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {
            "integrator": self.integrator,
            "exploration_steps": self.exploration_steps,
            "cycle_steps": self.cycle_steps,
            "noise_compensation": self.noise_compensation,
            "preconditioner": None if self.preconditioner is None else repr(self.preconditioner),
        }

    def _facts(self, *, first: bool = False) -> Facts:
        tempering = self.tempering
        # H has all parameters and momenta in it: where they are whole on each rank, it differs at once where theirs do.
        numbers = {
            "temperature": self.temperature,
            "temperature_ratio": tempering.temperature_ratio,
            "alpha": tempering.alpha,
            "alpha_momentum": tempering.alpha_momentum,
            "hamiltonian": self.journal.hamiltonian,
        }
        known = {name: math.nan if value is None else float(value) for name, value in numbers.items()}
        mass = zlib.crc32(repr((self.mass.updates, self.mass.frozen)).encode())
        return {**super()._facts(first=first), **known, "mass": mass}
