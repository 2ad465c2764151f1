"""Complete state: a run resumed from it equals the uninterrupted one bit for bit.

What changes during a run is in the momenta and in parts (clock, temperature, tempering, thermometers, ...), each with a
`state_dict` of its own; saving walks the parts. Their entries are written into `param_groups[0]` under `STATE_PREFIX` whenever
a state dict is made. That is the one place which survives `torch.save`, `torch.load(weights_only=True)` and
`torch.distributed.checkpoint`, flattened or not: extra top-level keys are dropped there, and `state[p]` is cast to the
parameter's dtype on loading (for momenta that is undone here).
"""

import copy
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from ctld.checks import integer, warn_user
from ctld.noise import GENERATOR, MAX_SEED, generator_on
from ctld.observing import TakesLoss
from ctld.sharding import local, sharded
from ctld.stepping.foreach import momentum_dtype, wide_dtype

_log = logging.getLogger("ctld")

STATE_PREFIX = "ctld_"
STATE_FORMAT = 2  # 1, of version 0.1, has no settings but num_data, and is read too
_LATER = frozenset({"tempering_window", "last_cold_step", "epoch_shares"})  # which older states do not have
_UNFIT = (TypeError, KeyError, AttributeError, RuntimeError, OverflowError, IndexError)
"""Errors that values may raise if no run has saved them."""
MOVES_ON = "noise_generator"
"""The one setting that may be another when a run is resumed: on another device its noise goes on otherwise."""


class Part(Protocol):
    """Part of an optimizer that changes during a run."""

    def state_dict(self) -> dict[str, Any]:
        """Return numbers, strings and tensors by name, always the same names."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or raise an error and stay unchanged."""
        ...


class Resumable(TakesLoss, ABC):
    """Optimizer with all that changes in its `state_dict()`; momenta are allocated at construction.

    A subclass says in `_parts` what of it changes besides the momenta, in `_settings` with which options alone a state makes
    sense, and in `_initialize` how a parameter starts.
    """

    noise: str
    seed: int
    _starts_frozen: ClassVar[bool]
    _method: str
    """Name of the class that was built, whatever wraps it."""
    _accepted: dict[str, Any] | None  # a state that is being loaded
    _hidden = frozenset[str]()
    """Entries of groups that are no options of the user's."""

    @abstractmethod
    def _initialize(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        """Allocate the state of one parameter; `index` counts over all groups and names its noise stream."""

    def _start_parameter(self, group: dict[str, Any], parameter: Tensor, index: int) -> None:
        """Give one parameter the state that it starts with."""
        self._initialize(group, parameter, index)

    @abstractmethod
    def _parts(self) -> list[tuple[str, Part]]:
        """Return what changes besides momenta, each with the prefix of its entries."""

    def _settings(self) -> dict[str, Any]:
        """Return the options that a state must have been saved with."""
        return {"noise": self.noise, MOVES_ON: generator_on(self._device())}

    @abstractmethod
    def _device(self) -> torch.device: ...

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse a group whose options are out of range."""

    def _enumerate(self) -> Iterator[tuple[int, dict[str, Any], Tensor]]:
        """Yield index, group and parameter, over all groups."""
        index = 0
        for group in self.param_groups:
            for parameter in group["params"]:
                yield index, group, parameter
                index += 1

    # ---- saving ----

    def _global_state(self) -> dict[str, Any]:
        """Return all that changes besides momenta."""
        state: dict[str, Any] = {
            "method": self._method,
            "format": STATE_FORMAT,
            "generator": GENERATOR,
            "settings": json.dumps(self._settings(), sort_keys=True),
            "noise": self.noise,
            "seed": self.seed,
        }
        for prefix, part in self._parts():
            state |= {prefix + key: value for key, value in part.state_dict().items()}
        return state

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes: a run resumed from it equals the uninterrupted one bit for bit."""
        self._publish()
        return super().state_dict()

    def _publish(self) -> None:
        first, wide = self.param_groups[0], wide_dtype(self._device()) is torch.float64
        for key, value in self._global_state().items():
            # Tools that move a state to the device of the parameters (Accelerate) fail on float64 where there is none.
            first[STATE_PREFIX + key] = value.tolist() if not wide and isinstance(value, Tensor) else value

    # ---- loading ----

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or refuse it with an error and stay unchanged."""
        before = self.state, self.param_groups, self._global_state()
        # Registered last, so that it sees what the user's own hooks have made of the state.
        handle = self.register_load_state_dict_pre_hook(self._accept)
        try:
            super().load_state_dict(state_dict)
        except BaseException:
            self.__dict__["state"], self.__dict__["param_groups"] = before[:2]
            self._load_global_state(before[2])
            raise
        finally:
            handle.remove()
            self._accepted = None
        self._forget()
        self._publish()

    def _forget(self) -> None:
        """Drop what belongs to the run before a state was loaded."""

    def _load_global_state(self, state: dict[str, Any]) -> None:
        seed = integer("seed", state["seed"], at_least=0)
        if seed > MAX_SEED:
            raise ValueError(f"seed = {seed} is out of range; give an int from 0 to {MAX_SEED}")
        for prefix, part in self._parts():
            here = part.state_dict()
            names = [key for key in here if prefix + key not in _LATER or prefix + key in state]
            part.load_state_dict({key: _like(here[key], state[prefix + key]) for key in names})
        self.seed = seed

    def _accept(self, _: Optimizer, candidate: dict[str, Any]) -> None:
        """Check a state and take over its optimizer-wide part; torch takes over the rest."""
        try:
            self._check_state(candidate)
        except _UNFIT as error:
            raise ValueError(f"the state does not fit: {error}") from error
        try:
            self._load_global_state(_global_entries(candidate))
        except (ValueError, *_UNFIT) as error:
            raise ValueError(f"the state does not fit: {error}") from error
        self._accepted = candidate

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._accepted is not None:
            self._restore_dtypes(self._accepted)

    def _restore_dtypes(self, accepted: dict[str, Any]) -> None:
        """Make momenta what they were when saved: torch casts them to the parameter's dtype."""
        for key, (index, group, parameter) in zip(_keys(accepted), self._enumerate(), strict=True):
            if key not in accepted["state"] and self._starts_frozen:
                _log.warning("the state has none for parameter %d, which is frozen; it starts afresh", index)
                self._start_parameter(group, parameter, index)
            for name, value in accepted["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[parameter][name] = value.to(parameter.device, momentum_dtype(parameter), copy=True)

    # ---- refusing ----

    def _check_state(self, candidate: dict[str, Any]) -> None:
        groups = candidate.get("param_groups")
        if not isinstance(groups, list) or not all(isinstance(g, dict) and "params" in g for g in groups):
            raise ValueError("the state dict has no param_groups; give what an optimizer's state_dict() returned")
        if not isinstance(candidate.get("state"), dict):
            raise ValueError("the state dict has no state; give what an optimizer's state_dict() returned")
        saved = [len(group["params"]) for group in groups]
        here = [len(group["params"]) for group in self.param_groups]
        if saved != here:
            raise ValueError(
                f"the state has groups of {saved} parameters, this optimizer has {here}; build it with the parameters "
                "and groups that it had when the state was saved"
            )
        self._check_global_state(_global_entries(candidate))
        for number, (here_group, there) in enumerate(zip(self.param_groups, groups, strict=True)):
            # Not what a scheduler or torch has written beside them.
            absent = (self.defaults.keys() - {"differentiable"} | self._hidden) & here_group.keys() - there.keys()
            if absent:
                raise ValueError(
                    f"group {number} of the state lacks {sorted(absent)}; it was saved by another optimizer"
                )
            self._check_group(there)
        for key, (index, _, parameter) in zip(_keys(candidate), self._enumerate(), strict=True):
            self._check_entries(index, parameter, candidate["state"].get(key, {}))

    def _check_global_state(self, state: dict[str, Any]) -> None:
        """Refuse a state of another method, version or setting, before anything has changed."""
        name = self._method
        if not state:
            raise ValueError(
                f"the state dict is not one of {name} (torch's SGD?): it has no {STATE_PREFIX}* entries in its first group"
            )
        if type(state.get("format")) is not int or not 1 <= state["format"] <= STATE_FORMAT:
            raise ValueError(
                f"the state has format {state.get('format')}, this version of ctld reads up to {STATE_FORMAT}; update ctld"
            )
        if state.get("generator") != GENERATOR:
            raise ValueError(
                f"the state's noise comes from {state.get('generator')!r}, this version of ctld has {GENERATOR!r}: the "
                "run would not go on as it began; resume it with the version that saved it"
            )
        if state.get("method") != name:
            raise ValueError(
                f"the state is one of {state.get('method')}, this is {name}: the same names hold other "
                "quantities; load it into the optimizer that saved it"
            )
        older = {"settings"} if state["format"] == 1 else set()
        missing = (set(self._global_state()) - older) ^ (set(state) - ({"num_data"} if older else set()))
        if missing := missing - (_LATER - set(state)):
            raise ValueError(
                f"the state does not fit: {sorted(missing)} are on one side only; build the optimizer with the options "
                "that it had when the state was saved"
            )
        self._check_settings({key: state[key] for key in ("noise", "num_data") if key in state})
        if not older:
            self._check_settings(_settings_of(state["settings"]))

    def _check_settings(self, saved: dict[str, Any]) -> None:
        here = json.loads(json.dumps(self._settings()))  # as a state has them
        for name, value in saved.items():
            if name == MOVES_ON and value != here.get(name):
                warn_user(
                    f"the state's noise comes from {value}, on this device from {here.get(name)}: the run goes on with "
                    "other random numbers than it would have had. For the same numbers, resume on the device of the saved run"
                )
            elif name not in here or type(value) is not type(here[name]) or value != here[name]:
                raise ValueError(
                    f"the state was saved with {name} = {value!r}, this optimizer has {here.get(name)!r}: build it with the "
                    "same, or start a new run"
                )

    def _check_entries(self, index: int, parameter: Tensor, entries: dict[str, Any]) -> None:
        """Refuse what is not the state of this parameter."""
        expected = self.state.get(parameter, {})
        if not expected and not parameter.requires_grad:
            # Version 0.2 kept momenta of what is frozen, too.
            expected = {name: parameter if isinstance(value, Tensor) else 0 for name, value in entries.items()}
        if set(entries) != set(expected) and (entries or parameter.requires_grad):
            raise ValueError(
                f"the state of parameter {index} has {sorted(entries)}, expected {sorted(expected)}; build the "
                "optimizer with the options that it had when the state was saved"
            )
        for name, value in entries.items():
            about = f"{name} of parameter {index}"
            if isinstance(value, Tensor) != isinstance(expected[name], Tensor):
                raise ValueError(f"{about} is a {type(value).__name__} in the state; it was not saved so")
            if not isinstance(value, Tensor):
                integer(about, value, at_least=0)
                continue
            if sharded(value) != sharded(expected[name]):
                raise ValueError(
                    f"{about} is {'' if sharded(value) else 'not '}sharded in the state, unlike here; load it with "
                    "torch.distributed.checkpoint's set_state_dict (full_state_dict=True for whole tensors)"
                )
            if value.shape != expected[name].shape:
                raise ValueError(
                    f"{about} has shape {tuple(value.shape)} in the state, {tuple(expected[name].shape)} here; load the "
                    "state into the model that it was saved from"
                )
            if not value.is_floating_point() or value.is_meta or not bool(local(value).isfinite().all()):
                raise ValueError(
                    f"{about} is not a tensor of finite real numbers in the state ({value.dtype}, {value.device}); load "
                    "one that a run has saved"
                )

    # ---- copies ----

    def __getstate__(self) -> dict[str, Any]:
        own = {key: value for key, value in self.__dict__.items() if not key.startswith("_optimizer_")}
        # A bound method that a scheduler has put in place of `step` belongs to the original.
        own.pop("step", None)
        own["_known"] = {}  # addresses of the original's memory
        own["listener"] = None  # it follows the original
        return super().__getstate__() | own

    def __deepcopy__(self, memo: dict[int, Any]) -> "Resumable":
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def __repr__(self) -> str:
        """Return torch's text, without the entries that only a state dict needs."""
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


def _like(here: Any, value: Any) -> Any:
    """Return an entry of a state, where tensors are lists if it comes from a device without float64, as it is here."""
    if isinstance(here, Tensor) and isinstance(value, list):
        return torch.tensor(value, dtype=here.dtype)
    return value


def _settings_of(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the settings of the state cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the settings of the state are {text!r}; load a state that a run has saved")
    return found


def _keys(state_dict: dict[str, Any]) -> Iterator[Any]:
    return chain.from_iterable(group["params"] for group in state_dict["param_groups"])
