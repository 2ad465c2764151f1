"""What every noisy optimizer needs besides its algorithm and its state: checked parameters, a loss, a seed."""

import math
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import torch
import torch.distributed
from torch import Tensor

from ctld import dynamics
from ctld.checks import NonFiniteError, integer, real
from ctld.clipping import RepeatedNorms
from ctld.movers import Movers
from ctld.noise import INITIAL_MOMENTA, KINDS, MAX_SEED, parameter_stream
from ctld.observing import Closure, Loss, Observing
from ctld.optimizers import drift
from ctld.optimizers.parameters import check_parameters
from ctld.optimizers.state import Resumable, quick_hooks
from ctld.sharding import block, distributed, local, sharded


class Sampler(Observing, Resumable):
    """Base of the optimizers of this package; holds no algorithm.

    A subclass sets its own attributes, calls `super().__init__`, and says in `_global_state` and `_load_global_state`
    what of it changes. Keyword arguments are those of `CTLD`.
    """

    # Set on the instance, not here: a wrapper that imitates our class would find defaults of the class in place of our values.
    _sharded: bool
    _calls: int
    """Of `step`, since the optimizer was built or a state loaded."""

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        num_data: float = 1.0,
        noise: str = "gaussian",
        seed: int | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        self.num_data = real("num_data", num_data, above=0)
        if noise not in KINDS:
            raise ValueError(f"noise = {noise!r} is unknown; give one of {', '.join(map(repr, KINDS))}")
        self.noise = noise
        self._process_group = process_group
        self._observed = []
        self._norms = RepeatedNorms()
        self._warned_of_scale = self._sharded = self._ready = False
        self._accepted, self._method = None, type(self).__name__
        self._step_count = self._calls = 0
        self._checked_options = [name for name in defaults if name not in self._hidden]
        self._passed: dict[int, list[Any] | None] = {}
        self._known_movers = {}
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("there are no parameters to train; give model.parameters()")
        check_parameters(self.param_groups)
        self.seed = self._common_seed(seed)

    # ---- parameters ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; may be done at any time. A group that is refused leaves the optimizer as it was."""
        super().add_param_group(param_group)
        if not self._sharded and any(map(sharded, self.param_groups[-1]["params"])):
            self._sharded = True
            self._known_movers.clear()  # sums of whole parameters count by shares from now on
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
            if any(group is new for new in groups):
                self._initialize(group, parameter, index)
        self._ready = True
        self._publish()

    def _start_group(self, group: dict[str, Any]) -> None:
        """Fill in what a group needs before its parameters are initialized; nothing, in most."""

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse a group whose options are out of range; also at every step, since schedulers write them."""
        real("lr", group["lr"], at_least=0)
        real("weight_decay", group["weight_decay"], at_least=0)
        if "momentum" in group:
            real("momentum", group["momentum"], at_least=0, below=1)

    def _check_groups(self) -> None:
        """Check every group whose options are others than those that passed last time."""
        for number, group in enumerate(self.param_groups):
            options = [group[name] for name in self._checked_options]
            if self._passed.get(number) != options:
                self._check_group(group)
                # A tensor may be written to in place: it is checked each time.
                self._passed[number] = None if any(isinstance(option, Tensor) for option in options) else options

    def _movers(self) -> list[Movers]:
        """Of each group, the parameters that have a gradient."""
        everything = []
        stream = parameter_stream(0)
        for group in self.param_groups:
            candidates = group["params"]
            movers = self._known_movers.get(stream)
            if movers is None or not movers.follow(candidates, self.state):
                ranks = self._ranks() if self._sharded else 1
                movers = self._known_movers[stream] = Movers(candidates, self.state, stream, ranks=ranks)
            everything.append(movers)
            stream += len(candidates)
        return everything

    def _gradients(self, group: dict[str, Any], movers: Movers) -> list[Tensor]:
        """∇(±mean loss + prior) of the parameters that move."""
        return dynamics.total_gradients(
            movers.parameters, movers.gradients, decay=float(group["weight_decay"]), ascend=group["maximize"]
        )

    def _source(self) -> dynamics.Noise:
        """This step's noise."""
        return dynamics.Noise(self.noise, self.seed, self._step_count)

    def _heat(self, momentum: Tensor, index: int, *, deviation: float) -> None:
        """Draw the momentum that a parameter starts with; `index` is the parameter's."""
        here, source = local(momentum), dynamics.Noise("gaussian", self.seed, index)
        dynamics.thermostat(here, source.like(here, INITIAL_MOMENTA, block(momentum)), deviation=deviation)

    def _device(self) -> torch.device:
        parameter: Tensor = next(chain.from_iterable(group["params"] for group in self.param_groups))
        return parameter.device

    # ---- parameters that are spread over ranks ----

    def _ranks(self) -> int:
        """How many processes are this run."""
        return torch.distributed.get_world_size(self._process_group) if distributed() else 1

    def _over_shards(self, sums: list[Any]) -> list[Any]:
        """Sums over all elements, from rows of sums over those that lie here; one reduction for all of them."""
        if not self._sharded or not sums:
            return sums
        device = self._device()
        dtype = dynamics.wide_dtype(device)
        rows = torch.stack([torch.as_tensor(row, dtype=dtype).to(device) for row in sums])
        return list(self._summed_over_ranks(rows))

    def _square_norm(self, parameters: list[Tensor]) -> float:
        """Σθ² over all elements."""
        here = [local(parameter).detach() for parameter in parameters]
        if not self._sharded:
            return float(dynamics.square_norm(here, here[0].device))
        weights = [block(parameter).shards / self._ranks() for parameter in parameters]
        return float(self._summed_over_ranks(dynamics.square_norm(here, here[0].device, weights)))

    # ---- the loss ----

    @abstractmethod
    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        """The algorithm."""

    @torch._disable_dynamo
    def _untraced_step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        """A step that `torch.compile` leaves alone: a traced one would replay this step's noise and loss."""
        return self._step(closure, loss)

    def _verdict(
        self, observed: list[Loss], movers: list[Movers], more: float = 0.0, *, failed: bool = False
    ) -> Sequence[float] | Tensor:
        """Sums over the ranks: loss, those that see a gradient that is not finite, one, marks (`drift`), and `more`.

        Whether to refuse a step is decided in the same reduction as the loss, so that all ranks decide alike; a rank that has
        `failed` makes them all refuse it. They may be on the device.
        """
        together = self._ranks() > 1
        if not together and not movers and [*map(type, observed)] == [float]:  # by far the most frequent case
            return observed[0], float(failed), 1.0, 0.0, 0.0, more  # type: ignore[return-value]
        found: list[Tensor | bool] = [not failed, *(group.finite() for group in movers)]
        if not together and not any(isinstance(value, Tensor) for value in (*observed, *found)):
            return float(sum(observed)), 0.0 if all(found) else 1.0, 1.0, 0.0, 0.0, more
        device = self._device()
        dtype = dynamics.wide_dtype(device)
        terms = [torch.as_tensor(term, dtype=_wide(term)).reshape(()).to(device, dtype) for term in observed]
        odd = [torch.as_tensor(finite).to(device).logical_not() for finite in found]
        loss = torch.stack(terms).sum()
        refused = torch.stack(odd).any().to(dtype) if odd else torch.zeros_like(loss)
        mark = drift.mark(self._facts()) if together else 0.0
        rest = torch.tensor((1.0, mark, mark * mark, more), dtype=dtype, device=device)
        return self._summed_over_ranks(torch.cat((torch.stack((loss, refused)), rest)))

    def _mean_loss(self, verdict: Sequence[float]) -> float:
        """The mean loss, or the reason why the step is refused."""
        total, odd_ranks, ranks, marks, squares, _ = verdict
        if drift.apart(ranks, marks, squares):
            drift.report(self._facts(), self._device(), self._process_group)
        if not math.isfinite(total):
            raise NonFiniteError(
                f"the loss is {total / ranks}; the step was refused and nothing has changed. Skip the batch, or lower "
                "lr, if it happens again"
            )
        if odd_ranks:
            self._refuse_non_finite_gradients()
        return total / ranks

    def _refuse_non_finite_gradients(self) -> NoReturn:
        """Say where they are."""
        found = [(index, parameter) for index, _, parameter in self._enumerate() if not _finite(local(parameter.grad))]
        if not found:
            raise NonFiniteError(
                "another rank has refused the step: its gradients have elements that are NaN or inf, or it raised an error of "
                "its own. Nothing has changed here"
            )
        index, parameter = found[0]
        names = list(chain.from_iterable(group.get("param_names", ()) for group in self.param_groups))
        gradient = local(parameter.grad)
        bad = int((~gradient.isfinite()).sum())
        where = f"the gradient of {names[index] if names else f'parameter {index}'} has {bad} of {gradient.numel()}"
        raise NonFiniteError(
            f"{where} elements that are NaN or inf; the step was refused and nothing has changed. Skip the batch, or "
            "lower lr, if it happens again"
        )

    def _facts(self) -> dict[str, int | float]:
        """What has to be equal on all ranks; under the same names whatever the options, since they are gathered."""
        first = self.param_groups[0]
        options = [[group.get(name) for name in self._checked_options] for group in self.param_groups]
        numbers = [
            float(option) for row in options for option in row if isinstance(option, bool | int | float | Tensor)
        ]
        words = zlib.crc32(repr((self.noise, getattr(self, "integrator", ""), numbers)).encode())
        return {"seed": self.seed, "step": self._step_count, "lr": float(first["lr"]), "options": words}

    def _check_drift(self, *, every: int = 0) -> None:
        """Look whether the ranks are one run: at the first step, the first after a state was loaded, and `every` so many.

        Calls are counted, not steps: ranks whose steps have come apart must still meet here.
        """
        calls, self._calls = self._calls, self._calls + 1
        if (calls % every if every else calls) or self._ranks() == 1:
            return
        mark, device = drift.mark(self._facts()), self._device()
        numbers = torch.tensor((1.0, mark, mark * mark), dtype=dynamics.wide_dtype(device), device=device)
        if drift.apart(*self._summed_over_ranks(numbers).tolist()):
            drift.report(self._facts(), device, self._process_group)

    def _summed_over_ranks(self, numbers: Tensor) -> Tensor:
        if self._ranks() > 1:
            torch.distributed.all_reduce(numbers, group=self._process_group)
        return numbers

    def _check_state(self, candidate: dict[str, Any]) -> None:
        super()._check_state(candidate)
        for group in candidate["param_groups"]:
            self._check_group(group)

    def _forget(self) -> None:
        self._observed.clear()
        self._calls = 0

    # ---- seed ----

    def _common_seed(self, seed: int | None) -> int:
        """The seed, drawn from torch's default generator if None; rank 0's on every rank."""
        if seed is None:
            seed = int(torch.randint(MAX_SEED, ()))
        seed = integer("seed", seed, at_least=0)
        if seed > MAX_SEED:
            raise ValueError(f"seed = {seed} is out of range; give an int from 0 to {MAX_SEED}")
        return int(self._of_rank_zero(torch.tensor(seed, device=self._device())))

    def _of_rank_zero(self, value: Tensor) -> Tensor:
        """Rank 0's value, on every rank: what is chosen or drawn must be the same everywhere."""
        if distributed():
            torch.distributed.broadcast(value, group_src=0, group=self._process_group)
        return value


class GroupwiseSampler(Sampler):
    """A method whose step treats each group by itself and does not read the loss."""

    temperature: float  # of those that have one

    def _global_state(self) -> dict[str, Any]:
        heat = {"temperature": self.temperature} if hasattr(self, "temperature") else {}
        return super()._global_state() | heat

    def _facts(self) -> dict[str, int | float]:
        return super()._facts() | {"temperature": float(getattr(self, "temperature", math.nan))}

    def _load_global_state(self, state: dict[str, Any]) -> None:
        super()._load_global_state(state)
        if "temperature" in state:
            self.temperature = float(state["temperature"])

    @quick_hooks
    def step(self, closure: Closure | Loss | None = None, *, loss: Loss | None = None) -> Loss | None:
        """One step. `loss` is accepted and ignored, so that one line is all that changes between methods.

        Returns the closure's value, or `loss`.
        """
        return self._untraced_step(closure, loss) if torch.compiler.is_compiling() else self._step(closure, loss)

    @torch.no_grad()
    def _step(self, closure: Closure | Loss | None, loss: Loss | None) -> Loss | None:
        result = self._evaluate(closure, loss)
        self._check_groups()
        self._check_drift(every=drift.PERIOD)
        everything = self._movers()
        self._before_step()
        for group, movers in zip(self.param_groups, everything, strict=True):
            if movers.parameters:
                self._update(group, movers)
        self._step_count += 1
        return result

    @abstractmethod
    def _update(self, group: dict[str, Any], movers: Movers) -> None:
        """The algorithm: one step of the parameters of one group."""

    def _before_step(self) -> None:
        """What is done once per step, before the groups; nothing, in most."""


def _wide(loss: Loss) -> torch.dtype:
    """In which to read a loss: a number in float64, a tensor in the widest that its device has."""
    return dynamics.wide_dtype(loss.device) if isinstance(loss, Tensor) else torch.float64


def _finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())
