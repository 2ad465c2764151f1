"""TACT-HMC: thermostat-assisted continuously tempered HMC (Luo, Wang, Yang, Zhu and Wang, NeurIPS 2018).

The direct successor of CTLD. α tempers the potential alone, momenta stay at T, and Nosé-Hoover thermostats take up the
noise of minibatches on θ and on α. Target: exp(−g(α)·U/T), α uniform in ±1 with reflecting walls; at |α| ≤ 0.1 exp(−U/T).

    z_α ← z_α + g′²·ν_α²·(p²/s² − 1)
    p   ← p − g′²·z_α·p − s²·g′·(U − ⟨U⟩_α)/T + g′·s·√(2 c_α)·ε_α
    v   ← v − g²·z·v − lr·g·∇ + g·√(2 c lr T/N)·ε;     α ← α + p, reflected;     θ ← θ + v
    z   ← z + g²·ν²·(‖v‖²N/(d·lr·T) − 1)

with c = 1 − momentum, the first z; s is `alpha_step`, p's thermal size; 1/g = 1 + (hottest − 1)·w³, w = (|α| − 0.1)/0.9, as in
the authors' code. g and g′ are those at the α before the step. Why g² and g′², the laws, and where the authors' code does
something else: research/methods/README.md. Departures from that page: ⟨U⟩ at this α, in place of that of g′U, hears the
present U first, so that a bin that is new exerts no force; z hears v after the step, as in `sgnht`, and is at most 1; and p
is drawn anew beyond 25 s (the authors: beyond 0.25), and counted. Both bounds are met while the loss falls, and not after:
descend first, or drop more steps.
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from ctld.checks import integer, real, warn_user
from ctld.noise import ALPHA, scalar_normal
from ctld.optimizers import Active, Facts, Observation, Part, Plan, Sampler, Sums, Sweep, wide_dtype, zero_momentum

PLATEAU = 0.1
"""|α| up to which g = 1."""
_BINS = 30
_LARGEST = 25.0  # p in units of its thermal size; more is no fluctuation, but a loss that falls
_MOST_FRICTION = 1.0  # of z: v is forgotten in one step; while the loss falls v is far beyond its thermal size
_MEMORY = 10_000  # observations of a bin; what it saw while the loss still fell is forgotten


class AlphaWithThermostat:
    """α, its displacement p and its thermostat, and the mean of U/T in bins of |α|."""

    def __init__(self, hottest: float, step: float, friction: float, normal: float) -> None:
        self.hottest, self.step, self.friction = hottest, step, friction
        self.alpha, self.momentum, self.thermostat = 0.0, step * normal, friction
        self.means, self.counts = [0.0] * _BINS, [0] * _BINS
        self.redrawn = 0
        """How often p was drawn anew; in equilibrium it never is."""
        self.unstable = 0
        """Steps in a row at which the step of p was no friction."""

    def coupling(self) -> tuple[float, float]:
        """Return g and g′."""
        width = max(abs(self.alpha) - PLATEAU, 0.0) / (1.0 - PLATEAU)
        scaling = 1.0 / (1.0 + (self.hottest - 1.0) * width**3)
        slope = 3.0 * (self.hottest - 1.0) * width**2 / (1.0 - PLATEAU)
        return scaling, -math.copysign(slope * scaling**2, self.alpha)

    def move(self, potential: float, normal: float) -> None:
        """Takes one step at this U/T."""
        _, slope = self.coupling()
        place = min(int(abs(self.alpha) * _BINS), _BINS - 1)
        self.counts[place] += 1
        self.means[place] += (potential - self.means[place]) / min(self.counts[place], _MEMORY)
        self.thermostat += slope**2 * (0.1 * self.friction) ** 2 * ((self.momentum / self.step) ** 2 - 1.0)
        damping = slope**2 * self.thermostat
        self.unstable = self.unstable + 1 if self.thermostat < 0 or damping > 1 else 0
        force = self.step**2 * slope * (potential - self.means[place])
        noise = slope * self.step * math.sqrt(2.0 * self.friction) * normal
        self.momentum += noise - force - damping * self.momentum
        if not abs(self.momentum) < _LARGEST * self.step:
            self.momentum = self.step * normal
            self.redrawn += 1
        alpha = self.alpha + self.momentum
        while abs(alpha) > 1.0:
            alpha = math.copysign(2.0, alpha) - alpha
            self.momentum = -self.momentum
        self.alpha = alpha

    def state_dict(self) -> dict[str, Any]:
        numbers = {"alpha": self.alpha, "alpha_momentum": self.momentum, "alpha_thermostat": self.thermostat}
        bins = torch.tensor([self.means, self.counts], dtype=torch.float64)
        counts = {"alpha_redrawn": self.redrawn, "alpha_unstable": self.unstable}
        return numbers | counts | {"alpha_means": bins}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        bins = state_dict["alpha_means"]
        if not isinstance(bins, Tensor) or tuple(bins.shape) != (2, _BINS) or not bool(bins.isfinite().all()):
            raise ValueError(f"alpha_means of the state are no 2 × {_BINS} finite numbers; load one that was saved")
        alpha = real("alpha", state_dict["alpha"], at_least=-1.0, below=math.nextafter(1.0, 2.0))
        momentum, thermostat = (real(name, state_dict[name]) for name in ("alpha_momentum", "alpha_thermostat"))
        counts = (integer(name, state_dict[name], at_least=0) for name in ("alpha_redrawn", "alpha_unstable"))
        self.redrawn, self.unstable = counts
        self.alpha, self.momentum, self.thermostat = alpha, momentum, thermostat
        self.means, numbers = bins.to("cpu", torch.float64).tolist()
        self.counts = [int(number) for number in numbers]


class TACTHMC(Sampler):
    """Continuously tempered HMC with thermostats; needs the loss. Draws count where `temperature_ratio` is 1.

    Parameters
    ----------
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss; 1 − momentum is the noise's c, and the first friction of each group.
    num_data : float
        N.
    temperature : float
        T of the sampled exp(−U/T). 0 gives no noise, and α rests.
    hottest : float
        1/g at |α| = 1. With 1 nothing is tempered.
    alpha_step : float
        How far α moves in a step; p's thermal size. With 0.05 cold draws are as if T were 4 % lower, with 0.02 nothing is seen.
    alpha_friction : float
        c_α.
    inertia : float, optional
        ν: z fluctuates by ν/√d. Left out: (1 − momentum)/10.
    thermostat : "step" or "midstep"
        Whose size the thermostat holds: v's, the paper's rule, which leaves θ too cold by a share of about (1 − momentum)/2; or
        that of (v before + v after)/2, which does not.
    localization, noise, seed, process_group
        As in `CTLD`.
    """

    reads_loss = check_gradients = True
    _hidden = frozenset({"thermostat"})

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        localization: float = 0.0,
        hottest: float = 6.0,
        alpha_step: float = 0.01,
        alpha_friction: float = 0.1,
        inertia: float | None = None,
        thermostat: Literal["step", "midstep"] = "step",
        noise: str = "gaussian",
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        if thermostat not in ("step", "midstep"):
            raise ValueError(f'thermostat = {thermostat!r} is unknown; give "step" or "midstep"')
        self.thermostat = thermostat
        self.inertia = None if inertia is None else real("inertia", inertia, at_least=0)
        constants = real("hottest", hottest, at_least=1), real("alpha_step", alpha_step, above=0, below=1)
        friction = real("alpha_friction", alpha_friction, above=0, below=1)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize}
        options: dict[str, Any] = {"noise": noise, "seed": seed, "process_group": process_group}
        options |= {"num_data": num_data, "temperature": temperature, "localization": localization}
        super().__init__(params, defaults, **options)
        self.tempering = AlphaWithThermostat(*constants, friction, scalar_normal(self.seed, ALPHA, 0))
        self._warned, self._scaling = False, 1.0
        self._start(self.param_groups)

    @property
    def alpha(self) -> float:
        return self.tempering.alpha

    @property
    def temperature_ratio(self) -> float:
        """1/g(α): what the parameters are sampled at, relative to T."""
        return 1.0 / self.tempering.coupling()[0]

    @property
    def is_draw(self) -> bool:
        return super().is_draw and self.temperature_ratio == 1.0

    def _move(self, active: Active, seen: Observation | None) -> None:
        assert seen is not None, "every step reads the loss"
        if all(float(group["lr"]) == 0 for group in self.param_groups):
            return
        self._scaling, _ = self.tempering.coupling()  # g of α before the step
        if self.temperature > 0:
            unit = self.num_data / self.temperature
            self.tempering.move(unit * seen.potential, scalar_normal(self.seed, ALPHA, 1 + self.steps))
        super()._move(active, seen)

    def _settle(self, active: Active, sums: list[Sums]) -> None:
        scaling = self._scaling
        for group, members, total in zip(self.param_groups, active.groups, self._over_shards(sums), strict=True):
            target = float(group["lr"]) * self.temperature / self.num_data
            if members.numel and target > 0:
                inertia = 0.1 * (1.0 - float(group["momentum"])) if self.inertia is None else self.inertia
                square = (total[1] if self.thermostat == "step" else 0.25 * total[2]) / members.numel
                excess = (scaling * inertia) ** 2 * (square / target - 1.0)
                # A new tensor each time: a state dict that was taken before keeps its own.
                grown = self._number(group["thermostat"] + excess)  # a loaded state may have a plain one
                group["thermostat"] = grown.clamp(max=_MOST_FRICTION)
        self._look_at_alpha()

    def _plan(self, group: dict[str, Any]) -> Plan:
        lr, scaling = float(group["lr"]), self._scaling
        if lr == 0:
            return Plan(())  # a velocity in θ's units would coast on
        friction = 1.0 - float(group["momentum"])
        sweep = Sweep(
            retain=1.0 - scaling**2 * float(group["thermostat"]),
            impulse=-lr * scaling,
            stride=1.0,
            deviation=scaling * math.sqrt(2.0 * friction * self.temperature * (lr / self.num_data)),
        )
        return Plan((sweep,), decay=float(group["weight_decay"]), ascend=group["maximize"], measure=True)

    def _look_at_alpha(self) -> None:
        if self._warned or self.tempering.unstable * self.tempering.friction <= 1.0:
            return
        self._warned = True
        warn_user(
            f"the thermostat of α is at {self.tempering.thermostat:.3g}, where its step is no friction, for "
            f"{self.tempering.unstable} steps: the noise of the loss is too large for it. Give a smaller alpha_step, or larger "
            "batches"
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if "thermostat" in group:  # not while a group is new
            real("thermostat", group["thermostat"])

    def _start_group(self, group: dict[str, Any]) -> None:
        group["thermostat"] = self._number(1.0 - float(group["momentum"]))

    def _number(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=wide_dtype(self._device()), device=self._device())

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        velocity = zero_momentum(parameter)
        deviation = math.sqrt(self.temperature * float(group["lr"]) / self.num_data)
        self._draw_momentum(velocity, index, deviation=deviation)
        self.state[parameter] = {"momentum_buffer": velocity}

    def _parts(self) -> list[tuple[str, Part]]:
        return [*super()._parts(), ("", self.tempering)]

    def _settings(self) -> dict[str, Any]:
        alpha = self.tempering
        own = {"hottest": alpha.hottest, "alpha_step": alpha.step, "alpha_friction": alpha.friction}
        return super()._settings() | own | {"inertia": self.inertia, "thermostat": self.thermostat}

    def _facts(self, *, first: bool = False) -> Facts:
        alpha = self.tempering
        return {**super()._facts(first=first), "alpha": alpha.alpha, "alpha_momentum": alpha.momentum}
