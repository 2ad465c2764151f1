"""The base of every method. Past 450 lines: one class, with one step for all, checks, a seed and other ranks.

A step is written once, in `Sampler._step`: gather, see, refuse, plan, run, settle. A method says in `_plan` what a group does.
"""

import functools
import logging
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from operator import is_
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as _global_post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _global_pre_hooks

from ctld.checks import NonFiniteError, accepts_torch_options, flag, integer, real
from ctld.clock import Clock
from ctld.noise import INITIAL_MOMENTA, KINDS, MAX_SEED, parameter_stream
from ctld.observation import Observation, observe
from ctld.observing import Closure, Loss, Losses
from ctld.optimizers.checkpoint import Part, Resumable
from ctld.optimizers.parameters import check_parameters
from ctld.optimizers.temperature import Temperature
from ctld.ranks import PERIOD, Facts, Ranks, disagree, mark
from ctld.sharding import block, local, sharded
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.alpha import Alpha
from ctld.stepping.foreach import Noise, largest, momentum_dtype, square_norm, thermostat, wide_dtype
from ctld.stepping.sweep import AnyPlan, Sums

Listener = Callable[[Loss | None, list[Loss]], None]
"""torch's own hooks after a step cost ten microseconds, and do not see the loss that was observed."""

PATIENCE = 20
"""Refused steps in a row after which the message says that the parameters are lost."""


def quick_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """Return `step` with torch's hooks and profiling around it where there are any, since they cost ten microseconds."""
    served = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def quick(self: Any, *arguments: Any, **options: Any) -> Any:
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if hooks or _global_pre_hooks or _global_post_hooks or torch.autograd._profiler_enabled():
            return served(self, *arguments, **options)
        return step(self, *arguments, **options)

    quick.hooked = True  # type: ignore[attr-defined]  # else torch wraps it once more
    return quick


_log = logging.getLogger("ctld")
_LIVE: "WeakValueDictionary[Any, Sampler]" = WeakValueDictionary()
"""The optimizers of this process, by seed and shapes of their parameters."""
_SAID: set[Any] = set()
"""Those of which it was said that they are twins."""


class Sampler(Resumable):
    """Base of the optimizers of this package; holds no algorithm.

    A method sets its own attributes, calls `super().__init__` and then `_start`, and says in `_plan` what a group does in a
    step. What changes during a run is kept in objects (`clock`, ...), so that the wrappers of frameworks, which copy
    attributes, see it change.

    Parameters
    ----------
    temperature : float, optional
        T of the sampled exp(−U/T). Left out: the method minimises, and its `temperature` is 0.
    localization : float
        κ of a spring to where the parameters started: U gains N κ‖θ − θ₀‖²/2. Costs a buffer per parameter.
    num_data, noise, seed, process_group
        As in `CTLD`.
    clock : Clock, optional
        Where a method has phases.
    """

    _starts_frozen: ClassVar[bool] = False
    """Whether parameters that need no gradient have a state, too; else they get one when they thaw."""
    reads_loss: ClassVar[bool] = False
    """True if a step of the method may need the loss."""
    check_gradients: bool = False
    """True if a step is refused where a gradient is NaN, infinite or so large that its square is."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = accepts_torch_options(cls.__init__)  # type: ignore[method-assign]

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        num_data: float = 1.0,
        temperature: float | Temperature | None = None,
        localization: float = 0.0,
        noise: str = "gaussian",
        seed: int | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.num_data = real("num_data", num_data, above=0)
        if temperature is not None and not isinstance(temperature, Temperature):
            temperature = Temperature(real("temperature", temperature, at_least=0))
        self._posterior = temperature
        self.localization = real("localization", localization, at_least=0)
        if noise not in KINDS:
            raise ValueError(f"noise = {noise!r} is unknown; give one of {', '.join(map(repr, KINDS))}")
        self.noise = noise
        self.ranks = Ranks(process_group)
        self.clock = Clock() if clock is None else clock
        # All of it on the instance: a wrapper that imitates our class would find defaults of the class in place of our values.
        self.losses = Losses()
        self.listener: Listener | None = None
        """Called after each step that was taken, with what the step returns and the losses handed over for it."""
        self._sharded = self._ready = False
        self._accepted, self._method = None, type(self).__name__
        self._refusals = 0  # in a row
        self._checked_options = [name for name in defaults if name not in self._hidden]
        self._passed: dict[int, list[Any] | None] = {}
        self._known: dict[str, Any] = {}
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("there are no parameters to train; give model.parameters()")
        check_parameters(self.param_groups)
        self.seed = self._common_seed(seed)
        self._look_for_twins()

    def _look_for_twins(self) -> None:
        """Say once where another optimizer of this process has the same noise, for other parameters of the same shapes."""
        mine = [parameter for _, _, parameter in self._enumerate()]
        key = self.seed, tuple(parameter.shape for parameter in mine)
        twin, _LIVE[key] = _LIVE.get(key), self
        theirs = [] if twin is None else [parameter for _, _, parameter in twin._enumerate()]
        if not theirs or key in _SAID or any(map(sharded, mine)) or any(map(is_, mine, theirs)):
            return
        if any(p.device != q.device or not torch.equal(p, q) for p, q in zip(mine, theirs, strict=True)):
            _SAID.add(key)
            _log.warning(
                "two optimizers have seed = %d and parameters of the same shapes: both get the same noise, and their "
                "models move alike. Give each a seed of its own",
                self.seed,
            )

    @property
    def steps(self) -> int:
        """Number of steps that are done."""
        return self.clock.steps

    @property
    def is_draw(self) -> bool:
        """True if the model holds a draw: parameters that the last step has sampled from exp(−U/T), at T itself.

        Every method answers, those that minimise with False. Leaving out the steps before equilibrium is the caller's part.
        """
        return self.temperature > 0 and self.clock.steps > 0

    # ---- temperature ----

    @property
    def temperature(self) -> float:
        """T of the sampled exp(−U/T); 0 for a method that minimises."""
        return 0.0 if self._posterior is None else self._posterior.value

    @temperature.setter
    def temperature(self, value: float) -> None:
        self.set_temperature(value, rescale=False)

    def set_temperature(self, temperature: float, *, rescale: bool = True) -> None:
        """Change T; under ranks, on all of them.

        Parameters
        ----------
        temperature : float
            The new T.
        rescale : bool
            True multiplies the momenta by the root of new over old T, so that they have the new temperature at once.
            False leaves them to their friction.
        """
        if self._posterior is None:
            raise AttributeError(f"{self._method} minimises and has no temperature; take a method that samples")
        new, old = real("temperature", temperature, at_least=0), self.temperature
        if rescale and old > 0:
            self._scale_momenta((new / old) ** 0.5)
        self._posterior.choose(new)

    @torch.no_grad()
    def _scale_momenta(self, factor: float) -> None:
        """Multiply the momenta that have a temperature."""
        for _, _, parameter in self._enumerate():
            if "momentum_buffer" in self.state.get(parameter, {}):
                self.state[parameter]["momentum_buffer"].mul_(factor)

    # ---- the loss ----

    def observe(self, loss: Loss) -> None:
        """Hand over the loss where a framework calls `step()` itself; two observations before a step add up.

        Under gradient accumulation, observe each micro-batch's loss divided as it is for `backward`, or leave that to
        `watch`. `zero_grad` drops what was observed before it: that belongs to a step which was not taken.
        """
        if self.listener is not None or self._needs_loss():
            self.losses.add(loss)

    def watch(self, loss: Tensor, *, scaler: Any = None) -> Tensor:
        """Observe the loss when it goes into `backward`, times whatever it was multiplied by in between. Return the loss.

        >>> loss = optimizer.watch(F.cross_entropy(model(x), y))                    # doctest: +SKIP
        >>> accelerator.backward(loss); optimizer.step()                            # doctest: +SKIP

        Parameters
        ----------
        loss : Tensor
            The loss of a batch or micro-batch. One that needs no gradient, as in validation, is left alone.
        scaler : GradScaler, optional
            Whose scale goes before `backward` and is taken out again before the step: it is divided out here. Anything with
            `get_scale()`; None where there is none.

        Notes
        -----
        The gradient of the loss with respect to itself is what it was multiplied by. So `torch.autograd.grad` of a watched
        loss counts as well; watch the one that `backward` is called on.
        """
        if loss.requires_grad and (self.listener is not None or self._needs_loss()):
            self.losses.watch(loss, scaler, self.observe)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what was observed with them: a GradScaler may have skipped the step."""
        self.losses.clear()
        super().zero_grad(set_to_none)

    def _needs_loss(self) -> bool:
        """True if the next step reads the loss."""
        return self.reads_loss

    # ---- a step: gather, see, refuse, plan, run, settle ----

    @quick_hooks
    def step(self, closure: Closure | Loss | None = None, *, loss: Loss | None = None) -> Loss | None:
        """Take one step.

        Parameters
        ----------
        closure : callable, optional
            Recomputes the gradients and returns the loss. A number or tensor in its place is the loss.
        loss : float or Tensor of one element, optional
            The mean loss of the whole effective batch, unscaled: the number whose gradient is in `p.grad`. Methods that do not
            need it ignore it, so that one line is all that changes between them.

        Returns
        -------
        The closure's value, or `loss`.
        """
        return self._untraced_step(closure, loss) if torch.compiler.is_compiling() else self._step(closure, loss)

    @torch._disable_dynamo
    def _untraced_step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        """Take a step that `torch.compile` leaves alone: a traced one would replay this step's noise and loss."""
        return self._step(closure, loss)

    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        needed = self._needs_loss()
        meets = self.ranks.meets(every=0 if self.reads_loss else PERIOD)
        held: list[tuple[Tensor, Tensor | None]] = []
        try:
            # All that can be wrong with a call is found here, before anything has changed, and other ranks hear of it.
            try:
                pull: list[Loss] = []
                heard = needed or self.listener is not None
                result, losses = self.losses.gather(closure, loss, needed=heard)
                self._check_groups()
                if needed and not losses:
                    # Checkpointing tools (DCP) step once at lr = 0, without a loss, to have the state allocated.
                    if all(float(group["lr"]) == 0 for group in self.param_groups):
                        return result
                    raise ValueError(
                        f"{self._method} needs the loss in this step, which moves the temperature; call step(loss=loss), "
                        "step(closure), or observe(loss) before step()"
                    )
                if self.localization:
                    held, pull = self._pull_back()
                active = self._active()
            except Exception as error:
                if meets:
                    self._agree(error)
                elif needed and self.ranks.size > 1:
                    self._see([0.0], None, error)  # the others are about to ask, and would wait in vain
                raise
            if meets:
                self._agree()
            seen = None
            if needed:
                seen = self._see(losses + pull, active)
            self._move(active, seen)
        except NonFiniteError as error:
            self._refusals += 1
            if self._refusals < PATIENCE:
                raise
            raise NonFiniteError(
                f"{self._refusals} steps in a row were refused, the last because {str(error).partition(';')[0]}. The "
                "parameters are lost, and skipping batches does not help: go back to a checkpoint, with a lower lr"
            ) from error
        finally:
            for parameter, gradient in held:
                parameter.grad = gradient
        self._refusals = 0
        self._tick(needed)
        if self.listener is not None:
            self.listener(result, losses)
        return result

    def _see(self, losses: Sequence[Loss], active: Active | None, failure: Exception | None = None) -> Observation:
        """Return what is seen at the present parameters, or raise, on every rank, the reason why the step is refused.

        A step is accepted at once where something changes before the parameters do. Otherwise the kernels look at the
        gradients themselves, and on a GPU the host goes on without waiting.
        """
        alone = self.ranks.size == 1
        check, prior, ahead = (
            self.check_gradients,
            self._reads_potential(),
            active is not None and self._changes_ahead(),
        )
        if active is not None and active.native and alone and len(losses) == 1 and type(losses[0]) is float:
            look = ahead and check  # by far the most frequent case: one process, on a CPU
            found: float | None = 0.0
            if prior:
                found = self._prior_here(active, check=look)
            elif look and not engine.finite(active):
                found = None
            numbers: Any = (losses[0], float(found is None), 1.0, 0.0, 0.0, found or 0.0)
        else:
            look = active is not None and check and (ahead or not alone or self._device().type != "cpu")
            numbers = observe(
                list(losses),
                [engine.finite(active)] if look and active is not None else [],
                prior=(self._prior_here(active) or 0.0) if prior and active is not None else 0.0,
                failed=failure is not None,
                ranks=self.ranks,
                device=self._device(),
                facts=self._facts,
            )
        temperature = 0.0 if self._posterior is None else self._posterior.value
        seen = Observation(
            numbers=numbers,
            ranks=self.ranks,
            device=self._device,
            facts=self._facts,
            unfit=self._unfit_gradient,
            scale=self.num_data / temperature if temperature else 1.0,
            sign=-1.0 if self.defaults["maximize"] else 1.0,
            gradients_seen=look or not check,
            failure=failure,
        )
        if ahead or active is None or not active.refusable or not isinstance(numbers, Tensor):
            seen.accept()
        return seen

    def _refuse_unfit(self, active: Active) -> None:
        """Raise, on every rank, if a gradient is not fit for the step."""
        fit = engine.finite(active)
        if self._sharded:  # else all ranks have the same gradients
            odd = torch.as_tensor(fit).to(self._device()).logical_not().to(wide_dtype(self._device()))
            fit = not float(self.ranks.sum(odd))
        if not bool(fit):
            mine = self._unfit_gradient()
            if self._sharded and self.ranks.size > 1:
                self.ranks.refuse(mine, self._device())
            raise mine or NonFiniteError("a gradient was not fit for a step and is now; the step was refused")

    def _reads_potential(self) -> bool:
        """True if a step that reads the loss has to know the potential before it moves anything."""
        return True

    def _changes_ahead(self) -> bool:
        """True if something else changes before the parameters do, so that a step has to be accepted first."""
        return True

    def _prior_here(self, active: Active, *, check: bool = False) -> float | None:
        """Return this rank's share of λ‖θ‖²/2; None where gradients, if they are to be looked at, are not fit for a step.

        The shares add up to the whole.
        """
        norms = engine.square_norms(active, check=check)
        if norms is None:
            return None
        prior = 0.0
        for group, norm in zip(self.param_groups, norms, strict=True):
            if self._sampled(group):
                prior += 0.5 * float(group["weight_decay"]) * norm
        return prior if self._sharded else prior / self.ranks.size

    @torch.no_grad()
    def _pull_back(self) -> tuple[list[tuple[Tensor, Tensor | None]], list[Loss]]:
        """Add the spring's force to the gradients, in tensors of their own.

        Return the gradients that were there, and this rank's share of the spring's energy over N, in units of the loss.
        """
        held: list[tuple[Tensor, Tensor | None]] = []
        sign, energy = (-1.0 if self.defaults["maximize"] else 1.0), 0.0
        for index, group, parameter in self._enumerate():
            gradient = parameter.grad
            if gradient is None or not self._sampled(group):
                continue
            if "center" not in self.state[parameter]:  # other tools drop states
                self._start_parameter(group, parameter, index)
            stretched = parameter.detach() - self.state[parameter]["center"]
            held.append((parameter, gradient))
            force = -self.localization if group["maximize"] else self.localization
            parameter.grad = gradient.add(stretched, alpha=force).to(gradient.dtype)
            here = local(stretched)
            share = block(parameter).shards if self._sharded else 1.0
            energy += sign * 0.5 * self.localization * share * float(square_norm([here], here.device))
        return held, [energy]

    def _move(self, active: Active, seen: Observation | None) -> None:
        """Move the parameters by one step: plan, run, settle. `seen` is None for a method that does not read the loss."""
        self._settle(active, self._run(active, [self._plan(group) for group in self.param_groups], seen))

    def _plan(self, group: dict[str, Any]) -> AnyPlan:
        """Return what the parameters of a group do in a step: the algorithm."""
        raise AssertionError(f"{type(self).__name__} says how it moves in _plan, or in _move")

    def _run(
        self, active: Active, plans: Sequence[AnyPlan], seen: Observation | None = None, *, alpha: Alpha | None = None
    ) -> list[Sums]:
        """Carry plans out; return the sums of each group, or raise the reason why the step was refused."""
        if seen is None:
            if self.check_gradients and not self.reads_loss:
                self._refuse_unfit(active)
            sums = engine.run(active, plans, self._noise())
        else:
            check, refused = not seen.gradients_seen, seen.refused()
            sums = engine.run(active, plans, self._noise(), check=check, refused=refused, alpha=alpha)
        if sums is None:
            assert seen is not None, "gradients are looked at where there is somebody to say so"
            seen.refuse()
            raise AssertionError("refuse raises")
        return sums

    def _settle(self, active: Active, sums: list[Sums]) -> None:
        """Take in what a step has found; nothing, in most methods."""

    def _tick(self, explored: bool) -> None:
        """Count the step, which is taken."""
        self.clock.steps += 1

    def _noise(self) -> Noise:
        """Return this step's noise."""
        return Noise(self.noise, self.seed, self.clock.steps)

    # ---- parameters ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; may be done at any time. A group that is refused leaves the optimizer as it was."""
        super().add_param_group(param_group)
        if not self._sharded and any(map(sharded, self.param_groups[-1]["params"])):
            self._sharded = True
            self._known.clear()  # sums of whole parameters count by shares from now on
        try:
            self._check_group(self.param_groups[-1])
            if self._ready:
                check_parameters(self.param_groups)
                self._start(self.param_groups[-1:])
        except Exception:
            self.param_groups.pop()
            raise

    def _start(self, groups: list[dict[str, Any]]) -> None:
        """Give new groups their state; a subclass calls this at the end of its constructor."""
        for group in groups:
            self._start_group(group)
        for index, group, parameter in self._enumerate():
            if any(group is new for new in groups) and (parameter.requires_grad or self._starts_frozen):
                self._start_parameter(group, parameter, index)
        self._ready = True
        self._publish()

    def _start_group(self, group: dict[str, Any]) -> None:
        """Fill in what a group needs before its parameters are initialized; most methods need nothing."""

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse a group whose options are out of range; also at every step, since schedulers write them."""
        real("lr", group["lr"], at_least=0, below=1e30)  # more would not fit into float32
        real("weight_decay", group["weight_decay"], at_least=0)
        flag("maximize", group["maximize"])
        if "momentum" in group:
            real("momentum", group["momentum"], at_least=0, below=1)
        if self.reads_loss and self._sampled(group) and group["maximize"] != self.defaults["maximize"]:
            raise ValueError(
                f"a group that is sampled has maximize = {group['maximize']}, the optimizer {self.defaults['maximize']}: they "
                "share one potential; give maximize to the optimizer, or explore=False to the group"
            )

    def _sampled(self, group: dict[str, Any]) -> bool:
        """True if the parameters of a group are in the potential."""
        return True

    def _check_groups(self) -> None:
        """Check every group whose options are others than those that passed last time."""
        for number, group in enumerate(self.param_groups):
            options = [group[name] for name in self._checked_options]
            if self._passed.get(number) != options:
                self._check_group(group)
                self._known.pop("exploring", None)  # what was read from them
                # A tensor may be written to in place: it is checked each time.
                self._passed[number] = None if any(isinstance(option, Tensor) for option in options) else options

    def _active(self) -> Active:
        """Return the parameters that have a gradient, by group."""
        lists = [group["params"] for group in self.param_groups]
        active: Active | None = self._known.get("active")
        if active is None or not active.follow(lists, self.state):
            self._start_strangers()
            ranks = self.ranks.size if self._sharded else 1
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "a step must not be captured in a CUDA graph, which would replay the noise of this one. Capture forward "
                    "and backward, and call optimizer.step() after each replay"
                )
            active = self._known["active"] = Active(lists, self.state, parameter_stream(0), ranks=ranks)
        return active

    def _start_strangers(self) -> None:
        """Start parameters that have no state: other tools drop it, or replace parameters by new ones."""
        for index, group, parameter in self._enumerate():
            if parameter.grad is not None and not self.state.get(parameter):
                self._sharded = self._sharded or sharded(parameter)
                self._start_parameter(group, parameter, index)

    def _start_parameter(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        super()._start_parameter(group, parameter, index)
        if self.localization:
            self.state[parameter]["center"] = parameter.detach().to(momentum_dtype(parameter), copy=True)

    def _draw_momentum(self, momentum: Tensor, index: int, *, deviation: float) -> None:
        """Draw the momentum that a parameter starts with; `index` is the parameter's."""
        here, noise = local(momentum), Noise("gaussian", self.seed, index)
        thermostat(here, noise.like(here, INITIAL_MOMENTA, block(momentum)), deviation=deviation)

    def _device(self) -> torch.device:
        parameter: Tensor = next(chain.from_iterable(group["params"] for group in self.param_groups))
        return parameter.device

    def _unfit_gradient(self) -> NonFiniteError | None:
        """Return an error that names a gradient which is not fit for a step, if there is one."""
        names = list(chain.from_iterable(group.get("param_names", ()) for group in self.param_groups))
        for index, _, parameter in self._enumerate():
            gradient = local(parameter.grad)
            if gradient is None or bool((bad := ~(gradient.abs() < largest(gradient.dtype))).any()) is False:
                continue
            where = f"the gradient of {names[index] if names else f'parameter {index}'} has {int(bad.sum())} of"
            kind = "so large that their squares overflow" if gradient.isfinite().all() else "NaN or inf"
            return NonFiniteError(
                f"{where} {gradient.numel()} elements that are {kind}; the step was refused and nothing has changed. Skip the "
                "batch, or lower lr, if it happens again"
            )
        return None

    # ---- several ranks ----

    def _agree(self, failure: Exception | None = None) -> None:
        """Look whether the ranks are one run, as all of them do now; one that has failed tells the others."""
        if self.ranks.size == 1:
            return
        facts, device = self._facts(first=True), self._device()
        marks = mark(facts)
        numbers = (1.0, marks, marks * marks, float(failure is not None))
        size, total, squares, failed = self.ranks.sum(
            torch.tensor(numbers, dtype=wide_dtype(device), device=device)
        ).tolist()
        if failed:
            self.ranks.refuse(failure, device)
        if disagree(size, total, squares):
            self.ranks.name_differences(facts, device)

    def _facts(self, *, first: bool = False) -> Facts:
        """Return what has to be equal on all ranks; a `first` look compares more and takes longer."""
        group = self.param_groups[0]
        options = [[group.get(name) for name in self._checked_options] for group in self.param_groups]
        numbers = [
            float(option) for row in options for option in row if isinstance(option, bool | int | float | Tensor)
        ]
        words = zlib.crc32(repr((sorted(self._settings().items()), numbers)).encode())
        facts: dict[str, int | float] = {"seed": self.seed, "step": self.steps, "lr": float(group["lr"])}
        facts |= {"num_data": self.num_data, "options": words, "temperature": self.temperature}
        if first and not self._sharded:
            shapes = [tuple(parameter.shape) for _, _, parameter in self._enumerate()]
            facts["shapes"] = zlib.crc32(repr(shapes).encode())
            facts["square_norm"] = self._square_norm([p for _, _, p in self._enumerate()])
        return facts

    def _over_shards(self, rows: Sequence[Any]) -> list[Any]:
        """Return sums over all elements, from rows of sums over those that lie here; one reduction for all of them."""
        if not self._sharded or not rows:
            return list(rows)
        device = self._device()
        dtype = wide_dtype(device)
        stacked = torch.stack([torch.as_tensor(row, dtype=dtype).to(device) for row in rows])
        return list(self.ranks.sum(stacked))

    def _square_norm(self, parameters: list[Tensor]) -> float:
        """Return Σθ² over all elements."""
        here = [local(parameter).detach() for parameter in parameters]
        if not self._sharded:
            return float(square_norm(here, here[0].device))
        weights = [block(parameter).shards / self.ranks.size for parameter in parameters]
        return float(self.ranks.sum(square_norm(here, here[0].device, weights)))

    def _common_seed(self, seed: int | None) -> int:
        """Return the seed, drawn from torch's default generator if None; rank 0's on every rank."""
        if seed is None:
            seed = int(torch.randint(MAX_SEED, ()))
        seed = integer("seed", seed, at_least=0)
        if seed > MAX_SEED:
            raise ValueError(f"seed = {seed} is out of range; give an int from 0 to {MAX_SEED}")
        return int(self.ranks.of_first(torch.tensor(seed, device=self._device())))

    # ---- state ----

    def _parts(self) -> list[tuple[str, Part]]:
        return [("", self.clock)] if self._posterior is None else [("", self.clock), ("", self._posterior)]

    def _settings(self) -> dict[str, Any]:
        spring = {"localization": self.localization} if self.localization else {}
        return super()._settings() | {"num_data": self.num_data} | spring

    def _forget(self) -> None:
        self.losses.clear()
        self.ranks.calls = 0
