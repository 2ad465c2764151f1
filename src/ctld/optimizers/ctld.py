"""CTLD: Algorithm 1 of Ye, Zhu and Mantiuk (NIPS 2017). Past 450 lines: one class, a quarter of it docstrings.

Exploration samples p(θ, r, α) ∝ exp(−g(α) H̃(θ, r) − φ(α) − V_b(α)), fine-tuning is SGD with momentum. At step t = 0, 1, …,
with the loss and its gradient at θ,

    t < L_s:   r ← (1 − ηγ) r − η ∇Ũ + sqrt(2ηγT/g(α)) ε       θ ← θ + η r
               α ← α + η r_α        V_b ← V_b + a hill at α     h̃ = −g′(α) H̃ − φ′(α) − V_b′(α)
               r_α ← (1 − ηγ_α) r_α + η h̃ + sqrt(2ηγ_α) ε_α
    t ≥ L_s:   r ← (1 − ηγ) r − η ∇Ũ                           θ ← θ + η r

    paper     here
    Ũ         N·(mean loss + weight_decay·‖θ‖²/2), before θ moves; the loss is handed over without the weight decay
    H̃         (Ũ + rᵀr/2)/T, r after its kick
    η, γ      lr = N η², momentum = 1 − ηγ: of each group, at its present lr. α keeps the η of the initial lr
    r         the buffer u = r/√N in groups that explore, torch's b = −η r/lr in those that do not
    g, φ, V_b `ctld.tempering`; the lines of α are `Tempering.end` in tempering/paper.py. A kernel of
              CPUs may take them with the parameters, to the same bits

Departures from the print: the first move, θ + η r before any gradient, is left out, since a constructor does not move
parameters; L_s steps explore, not L_s − 1; T, which is 1 there, may be given, and is chosen if it is not; α has a mass where
one step would throw it out of its well (1 where the paper's own was stable); errata (docs/maths.md). `from_step_size(…)` with
`tempering=Tempering.paper(η, L_s, mass=1)` is the print.
"""

import logging
import math
import zlib
from typing import Any, Literal

import torch
from torch import Tensor

from ctld import compensation
from ctld.checks import TemperatureWarning, flag, real, warn_user
from ctld.clock import Clock
from ctld.compensation import NoiseCompensation
from ctld.mass import Mass, RMSPreconditioner
from ctld.noise import ALPHA, scalar_normal
from ctld.observation import Observation, on_host
from ctld.optimizers.checkpoint import Part
from ctld.optimizers.record import Energies, ExploringGroups, LastStep, StepRecord
from ctld.optimizers.sampler import Sampler
from ctld.optimizers.temperature import Temperature, automatic_temperature, warn_of_rounding
from ctld.ranks import Facts
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.alpha import Alpha
from ctld.stepping.foreach import wide_dtype, zero_momentum
from ctld.stepping.integrators import INTEGRATORS, buffer_unit, planned, rest, sgd
from ctld.stepping.sweep import Plan, Sums
from ctld.tempering import Exploration, Leg, TemperatureControl, Tempering, checked_control, diverged
from ctld.thermometers import ADVICE_PERIOD, SAME, Thermometers

_log = logging.getLogger("ctld")

_UNITS = {
    "langevin": False,  # whether the momentum buffer holds v/√lr, as in exploration, rather than torch's −v/lr
    "momentum_lr": 0.0,  # the last lr > 0 with which the group took a step: turns one into the other
}


class CTLD(Sampler):
    """Explore by continuously tempered Langevin dynamics, then fine-tune by SGD with momentum.

    >>> optimizer = CTLD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3,
    ...                  num_data=len(train_set), exploration_steps=2000)          # doctest: +SKIP
    >>> loss.backward(); optimizer.step(loss=loss)                                 # doctest: +SKIP

    Parameters
    ----------
    params : iterable of parameters, of (name, parameter), or of groups
        A group may set its own `lr`, `momentum`, `weight_decay`, `maximize` and `explore`. With `explore=False` a group
        is trained by SGD with momentum throughout: no noise, no prior and no kinetic energy in H. For norms, biases,
        embeddings.
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss of a minibatch. `weight_decay` is also the prior: U has
        N·weight_decay·‖θ‖²/2 in it, which the loss that is handed over must not have.
    num_data : float
        N, the number of data that the posterior is conditioned on.
    exploration_steps : int
        L_s. 0 gives SGD with momentum.
    cycle_steps : int, optional
        Length of a cycle, whose first `exploration_steps` explore and whose others fine-tune. As a cycle begins, α returns
        to 0; V_b, r_α and r are kept. Left out: one exploration, as in the paper. `ctld.CycleLR` lowers lr to match.
    temperature : float or "auto"
        T of the posterior. 1 is the paper; "auto" is the largest T up to 1 whose noise does not swamp the initial
        parameters (`ctld.optimizers.temperature`); 0 is SGD with momentum. "auto" is careful: on networks it injects noise
        of the order of the minibatches' own, or less, and the run is practically SGD's. `Ensemble` takes more.
    tempering : TemperatureControl, optional
        What moves the temperature; `Tempering.paper` if left out.
    integrator : "euler", "baoab" or "ubu"
        Of the exploration. "euler" is the paper's; on a Gaussian posterior "baoab" gives θ the exact variance at any stable
        lr; "ubu" has strong order two (`ctld.stepping.integrators`).
    noise : "gaussian" or "three_point"
        The distribution of ε. Three-point noise has the Gaussian's first five moments, which is all that the order of an
        integrator rests on, and is cheaper (docs/methods.md).
    localization : float
        κ of a spring to where the parameters of exploring groups started: U gains N κ‖θ − θ₀‖²/2.
    noise_compensation : bool
        Lower the variance of the injected noise by that of the minibatches (section 4.1 of the paper), which is estimated
        from successive differences; for θ and for α. Costs two more buffers per parameter.
    preconditioner : RMSPreconditioner, optional
        A learning rate for each element, from the gradients, while exploring; adapts slowly, and can be frozen. Costs two more
        buffers per parameter (`ctld.mass`).
    steps_per_epoch : int, optional
        How many batches an epoch has, len(loader), if they are reshuffled for each: less of their heat stays in the parameters
        then, and the thermometers say how much (`last.groups[0].remaining_heat`).
    check_gradients : bool
        Look for NaN and inf in the gradients before an exploration step: it then raises `NonFiniteError`, and nothing has
        changed. That reads the gradients once more; without it a NaN is found after parameters have taken it in.
    seed : int, optional
        Of the injected noise. Left out, one is drawn from torch's default generator, if there will be noise. Under
        `torch.distributed`, rank 0's is used.
    process_group : ProcessGroup, optional
        Over which the loss is averaged; the world, if left out and there is one.
    """

    reads_loss = True
    _posterior: Temperature
    _hidden = frozenset(_UNITS)

    def __init__(
        self,
        params: Any,
        lr: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        exploration_steps: int,
        cycle_steps: int | None = None,
        weight_decay: float = 0.0,
        temperature: float | Literal["auto"] = "auto",
        tempering: TemperatureControl | None = None,
        integrator: Literal["euler", "baoab", "ubu"] = "euler",
        noise: Literal["gaussian", "three_point"] = "gaussian",
        localization: float = 0.0,
        noise_compensation: bool = False,
        preconditioner: RMSPreconditioner | None = None,
        steps_per_epoch: int | None = None,
        check_gradients: bool = True,
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        clock = Clock(exploration_steps, cycle_steps)
        posterior = Temperature(temperature)
        if integrator not in INTEGRATORS:
            raise ValueError(f"integrator = {integrator!r} is unknown; give one of {', '.join(map(repr, INTEGRATORS))}")
        if noise_compensation and integrator != "euler":
            raise ValueError(f'noise_compensation goes with integrator="euler", not {integrator!r}')
        if noise_compensation and preconditioner is not None:
            raise ValueError("noise_compensation does not go with a preconditioner: give one of them")
        self.integrator: str = integrator
        self.check_gradients = bool(check_gradients)
        self.compensation = NoiseCompensation(bool(noise_compensation))
        self.mass = Mass(preconditioner, clock.exploration_steps)
        self.thermometers = Thermometers(clock.exploration_steps, steps_per_epoch)
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "maximize": maximize, "explore": True}
        if seed is None and (clock.exploration_steps == 0 or temperature == 0):
            seed = 0  # There will be no noise, and to draw a seed would shift the user's own random numbers.
        self._last: LastStep | None = None
        self._warned_of_rounding = False
        options: dict[str, Any] = {"num_data": num_data, "temperature": posterior, "localization": localization}
        options |= {"noise": noise, "seed": seed, "process_group": process_group, "clock": clock}
        super().__init__(params, defaults | _UNITS, **options)
        if (
            clock.exploration_steps
            and any(map(self._sampled, self.param_groups))
            and temperature != 0
            and not self.step_size
        ):
            raise ValueError(
                "lr = 0.0 in the first group that explores: the constants of the tempering come from the initial lr; give "
                "the lr of the exploration and let a scheduler lower it"
            )
        paper = Tempering.paper(self.step_size or 1.0, max(clock.exploration_steps, 1))
        self.tempering = paper if tempering is None else checked_control(tempering)
        self._choose_temperature()
        # The last thing that can fail: a refused constructor leaves the tempering free for another.
        normal, cycles = scalar_normal(self.seed, ALPHA, 0), cycle_steps is not None
        about = self.step_size or 1.0, normal, clock.exploration_steps, cycles, integrator, self.noise_compensation
        self.tempering.prepare(Exploration(*about))
        self._start(self.param_groups)

    @classmethod
    def from_step_size(
        cls,
        params: Any,
        step_size: float,
        momentum: float = 0.9,
        *,
        num_data: float,
        temperature: Any = 1.0,
        **options: Any,
    ) -> "CTLD":
        """Take the paper's η, which its tables call learning rate, in place of lr = num_data·η²; T is 1, as there."""
        step_size = real("step_size", step_size, above=0)
        lr = real("num_data", num_data, above=0) * step_size**2
        return cls(params, lr, momentum, num_data=num_data, temperature=temperature, **options)

    # ---- Algorithm 1 ----

    def _move(self, active: Active, seen: Observation | None) -> None:
        if seen is None:  # t ≥ L_s
            self._fine_tune(active)
            return
        steps, num_data, temperature, tempering = self.clock.steps, self.num_data, self._posterior.value, self.tempering
        epsilon_alpha = scalar_normal(self.seed, ALPHA, 1 + steps)
        exploring = self._exploring_groups(active)

        # g(α). Calibrated tempering moves its α here, by Ũ alone, and r by factors; those of the paper are 1.
        potential = num_data * seen.potential / temperature if tempering.needs_potential else None
        leg = tempering.begin(potential, epsilon_alpha) if exploring.moving else Leg(tempering.temperature_ratio)

        # r ← (1 − ηγ) r − η∇Ũ + sqrt(2ηγT/g) ε;   θ ← θ + η r
        self._bring_momenta_into_units(exploring=True)
        if self.mass.options is not None and self.mass.due(steps):
            self._adapt_mass(active)
        stationary = temperature * leg.ratio / num_data  # variance of u = r/√N; the integrator injects its share, 2ηγ
        plans = [
            self._langevin(group, stationary, leg) if group["explore"] else _sgd(group) for group in self.param_groups
        ]
        probes = (
            self._probe() if 0 <= self.thermometers.phase(steps, self.seed) <= 2 else []
        )  # no part of the algorithm
        alpha = self._alpha_in_kernel(active, seen, epsilon_alpha) if exploring.moving else None
        sums = self._run(active, plans, seen, alpha=alpha)
        rows, probed = self._on_host(exploring, seen, sums, probes)

        # H̃ = (Ũ + rᵀr/2)/T;   α ← α + η r_α;   V_b ← V_b + a hill at α
        # h̃ = −g′(α) H̃ − φ′(α) − V_b′(α);   r_α ← (1 − ηγ_α) r_α + η h̃ + sqrt(2ηγ_α) ε_α
        measured = exploring.groups, rows, seen.sign * seen.mean_loss, num_data, temperature
        force = None
        if exploring.moving:
            if alpha is not None:
                force = tempering.take_back()
            else:
                force = self._move_alpha(Energies(*measured), epsilon_alpha, seen.mean_loss)
            unit = num_data / (temperature * leg.ratio)
            self.thermometers.read_step(exploring.groups, rows, probed, unit=unit, ratio=leg.ratio, step=steps)
            if self.thermometers.steps_per_epoch is not None:
                self.thermometers.look(self.param_groups, steps, self.seed, leg.ratio)
        self._last = tempering.alpha, leg.ratio, measured if exploring.moving else None, force

    def _fine_tune(self, active: Active) -> None:
        # r ← (1 − ηγ) r − η∇Ũ;   θ ← θ + η r
        self._bring_momenta_into_units(exploring=False)
        engine.run(active, [_sgd(group) for group in self.param_groups], None)
        self._note_lr()
        self._last = self.tempering.alpha, 1.0, None, None

    def _langevin(self, group: dict[str, Any], stationary: float, leg: Leg) -> Plan:
        """Return a step of exploration of a group, by its lr and momentum; at lr = 0 it rests."""
        lr, scaled = float(group["lr"]), self.mass.options is not None
        if lr == 0:
            return rest(decay=float(group["weight_decay"]), scaled=scaled)
        momentum, decay, ascend = float(group["momentum"]), float(group["weight_decay"]), group["maximize"]
        _, before, after = leg
        return planned(
            self.integrator, lr, momentum, stationary, decay, ascend, before, after, self.compensation.active, scaled
        )

    def _alpha_in_kernel(self, active: Active, seen: Observation, epsilon_alpha: float) -> Alpha | None:
        """Return α's own step, for the call that moves the parameters to take along; None where `end` has to take it.

        A matter of speed: `Tempering.end` is the definition, and tests hold the two equal to the bit. The call can do it on
        a CPU, in one process, for the paper's own pieces.
        """
        if not active.native or self._sharded or self.compensation.active or not seen.accepted:
            return None
        loss = seen.sign * seen.mean_loss
        return self.tempering.hand_over(epsilon_alpha, self.num_data, self._posterior.value, loss)

    def _move_alpha(self, energies: Energies, epsilon_alpha: float, loss: float) -> float | None:
        """Move α by H/T; return the force on it, if there is one."""
        hamiltonian, variance = energies.hamiltonian, 0.0
        if not math.isfinite(hamiltonian):
            raise FloatingPointError(diverged(hamiltonian))
        if self.compensation.active:
            self.compensation.count(energies.clamped, energies.dimensions)
            variance = self.compensation.loss.update(loss) * (self.num_data / self.temperature) ** 2
        return self.tempering.end(hamiltonian, epsilon_alpha, variance)

    def _tick(self, explored: bool) -> None:
        """Count the step, which is taken, and do whatever goes by the clock."""
        clock = self.clock
        clock.steps += 1
        if clock.cycle_steps is not None and clock.cycle_begins:
            self.tempering.restart()
        if explored:
            if not clock.exploring:
                self.thermometers.pause()
                self.compensation.interrupt(self.state.values())
            if clock.steps % ADVICE_PERIOD == 0:
                self._advise()
        if self.tempering.remark is not None:
            remark, self.tempering.remark = self.tempering.remark, None
            warn_user(remark)

    # ---- around a step ----

    def _needs_loss(self) -> bool:
        if not self._posterior.known:
            self._choose_temperature()  # "auto" may have waited for a group that explores
        return self.exploring

    def _sampled(self, group: dict[str, Any]) -> bool:
        return bool(group["explore"])

    def _reads_potential(self) -> bool:
        return self.tempering.needs_potential

    def _changes_ahead(self) -> bool:
        if self.tempering.needs_potential or self.compensation.active:
            return True
        if self.mass.options is not None and self.mass.due(self.clock.steps):
            return True
        # Whose momenta are in other units as yet.
        return True in [group["langevin"] != group["explore"] for group in self.param_groups]

    def _exploring_groups(self, active: Active) -> ExploringGroups:
        """Return the groups that explore; read once, and kept while no option changes."""
        known: ExploringGroups | None = self._known.get("exploring")
        if known is None or known.active is not active:
            known = self._known["exploring"] = ExploringGroups.of(self.param_groups, active)
        return known

    def _bring_momenta_into_units(self, *, exploring: bool) -> None:
        """Make momenta what the step to come takes them for."""
        for group in self.param_groups:
            langevin = exploring and group["explore"]
            if group["langevin"] == langevin:
                continue
            # Before its first step with lr > 0 a group has no velocity.
            unit = buffer_unit(self.integrator, group["momentum_lr"], float(group["momentum"]))
            factor = (-unit if langevin else -1.0 / unit) if unit else 0.0
            for parameter in group["params"]:
                # What is frozen has no velocity to carry over, and its thermal one would kick it when it thaws.
                if "momentum_buffer" in self.state.get(parameter, {}):
                    self.state[parameter]["momentum_buffer"].mul_(factor if parameter.requires_grad else 0.0)
            group["langevin"] = langevin

    def _note_lr(self) -> None:
        """Note with which lr a step was taken; one at lr = 0 leaves the velocity what it was."""
        for group in self.param_groups:
            group["momentum_lr"] = float(group["lr"]) or group["momentum_lr"]

    def _adapt_mass(self, active: Active) -> None:
        moving = [
            (group, members)
            for group, members in zip(self.param_groups, active.groups, strict=True)
            if group["explore"] and members.parameters and float(group["lr"]) > 0
        ]
        if moving:
            self.mass.update(moving, lambda sums: on_host(self._over_shards(sums)))

    def _on_host(
        self, exploring: ExploringGroups, seen: Observation, sums: list[Sums], probes: list[Tensor | None]
    ) -> tuple[list[Any], list[Any]]:
        """Return the sums of groups that explore and those of probes as numbers; or raise why the step was refused."""
        self._note_lr()
        chosen: list[Any] = [sums[group.number] for group in exploring.groups]
        if not probes and not self._sharded and seen.accepted and not any(map(torch.is_tensor, chosen)):
            return chosen, []
        complete = [probe for probe in probes if probe is not None]
        rows = self._over_shards([*chosen, *complete])
        if isinstance(seen.numbers, Tensor):
            seen.numbers, *rows = on_host([seen.numbers, *rows])
        else:
            rows = on_host(rows)
        seen.accept()
        self.thermometers.taken(bool(probes))
        return rows[: len(chosen)], rows[len(chosen) :]

    # ---- thermometers ----

    def _probe(self) -> list[Tensor | None]:
        """Look at some elements of each group that explores; return sums where that completes a probe."""
        about = self._noise(), None if self.mass.options is None else self.state
        version, ranks = self.mass.updates, self.ranks.size if self._sharded else 1
        groups = [pair for pair in enumerate(self.param_groups) if pair[1]["explore"]]
        return [self.thermometers.probe(*pair, *about, version=version, ranks=ranks) for pair in groups]

    def _advise(self) -> None:
        """Say once what the thermometers find wrong; when the step is over, since a warning may be an error."""
        text = self.thermometers.advise(
            [float(group["momentum"]) for group in self.param_groups],
            integrator=self.integrator,
            of_tempering=self.tempering.remedy,
            compensated=self.compensation.active,
            can_compensate=self.integrator == "euler" and not (self.mass.options or self.tempering.needs_potential),
        )
        if text is not None and self._posterior.automatic:
            # Whoever leaves T to us trains a network; that it is not sampled at that T is worth a line, no more.
            _log.warning(text)
        elif text is not None:
            warn_user(text, TemperatureWarning)

    # ---- what is in force ----

    @property
    def exploration_steps(self) -> int:
        """Number L_s of exploration steps."""
        return self.clock.exploration_steps

    @property
    def cycle_steps(self) -> int | None:
        """Length of a cycle; None without cycles."""
        return self.clock.cycle_steps

    @property
    def cycle_step(self) -> int:
        """Number of steps of the present cycle that are done; without cycles, of all."""
        return self.clock.cycle_step

    @property
    def exploring(self) -> bool:
        """True if the next step injects noise."""
        if not self.clock.exploring or self._posterior.value <= 0:
            return False
        return True in [group["explore"] for group in self.param_groups]  # in a third of the time that `any` takes

    @property
    def is_draw(self) -> bool:
        """True if the last step explored and left α where g(α) = 1."""
        sampled = self.clock.explored and self.temperature > 0 and any(map(self._sampled, self.param_groups))
        return sampled and self.tempering.temperature_ratio <= SAME

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

    def _leading_group(self) -> dict[str, Any]:
        return next((group for group in self.param_groups if group["explore"]), self.param_groups[0])

    @property
    def last(self) -> StepRecord | None:
        """Record of the last step; None before the first, and after a state was loaded."""
        self.thermometers.num_groups = len(self.param_groups)
        return None if self._last is None else StepRecord.of(self._last, self.thermometers, self.steps)

    @property
    def noise_compensation(self) -> bool:
        """True if the injected noise is reduced by the estimated noise of the minibatches."""
        return self.compensation.active

    @property
    def clamped_share(self) -> float:
        """Share of the compensated noise variances that had to be clamped at zero; where one is, the run is too hot."""
        return self.compensation.clamped_share

    @property
    def preconditioner(self) -> RMSPreconditioner | None:
        """Options of the diagonal mass matrix."""
        return self.mass.options

    def freeze_preconditioner(self) -> None:
        """Let the preconditioner rest: the law is that of the posterior again. Under ranks, on all of them."""
        self.mass.freeze()

    # ---- temperature ----

    def set_temperature(self, temperature: float, *, rescale: bool = True) -> None:
        if self.tempering.needs_potential:
            raise ValueError(
                "the temperature must stay what it was under Tempering.calibrated(), which has measured U/T. Build a new "
                "optimizer at the other temperature"
            )
        super().set_temperature(temperature, rescale=rescale)

    def _scale_momenta(self, factor: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"] if group["langevin"] else ():
                if "momentum_buffer" in self.state.get(parameter, {}):
                    self.state[parameter]["momentum_buffer"].mul_(factor)

    def _choose_temperature(self) -> None:
        """Let "auto" choose, once there is a group that explores; rank 0's choice is everyone's."""
        if self._posterior.known:
            return
        about: dict[str, Any] = {"exploration_steps": self.exploration_steps, "square_norm": self._square_norm}
        ratio = float(self.tempering.mean_temperature_ratio)
        temperature = automatic_temperature(
            self.param_groups, num_data=self.num_data, mean_temperature_ratio=ratio, **about
        )
        if math.isnan(temperature):
            return  # and no rank has anything to say to the others
        dtype = wide_dtype(self._device())
        chosen = self.ranks.of_first(torch.tensor(temperature, dtype=dtype, device=self._device()))
        self._posterior.choose(float(chosen))

    # ---- groups, and how a parameter starts ----

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        flag("explore", group["explore"])
        flag("langevin", group["langevin"])
        real("momentum_lr", group["momentum_lr"], at_least=0)
        if self.integrator == "ubu" and group["explore"] and float(group["momentum"]) == 0:
            raise ValueError('integrator="ubu" needs momentum > 0: without, motion between kicks is not free')

    def _look_for_twins(self) -> None:
        if self.exploration_steps and not (self._posterior.known and self._posterior.value == 0):
            super()._look_for_twins()  # else there is no noise to share

    def _start_group(self, group: dict[str, Any]) -> None:
        self._choose_temperature()
        group["langevin"] = self.exploring and group["explore"]
        if group["langevin"] and not self._warned_of_rounding:
            self._warned_of_rounding = warn_of_rounding(group, num_data=self.num_data, temperature=self.temperature)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        buffer = zero_momentum(parameter)
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
        own: list[Part] = [self.compensation, self.mass, self.thermometers]
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
        tempering, last = self.tempering, self._last
        # H has all parameters and momenta in it: where they are whole on each rank, it differs at once where theirs do.
        numbers = {
            "temperature_ratio": tempering.temperature_ratio,
            "alpha": tempering.alpha,
            "alpha_momentum": tempering.alpha_momentum,
            "hamiltonian": None if last is None or last[2] is None else Energies(*last[2]).hamiltonian,
        }
        known = {name: math.nan if value is None else float(value) for name, value in numbers.items()}
        mass = zlib.crc32(repr((self.mass.updates, self.mass.frozen)).encode())
        return {**super()._facts(first=first), **known, "mass": mass}

    def _forget(self) -> None:
        super()._forget()
        self._last = None


def _sgd(group: dict[str, Any]) -> Plan:
    """Return SGD with momentum, as `torch.optim.SGD` does it, to the last bit."""
    decay, ascend = float(group["weight_decay"]), group["maximize"]
    return sgd(float(group["lr"]), float(group["momentum"]), decay=decay, ascend=ascend)
