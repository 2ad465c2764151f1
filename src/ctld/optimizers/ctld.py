"""CTLD: Langevin dynamics with continuous tempering (Ye, Zhu, Mantiuk, NIPS 2017), Algorithm 1.

Target of the exploration: p(θ, r, α) ∝ exp(−g(α) H(θ, r)/T − φ(α) − V_b(α)), H = N·(mean loss + prior) + rᵀr/2. Then
SGD with momentum. In the paper's notation, with one loss and gradient at θ per step t,

    t < L_s:  r ← (1 − ηγ) r − η ∇Ũ + sqrt(2ηγT/g(α)) ε;  (α, r_α, V_b) by H;  θ ← θ + η r
    t ≥ L_s:  r ← (1 − ηγ) r − η ∇Ũ;                                          θ ← θ + η r

The user speaks SGD on the mean loss: lr = N η², momentum = 1 − ηγ. The momentum buffer holds u = r/√N = v/√lr in groups
where noise is injected (a change of lr then leaves r alone, as in the paper) and torch's b = −v/lr elsewhere (the
trajectory is then `torch.optim.SGD`'s under any scheduler, to the last bit). Departure from the print: its first move,
θ + η r before any gradient, is left out, since a constructor does not move parameters. More in docs/maths.md.
"""

import logging
import math
import zlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ctld import dynamics
from ctld.checks import NonFiniteError, TemperatureWarning, integer, real, warn_user
from ctld.compensation import LossVariance, initial_state
from ctld.movers import Movers
from ctld.noise import ALPHA, scalar_normal
from ctld.observing import Closure, Loss
from ctld.optimizers import drift
from ctld.optimizers.integrators import INTEGRATORS, Settings, buffer_unit
from ctld.optimizers.preconditioner import RMSPreconditioner
from ctld.optimizers.record import StepRecord
from ctld.optimizers.remedies import remedy
from ctld.optimizers.sampler import Sampler
from ctld.optimizers.state import quick_hooks
from ctld.optimizers.temperature import automatic_temperature, warn_of_rounding
from ctld.optimizers.thermometers import GroupTemperatures, GroupThermometer, Thermometers
from ctld.tempering import Move, TemperatureControl, Tempering, checked_control

_log = logging.getLogger("ctld")


class CTLD(Sampler):
    """Explore by continuously tempered Langevin dynamics, then fine-tune by SGD with momentum.

    >>> optimizer = CTLD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3,
    ...                  num_data=len(train_set), exploration_steps=2000)          # doctest: +SKIP
    >>> loss.backward(); optimizer.step(loss=loss)                                 # doctest: +SKIP

    Parameters
    ----------
    params : iterable of parameters, of (name, parameter), or of groups
        A group may set its own `lr`, `momentum`, `weight_decay`, `maximize` and `explore`. With `explore=False` a group
        is trained by SGD with momentum throughout, gets no noise and has no share in H: for norms, biases, embeddings.
    lr, momentum, weight_decay, maximize
        As in `torch.optim.SGD`, on the mean loss. `weight_decay` is also the prior, N·weight_decay·‖θ‖²/2.
    num_data : float
        N, the number of data that the posterior is conditioned on.
    exploration_steps : int
        L_s. 0 gives SGD with momentum.
    cycle_steps : int, optional
        Exploration and fine-tuning repeat, every so many steps: each cycle begins with `exploration_steps` of exploration.
        α returns to 0 at its start; bias and momenta are kept. Left out: once, as in the paper. `ctld.CycleLR` lowers lr to
        match.
    temperature : float or "auto"
        T of the posterior. 1 is the paper; "auto" is the largest T up to 1 whose noise does not swamp the initial
        parameters (`ctld.optimizers.temperature`); 0 is SGD with momentum.
    tempering : TemperatureControl, optional
        What moves the temperature; `Tempering.paper` if left out.
    integrator : "euler", "baoab" or "ubu"
        Of the parameters, while exploring: the paper's; one whose parameters have the exact variance on a Gaussian at any
        stable step; one of strong order two. The last two take two passes over memory in place of one
        (`ctld.optimizers.integrators`).
    noise : "gaussian" or "three_point"
        Of the parameters. Three-point noise has the Gaussian's first five moments, which is all that the order of an
        integrator rests on, and is cheaper (docs/methods.md).
    noise_compensation : bool
        Inject less noise by what the minibatches bring in (section 4.1 of the paper), estimated from successive
        differences. Costs two more buffers per parameter.
    preconditioner : RMSPreconditioner, optional
        A learning rate for each element, from the gradients, while exploring; adapts slowly, and can be frozen. Costs two more
        buffers per parameter (`ctld.optimizers.preconditioner`).
    check_gradients : bool
        Look for NaN and inf in the gradients before an exploration step, and refuse it whole. That reads them once more:
        without it a step of 25 million parameters takes a seventh less time, and a NaN is found when it has done its harm.
    seed : int, optional
        Of the noise. Left out, one is drawn from torch's default generator, if there will be noise. Under
        `torch.distributed`, rank 0's is used.
    process_group : ProcessGroup, optional
        Over which the loss is averaged; the world, if left out and there is one.
    """

    _hidden = frozenset({"langevin", "momentum_lr"})

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
        noise_compensation: bool = False,
        preconditioner: RMSPreconditioner | None = None,
        check_gradients: bool = True,
        seed: int | None = None,
        maximize: bool = False,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.exploration_steps = integer("exploration_steps", exploration_steps, at_least=0)
        self.cycle_steps = None if cycle_steps is None else integer("cycle_steps", cycle_steps, at_least=1)
        if self.cycle_steps is not None and self.cycle_steps <= self.exploration_steps:
            raise ValueError(
                f"cycle_steps = {self.cycle_steps} leaves no fine-tuning after exploration_steps = {self.exploration_steps}: "
                "give more"
            )
        if isinstance(temperature, str) and temperature != "auto":
            raise ValueError(f'temperature = {temperature!r} is unknown; give "auto" or a number >= 0')
        if integrator not in INTEGRATORS:
            raise ValueError(f"integrator = {integrator!r} is unknown; give one of {', '.join(map(repr, INTEGRATORS))}")
        if noise_compensation and integrator != "euler":
            raise ValueError(f'noise_compensation goes with integrator="euler", not {integrator!r}')
        if preconditioner is not None and not isinstance(preconditioner, RMSPreconditioner):
            raise TypeError(f"preconditioner = {preconditioner!r} is none; give ctld.RMSPreconditioner()")
        if preconditioner is not None and noise_compensation:
            raise ValueError("noise_compensation does not go with a preconditioner: give one of them")
        if preconditioner is not None and 0 < self.exploration_steps <= preconditioner.first_change:
            raise ValueError(
                f"exploration_steps = {self.exploration_steps} end before the preconditioner has adapted, at step "
                f"{preconditioner.first_change + 1}: explore for longer, give it a smaller `every`, or leave it out"
            )
        self.preconditioner = preconditioner
        self._mass_updates, self._mass_frozen = 0, False
        self.integrator: str = integrator
        self.noise_compensation = bool(noise_compensation)
        self.check_gradients = bool(check_gradients)
        self.last: StepRecord | None = None
        self._warned_of_rounding = False
        self._loss_variance = LossVariance()
        self._clamped = self._compensated = 0
        self._thermometers = Thermometers(self.exploration_steps)
        self._advice: str | None = None
        self._warned_of_temperature = False
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "maximize": maximize,
            "explore": True,
            "langevin": False,  # whether the momentum buffer holds v/√lr rather than torch's −v/lr
            "momentum_lr": 0.0,  # the last lr > 0 with which the group took a step: turns one into the other
        }
        if seed is None and (self.exploration_steps == 0 or temperature == 0):
            seed = 0  # of noise that there will not be: to draw one would shift the user's own random numbers
        super().__init__(params, defaults, num_data=num_data, noise=noise, seed=seed, process_group=process_group)
        self._chooses_temperature = temperature == "auto"
        self._temperature = math.nan if temperature == "auto" else real("temperature", temperature, at_least=0)
        self.tempering = self._chosen_tempering(tempering)
        self._tempers_potential = bool(getattr(self.tempering, "tempers_potential", False))
        self._settle_temperature()
        prepare = getattr(self.tempering, "prepare", None)
        if prepare is not None:
            # The last thing that can fail: a refused constructor leaves the tempering free for another.
            prepare(step_size=self.step_size or 1.0, normal=scalar_normal(self.seed, ALPHA, 0))
        plan = getattr(self.tempering, "plan", None)
        if plan is not None:
            plan(self.exploration_steps, euler=integrator == "euler", cycles=self.cycle_steps is not None)
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
        """With the paper's η in place of lr, as its tables give it, and its temperature: lr = num_data·step_size²."""
        step_size = real("step_size", step_size, above=0)
        lr = real("num_data", num_data, above=0) * step_size**2
        return cls(params, lr, momentum, num_data=num_data, temperature=temperature, **options)

    # ---- what is in force ----

    @property
    def exploring(self) -> bool:
        """Whether the next step injects noise."""
        return (
            self.cycle_step < self.exploration_steps
            and self._temperature > 0
            and any(group["explore"] for group in self.param_groups)
        )

    @property
    def cycle_step(self) -> int:
        """How many steps of the present cycle are done; without cycles, how many of all."""
        return self._step_count if self.cycle_steps is None else self._step_count % self.cycle_steps

    @property
    def temperature(self) -> float:
        """T, the number that was given or chosen; 0 while "auto" has no group that explores to go by."""
        return 0.0 if math.isnan(self._temperature) else self._temperature

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
    def clamped_share(self) -> float:
        """Share of the compensated noise variances that had to be clamped at zero; where one is, the run is too hot."""
        return self._clamped / self._compensated if self._compensated else 0.0

    def freeze_preconditioner(self) -> None:
        """From now on the preconditioner rests, and the law is that of the posterior again. Under ranks, on all of them."""
        if self.preconditioner is None:
            raise ValueError(
                "there is no preconditioner to freeze; give CTLD one: preconditioner=ctld.RMSPreconditioner()"
            )
        self._mass_frozen = True

    # ---- Algorithm 1 ----

    @quick_hooks
    def step(self, closure: Closure | Loss | None = None, *, loss: Loss | None = None) -> Loss | None:
        """One step, of exploration or of fine-tuning.

        Parameters
        ----------
        closure : callable, optional
            Recomputes the gradients and returns the loss. The loss itself may stand here too: frameworks pass one argument on.
        loss : float or Tensor of one element, optional
            The mean loss of the whole effective batch, unscaled: the number whose gradient is in `p.grad`. It is needed
            during exploration, from here, the closure or `observe`, and not read later.

        Returns
        -------
        The closure's value, or `loss`.
        """
        return self._untraced_step(closure, loss) if torch.compiler.is_compiling() else self._step(closure, loss)

    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        self._settle_temperature()
        exploring = self.exploring
        try:
            result = self._evaluate(closure, loss, needed=exploring)
            observed = self._taken()
            self._check_groups()
            everything = self._movers()
            if exploring and not observed:
                if all(float(group["lr"]) == 0 for group in self.param_groups):
                    return result  # a checkpointer's dry run
                raise ValueError(
                    "exploration needs the loss, which drives the temperature; call step(loss=loss), step(closure), or "
                    "observe(loss) before step()"
                )
        except Exception:
            if exploring and self._ranks() > 1:
                # The others are about to ask whether all can take the step: without an answer they would wait in vain.
                self._check_drift()
                self._verdict([0.0], [], failed=True)
            raise
        self._check_drift()
        if exploring:
            # A step that one call does can look at the gradients itself, which saves another call.
            check = self.check_gradients and len(everything) == 1 and everything[0].checkable and self._ranks() == 1
            check = check and self.param_groups[0]["langevin"]  # else the momenta change their units first
            check = check and self.integrator == "euler" and not self._looks_first()
            verdict = self._verdict(
                observed,
                everything if self.check_gradients and not check else [],
                self._prior_here(everything) if self._tempers_potential else 0.0,
            )
            self._explore(verdict, everything, check)
        else:
            for group, movers in zip(self.param_groups, everything, strict=True):
                self._fine_tune(group, movers)
            self.last = StepRecord(getattr(self.tempering, "alpha", None), 1.0, groups=self._temperatures())
        self._step_count += 1
        if self.cycle_steps is not None and self.cycle_step == 0:
            restart = getattr(self.tempering, "restart", None)
            if restart is not None:
                restart()
        if exploring and self.cycle_step >= self.exploration_steps:
            self._thermometers.pause()
        if self._advice is not None:
            self._advise()
        return result

    def _explore(self, verdict: Sequence[float] | Tensor, everything: list[Movers], check: bool) -> None:
        """One step of exploration. What a device has found out is read once, at the end, if its kernels can refuse a step."""
        refused = None
        if isinstance(verdict, Tensor):
            if all(movers.refusable for movers in everything) and not (self.noise_compensation or self._looks_first()):
                refused = ~(verdict[0] * (self.num_data / self._temperature)).isfinite() | (verdict[1] > 0)
                refused |= drift.apart(*verdict[2:5])
            else:
                verdict = verdict.tolist()
        mean_loss = math.nan if isinstance(verdict, Tensor) else self._accepted_loss(verdict)
        if self._adapts():
            self._adapt_preconditioner(everything)
        move = self._move_of_potential(mean_loss, verdict, everything) if self._tempers_potential else None
        ratio = self.tempering.temperature_ratio if move is None else move.ratio  # 1/g(α) before α moves
        readings: list[tuple[int, int, Any]] = []
        looks: list[Any] = []
        phase = self._thermometers.phase(self._step_count, self.seed)
        resting = True
        for number, (group, movers) in enumerate(zip(self.param_groups, everything, strict=True)):
            if not group["explore"]:
                self._fine_tune(group, movers, refused)
                continue
            if 0 <= phase <= 2:
                looks.append(self._look(number, group))
            last_lr = group["momentum_lr"]
            sums = self._langevin_step(group, movers, ratio, move, check, refused)
            if sums is None:
                group["momentum_lr"] = last_lr  # no step was taken with this one
                self._refuse_non_finite_gradients()
            moving = float(group["lr"]) > 0
            readings.append((number, movers.numel if moving else 0, sums))
            resting = resting and not moving
        sums_here = self._over_shards([sums for *_, sums in readings] + (looks if phase == 2 else []))
        if isinstance(verdict, Tensor):
            verdict, *rows = _on_host([verdict, *sums_here])
            mean_loss = self._accepted_loss(verdict)
        else:
            rows = _on_host(sums_here)
        if resting:
            self._thermometers.taken(0 <= phase <= 2)
            self.last = StepRecord(getattr(self.tempering, "alpha", None), ratio, groups=self._temperatures())
            return
        prior = kinetic = midpoint = clamped = 0.0
        dimensions = 0
        for (number, moved, _), (squares, after, twice_midpoint, fewer) in zip(readings, rows, strict=False):
            prior += 0.5 * float(self.param_groups[number]["weight_decay"]) * squares
            kinetic += 0.5 * after
            midpoint += 0.25 * twice_midpoint
            clamped += fewer
            dimensions += moved
        self._clamped += round(clamped)
        self._compensated += dimensions if self.noise_compensation else 0
        potential = self.num_data * ((-mean_loss if self.defaults["maximize"] else mean_loss) + prior)
        hamiltonian = (potential + self.num_data * kinetic) / self._temperature
        if not math.isfinite(hamiltonian):
            raise FloatingPointError(
                f"the Hamiltonian is {hamiltonian}: the momenta have diverged and the parameters were moved by them; go back "
                "to the last checkpoint, with a lower lr"
            )
        alpha_force = None if self._tempers_potential else self._advance_tempering(hamiltonian, mean_loss)
        self.last = StepRecord(
            alpha=getattr(self.tempering, "alpha", None),
            temperature_ratio=ratio,
            potential=potential,
            kinetic_temperature=self.num_data * midpoint / dimensions if dimensions else None,
            hamiltonian=hamiltonian,
            alpha_force=alpha_force,
            groups=self._read_thermometers(readings, rows, ratio),
        )
        self._thermometers.taken(0 <= phase <= 2)

    def _look(self, number: int, group: dict[str, Any]) -> Tensor | None:
        scales = None if self.preconditioner is None else self.state
        return self._thermometers.look(
            number,
            group,
            self._source(),
            scales,
            version=self._mass_updates,
            ranks=self._ranks() if self._sharded else 1,
        )

    def _temperatures(self) -> tuple[GroupTemperatures | None, ...]:
        """What the thermometers know by now; None for groups that have not explored."""
        return self._thermometers.temperatures(len(self.param_groups))

    def _read_thermometers(
        self, readings: list[tuple[int, int, Any]], rows: list[Sequence[float]], ratio: float
    ) -> tuple[GroupTemperatures | None, ...]:
        """Take in the step's temperatures; what is known by now, for each group."""
        unit = self.num_data / (self._temperature * ratio)
        for (number, moved, _), row in zip(readings, rows, strict=False):
            fresh = self._thermometers.read(number, unit * 0.25 * row[2] / moved, ratio) if moved else None
            if fresh is not None and not self._warned_of_temperature:
                self._advice = self._advice or self._remedy(number, fresh)
        for (number, moved, _), look in zip(readings, rows[len(readings) :], strict=False):
            if moved and look[2]:
                group = self.param_groups[number]
                heat = unit * float(group["lr"]) / (2.0 * (1.0 - float(group["momentum"])))
                self._thermometers.of(number).read_look(unit * look[0] / look[2], heat * look[1] / look[2], ratio)
        return self._temperatures()

    def _remedy(self, number: int, thermometer: GroupThermometer) -> str | None:
        euler = self.integrator == "euler"
        return remedy(
            number,
            thermometer,
            integrator=self.integrator,
            momentum=float(self.param_groups[number]["momentum"]),
            of_tempering=getattr(self.tempering, "remedy", None),
            compensated=self.noise_compensation,
            can_compensate=euler and self.preconditioner is None and not self._tempers_potential,
        )

    def _advise(self) -> None:
        """Once, and when the step is over: a warning may be an error."""
        advice, self._advice = self._advice, None
        if advice is None:
            return
        self._warned_of_temperature = True
        if self._chooses_temperature:
            # Whoever leaves T to us trains a network; that it is not sampled at that T is worth a line, not an interruption.
            _log.warning(advice)
        else:
            warn_user(advice, TemperatureWarning)

    def _accepted_loss(self, verdict: Sequence[float]) -> float:
        mean_loss = self._mean_loss(verdict)
        if not math.isfinite(self.num_data * mean_loss / self._temperature):
            raise NonFiniteError(f"N/T times the loss of {mean_loss:g} overflows; the step was refused: check the loss")
        return mean_loss

    def _langevin_step(
        self,
        group: dict[str, Any],
        movers: Movers,
        ratio: float,
        move: Move | None,
        check: bool,
        refused: Tensor | None,
    ) -> dynamics.Sums | None:
        """One step of a group, and the sums from which its energies come; at lr = 0 it rests.

        A group at rest has its share in the energy, not in the mid-step square.
        """
        lr = float(group["lr"])
        self._set_units(group, langevin=True, lr=lr)
        if self.preconditioner is not None:
            movers.scale_by_state(True)
        if lr == 0:
            return movers.rest()
        settings = Settings(
            lr=lr,
            momentum=float(group["momentum"]),
            heat=self._temperature * ratio / self.num_data,
            decay=float(group["weight_decay"]),
            ascend=group["maximize"],
            before=1.0 if move is None else move.before,
            after=1.0 if move is None else move.after,
            compensate=self.noise_compensation,
        )
        sums: dynamics.Sums | None = settings.step(
            self.integrator, movers, self._source(), check=check, refused=refused
        )
        return sums

    @torch.no_grad()
    def _adapt_preconditioner(self, everything: list[Movers]) -> None:
        """Before a step that is sure to be taken, when it is time."""
        assert self.preconditioner is not None
        rms = self.preconditioner
        groups = zip(self.param_groups, everything, strict=True)
        moving = [
            (group, movers)
            for group, movers in groups
            if group["explore"] and movers.parameters and float(group["lr"]) > 0
        ]
        if not moving:
            return
        self._mass_updates += 1
        sums = [rms.observe(movers, self._gradients(group, movers)) for group, movers in moving]
        for (group, movers), row in zip(moving, _on_host(self._over_shards(sums)), strict=True):
            self._set_units(group, langevin=True, lr=float(group["lr"]))
            rms.adapt(movers, row[0] / row[1] if row[1] else 0.0)

    def _adapts(self) -> bool:
        return self.preconditioner is not None and not self._mass_frozen and self.preconditioner.due(self._step_count)

    def _looks_first(self) -> bool:
        """Whether something else changes before the parameters do, so that a step has to be accepted or refused first."""
        return self._tempers_potential or self._adapts()

    # ---- where the potential alone is tempered: α moves first, since momenta go with it ----

    @torch.no_grad()
    def _prior_here(self, everything: list[Movers]) -> float:
        """The prior's share of this rank, over N: the shares add up to the whole."""
        prior = 0.0
        for group, movers in zip(self.param_groups, everything, strict=True):
            decay = float(group["weight_decay"])
            if group["explore"] and decay and movers.parameters:
                prior += 0.5 * decay * float(movers.rest()[0])
        return prior if self._sharded else prior / self._ranks()

    def _move_of_potential(self, mean_loss: float, verdict: Any, everything: list[Movers]) -> Move | None:
        """Move α by U/T; None if all rest."""
        groups = zip(self.param_groups, everything, strict=True)
        if not any(group["explore"] and float(group["lr"]) > 0 and movers.parameters for group, movers in groups):
            return None
        loss = -mean_loss if self.defaults["maximize"] else mean_loss
        potential = self.num_data * (loss + verdict[5]) / self._temperature
        move: Any = self.tempering.advance(potential, scalar_normal(self.seed, ALPHA, 1 + self._step_count))
        return cast("Move", move)

    def _advance_tempering(self, hamiltonian: float, mean_loss: float) -> float:
        epsilon = scalar_normal(self.seed, ALPHA, 1 + self._step_count)
        if not self.noise_compensation:
            return self.tempering.advance(hamiltonian, epsilon)
        variance = self._loss_variance.update(mean_loss) * (self.num_data / self._temperature) ** 2
        return self.tempering.advance(hamiltonian, epsilon, hamiltonian_variance=variance)  # type: ignore[call-arg]

    def _fine_tune(self, group: dict[str, Any], movers: Movers, refused: Tensor | None = None) -> None:
        """SGD with momentum, as `torch.optim.SGD` does it, to the last bit."""
        lr = float(group["lr"])
        self._set_units(group, langevin=False, lr=lr)
        if self.preconditioner is not None:
            movers.scale_by_state(False)
        movers.advance(
            None,
            retain=float(group["momentum"]),
            impulse=1.0,
            stride=-lr,
            decay=float(group["weight_decay"]),
            ascend=group["maximize"],
            refused=refused,
        )

    def _set_units(self, group: dict[str, Any], *, langevin: bool, lr: float) -> None:
        """Bring a group's momentum buffers into the units of the step to come: u = v/√lr, or torch's b = −v/lr."""
        if group["langevin"] != langevin:
            last_lr = group["momentum_lr"]
            # Before its first step with lr > 0 a group has no velocity.
            unit = buffer_unit(self.integrator, last_lr, float(group["momentum"]))
            factor = (-unit if langevin else -1.0 / unit) if unit else 0.0
            for parameter in group["params"]:
                # What is frozen has no velocity to carry over, and its thermal one would kick it when it thaws.
                self.state[parameter]["momentum_buffer"].mul_(factor if parameter.requires_grad else 0.0)
            group["langevin"] = langevin
        group["momentum_lr"] = lr or group["momentum_lr"]

    # ---- parameters ----

    def _needs_loss(self) -> bool:
        self._settle_temperature()
        return self.exploring

    def _leading_group(self) -> dict[str, Any]:
        return next((group for group in self.param_groups if group["explore"]), self.param_groups[0])

    def _facts(self) -> dict[str, int | float]:
        tempering, last = self.tempering, self.last
        momentum = getattr(tempering, "alpha_momentum", None)
        # H has all parameters and momenta in it: where they are whole on each rank, it differs at once where theirs do.
        hamiltonian = None if last is None else last.hamiltonian
        numbers = {
            "temperature": self._temperature,
            "temperature_ratio": tempering.temperature_ratio,
            "alpha": getattr(tempering, "alpha", None),
            "alpha_momentum": getattr(tempering, "momentum", None) if momentum is None else momentum,
            "hamiltonian": hamiltonian,
        }
        counts = {"exploration_steps": self.exploration_steps, "cycle_steps": self.cycle_steps or 0}
        counts |= {"mass_updates": self._mass_updates, "mass_frozen": int(self._mass_frozen)}
        counts |= {"preconditioner": zlib.crc32(repr(self.preconditioner).encode())}
        return (
            super()._facts()
            | counts
            | {name: math.nan if value is None else float(value) for name, value in numbers.items()}
        )

    # ---- construction ----

    def _chosen_tempering(self, tempering: TemperatureControl | None) -> TemperatureControl:
        """The α-subsystem, by default the paper's with constants from the initial lr."""
        explores = self.exploration_steps > 0 and any(group["explore"] for group in self.param_groups)
        if explores and self._temperature != 0 and not self.step_size:
            raise ValueError(
                "lr = 0.0 in the first group that explores: the constants of the tempering come from the initial lr; give "
                "the lr of the exploration and let a scheduler lower it"
            )
        if tempering is None:
            return Tempering.paper(self.step_size or 1.0, max(self.exploration_steps, 1))
        return checked_control(tempering, compensation=self.noise_compensation)

    def _settle_temperature(self) -> None:
        """Let "auto" choose, once there is a group that explores; rank 0's choice is everyone's."""
        if not math.isnan(self._temperature):
            return
        ratio = getattr(self.tempering, "mean_temperature_ratio", self.tempering.temperature_ratio)
        temperature = automatic_temperature(
            self.param_groups,
            num_data=self.num_data,
            exploration_steps=self.exploration_steps,
            mean_temperature_ratio=float(ratio),
            square_norm=self._square_norm,
        )
        if math.isnan(temperature):
            return  # and no rank has anything to say to the others
        dtype = dynamics.wide_dtype(self._device())
        self._temperature = float(self._of_rank_zero(torch.tensor(temperature, dtype=dtype, device=self._device())))

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        if self.integrator == "ubu" and group["explore"] and float(group["momentum"]) == 0:
            raise ValueError('integrator="ubu" needs momentum > 0: without, motion between kicks is not free')
        if group["explore"] and group["maximize"] != self.defaults["maximize"]:
            raise ValueError(
                f"a group that explores has maximize = {group['maximize']}, the optimizer {self.defaults['maximize']}: they "
                "share one potential; give maximize to the optimizer, or explore=False to the group"
            )

    def _start_group(self, group: dict[str, Any]) -> None:
        self._settle_temperature()
        group["langevin"] = self.exploring and group["explore"]
        if group["langevin"] and not self._warned_of_rounding:
            self._warned_of_rounding = warn_of_rounding(group, num_data=self.num_data, temperature=self._temperature)

    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        dtype = dynamics.momentum_dtype(parameter)
        buffer = torch.zeros_like(parameter, dtype=dtype, requires_grad=False)
        if group["langevin"]:
            # r ~ N(0, T), hence v/√lr ~ N(0, T/N).
            self._heat(buffer, index, deviation=math.sqrt(self._temperature / self.num_data))
        self.state[parameter] = {"momentum_buffer": buffer}
        if self.noise_compensation and self.exploration_steps:
            self.state[parameter] |= initial_state(buffer)
        if self.preconditioner is not None and self.exploration_steps:
            self.state[parameter] |= self.preconditioner.initial_state(buffer)

    # ---- state ----

    def _global_state(self) -> dict[str, Any]:
        return (
            super()._global_state()
            | {"num_data": self.num_data, "temperature": self._temperature}
            | {"clamped": self._clamped, "compensated": self._compensated}
            | {"mass_updates": self._mass_updates, "mass_frozen": self._mass_frozen}
            | {"warned_of_temperature": self._warned_of_temperature}
            | {"thermometers": self._thermometers.state(len(self.param_groups), sharded=self._sharded)}
            | {f"loss_{key}": value for key, value in self._loss_variance.state_dict().items()}
            | {f"tempering_{key}": value for key, value in self.tempering.state_dict().items()}
        )

    def _check_global_state(self, state: dict[str, Any]) -> None:
        super()._check_global_state(state)
        if state["num_data"] != self.num_data:
            raise ValueError(
                f"the state was saved with num_data = {state['num_data']:g}, this optimizer has {self.num_data:g}: build it "
                "with the same, or start a new run"
            )

    def _load_global_state(self, state: dict[str, Any]) -> None:
        super()._load_global_state(state)
        self._temperature = float(state["temperature"])
        self._clamped, self._compensated = int(state["clamped"]), int(state["compensated"])
        self._mass_updates, self._mass_frozen = int(state["mass_updates"]), bool(state["mass_frozen"])
        self._warned_of_temperature = bool(state["warned_of_temperature"])
        self._thermometers.load(state["thermometers"])
        self._loss_variance.load_state_dict(_entries(state, "loss_"))
        self.tempering.load_state_dict(_entries(state, "tempering_"))

    def _forget(self) -> None:
        super()._forget()
        self.last = None


def _on_host(rows: list[Any]) -> list[Sequence[float]]:
    """Numbers for rows of numbers, of which some may be on a device; one read from there."""
    there = [row for row in rows if isinstance(row, Tensor)]
    if not there:
        return rows
    device = there[0].device
    dtype = dynamics.wide_dtype(device)
    read: list[float] = torch.cat([row.to(device, dtype) for row in there]).tolist()
    numbers = iter(read)
    return [[next(numbers) for _ in row] if isinstance(row, Tensor) else row for row in rows]


def _entries(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
