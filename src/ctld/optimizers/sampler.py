"""What every noisy optimizer needs besides its algorithm: checked parameters, a seed, a loss, and a complete state.

Optimizer-wide state (step, seed, temperature, α, ...) is written into `param_groups[0]` under `STATE_PREFIX` whenever
a state dict is made. That is the one place which survives `torch.save`, `torch.load(weights_only=True)` and
`torch.distributed.checkpoint`, flattened or not: extra top-level keys are dropped there, and `state[p]` is cast to the
parameter's dtype on loading (for momenta that is undone here).
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer

from ctld import noise
from ctld.checks import NonFiniteError, integer, real
from ctld.dynamics import momentum_dtype
from ctld.optimizers.parameters import check_parameters

STATE_PREFIX = "ctld_"
STATE_FORMAT = 1

Loss = Tensor | float


class Sampler(Optimizer, ABC):
    """Base of the optimizers of this package; holds no algorithm.

    A subclass sets its own attributes, calls `super().__init__`, and says in `_global_state` and `_load_global_state`
    what of it changes. Keyword arguments are those of `CTLD`.
    """

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        num_data: float,
        seed: int | None,
        process_group: torch.distributed.ProcessGroup | None,
    ) -> None:
        self.num_data = real("num_data", num_data, above=0)
        self._process_group = process_group
        self._step_count = 0
        self._observed: list[Loss] = []
        self._ready = False
        super().__init__(params, defaults)
        if not any(group["params"] for group in self.param_groups):
            raise ValueError("there are no parameters to train; give model.parameters()")
        self.seed = self._common_seed(seed)

    # ---- parameters ----

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; may be done at any time. A group that is refused leaves the optimizer as it was."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
            check_parameters(self.param_groups)
            if self._ready:
                for index, group, parameter in self._enumerate():
                    if group is self.param_groups[-1]:
                        self._initialize(group, parameter, index)
        except Exception:
            self.param_groups.pop()
            raise

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse a group whose options are out of range."""

    @abstractmethod
    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        """Allocate the state of one parameter; `index` counts over all groups and names its noise stream."""

    def _enumerate(self) -> Iterator[tuple[int, dict[str, Any], Tensor]]:
        """Index, group and parameter, over all groups."""
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                yield index, group, parameter
                index += 1

    def _device(self) -> torch.device:
        parameter: Tensor = next(chain.from_iterable(group["params"] for group in self.param_groups))
        return parameter.device

    # ---- the loss ----

    def observe(self, loss: Loss) -> None:
        """Hand over the loss where a framework calls `step()` itself; two observations before a step add up.

        Under gradient accumulation, observe each micro-batch's loss divided as it is for `backward`.
        """
        if self._needs_loss():
            self._observed.append(_one_element(loss))

    @abstractmethod
    def _needs_loss(self) -> bool:
        """Whether the next step reads the loss."""

    def _evaluate(self, closure: Callable[[], Loss | None] | None, loss: Loss | None) -> Loss | None:
        """Run the closure and take in the loss; what was observed is used rather than what the closure returns."""
        returned: Loss | None = None
        if closure is not None:
            with torch.enable_grad():
                returned = closure()
        if loss is not None:
            self.observe(loss)
        elif returned is not None and not self._observed:
            self.observe(returned)
        return loss if returned is None else returned

    def _agree_on_loss(self, observed: list[Loss], gradients: list[Any]) -> float:
        """The loss averaged over ranks, once it and the gradients are known to be finite; one read from the device.

        Whether to refuse is decided in the same reduction, so that all ranks decide alike.
        """
        device = self._device()
        terms = [torch.as_tensor(term, dtype=torch.float64).reshape(()).to(device) for term in observed]
        norms = [norm.to(device, torch.float64) for norm in torch._foreach_norm(gradients)] if gradients else []
        loss = torch.stack(terms).sum()
        norm = torch.stack(norms).sum() if norms else torch.zeros_like(loss)
        total, gradient_norm, ranks = self._sum_over_ranks(torch.stack((loss, norm, torch.ones_like(loss))))
        if not math.isfinite(total):
            raise NonFiniteError(
                f"the loss is {total / ranks}; the step was refused and nothing has changed. Skip the batch, or lower "
                "lr, if it happens again"
            )
        if not math.isfinite(gradient_norm):
            self._refuse_non_finite_gradients()
        return total / ranks

    def _refuse_non_finite_gradients(self) -> None:
        """Raise unless only the norm has overflowed."""
        found = [(index, parameter) for index, _, parameter in self._enumerate() if not _finite(parameter.grad)]
        (elsewhere,) = self._sum_over_ranks(torch.tensor([float(len(found))], device=self._device()))
        if not elsewhere:
            return
        where = "another rank's gradients have"
        if found:
            index, parameter = found[0]
            names = list(chain.from_iterable(group.get("param_names", ()) for group in self.param_groups))
            bad = int((~parameter.grad.isfinite()).sum())  # type: ignore[union-attr]
            where = (
                f"the gradient of {names[index] if names else f'parameter {index}'} has {bad} of {parameter.numel()}"
            )
        raise NonFiniteError(
            f"{where} elements that are NaN or inf; the step was refused and nothing has changed. Skip the batch, or "
            "lower lr, if it happens again"
        )

    def _sum_over_ranks(self, numbers: Tensor) -> list[float]:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(numbers, group=self._process_group)
        summed: list[float] = numbers.tolist()
        return summed

    # ---- state ----

    def _global_state(self) -> dict[str, Any]:
        """What changes besides momenta: numbers, strings and tensors by name."""
        return {"format": STATE_FORMAT, "generator": noise.GENERATOR, "seed": self.seed, "step": self._step_count}

    def _load_global_state(self, state: dict[str, Any]) -> None:
        self.seed, self._step_count = int(state["seed"]), int(state["step"])

    def _check_global_state(self, state: dict[str, Any]) -> None:
        """Refuse a state that does not fit, before anything has changed."""
        if not state:
            raise ValueError(
                f"the state dict is not one of {type(self).__name__} (torch's SGD?): it has no {STATE_PREFIX}* entries in "
                "its first group"
            )
        if state["format"] > STATE_FORMAT:
            raise ValueError(
                f"the state has format {state['format']}, this version of ctld reads up to {STATE_FORMAT}; update ctld"
            )
        if state["generator"] != noise.GENERATOR:
            raise ValueError(
                f"the state's noise comes from {state['generator']!r}, this version of ctld has {noise.GENERATOR!r}: the "
                "run would not go on as it began; resume it with the version that saved it"
            )
        missing = set(self._global_state()) ^ set(state)
        if missing:
            raise ValueError(
                f"the state does not fit: {sorted(missing)} are on one side only; build the optimizer with the options "
                "that it had when the state was saved"
            )

    def state_dict(self) -> dict[str, Any]:
        """All that changes: a run resumed from it equals the uninterrupted one bit for bit."""
        self._publish()
        return super().state_dict()

    def _publish(self) -> None:
        first = self.param_groups[0]
        for key, value in self._global_state().items():
            first[STATE_PREFIX + key] = value

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or refuse it with a sentence and stay unchanged."""
        accepted: dict[str, Any] = {}

        def check(optimizer: Optimizer, candidate: dict[str, Any]) -> None:
            self._check_state(candidate)
            accepted.update(candidate)

        # Registered last, so that it sees what the user's own hooks have made of the state.
        handle = self.register_load_state_dict_pre_hook(check)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        self._load_global_state(_global_entries(accepted))
        self._observed = []
        for key, (index, group, parameter) in zip(_keys(accepted), self._enumerate(), strict=True):
            if key not in accepted["state"]:
                # torch.distributed.checkpoint leaves frozen parameters out.
                self._initialize(group, parameter, index)
            for name, value in accepted["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, momentum_dtype(parameter), copy=True)
        self._publish()

    def _check_state(self, candidate: dict[str, Any]) -> None:
        saved = [len(group["params"]) for group in candidate["param_groups"]]
        here = [len(group["params"]) for group in self.param_groups]
        if saved != here:
            raise ValueError(
                f"the state has groups of {saved} parameters, this optimizer has {here}; build it with the parameters "
                "and groups that it had when the state was saved"
            )
        self._check_global_state(_global_entries(candidate))
        for key, (index, _, parameter) in zip(_keys(candidate), self._enumerate(), strict=True):
            entries, expected = candidate["state"].get(key, {}), self.state[parameter]
            if set(entries) != set(expected) and (entries or parameter.requires_grad):
                raise ValueError(
                    f"the state of parameter {index} has {sorted(entries)}, expected {sorted(expected)}; build the "
                    "optimizer with the options that it had when the state was saved"
                )
            for name, value in entries.items():
                if isinstance(value, Tensor) and value.shape != expected[name].shape:
                    raise ValueError(
                        f"{name} of parameter {index} has shape {tuple(value.shape)} in the state, "
                        f"{tuple(expected[name].shape)} here; load the state into the model that it was saved from"
                    )

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}
        # A bound method that a scheduler has put in place of `step` belongs to the original.
        own.pop("step", None)
        return super().__getstate__() | own

    def __deepcopy__(self, memo: dict[int, Any]) -> "Sampler":
        memo[id(self._process_group)] = self._process_group
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __repr__(self) -> str:
        """torch's, without the entries that only a state dict needs."""
        groups = self.param_groups
        try:
            self.param_groups = [
                {key: value for key, value in group.items() if not key.startswith(STATE_PREFIX)} for group in groups
            ]
            return super().__repr__()
        finally:
            self.param_groups = groups

    # ---- seed ----

    def _common_seed(self, seed: int | None) -> int:
        """The seed, drawn from torch's default generator if None; rank 0's on every rank."""
        if seed is None:
            seed = int(torch.randint(noise.MAX_SEED, ()))
        seed = integer("seed", seed, at_least=0)
        if seed > noise.MAX_SEED:
            raise ValueError(f"seed = {seed} is out of range; give an int from 0 to {noise.MAX_SEED}")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            common = torch.tensor(seed, device=self._device())
            torch.distributed.broadcast(common, group_src=0, group=self._process_group)
            seed = int(common)
        return seed


def _global_entries(state_dict: dict[str, Any]) -> dict[str, Any]:
    first = state_dict["param_groups"][0]
    return {key.removeprefix(STATE_PREFIX): value for key, value in first.items() if key.startswith(STATE_PREFIX)}


def _keys(state_dict: dict[str, Any]) -> Iterator[Any]:
    return chain.from_iterable(group["params"] for group in state_dict["param_groups"])


def _finite(gradient: Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _one_element(loss: Loss) -> Loss:
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ValueError(
                f"the loss has {loss.numel()} elements (shape {tuple(loss.shape)}); give the mean loss of the batch, the "
                "number whose gradient is in p.grad"
            )
        return loss.detach()
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise TypeError(f"the loss is {loss!r}; give a number or a tensor with one element")
    return loss
