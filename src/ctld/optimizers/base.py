"""What every noisy optimizer needs besides its algorithm and its state: checked parameters, a loss, a seed, other ranks."""

import functools
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as _global_post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _global_pre_hooks

from ctld.checks import NonFiniteError, accepts_torch_options, flag, integer, real
from ctld.clipping import RepeatedNorms
from ctld.clock import Clock
from ctld.noise import INITIAL_MOMENTA, KINDS, MAX_SEED, parameter_stream
from ctld.observing import Closure, Loss, Observing
from ctld.optimizers.checkpoint import Part, Resumable
from ctld.optimizers.parameters import check_parameters
from ctld.optimizers.temperature import Temperature
from ctld.ranks import PERIOD, Facts, Ranks, disagree, mark
from ctld.sharding import block, local, sharded
from ctld.stepping import engine
from ctld.stepping.active import Active
from ctld.stepping.foreach import Noise, largest, square_norm, thermostat, wide_dtype
from ctld.stepping.sweep import AnyPlan

# torch's own hooks after a step cost ten microseconds, and do not see the loss that was observed.
Listener = Callable[[Loss | None, list[Loss]], None]


def quick_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` with torch's hooks and profiling around it, which cost ten microseconds, only where there is any to serve."""
    served = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def quick(self: "Sampler", *arguments: Any, **options: Any) -> Any:
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if hooks or _global_pre_hooks or _global_post_hooks or torch.autograd._profiler_enabled():
            return served(self, *arguments, **options)
        return step(self, *arguments, **options)

    quick.hooked = True  # type: ignore[attr-defined]  # else torch wraps it once more
    return quick


class Sampler(Observing, Resumable):
    """Base of the optimizers of this package; holds no algorithm.

    A method sets its own attributes, calls `super().__init__` and then `_start`, and says in `_plan` what a group does in a
    step. Keyword arguments are those of `CTLD`. What changes during a run is kept in objects (`clock`, ...), so that the
    wrappers of frameworks, which copy attributes, see it change.
    """

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
        noise: str = "gaussian",
        seed: int | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.num_data = real("num_data", num_data, above=0)
        if noise not in KINDS:
            raise ValueError(f"noise = {noise!r} is unknown; give one of {', '.join(map(repr, KINDS))}")
        self.noise = noise
        self.ranks = Ranks(process_group)
        self.clock = Clock() if clock is None else clock
        # All of it on the instance: a wrapper that imitates our class would find defaults of the class in place of our values.
        self._observed = []
        self._norms = RepeatedNorms()
        self._warned_of_scale = self._sharded = self._ready = False
        self.listener: Listener | None = None
        """Called after each step that was taken, with what the step returns and the losses handed over for it."""
        self._accepted, self._method = None, type(self).__name__
        self._checked_options = [name for name in defaults if name not in self._hidden]
        self._passed: dict[int, list[Any] | None] = {}
        self._known: dict[str, Any] = {}
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("there are no parameters to train; give model.parameters()")
        check_parameters(self.param_groups)
        self.seed = self._common_seed(seed)

    @property
    def steps(self) -> int:  # type: ignore[override]
        """How many steps are done."""
        return self.clock.steps

    # ---- a step ----

    @quick_hooks
    def step(self, closure: Closure | Loss | None = None, *, loss: Loss | None = None) -> Loss | None:
        """One step.

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
        """Takes a step that `torch.compile` leaves alone: a traced one would replay this step's noise and loss."""
        return self._step(closure, loss)

    @torch.no_grad()
    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        meets = self.ranks.meets(every=PERIOD)
        try:
            result = self._evaluate(closure, loss)
            self._check_groups()
            active = self._active()
        except Exception as error:
            self._agree(meets, error)
            raise
        self._agree(meets)
        self._move(active)
        self.clock.steps += 1
        return result

    def _move(self, active: Active) -> None:
        """Moves the parameters by one step."""
        engine.run(active, [self._plan(group) for group in self.param_groups], self._noise())

    def _plan(self, group: dict[str, Any]) -> AnyPlan:
        """Returns what the parameters of a group do in a step: the algorithm."""
        raise AssertionError(f"{type(self).__name__} says how it moves in _plan, or in _move")

    def _noise(self) -> Noise:
        """Returns this step's noise."""
        return Noise(self.noise, self.seed, self.clock.steps)

    # ---- parameters ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group; may be done at any time. A group that is refused leaves the optimizer as it was."""
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
        """Gives new groups their state; a subclass calls this at the end of its constructor."""
        for group in groups:
            self._start_group(group)
        for index, group, parameter in self._enumerate():
            if any(group is new for new in groups):
                self._initialize(group, parameter, index)
        self._ready = True
        self._publish()

    def _start_group(self, group: dict[str, Any]) -> None:
        """Fills in what a group needs before its parameters are initialized; nothing, in most."""

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuses a group whose options are out of range; also at every step, since schedulers write them."""
        real("lr", group["lr"], at_least=0, below=1e30)  # more would not fit into float32
        real("weight_decay", group["weight_decay"], at_least=0)
        flag("maximize", group["maximize"])
        if "momentum" in group:
            real("momentum", group["momentum"], at_least=0, below=1)

    def _check_groups(self) -> None:
        """Checks every group whose options are others than those that passed last time."""
        for number, group in enumerate(self.param_groups):
            options = [group[name] for name in self._checked_options]
            if self._passed.get(number) != options:
                self._check_group(group)
                self._known.pop("exploring", None)  # what was read from them
                # A tensor may be written to in place: it is checked each time.
                self._passed[number] = None if any(isinstance(option, Tensor) for option in options) else options

    def _active(self) -> Active:
        """Returns the parameters that have a gradient, by group."""
        lists = [group["params"] for group in self.param_groups]
        active: Active | None = self._known.get("active")
        if active is None or not active.follow(lists, self.state):
            self._start_strangers()
            ranks = self.ranks.size if self._sharded else 1
            active = self._known["active"] = Active(lists, self.state, parameter_stream(0), ranks=ranks)
        return active

    def _start_strangers(self) -> None:
        """Starts parameters that have no state: other tools drop it, or put new parameters in place of ours."""
        for index, group, parameter in self._enumerate():
            if parameter.grad is not None and not self.state.get(parameter):
                self._sharded = self._sharded or sharded(parameter)
                self._initialize(group, parameter, index)

    def _draw_momentum(self, momentum: Tensor, index: int, *, deviation: float) -> None:
        """Draws the momentum that a parameter starts with; `index` is the parameter's."""
        here, noise = local(momentum), Noise("gaussian", self.seed, index)
        thermostat(here, noise.like(here, INITIAL_MOMENTA, block(momentum)), deviation=deviation)

    def _device(self) -> torch.device:
        parameter: Tensor = next(chain.from_iterable(group["params"] for group in self.param_groups))
        return parameter.device

    def _unfit_gradient(self) -> NonFiniteError | None:
        """Returns an error that names a gradient which is not fit for a step, if there is one."""
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

    def _agree(self, meets: bool, failure: Exception | None = None) -> None:
        """Looks whether the ranks are one run, if all of them do so now; one that has failed tells the others."""
        if not meets or self.ranks.size == 1:
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
        """Returns what has to be equal on all ranks; at a `first` look that is more, as it takes longer."""
        group = self.param_groups[0]
        options = [[group.get(name) for name in self._checked_options] for group in self.param_groups]
        numbers = [
            float(option) for row in options for option in row if isinstance(option, bool | int | float | Tensor)
        ]
        words = zlib.crc32(repr((sorted(self._settings().items()), numbers)).encode())
        facts: dict[str, int | float] = {"seed": self.seed, "step": self.steps, "lr": float(group["lr"])}
        facts |= {"num_data": self.num_data, "options": words}
        if first and not self._sharded:
            shapes = [tuple(parameter.shape) for _, _, parameter in self._enumerate()]
            facts["shapes"] = zlib.crc32(repr(shapes).encode())
            facts["square_norm"] = self._square_norm([p for _, _, p in self._enumerate()])
        return facts

    def _over_shards(self, rows: Sequence[Any]) -> list[Any]:
        """Returns sums over all elements, from rows of sums over those that lie here; one reduction for all of them."""
        if not self._sharded or not rows:
            return list(rows)
        device = self._device()
        dtype = wide_dtype(device)
        stacked = torch.stack([torch.as_tensor(row, dtype=dtype).to(device) for row in rows])
        return list(self.ranks.sum(stacked))

    def _square_norm(self, parameters: list[Tensor]) -> float:
        """Returns Σθ² over all elements."""
        here = [local(parameter).detach() for parameter in parameters]
        if not self._sharded:
            return float(square_norm(here, here[0].device))
        weights = [block(parameter).shards / self.ranks.size for parameter in parameters]
        return float(self.ranks.sum(square_norm(here, here[0].device, weights)))

    def _common_seed(self, seed: int | None) -> int:
        """Returns the seed, drawn from torch's default generator if None; rank 0's on every rank."""
        if seed is None:
            seed = int(torch.randint(MAX_SEED, ()))
        seed = integer("seed", seed, at_least=0)
        if seed > MAX_SEED:
            raise ValueError(f"seed = {seed} is out of range; give an int from 0 to {MAX_SEED}")
        return int(self.ranks.of_first(torch.tensor(seed, device=self._device())))

    # ---- state ----

    def _parts(self) -> list[tuple[str, Part]]:
        return [("", self.clock)]

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"num_data": self.num_data}

    def _forget(self) -> None:
        self._observed.clear()
        self.ranks.calls = 0


class TemperedSampler(Sampler):
    """A method with a constant temperature, which is part of its state."""

    def __init__(self, params: Any, defaults: dict[str, Any], *, temperature: float, **options: Any) -> None:
        self._temperature = Temperature(real("temperature", temperature, at_least=0))
        super().__init__(params, defaults, **options)

    @property
    def temperature(self) -> float:
        """T of the sampled exp(−U/T)."""
        return self._temperature.value

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._temperature.value = real("temperature", value, at_least=0)

    def _samples(self) -> bool:
        return self.temperature > 0

    def _parts(self) -> list[tuple[str, Part]]:
        return [*super()._parts(), ("", self._temperature)]

    def _facts(self, *, first: bool = False) -> Facts:
        return {**super()._facts(first=first), "temperature": self.temperature}
