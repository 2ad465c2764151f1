"""A state that is complete: a run resumed from it equals the uninterrupted one bit for bit.

Optimizer-wide state (step, seed, temperature, α, ...) is written into `param_groups[0]` under `STATE_PREFIX` whenever
a state dict is made. That is the one place which survives `torch.save`, `torch.load(weights_only=True)` and
`torch.distributed.checkpoint`, flattened or not: extra top-level keys are dropped there, and `state[p]` is cast to the
parameter's dtype on loading (for momenta that is undone here).
"""

import copy
import functools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks as _global_post_hooks
from torch.optim.optimizer import _global_optimizer_pre_hooks as _global_pre_hooks

from ctld.dynamics import momentum_dtype
from ctld.movers import Movers
from ctld.noise import GENERATOR
from ctld.sharding import sharded

_log = logging.getLogger("ctld")

STATE_PREFIX = "ctld_"
STATE_FORMAT = 1


def quick_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` with torch's hooks and profiling around it, which cost ten microseconds, only where there is any to serve."""
    served = Optimizer.profile_hook_step(step)

    @functools.wraps(step)
    def quick(self: "Resumable", *arguments: Any, **options: Any) -> Any:
        hooks = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        if hooks or _global_pre_hooks or _global_post_hooks or torch.autograd._profiler_enabled():
            return served(self, *arguments, **options)
        return step(self, *arguments, **options)

    quick.hooked = True  # type: ignore[attr-defined]  # else torch wraps it once more
    return quick


class Resumable(Optimizer, ABC):
    """An optimizer of which everything that changes is in `state_dict()`; momenta are allocated at construction.

    A subclass says in `_global_state`, `_check_global_state` and `_load_global_state` what of it changes besides the
    momenta, and in `_initialize` how a parameter starts.
    """

    noise: str
    seed: int
    # Set on the instance, not here: a wrapper that imitates our class would find defaults of the class in place of our values.
    _method: str
    """Name of the class that was built, whatever wraps it."""
    _step_count: int
    _process_group: torch.distributed.ProcessGroup | None
    _accepted: dict[str, Any] | None  # a state that is being loaded
    _known_movers: dict[int, Movers]
    _hidden = frozenset[str]()
    """Entries of groups that are no options of the user's."""

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

    def _global_state(self) -> dict[str, Any]:
        """What changes besides momenta: numbers, strings and tensors by name."""
        return {
            "method": self._method,
            "format": STATE_FORMAT,
            "generator": GENERATOR,
            "noise": self.noise,
            "seed": self.seed,
            "step": self._step_count,
        }

    def _load_global_state(self, state: dict[str, Any]) -> None:
        self.noise, self.seed, self._step_count = str(state["noise"]), int(state["seed"]), int(state["step"])

    def _check_global_state(self, state: dict[str, Any]) -> None:
        """Refuse a state that does not fit, before anything has changed."""
        if not state:
            raise ValueError(
                f"the state dict is not one of {type(self).__name__} (torch's SGD?): it has no {STATE_PREFIX}* entries in "
                "its first group"
            )
        if state.get("format", 0) > STATE_FORMAT:
            raise ValueError(
                f"the state has format {state['format']}, this version of ctld reads up to {STATE_FORMAT}; update ctld"
            )
        if state.get("generator") != GENERATOR:
            raise ValueError(
                f"the state's noise comes from {state.get('generator')!r}, this version of ctld has {GENERATOR!r}: the "
                "run would not go on as it began; resume it with the version that saved it"
            )
        if state.get("method") != self._method:
            raise ValueError(
                f"the state is one of {state.get('method')}, this is {self._method}: the same names hold other "
                "quantities; load it into the optimizer that saved it"
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
        # Registered last, so that it sees what the user's own hooks have made of the state.
        handle = self.register_load_state_dict_pre_hook(self._accept)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
            self._accepted = None
        self._forget()
        self._publish()

    def _forget(self) -> None:
        """Drop what belongs to the run before a state was loaded."""

    def _accept(self, _: Optimizer, candidate: dict[str, Any]) -> None:
        """Check a state and take over its optimizer-wide part; torch takes over the rest."""
        self._check_state(candidate)
        before = self._global_state()
        try:
            self._load_global_state(_global_entries(candidate))
        except Exception as error:
            self._load_global_state(before)
            raise ValueError(f"the state does not fit: {error}") from error
        self._accepted = candidate

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._accepted is not None:
            self._restore_dtypes(self._accepted)

    def _restore_dtypes(self, accepted: dict[str, Any]) -> None:
        """Momenta as they were saved: torch casts them to the parameter's dtype."""
        for key, (index, group, parameter) in zip(_keys(accepted), self._enumerate(), strict=True):
            if key not in accepted["state"]:
                _log.warning("the state has no momentum for parameter %d, which is frozen; it starts afresh", index)
                self._initialize(group, parameter, index)
            for name, value in accepted["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, momentum_dtype(parameter), copy=True)

    def _check_state(self, candidate: dict[str, Any]) -> None:
        saved = [len(group["params"]) for group in candidate["param_groups"]]
        here = [len(group["params"]) for group in self.param_groups]
        if saved != here:
            raise ValueError(
                f"the state has groups of {saved} parameters, this optimizer has {here}; build it with the parameters "
                "and groups that it had when the state was saved"
            )
        self._check_global_state(_global_entries(candidate))
        for number, (here_group, there) in enumerate(zip(self.param_groups, candidate["param_groups"], strict=True)):
            # Not what a scheduler or torch has written beside them.
            absent = (self.defaults.keys() - {"differentiable"} | self._hidden) & here_group.keys() - there.keys()
            if absent:
                raise ValueError(
                    f"group {number} of the state lacks {sorted(absent)}; it was saved by another optimizer"
                )
        for key, (index, _, parameter) in zip(_keys(candidate), self._enumerate(), strict=True):
            entries, expected = candidate["state"].get(key, {}), self.state[parameter]
            if set(entries) != set(expected) and (entries or parameter.requires_grad):
                raise ValueError(
                    f"the state of parameter {index} has {sorted(entries)}, expected {sorted(expected)}; build the "
                    "optimizer with the options that it had when the state was saved"
                )
            for name, value in entries.items():
                if isinstance(value, Tensor) != isinstance(expected[name], Tensor):
                    raise ValueError(
                        f"{name} of parameter {index} is a {type(value).__name__} in the state; it was not saved so"
                    )
                if sharded(value) != sharded(expected[name]):
                    raise ValueError(
                        f"{name} of parameter {index} is {'' if sharded(value) else 'not '}sharded in the state, unlike here; "
                        "load it with torch.distributed.checkpoint's set_state_dict (full_state_dict=True for whole tensors)"
                    )
                if isinstance(value, Tensor) and value.shape != expected[name].shape:
                    raise ValueError(
                        f"{name} of parameter {index} has shape {tuple(value.shape)} in the state, "
                        f"{tuple(expected[name].shape)} here; load the state into the model that it was saved from"
                    )

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}
        # A bound method that a scheduler has put in place of `step` belongs to the original.
        own.pop("step", None)
        own["_known_movers"] = {}  # addresses of the original's memory
        return super().__getstate__() | own

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resumable":
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
                {
                    key: value
                    for key, value in group.items()
                    if not key.startswith(STATE_PREFIX) and key not in self._hidden
                }
                for group in groups
            ]
            return super().__repr__()
        finally:
            self.param_groups = groups


def _global_entries(state_dict: dict[str, Any]) -> dict[str, Any]:
    first = state_dict["param_groups"][0]
    return {key.removeprefix(STATE_PREFIX): value for key, value in first.items() if key.startswith(STATE_PREFIX)}


def _keys(state_dict: dict[str, Any]) -> Iterator[Any]:
    return chain.from_iterable(group["params"] for group in state_dict["param_groups"])
