"""Ensemble: several models from one training run, by cycles of noisy exploration and fine-tuning.

It puts together `CTLD`, `CycleLR`, `SampleCollector` and `predict`, which go on working by themselves.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ctld.checks import NonFiniteError, integer, real, warn_user
from ctld.cycles import CycleLR
from ctld.ensembles import saving
from ctld.ensembles.collapse import CollapseWatch, MeanLoss, size_of_weights
from ctld.ensembles.collector import SampleCollector
from ctld.ensembles.prediction import Inputs, Prediction, RegressionPrediction, predict
from ctld.ensembles.samples import Keep, SampleRecord, bare, restore
from ctld.ensembles.temperature import ensemble_temperature, mean_ratio, noise_spread
from ctld.ensembles.temperings import Named, named_tempering
from ctld.optimizers import CTLD
from ctld.tempering import TemperatureControl
from ctld.tempering.adapted import AdaptedTemperature

_log = logging.getLogger("ctld")

# The last part of a cycle over which its loss is averaged: lr is below 3 % of its height there.
TAIL = 0.1


class Ensemble:
    """Trains a model by cycles, keeps the model at the end of each, and averages what they predict.

    >>> ensemble = Ensemble(model, lr=0.1, num_data=len(train_set), total_steps=6000)        # doctest: +SKIP
    >>> loss.backward(); ensemble.step(loss)                                                 # doctest: +SKIP
    >>> prediction = ensemble.predict(test_inputs)                                           # doctest: +SKIP

    Each cycle explores at constant lr with injected noise, then lowers lr to zero without. Hand over the loss after
    `loss.backward()`; everything else a step needs is done here. The model is trained in place, and is the last member at the
    end.

    Parameters
    ----------
    model : Module
        Moved to its device already; under DistributedDataParallel, the wrapped one.
    lr, momentum, weight_decay
        As in `torch.optim.SGD`, on the mean loss.
    num_data : float
        N, the number of training examples.
    total_steps : int
        Of all cycles together; each has total_steps // cycles.
    cycles : int
        How many models are kept.
    exploration : float
        The share of each cycle that explores.
    temperature : float or "auto"
        T of the noise. 0 gives cycles without noise. "auto" goes by the spread of the weights and by whether the weight decay
        forgets the noise within a cycle (`ctld.ensembles.temperature`), and is adapted to what the network bears.
    tempering : "constant", "falling", "driven", "calibrated", "paper", or a tempering
        How the temperature moves within an exploration. Nothing that moves did better than "constant" in nine
        comparisons, but where it was colder (docs/ensembles.md).
    params : optional
        Parameters or groups of them, as a torch optimizer takes them; all of the model's, if left out. A group with
        `explore=False` gets no noise.
    members, keep
        At most so many of the cycles' models are kept, the "newest" or the "best" by loss; all, if left out.
    guard : bool
        Whether a model that has collapsed is left out, and training goes on from the last one kept. The warning comes anyway.
    adapt : bool, optional
        Whether the noise starts with a tenth of T and grows, at most to T, until exploring undoes a tenth of what training has
        gained; where it undoes more, it falls. Left out: if the temperature is "auto". It goes with the constant tempering.
    seed : int, optional
        Of the noise.
    options
        Others of `CTLD`: integrator, noise, check_gradients, process_group, ...
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        num_data: float,
        total_steps: int,
        *,
        cycles: int = 6,
        exploration: float = 0.6,
        momentum: float = 0.9,
        weight_decay: float = 1e-3,
        temperature: float | Literal["auto"] = "auto",
        tempering: Named | TemperatureControl = "constant",
        params: Iterable[Any] | None = None,
        members: int | None = None,
        keep: Keep = "newest",
        guard: bool = True,
        adapt: bool | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.total_steps = integer("total_steps", total_steps, at_least=1)
        self.cycles = integer("cycles", cycles, at_least=1)
        self.cycle_steps = self.total_steps // self.cycles
        if self.cycle_steps < 2:
            left = f"{self.cycle_steps} for each of {cycles} cycles"
            raise ValueError(f"total_steps = {total_steps} leave {left}: give more steps, or fewer cycles")
        share = real("exploration", exploration, at_least=0, below=1)
        self.exploration_steps = min(int(share * self.cycle_steps), self.cycle_steps - 1)
        self.model = model
        self.guard = bool(guard)
        groups = saving.named_groups(bare(model), params)
        named = saving.names_of_groups(groups)  # now: the optimizer fills the groups in
        self.adapt = temperature == "auto" and tempering == "constant" if adapt is None else bool(adapt)
        if self.adapt and tempering != "constant":
            raise ValueError(f'adapt=True goes with tempering="constant", not {tempering!r}')
        control = AdaptedTemperature() if self.adapt else named_tempering(tempering, self.exploration_steps, cycles)
        if temperature == "auto":
            defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
            temperature = ensemble_temperature(
                [{**defaults, **group} for group in groups],
                num_data=real("num_data", num_data, above=0),
                exploration_steps=self.cycles * self.exploration_steps,
                cycle_steps=self.cycle_steps,
                mean_temperature_ratio=mean_ratio(control),
            )
        self.optimizer = CTLD(
            groups,
            lr,
            momentum,
            num_data=num_data,
            exploration_steps=self.exploration_steps,
            cycle_steps=self.cycle_steps,
            weight_decay=weight_decay,
            temperature=temperature,
            tempering=control,
            seed=seed,
            **options,
        )
        self.scheduler = CycleLR(self.optimizer)
        at_most = self.cycles if members is None else integer("members", members, at_least=1)
        self.collector = SampleCollector(model, self.optimizer, at_most=at_most, keep=keep)
        self._watch = CollapseWatch(
            f"Give a lower temperature (it is {self.optimizer.temperature:.3g}) or a lower lr (it is {float(lr):g})",
            self._size(),
            self._parameters()[0].device,
            guard=self.guard,
        )
        self._tail = MeanLoss()
        self._warned_of_the_end = False
        self.rebuild: dict[str, Any] = {
            "lr": float(lr),
            "num_data": float(num_data),
            "total_steps": self.total_steps,
            "cycles": self.cycles,
            "exploration": share,
            "momentum": float(momentum),
            "weight_decay": float(weight_decay),
            "temperature": self.optimizer.temperature,
            "tempering": tempering if isinstance(tempering, str) else None,
            "params": named,
            "members": at_most,
            "keep": keep,
            "guard": self.guard,
            "adapt": self.adapt,
            "seed": self.optimizer.seed,
        } | {name: value for name, value in options.items() if name != "process_group"}
        """What `load` builds it with again."""

    # ---- training ----

    @property
    def steps(self) -> int:
        """How many steps were done."""
        return self.optimizer.steps

    @property
    def done(self) -> bool:
        """Whether all cycles are over."""
        return self.steps >= self.cycles * self.cycle_steps

    @property
    def temperature(self) -> float:
        """T, given or chosen; where it is adapted, what it is now."""
        control = self.optimizer.tempering
        ratio = control.temperature_ratio if isinstance(control, AdaptedTemperature) else 1.0
        return self.optimizer.temperature * ratio

    def step(self, loss: Tensor | float) -> SampleRecord | None:
        """Does one step of training, after `loss.backward()`; returns the record of the model if one was kept.

        Once all cycles are over it changes nothing.
        """
        if self.done:
            self._say_that_it_is_over()
            self.optimizer.zero_grad()
            return None
        if all(each.grad is None for group in self.optimizer.param_groups for each in group["params"]):
            raise RuntimeError("no parameter has a gradient; call loss.backward() before ensemble.step(loss)")
        try:
            self.optimizer.step(loss=loss)
        except (FloatingPointError, NonFiniteError) as error:
            # A loss that is not finite may be one bad batch's; then there is nothing to put back.
            if self.guard and not math.isfinite(self._size()) and self._put_back():
                error.add_note("The weights were not finite: the model is now the last one that was kept.")
            error.add_note(f"If it happens again, give a lower temperature (it is {self.temperature:.3g}) or lr.")
            raise
        finally:
            self.optimizer.zero_grad()
        self.scheduler.step()
        return self.after_step(loss)

    def after_step(self, loss: Tensor | float) -> SampleRecord | None:
        """Does all but the step itself, where a framework takes it: `ctld.integrations.follow` calls this."""
        exploring = (self.steps - 1) % self.cycle_steps < self.exploration_steps
        position = self.optimizer.cycle_step or self.cycle_steps
        self._change_temperature(
            self._watch.hear(loss, exploring=exploring, late=2 * position > self.exploration_steps)
        )
        if exploring and not self.optimizer.exploring:
            self._watch.noise_ended(self._size(), noise_spread(self.optimizer))
        if position > self.cycle_steps - max(1, round(TAIL * self.cycle_steps)):
            self._tail.add(loss)
        if position < self.cycle_steps:
            return self.collector.update()
        return self._end_cycle()

    def _end_cycle(self) -> SampleRecord | None:
        mean, self._tail = self._tail.over_ranks(self._parameters()[0].device), MeanLoss()
        good, factor = self._watch.cycle_ended(mean, self._size())
        self._change_temperature(factor)
        if self.guard and not good:
            self._put_back()
            return None
        return self.collector.update(loss=mean) if math.isfinite(mean) else None  # no number: nothing to average

    def _change_temperature(self, factor: float) -> None:
        control = self.optimizer.tempering
        if isinstance(control, AdaptedTemperature) and factor != 1:
            control.change(factor)
            _log.info("step %d: the temperature is now %.3g", self.steps, self.temperature)

    @torch.no_grad()
    def _put_back(self) -> bool:
        """Puts the last member's tensors into the model, at rest; says whether there was one."""
        members = list(self.collector)
        if not members or not restore(bare(self.model), members[-1].state):
            return False  # shards are left as they are: the warning has been given
        for state in self.optimizer.state.values():
            state["momentum_buffer"].zero_()
        return True

    def _say_that_it_is_over(self) -> None:
        if not self._warned_of_the_end and self.cycles * self.cycle_steps == self.total_steps:
            warn_user(
                f"all {self.total_steps} steps are done, and further ones change nothing: give a larger total_steps, or stop "
                "when ensemble.done"
            )
        self._warned_of_the_end = True

    # ---- predicting ----

    def __len__(self) -> int:
        return len(self.collector)

    def __bool__(self) -> bool:
        return True

    @property
    def records(self) -> list[SampleRecord]:
        """What is known of each member, oldest first; `loss` is the mean over the last tenth of its cycle."""
        return self.collector.records

    @overload
    def predict(self, inputs: Inputs, *, kind: Literal["classification"] = ..., **options: Any) -> Prediction: ...

    @overload
    def predict(self, inputs: Inputs, *, kind: Literal["regression"], **options: Any) -> RegressionPrediction: ...

    def predict(
        self, inputs: Inputs, *, kind: Literal["classification", "regression"] = "classification", **options: Any
    ) -> Prediction | RegressionPrediction:
        """Returns the averaged prediction of the members, by `ctld.predict`, which says what `options` there are."""
        if not len(self):
            raise ValueError(
                f"there is no member yet: the first comes after {self.cycle_steps} steps, {self.steps} are done"
            )
        found: Prediction | RegressionPrediction = predict(self.model, self.collector, inputs, kind=kind, **options)
        return found

    def refresh_batch_norm(self, loader: Iterable[Any]) -> None:
        """Computes the statistics of batch norm anew for each member: `SampleCollector.refresh_batch_norm`."""
        self.collector.refresh_batch_norm(loader)

    # ---- saving ----

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the run goes on from, model and members included."""
        return {
            "settings": self._settings(),
            "model": dict(bare(self.model).state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "collector": self.collector.state_dict(),
            "watch": self._watch.state_dict(),
            "tail": self._tail.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the state was saved, to the bit; one of other cycles or data is refused."""
        for name, mine in self._settings().items():
            theirs = state_dict["settings"].get(name)
            if theirs != mine:
                raise ValueError(f"the state was saved with {name} = {theirs}, this has {mine}: build it as it was")
        self.optimizer.load_state_dict(state_dict["optimizer"])
        bare(self.model).load_state_dict(state_dict["model"])
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.collector.load_state_dict(state_dict["collector"])
        self._watch.load_state_dict(state_dict["watch"])
        self._tail.load_state_dict(state_dict["tail"])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes all of it to a folder, as safetensors and JSON (extra `ensembles`), whole or not at all; rank 0 writes."""
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module, **changed: Any) -> Ensemble:
        """Returns the ensemble that was saved, to predict with or to go on with.

        `model` is built as it was, and gets the saved tensors. What cannot be written down is given again: `tempering=`, if it
        was an object, and `process_group=`.
        """
        return saving.load(cls, folder, model, changed)

    def _settings(self) -> dict[str, Any]:
        names = ("total_steps", "cycles", "exploration_steps")
        return {name: getattr(self, name) for name in names} | {"num_data": self.optimizer.num_data}

    def __repr__(self) -> str:
        where = f"step {self.steps} of {self.cycles} × {self.cycle_steps}"
        return f"<Ensemble: {len(self)} members, {where}, T = {self.temperature:.3g}>"

    def _parameters(self) -> list[Tensor]:
        groups = [group for group in self.optimizer.param_groups if group["explore"]]
        return [parameter for group in groups or self.optimizer.param_groups for parameter in group["params"]]

    def _size(self) -> float:
        return size_of_weights(self._parameters())
