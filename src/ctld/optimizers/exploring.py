"""What surrounds a step of exploration: what is seen first, which units momenta are in, what is read and noted afterwards."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ctld.checks import TemperatureWarning, warn_user
from ctld.observation import Observation, observe, on_host
from ctld.observing import Closure, Loss
from ctld.optimizers.momenta import bring_into_units, note_lr
from ctld.optimizers.phases import Phased
from ctld.optimizers.record import Energies, ExploringGroup, finite
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.alpha import Alpha
from ctld.stepping.sweep import Sums
from ctld.thermometers import advice
from ctld.thermometers.group import SAME
from ctld.thermometers.thermometers import ADVICE_PERIOD

_log = logging.getLogger("ctld")


class ExploringGroups(NamedTuple):
    """The groups that explore, of those that are active; read once, and kept while no option changes."""

    active: Active
    groups: tuple[ExploringGroup, ...]
    moving: bool
    """Whether one has lr > 0."""


class Explorer(Phased):
    """Surrounds the steps of a subclass."""

    check_gradients: bool

    # ---- before a step ----

    def _gathered(
        self, closure: Closure | Loss | None, loss: Loss | None, exploring: bool
    ) -> tuple[Loss | None, list[Loss], Active | None]:
        """Returns what the closure gave, the losses handed over (one for each microbatch) and who has a gradient.

        All that can be wrong with a call is found here, before anything has changed, and other ranks hear of it. Without
        active parameters there is nothing to do.
        """
        meets = self.ranks.meets()
        try:
            result = self._evaluate(closure, loss, needed=exploring or self.listener is not None)
            losses = self._taken()
            self._check_groups()
            active = self._active()
            if exploring and not losses:
                # Checkpointing tools (DCP) step once at lr = 0, without a loss, to have the state allocated.
                if all(float(group["lr"]) == 0 for group in self.param_groups):
                    return result, losses, None
                raise ValueError(
                    "exploration needs the loss, which drives the temperature; call step(loss=loss), step(closure), or "
                    "observe(loss) before step()"
                )
        except Exception as error:
            self._tell_others(error, meets, exploring)
            raise
        if meets:
            self._agree(meets)
        return result, losses, active

    def _see(self, losses: list[Loss], active: Active | None, failure: Exception | None = None) -> Observation:
        """Returns what is seen at the present parameters; accepts it at once where something changes before they do."""
        ahead = active is not None and self._changes_ahead()
        alone = self.ranks.size == 1
        if active is not None and active.native and len(losses) == 1 and alone:
            loss = losses[0]
            if type(loss) is float:  # by far the most frequent case: one process, on a CPU
                look = ahead and self.check_gradients  # else the kernel looks itself, before it moves anything
                prior: float | None = 0.0
                if self.tempering.needs_potential:
                    prior = self._prior_here(active, check=look)
                elif look and not engine.finite(active):
                    prior = None
                numbers = (loss, 0.0, 1.0, 0.0, 0.0, prior) if prior is not None else (loss, 1.0, 1.0, 0.0, 0.0, 0.0)
                seen = self._observation(numbers, gradients_seen=look or not self.check_gradients)
                seen.accept()
                return seen
        on_cpu = self._device().type == "cpu"
        looks = active is not None and self.check_gradients and (ahead or not on_cpu or not alone)
        observed = observe(
            losses,
            [engine.finite(active)] if looks and active is not None else [],
            prior=(self._prior_here(active) or 0.0) if active is not None and self.tempering.needs_potential else 0.0,
            failed=failure is not None,
            ranks=self.ranks,
            device=self._device(),
            facts=self._facts,
        )
        seen = self._observation(observed, gradients_seen=looks or not self.check_gradients, failure=failure)
        if ahead or active is None or self.compensation.active or not active.refusable or seen.refused() is None:
            seen.accept()
        return seen

    def _observation(
        self, numbers: Sequence[float] | Tensor, *, gradients_seen: bool, failure: Exception | None = None
    ) -> Observation:
        scale = self.num_data / self.temperature
        about = self.ranks, self._device, self._facts, self._unfit_gradient
        return Observation(numbers, *about, scale, gradients_seen, failure)

    def _changes_ahead(self) -> bool:
        """Returns whether something else changes before the parameters do, so that a step has to be accepted first."""
        if self.tempering.needs_potential or self.mass.due(self.clock.steps):
            return True
        # Whose momenta are in other units as yet.
        return True in [group["langevin"] != group["explore"] for group in self.param_groups]

    def _tell_others(self, failure: Exception, meets: bool, exploring: bool) -> None:
        """The others are about to ask whether all can take the step: without an answer they would wait in vain."""
        if meets:
            self._agree(meets, failure)
        elif exploring and self.ranks.size > 1:
            self._see([0.0], None, failure)

    def _potential_ahead(self, seen: Observation) -> float | None:
        """Returns U/T, for a tempering that has to know it before the step."""
        if not self.tempering.needs_potential:
            return None
        return self.num_data * (self._sign * seen.accept() + seen.prior) / self.temperature

    def _prior_here(self, active: Active, *, check: bool = False) -> float | None:
        """Returns the prior's share of this rank, over N, the shares adding up to the whole; None where gradients, if they
        are to be looked at, are not fit for a step."""
        norms = engine.square_norms(active, check=check)
        if norms is None:
            return None
        prior = 0.0
        for group in self._exploring_groups(active).groups:
            prior += 0.5 * group.decay * norms[group.number]
        return prior if self._sharded else prior / self.ranks.size

    def _bring_momenta_into_units(self, active: Active, *, exploring: bool) -> None:
        """Makes momenta what the step to come takes them for; the mass adapts here too, when it is time."""
        for group in self.param_groups:
            langevin = exploring and group["explore"]
            if group["langevin"] != langevin:
                bring_into_units(group, self.state, langevin=langevin, integrator=self.integrator)
        if exploring and self.mass.due(self.clock.steps):
            self._adapt_mass(active)

    @torch.no_grad()
    def _adapt_mass(self, active: Active) -> None:
        moving = [
            (group, members)
            for group, members in zip(self.param_groups, active.groups, strict=True)
            if group["explore"] and members.parameters and float(group["lr"]) > 0
        ]
        if not moving:
            return
        self.mass.updates += 1
        sums = [
            self.mass.observe(members, decay=float(group["weight_decay"]), ascend=group["maximize"])
            for group, members in moving
        ]
        for (_, members), row in zip(moving, on_host(self._over_shards(sums)), strict=True):
            self.mass.adapt(members, row[0] / row[1] if row[1] else 0.0)

    def _probe(self) -> list[Tensor | None]:
        """Looks at some elements of each group that explores, if it is time; sums where that completes a probe."""
        if not 0 <= self.thermometers.phase(self.clock.steps, self.seed) <= 2:
            return []
        scales = None if self.mass.options is None else self.state
        ranks = self.ranks.size if self._sharded else 1
        return [
            self.thermometers.probe(number, group, self._noise(), scales, version=self.mass.updates, ranks=ranks)
            for number, group in enumerate(self.param_groups)
            if group["explore"]
        ]

    def _alpha_in_engine(self, seen: Observation, active: Active, epsilon_alpha: float) -> Alpha | None:
        """Returns α's own step, for the call that moves the parameters to take along; None where `end` has to take it.

        A matter of speed: `Tempering.end` is the definition, and tests hold the two equal to the bit. The call can do it on
        a CPU, in one process, for the paper's own pieces.
        """
        if not active.native or self._sharded or self.compensation.active or not seen.accepted:
            return None
        return self.tempering.hand_over(epsilon_alpha, self.num_data, self.temperature, self._sign * seen.mean_loss)

    # ---- after a step ----

    def _settled(
        self, exploring: ExploringGroups, seen: Observation, sums: Sequence[Sums] | None, probes: list[Tensor | None]
    ) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
        """Returns the sums of groups that explore and those of probes as numbers; or raises why the step was refused."""
        if sums is None:
            seen.refuse()
            raise AssertionError("refuse raises")
        note_lr(self.param_groups)
        chosen: list[Any] = [sums[group.number] for group in exploring.groups]
        if not probes and not self._sharded and seen.accepted and all(type(row) is tuple for row in chosen):
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

    def _exploring_groups(self, active: Active) -> ExploringGroups:
        known: ExploringGroups | None = self._known.get("exploring")
        if known is None or known.active is not active:
            groups = []
            for number, (group, members) in enumerate(zip(self.param_groups, active.groups, strict=True)):
                if group["explore"]:
                    lr, momentum, decay = (float(group[name]) for name in ("lr", "momentum", "weight_decay"))
                    groups.append(ExploringGroup(number, lr, momentum, decay, members.numel if lr > 0 else 0))
            known = ExploringGroups(active, tuple(groups), any(group.lr > 0 for group in groups))
            self._known["exploring"] = known
        return known

    def _move_alpha(
        self, energies: Energies, epsilon_alpha: float, loss: float, in_engine: Alpha | None
    ) -> float | None:
        """Moves α by H/T, unless the engine has done so with the parameters; returns the force on it, if there is one."""
        if in_engine is not None:
            finite(in_engine.hamiltonian)
            return self.tempering.take_back()
        hamiltonian = finite(energies.hamiltonian)
        if self.compensation.active:
            self.compensation.count(energies.clamped, energies.dimensions)
        return self.tempering.end(hamiltonian, epsilon_alpha, self._hamiltonian_variance(loss))

    def _hamiltonian_variance(self, loss: float) -> float:
        """Returns the minibatch variance of H/T, where noise is compensated for it."""
        if not self.compensation.active:
            return 0.0
        return self.compensation.loss.update(loss) * (self.num_data / self.temperature) ** 2

    def _read(
        self,
        exploring: ExploringGroups,
        ratio: float,
        sums: list[Sequence[float]],
        probed: list[Sequence[float]],
    ) -> None:
        """Hands to the thermometers what the step has found."""
        thermometers, unit = self.thermometers, self.num_data / (self.temperature * ratio)
        if ratio <= SAME:
            thermometers.last_cold_step = self.clock.steps
        for group, row in zip(exploring.groups, sums, strict=True):
            if group.elements:
                thermometers.read(group.number, unit * 0.25 * row[2] / group.elements, ratio)
        for group, row in zip(exploring.groups, probed, strict=False) if probed else ():
            if group.elements and row[2]:
                heat = unit * group.lr / (2.0 * (1.0 - group.momentum))
                thermometers.of(group.number).read_probe(unit * row[0] / row[2], heat * row[1] / row[2], ratio)

    def _tick(self, explored: bool) -> None:
        """The step is taken: the clock goes on, and whatever goes by it."""
        self.clock.steps += 1
        if self.clock.cycle_begins:
            self.tempering.restart()
        if explored and not self.clock.exploring:
            self.thermometers.pause()
            self.compensation.interrupt(self.state.values())
        if explored and self.clock.steps % ADVICE_PERIOD == 0:
            self._advise()
        if self.tempering.remark is not None:
            remark, self.tempering.remark = self.tempering.remark, None
            warn_user(remark)

    def _advise(self) -> None:
        """Says once what the thermometers find wrong; when the step is over, since a warning may be an error."""
        for number, thermometer in self.thermometers.groups.items():
            if self.thermometers.warned or number >= len(self.param_groups):
                return
            text = advice(
                number,
                thermometer,
                integrator=self.integrator,
                momentum=float(self.param_groups[number]["momentum"]),
                of_tempering=self.tempering.remedy,
                compensated=self.compensation.active,
                can_compensate=self.integrator == "euler"
                and self.mass.options is None
                and not self.tempering.needs_potential,
            )
            if text is None:
                continue
            self.thermometers.warned = True
            if self._posterior.automatic:
                # Whoever leaves T to us trains a network; that it is not sampled at that T is worth a line, no more.
                _log.warning(text)
            else:
                warn_user(text, TemperatureWarning)
