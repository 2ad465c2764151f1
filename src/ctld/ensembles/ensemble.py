"""Ensemble: several models from one training run, in cycles. Past 450 lines: the one door to all parts, half of it docstrings.

It puts together `CTLD`, `SampleCollector` and `predict`, which go on working by themselves; `Ensemble.around` takes any other
optimizer in place of `CTLD`.
"""

from __future__ import annotations

import copy
import logging
import math
import os
from collections.abc import Callable, Iterable
from typing import Any, Literal, overload
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ctld.checks import NonFiniteError, integer, real, warn_user
from ctld.ensembles import calibration, saving
from ctld.ensembles.averages import Calibration, calibration_from_plain
from ctld.ensembles.collapse import CollapseWatch, MeanLoss, size_of_weights
from ctld.ensembles.collector import SampleCollector
from ctld.ensembles.cycles import CyclesLR, LearningRates
from ctld.ensembles.groups import named_groups, names_of_groups
from ctld.ensembles.handed import FirstSteps, Losses
from ctld.ensembles.history import History
from ctld.ensembles.inputs import Inputs
from ctld.ensembles.prediction import AnyPrediction, Forward, Prediction, RegressionPrediction, averaged, finished
from ctld.ensembles.progress import processes
from ctld.ensembles.samples import Keep, SampleRecord, bare, bounded, restore, size_of_sample
from ctld.ensembles.task import Head, Task, TaskName, as_task, task_of_loss
from ctld.ensembles.temperature import chosen_cycles, ensemble_temperature, has_norm_layers, mean_ratio, noise_spread
from ctld.ensembles.temperings import Named, named_tempering
from ctld.observing import TakesLoss
from ctld.optimizers import CTLD
from ctld.tempering import TemperatureControl
from ctld.tempering.adapted import AdaptedTemperature

_log = logging.getLogger("ctld")

# The last part of a cycle over which its loss is averaged: lr is below 3 % of its height there.
TAIL = 0.1


class Ensemble:
    """Train a model by cycles, keep the model at the end of each, and average what they predict.

    >>> ensemble = Ensemble(model, lr=0.1, num_data=len(train_set), total_steps=6000)        # doctest: +SKIP
    >>> loss.backward(); ensemble.step(loss)                                                 # doctest: +SKIP
    >>> prediction = ensemble.predict(test_inputs)                                           # doctest: +SKIP

    Each cycle explores at constant lr with injected noise, then lowers lr to zero without. Hand over the loss after
    `loss.backward()`; everything else a step needs is done here. A loop or framework that calls `ensemble.optimizer.step`
    gets the same. The model is trained in place, and is the last member at the end.

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
    cycles : int or "auto"
        How many models are kept. "auto" takes up to six, of five epochs and 75 steps each at least; a run that is shorter than
        two of these is one long run of SGD, lr along a cosine. The choice is logged.
    steps_per_epoch : float, optional
        len(loader). It tells "auto" how often the data are seen; without it steps alone decide.
    exploration : float, optional
        The share of each cycle that explores. Left out: 0.6, and 0 where "auto" takes one long run.
    temperature : float or "auto"
        T of the noise. 0, the default, gives cycles without noise: on 204 settings that nobody tuned, noise added nothing
        (research/robustness). "auto" goes by the spread of the weights and by whether the weight decay forgets the noise within
        a cycle (`ctld.ensembles.temperature`), and adapts to what the network bears. Networks with norm layers then get none.
    tempering : "constant", "falling", "driven", "calibrated", "paper", or a tempering
        How the temperature moves within an exploration. Nothing that moves did better than "constant" in nine
        comparisons, but where it was colder (docs/ensembles.md).
    params : optional
        Parameters or groups of them, as a torch optimizer takes them; all of the model's, if left out. A group with
        `explore=False` gets no noise.
    task : "classification", "binary", "multilabel" or "regression", optional
        What the model's outputs are (`ctld.predict`). Left out: by the loss that is handed over, if that is one of torch's for
        logits or for squared errors.
    class_dim, head : optional
        As in `ctld.predict`.
    members, keep
        At most so many of the cycles' models are kept, the "newest" or the "best" by loss; all, if left out.
    members_on : "cpu" or path
        Where the members are kept: in memory, or in a folder as safetensors files. What is not trained is held once in memory.
    guard : bool
        Leave out a model that has collapsed, and go on from the last one kept. The warning comes anyway.
    adapt : bool, optional
        Start the noise with a tenth of T and let it grow, at most to T, until exploring undoes a tenth of what training has
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
        cycles: int | Literal["auto"] = "auto",
        steps_per_epoch: float | None = None,
        exploration: float | None = None,
        momentum: float = 0.9,
        weight_decay: float = 1e-3,
        temperature: float | Literal["auto"] = 0.0,
        tempering: Named | TemperatureControl = "constant",
        params: Iterable[Any] | None = None,
        task: TaskName | Task | None = None,
        class_dim: int | None = None,
        head: Head | None = None,
        members: int | None = None,
        keep: Keep = "newest",
        members_on: str | os.PathLike[str] = "cpu",
        guard: bool = True,
        adapt: bool | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self._set_cycles(total_steps, cycles, steps_per_epoch, exploration)
        groups = named_groups(bare(model), params)
        named = names_of_groups(groups)  # now: the optimizer fills the groups in
        self.adapt = temperature == "auto" and tempering == "constant" if adapt is None else bool(adapt)
        if self.adapt and tempering != "constant":
            raise ValueError(f'adapt=True goes with tempering="constant", not {tempering!r}')
        control = (
            AdaptedTemperature() if self.adapt else named_tempering(tempering, self.exploration_steps, self.cycles)
        )
        if temperature == "auto" and has_norm_layers(model):
            _log.info('temperature="auto" of an ensemble: 0, since the model has norm layers')
            temperature = 0.0
        elif temperature == "auto":
            defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
            temperature = ensemble_temperature(
                [{**defaults, **group} for group in groups],
                num_data=real("num_data", num_data, above=0),
                exploration_steps=self.cycles * self.exploration_steps,
                cycle_steps=self.cycle_steps,
                mean_temperature_ratio=mean_ratio(control),
            )
        optimizer = CTLD(
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
        self._assemble(
            model, optimizer, as_task(task, class_dim=class_dim, head=head), members, keep, members_on, guard
        )
        self.rebuild |= {
            "lr": float(lr),
            "num_data": float(num_data),
            "momentum": float(momentum),
            "weight_decay": float(weight_decay),
            "temperature": optimizer.temperature,
            "tempering": tempering if isinstance(tempering, str) else None,
            "params": named,
            "adapt": self.adapt,
            "seed": optimizer.seed,
        } | {name: value for name, value in options.items() if name != "process_group"}

    @classmethod
    def around(
        cls,
        optimizer: Optimizer,
        model: nn.Module,
        total_steps: int,
        *,
        cycles: int | Literal["auto"] = "auto",
        steps_per_epoch: float | None = None,
        exploration: float | None = None,
        task: TaskName | Task | None = None,
        class_dim: int | None = None,
        head: Head | None = None,
        members: int | None = None,
        keep: Keep = "newest",
        members_on: str | os.PathLike[str] = "cpu",
        guard: bool = True,
    ) -> Ensemble:
        """Return an ensemble that is trained by an optimizer of your own, without noise.

        >>> ensemble = Ensemble.around(torch.optim.AdamW(model.parameters(), 1e-3), model, 6000)       # doctest: +SKIP

        In each cycle lr stays at the optimizer's for the first part and is then lowered to zero. Leave schedulers out.

        Parameters
        ----------
        optimizer : Optimizer
            Any of torch's, or one with its interface.
        others
            Those of `Ensemble`.
        """
        if isinstance(optimizer, CTLD):
            raise ValueError(
                "optimizer must be one without cycles of its own, got CTLD. Give Ensemble(model, lr, num_data, ...)"
            )
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("optimizer must take a step without a closure, got LBFGS. Give another")
        if any("initial_lr" in group for group in optimizer.param_groups):
            warn_user(
                "a scheduler has changed the optimizer's lr, and the cycles will overwrite it. Leave the scheduler out"
            )
        self = cls.__new__(cls)
        self._set_cycles(total_steps, cycles, steps_per_epoch, exploration)
        self.adapt = False
        known = as_task(task, class_dim=class_dim, head=head)
        self._assemble(model, optimizer, known, members, keep, members_on, guard)
        own = named_groups(bare(model), [{"params": group["params"]} for group in optimizer.param_groups])
        self.rebuild |= {"around": type(optimizer).__name__, "params": names_of_groups(own)}
        return self

    def _set_cycles(
        self,
        total_steps: int,
        cycles: int | Literal["auto"],
        steps_per_epoch: float | None,
        exploration: float | None,
    ) -> None:
        self._cycles = made = chosen_cycles(total_steps, cycles, steps_per_epoch, exploration)
        self.total_steps, self.cycles = made.total_steps, made.number
        self.cycle_steps, self.exploration_steps = made.steps, made.exploration_steps
        self._tail_steps = max(1, round(TAIL * self.cycle_steps))
        self.rebuild: dict[str, Any] = {
            "total_steps": self.total_steps,
            "cycles": self.cycles,
            "exploration": self._cycles.exploration,
        }
        """Options with which `load` builds the ensemble again."""

    def _assemble(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        task: Task | None,
        members: int | None,
        keep: Keep,
        members_on: str | os.PathLike[str],
        guard: bool,
    ) -> None:
        """Put the parts together, and follow the optimizer."""
        self.model, self.guard, self._task = model, bool(guard), task
        self.optimizer: Any = optimizer
        self._tempered = isinstance(optimizer, CTLD)
        at_most = self.cycles if members is None else integer("members", members, at_least=1)
        folder = None if members_on == "cpu" else members_on
        if folder is not None and processes() > 1:
            raise ValueError(
                f'members_on must be "cpu" where several processes train one model, got {os.fspath(folder)!r}'
            )
        self.collector = SampleCollector(model, optimizer, at_most=at_most, keep=keep, folder=folder)
        self.calibration: Calibration | None = None
        self._steps = 0  # of an optimizer that does not count its own
        self._settled = self.steps
        self._ended = 0  # cycles whose end has been dealt with
        self._kept: SampleRecord | None = None
        self._losses = Losses()
        self._tail = MeanLoss()
        self._history = History(self.total_steps)
        self._said: list[str] = []
        self._scheduler: CyclesLR | None = None
        self._watch = CollapseWatch(self._remedy(), self._size(), self._weights()[0].device, guard=self.guard)
        self._first_steps = FirstSteps(self._weights())
        self._drop_leftovers()
        self._rates = LearningRates(optimizer, self._cycles)
        self._attach()
        self.rebuild |= {"members": at_most, "keep": keep, "guard": self.guard}

    def _attach(self) -> None:
        if self._tempered:
            self.optimizer.listener = self._follow
        else:
            self.optimizer.register_step_post_hook(self._count)
        _ensembles[id(self.optimizer)] = self

    def _drop_leftovers(self) -> None:
        """Clear gradients of earlier work with the model: the first step would take them in."""
        left = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        for parameter in left:
            parameter.grad = None
        if left:
            warn_user(
                f"{len(left)} parameters had gradients of an earlier backward, which are dropped. Call zero_grad() first"
            )

    # ---- training ----

    @property
    def steps(self) -> int:
        """Number of steps that are done."""
        return int(self.optimizer.clock.steps) if self._tempered else self._steps

    @property
    def done(self) -> bool:
        """True if all cycles are over."""
        return self.steps >= self._cycles.last

    @property
    def temperature(self) -> float:
        """T, given or chosen; where it is adapted, what it is now. 0 around another optimizer."""
        if not self._tempered:
            return 0.0
        control = self.optimizer.tempering
        ratio = control.temperature_ratio if isinstance(control, AdaptedTemperature) else 1.0
        return float(self.optimizer.temperature * ratio)

    @property
    def loss(self) -> Callable[[Any, Tensor], Tensor]:
        """The loss that fits the task, a function of outputs and targets: a mean negative log-likelihood."""
        return self._known_task().loss

    @property
    def scheduler(self) -> CyclesLR:
        """A scheduler for frameworks that want one. It sets the lr that the cycles set anyway."""
        if self._scheduler is None:
            self._scheduler = CyclesLR(self)
        return self._scheduler

    def watch(self, loss: Tensor, *, scaler: Any = None) -> Tensor:
        """Take in the loss when it goes into `backward`, and return it: for micro-batches, and loops that step the optimizer.

        >>> loss = ensemble.watch(loss); accelerator.backward(loss); optimizer.step()        # doctest: +SKIP

        The losses of several micro-batches add up, each times what it was multiplied by before `backward`. `scaler` is a
        GradScaler whose scale is divided out.
        """
        if loss.requires_grad:
            self._first_steps.end()
            self._infer(loss)
            if not self._tempered:
                self._losses.watch(loss, self.optimizer, scaler)
        return self.optimizer.watch(loss, scaler=scaler) if isinstance(self.optimizer, TakesLoss) else loss

    def step(self, loss: Tensor | float | None = None, *, scaler: Any = None) -> SampleRecord | None:
        """Take one step of training, after `loss.backward()`; return the record of the model if one was kept.

        Once all cycles are over it changes nothing.

        Parameters
        ----------
        loss : Tensor or float, optional
            The mean loss whose gradient is in the parameters. It may be left out if `watch` has seen it.
        scaler : GradScaler, optional
            Which has scaled the loss before `backward`: it unscales the gradients, takes the step or skips it, and is updated.
        """
        steps = self.steps
        if steps != self._settled:
            self.settle()
        if steps >= self._cycles.last:
            self._say_that_it_is_over()
            self._clear_gradients()
            return None
        if not self._has_gradients():
            raise RuntimeError("no parameter has a gradient; call loss.backward() before ensemble.step(loss)")
        if loss is not None:
            if not self._first_steps.over:
                self._first_steps.look(loss, self.optimizer, scaled=scaler is not None)
            if self._task is None and isinstance(loss, Tensor):
                self._infer(loss)
        self._kept = None
        try:
            self._step(loss, scaler)
        except (FloatingPointError, NonFiniteError) as error:
            # A loss that is not finite may be one bad batch's; then there is nothing to put back.
            if self.guard and not math.isfinite(self._size()) and self._put_back():
                error.add_note("The weights were not finite: the model is now the last one that was kept.")
            error.add_note(f"If it happens again: {self._remedy()}.")
            raise
        finally:
            self._clear_gradients()
        return self._kept

    def _step(self, loss: Tensor | float | None, scaler: Any) -> None:
        if self._tempered and scaler is None:
            self.optimizer.step(None, loss=loss)
            return
        handed = {} if loss is None or not isinstance(self.optimizer, TakesLoss) else {"loss": loss}
        if loss is not None and not self._tempered:
            self._losses.parts = [loss.detach() if isinstance(loss, Tensor) else loss]
        if scaler is None:
            self.optimizer.step(**handed)
        else:
            scaler.step(self.optimizer, **handed)
            scaler.update()

    def _has_gradients(self) -> bool:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    return True
        return False

    def _count(self, optimizer: Optimizer, arguments: Any, options: Any) -> None:
        """Follow a step of an optimizer that does not count."""
        self._steps += 1
        self._follow(None, self._losses.taken())

    def _follow(self, result: Any, losses: list[Any]) -> None:
        """Do all but the step itself, after each one that the optimizer has taken, whoever has called it."""
        steps = self.steps
        if steps > self._cycles.last:
            self._say_that_it_goes_on()
            return
        if self._task is None and isinstance(result, Tensor):
            self._infer(result)
        position = (steps - 1) % self.cycle_steps + 1
        explores = self.exploration_steps
        if losses:
            loss = losses[0] if len(losses) == 1 else sum(losses)
            factor = self._watch.hear(loss, exploring=position <= explores, late=2 * position > explores)
            if factor != 1:
                self._change_temperature(factor)
            self._history.add(steps, loss)
            if position > self.cycle_steps - self._tail_steps:
                self._tail.add(loss)
        if position == explores and self._tempered:
            if self.temperature > 0:
                self._watch.noise_ended(self._size(), noise_spread(self.optimizer))
            self.collector.update()  # the thermometer's reading
        foreign = self._rates.foreign()
        if foreign is not None:
            self._say_that_lr_is_foreign(foreign)
        if position >= explores or foreign is not None:  # else lr stays
            self._rates.set(steps)
        if position == self.cycle_steps:
            self.settle()
        else:
            self._settled = steps

    def settle(self) -> None:
        """Finish what an interruption has cut off after a step: a member is not lost to Ctrl-C."""
        steps = self.steps
        if self._settled == steps:
            return
        if steps <= self._cycles.last:
            if steps % self.cycle_steps == 0 and self._ended < steps // self.cycle_steps:
                self._end_cycle()
            self._rates.set(steps)
        self._settled = steps

    def _end_cycle(self) -> None:
        known = self._tail.count > 0
        mean = self._tail.over_ranks(self._weights()[0].device) if known else None
        size = self._size()
        if mean is None:  # nobody said what the loss was
            good, factor = math.isfinite(size), 1.0
        else:
            good, factor = self._watch.cycle_ended(mean, size)
        if self.guard and not good:
            self._put_back()
        elif mean is None or math.isfinite(mean):  # else there is nothing to average
            self._kept = self.collector.collect(step=self.steps, loss=mean)
            self.calibration = None
        self._change_temperature(factor)
        self._tail = MeanLoss()
        self._ended = self.steps // self.cycle_steps

    def _change_temperature(self, factor: float) -> None:
        control = self.optimizer.tempering if self._tempered else None
        if isinstance(control, AdaptedTemperature) and factor != 1:
            control.change(factor)
            _log.info("step %d: the temperature is now %.3g", self.steps, self.temperature)

    def factor(self, steps: int) -> float:
        """Return what lr is multiplied by after so many steps; 0 when all cycles are over."""
        return self._cycles.factor(steps)

    @torch.no_grad()
    def _put_back(self) -> bool:
        """Put the last member's tensors into the model, at rest; return whether there was one."""
        members = list(self.collector)
        if not members or not restore(bare(self.model), members[-1].state):
            return False  # shards are left as they are: the warning has been given
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor) and (name == "momentum_buffer" or name.startswith("exp_avg")):
                    value.zero_()
        return True

    def _clear_gradients(self) -> None:
        for group in self.optimizer.param_groups:  # torch's zero_grad takes longer than all else here
            for parameter in group["params"]:
                parameter.grad = None

    def _infer(self, loss: Tensor) -> None:
        if self._task is None:
            self._task = task_of_loss(loss)

    def _say_that_it_is_over(self) -> None:
        if self.cycles * self.cycle_steps == self.total_steps:
            self._say(
                "end",
                f"all {self.total_steps} steps are done, and further ones change nothing: give a larger total_steps, or stop "
                "when ensemble.done",
            )

    def _say_that_it_goes_on(self) -> None:
        if self.steps > self.total_steps:
            self._say(
                "end",
                f"training goes on after the ensemble's {self.total_steps} steps, and its members stay as they are. Give "
                "Ensemble the number of optimizer steps as total_steps",
            )

    def _say_that_lr_is_foreign(self, lr: float) -> None:
        self._say(
            "lr",
            f"lr was set to {lr:.3g} by something else, and the cycle sets it back. Leave schedulers out, and give the lr to "
            "Ensemble, or to Ensemble.load for the rest of a run",
        )

    def _say(self, about: str, message: str) -> None:
        if about not in self._said:
            self._said.append(about)
            warn_user(message)

    def _remedy(self) -> str:
        """Return what a user can do about a collapse. Without noise its temperature is not to blame."""
        lr = max(float(group.get("initial_lr", group["lr"])) for group in self.optimizer.param_groups)
        if not self.temperature:
            return f"Give a lower lr (it is {lr:g})"
        return f"Give a lower temperature (it is {self.optimizer.temperature:.3g}) or a lower lr (it is {lr:g})"

    # ---- predicting ----

    def __len__(self) -> int:
        self.settle()
        return len(self.collector)

    def __bool__(self) -> bool:
        return True

    @property
    def records(self) -> list[SampleRecord]:
        """Records of the members, oldest first; `loss` is the mean over the last tenth of the member's cycle."""
        self.settle()
        return self.collector.records

    @property
    def task(self) -> TaskName | None:
        """Kind of the model's outputs, as told or as inferred from the loss; None if unknown or not settled yet."""
        return self._task.name if self._task is not None and len(self._task.names) == 1 else None

    @overload
    def predict(
        self,
        inputs: Inputs,
        *,
        task: Literal["classification", "binary", "multilabel"],
        class_dim: int | None = ...,
        batch_size: int | None = ...,
        forward: Forward | None = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        inputs: Inputs,
        *,
        task: Literal["regression"],
        head: Head | None = ...,
        batch_size: int | None = ...,
        forward: Forward | None = ...,
    ) -> RegressionPrediction: ...

    @overload
    def predict(
        self,
        inputs: Inputs,
        *,
        task: TaskName | Task | None = ...,
        class_dim: int | None = ...,
        head: Head | None = ...,
        batch_size: int | None = ...,
        forward: Forward | None = ...,
        kind: str | None = ...,
    ) -> Any: ...

    def predict(
        self,
        inputs: Inputs,
        *,
        task: TaskName | Task | None = None,
        class_dim: int | None = None,
        head: Head | None = None,
        batch_size: int | None = None,
        forward: Forward | None = None,
        kind: str | None = None,
    ) -> AnyPrediction:
        """Return the averaged prediction of the members, by `ctld.predict`, which says what the options are.

        The task is the one that `Ensemble` was told, or has inferred from the loss.
        """
        if not len(self):
            first = f"the first comes after {self.cycle_steps} steps, {self.steps} are done"
            left_out = "the guard has left out those of all cycles so far"
            raise ValueError(f"there is no member yet: {first if self.steps < self.cycle_steps else left_out}")
        given = as_task(task, class_dim=class_dim, head=head, kind=kind)
        found = given or self._known_task()
        return finished(averaged(self.model, self.collector, inputs, found, batch_size, forward, self.calibration))

    def calibrate(
        self, inputs: Inputs, targets: Any, *, batch_size: int | None = None, forward: Forward | None = None
    ) -> Calibration:
        """Weigh the members by held-out data, and scale their certainty if these data gain by it beyond chance.

        Later predictions use what is returned; `ensemble.calibration = None` takes it back. A member that is kept afterwards
        does so, too. The data must not have been trained on.
        """
        if not len(self):
            raise ValueError("there is no member yet to calibrate. Train first")
        self.calibration = calibration.calibrate(
            self.model, self.collector, inputs, targets, self._known_task(), batch_size, forward
        )
        return self.calibration

    def refresh_batch_norm(
        self, inputs: Inputs, *, batch_size: int | None = None, forward: Forward | None = None
    ) -> None:
        """Compute the statistics of batch norm anew for each member: `SampleCollector.refresh_batch_norm`."""
        self.settle()
        self.collector.refresh_batch_norm(inputs, batch_size=batch_size, forward=forward)

    def plot(self) -> Any:
        """Return a matplotlib figure of the run: loss and lr by step, and the members where they were kept."""
        from ctld.ensembles.plots import plot_cycles

        steps = range(self._cycles.last)
        return plot_cycles(self._history, self.records, [self.factor(step) for step in steps])

    def _known_task(self) -> Task:
        if self._task is None:
            raise ValueError(
                "task must be known, and the losses handed over do not tell it. Give Ensemble(task=...) or predict(task=...), "
                'one of "classification", "binary", "multilabel" and "regression"'
            )
        return self._task

    # ---- saving ----

    def state_dict(self) -> dict[str, Any]:
        """Return all that the run goes on from, model and members included."""
        self.settle()
        return {
            "settings": self._settings(),
            "model": dict(bare(self.model).state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "collector": self.collector.contents(),
            "watch": self._watch.state_dict(),
            "tail": self._tail.state_dict(),
            "history": self._history.state_dict(),
            "task": None if self._task is None else vars(self._task) | {"names": list(self._task.names)},
            "calibration": None
            if self.calibration is None
            else vars(self.calibration) | {"weights": list(self.calibration.weights)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where the state was saved, to the bit. A state that does not fit is refused, and nothing has changed."""
        if not isinstance(state_dict, dict):
            raise TypeError(
                f"state_dict must be a dict, got {type(state_dict).__name__}. Give what state_dict() has returned"
            )
        try:
            parts = self._checked(state_dict)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"state_dict must be one that an Ensemble has made, got {error!r}") from None
        self.optimizer.load_state_dict(state_dict["optimizer"])  # refuses, or takes it whole
        bare(self.model).load_state_dict(state_dict["model"])
        steps, entries, self._watch, self._tail, self._history, task, self.calibration = parts
        self._task = task if task is not None else self._task
        self.collector.accept(entries)
        self._steps = self._settled = steps
        self._ended = steps // self.cycle_steps
        self._rates.accept()
        self._first_steps.end()

    def _checked(self, state: dict[str, Any]) -> Any:
        """Return the parts of a state, each looked at, before anything is changed."""
        for name, mine in self._settings().items():
            theirs = state["settings"].get(name)
            if theirs != mine:
                raise ValueError(f"the state was saved with {name} = {theirs}, this has {mine}: build it as it was")
        saving.check_model(bare(self.model), state["model"])
        watch, tail, history = copy.deepcopy(self._watch), MeanLoss(), History(self.total_steps)
        watch.load_state_dict(state["watch"])
        tail.load_state_dict(state["tail"])
        if "history" in state:  # states of version 0.2 have none
            history.load_state_dict(state["history"])
        counted = dict(next(iter(state["optimizer"]["param_groups"]), ())).get("ctld_step")
        steps = bounded("steps", state.get("steps", counted))
        if self._tempered and steps != counted:
            raise ValueError(f"steps must be the {counted} of the optimizer, got {steps}. Restore the state")
        entries = self.collector.checked(state["collector"])
        late = [record.step for record, _ in entries[0] if record.step > steps]
        if late:
            raise ValueError(
                f"a member's step must be at most the {steps} that are done, got {late[0]}. Restore the state"
            )
        task = state.get("task")
        known = None
        if task is not None:
            known = as_task(*task["names"][:1], class_dim=task["class_dim"], head=task["head"])
            known = Task(("binary", "multilabel")) if len(task["names"]) > 1 else known
        return steps, entries, watch, tail, history, known, calibration_from_plain(state.get("calibration"))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write all of it to a folder, whole or not at all; rank 0 writes."""
        saving.save(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], model: nn.Module, **changed: Any) -> Ensemble:
        """Return the ensemble that was saved, to predict with or to go on with.

        `model` is built as it was, and gets the saved tensors. What cannot be written down is given again: `optimizer=` of
        `Ensemble.around`, `tempering=`, if it was an object, `process_group=` and `members_on=`. For the rest of the run other
        `lr`, `momentum`, `weight_decay`, `temperature`, `members`, `keep`, `guard`, `task`, `class_dim`, `head` may be given.
        """
        options, state = saving.read(folder, model)
        again = {name: changed.pop(name) for name in saving.HANDED_AGAIN if name in changed}
        changed = {name: value for name, value in changed.items() if name not in options or value != options[name]}
        saving.refuse_changes(changed, options)
        saving.refuse_missing(options, again)
        try:
            if "around" in options:
                built = {name: value for name, value in options.items() if name not in ("around", "params")}
                ensemble = cls.around(again.pop("optimizer"), model, **(built | again))
            else:
                ensemble = cls(model, **(options | again))
        except TypeError as error:
            raise ValueError(
                f"the index in {folder} is damaged or foreign, or an option does not fit: {error}"
            ) from None
        ensemble.load_state_dict(state)
        ensemble.change(**changed)
        return ensemble

    def change(self, **changed: Any) -> None:
        """Take over other options for the rest of the run: those that `load` takes."""
        saving.refuse_changes(changed, self.rebuild)
        about_task = {name: changed[name] for name in ("task", "class_dim", "head") if name in changed}
        if about_task:
            self._task = as_task(**about_task)
        for name in ("lr", "momentum", "weight_decay"):
            if name in changed:
                value = real(name, changed[name], at_least=0)
                for group in self.optimizer.param_groups:
                    key = "initial_lr" if name == "lr" else name
                    if key in group and group[key] == self.rebuild.get(name, group[key]):  # else it is the group's own
                        group[key] = value
        if "temperature" in changed:
            self.optimizer.set_temperature(changed["temperature"])
        if "guard" in changed:
            self.guard = bool(changed["guard"])
        if "members" in changed:
            self.collector.at_most = integer("members", changed["members"], at_least=1)
        if "keep" in changed:
            self.collector.keep = changed["keep"]
        self.rebuild |= {name: value for name, value in changed.items() if name not in about_task}
        self._rates.set(self.steps)

    def _settings(self) -> dict[str, Any]:
        names = ("total_steps", "cycles", "exploration_steps")
        found = {name: getattr(self, name) for name in names}
        return found | ({"num_data": self.optimizer.num_data} if self._tempered else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()  # a copy of the optimizer follows nobody yet

    def __repr__(self) -> str:
        where = f"step {self.steps} of {self.cycles} × {self.cycle_steps}"
        megabytes = size_of_sample(self.model) / 1e6
        noise = f"T = {self.temperature:.3g}" if self._tempered else type(self.optimizer).__name__
        return f"<Ensemble: {len(self)} members of {megabytes:.3g} MB, {where}, {noise}>"

    def _weights(self) -> list[Tensor]:
        groups = [group for group in self.optimizer.param_groups if group.get("explore", True)]
        own = [parameter for group in groups or self.optimizer.param_groups for parameter in group["params"]]
        return [parameter for parameter in own if parameter.requires_grad] or own

    def _size(self) -> float:
        return size_of_weights(self._weights())


def ensemble_of(optimizer: Any) -> Ensemble | None:
    """Return the ensemble that follows an optimizer, if there is one."""
    found = _ensembles.get(id(optimizer))
    return found if found is not None and found.optimizer is optimizer else None


_ensembles: WeakValueDictionary[int, Ensemble] = WeakValueDictionary()
