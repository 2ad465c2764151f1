"""A sample: a model's tensors, and what was known about them when they were kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctld.checks import integer, real

LARGEST_COUNT = 2**53
"""Bound on numbers of steps, cycles and files."""

Kind = Literal["cycle", "cold"]
Keep = Literal["newest", "best"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The thermometer at one step of exploration."""

    step: int
    """Number of steps that were done when it was read."""
    alpha: float | None
    temperature_ratio: float
    """1/g(α) of that step's noise."""
    kinetic_temperature: float
    target_temperature: float
    """T·temperature_ratio, what the kinetic temperature should be on average."""


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """Facts that are kept beside a sample. They leave no sample out: the user who averages decides."""

    kind: Kind
    """"cycle": the model at the end of a cycle, fine-tuned. "cold": a draw of the exploration at temperature ratio 1."""
    step: int
    """Number of steps that were done."""
    cycle: int
    """Cycle of the last step, from 0."""
    loss: float | None = None
    """The one that was handed over."""
    reading: Reading | None = None
    """At a cold sample's own step; for a cycle's model at the last step of the exploration that it comes from."""
    batch_norm_refreshed: bool = False
    """True if the statistics of batch norm were computed anew for this sample; else they are those of the path."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A model as it was at one step."""

    record: SampleRecord
    state: dict[str, Tensor]
    """Parameters and persistent buffers by name, on the CPU, in the model's own precision."""


def to_plain(record: SampleRecord) -> dict[str, Any]:
    return asdict(record)


def from_plain(value: Any) -> SampleRecord:
    """Return a record from what `to_plain` made, each field checked; a ValueError or TypeError says which is wrong."""
    fields = _fields("record", value, SampleRecord)
    if fields["kind"] not in ("cycle", "cold"):
        raise ValueError(f'kind = {fields["kind"]!r}; it is "cycle" or "cold"')
    if not isinstance(fields["batch_norm_refreshed"], bool):
        raise ValueError(f"batch_norm_refreshed = {fields['batch_norm_refreshed']!r} is neither true nor false")
    return SampleRecord(
        kind=fields["kind"],
        step=bounded("step", fields["step"]),
        cycle=bounded("cycle", fields["cycle"]),
        loss=_optional("loss", fields["loss"]),
        reading=reading_from_plain(fields["reading"]),
        batch_norm_refreshed=fields["batch_norm_refreshed"],
    )


def reading_from_plain(value: Any) -> Reading | None:
    if value is None:
        return None
    fields = _fields("reading", value, Reading)
    return Reading(
        step=bounded("step", fields["step"]),
        alpha=_optional("alpha", fields["alpha"]),
        temperature_ratio=real("temperature_ratio", fields["temperature_ratio"]),
        kinetic_temperature=real("kinetic_temperature", fields["kinetic_temperature"]),
        target_temperature=real("target_temperature", fields["target_temperature"]),
    )


def bounded(name: str, value: Any) -> int:
    """Return a count that a file holds, if a run can have reached it: beyond, comparisons and names of files go wrong."""
    number = integer(name, value, at_least=0)
    if number > LARGEST_COUNT:
        raise ValueError(f"{name} must be an int from 0 to {LARGEST_COUNT}, got {number}")
    return number


def _fields(name: str, value: Any, of: type) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != set(of.__slots__):  # type: ignore[attr-defined]
        raise ValueError(f"a {name} has the fields {', '.join(of.__slots__)}")  # type: ignore[attr-defined]
    return value


def _optional(name: str, value: Any) -> float | None:
    return None if value is None else real(name, value)


# ---- models ----


def bare(model: nn.Module) -> nn.Module:
    """Return the model without wrappers of DistributedDataParallel and torch.compile, whose prefixes would go into names."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if inside is None and isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inside = model.module
        if inside is None:
            return model
        model = inside


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name, tied ones once; running statistics of norms are among the buffers."""
    transient = {
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    buffers = {name: buffer for name, buffer in model.named_buffers() if name not in transient}
    return dict(model.named_parameters()) | buffers


def copied(model: nn.Module, like: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the model's tensors as they are now, on the CPU; every rank calls it, and puts sharded ones together.

    A tensor that is not trained and equals that of `like`, the sample before, is that of the sample before: it is held once.
    """
    found, like = {}, like or {}
    with torch.no_grad():
        for name, tensor in tensors_of(bare(model)).items():
            here, before = whole(tensor), None if tensor.requires_grad else like.get(name)
            same = before is not None and before.dtype == here.dtype and torch.equal(before, here.to("cpu"))
            found[name] = before if before is not None and same else here.to("cpu", copy=True)
    return found


def size_of_sample(model: nn.Module) -> int:
    """Return how many bytes each sample of a model takes, without what all of them share."""
    own = tensors_of(bare(model)).items()
    frozen = {name for name, parameter in bare(model).named_parameters() if not parameter.requires_grad}
    return sum(tensor.numel() * tensor.element_size() for name, tensor in own if name not in frozen)


@torch.no_grad()
def restore(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Put a sample's tensors into the model; where these are shards, do nothing and return False."""
    own = tensors_of(model)
    if any(hasattr(tensor, "full_tensor") for tensor in own.values()):
        return False
    for name, tensor in own.items():
        tensor.copy_(state[name])
    return True


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor without its graph; a sharded one put together, by all ranks."""
    full_tensor = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if full_tensor is None else full_tensor()
    return found.detach()


def check_fits(model: nn.Module, state: Mapping[str, Tensor], *, read: bool = False) -> None:
    """Raise an error unless `state` has the model's names and shapes, no more and no fewer.

    For one that was `read` from a file also unless numbers are of the model's kind, and those of parameters finite.
    """
    own = tensors_of(model)
    if own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys())
        raise ValueError(
            f"a sample and the model have not the same tensors: {odd[:5]}; build the model as it was sampled"
        )
    for name, tensor in own.items():
        if tensor.shape != state[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)} in the model and {tuple(state[name].shape)} in a sample; build the "
                "model as it was sampled"
            )
        if not read:
            continue
        trained = isinstance(tensor, nn.Parameter)  # a buffer may be a mask of −inf
        if tensor.is_floating_point() != state[name].is_floating_point() or (trained and not _finite(state[name])):
            raise ValueError(
                f"{name} must be finite numbers of {tensor.dtype} in a sample, got {state[name].dtype}. Restore the file, or "
                "build the model as it was sampled"
            )


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_meta and (not tensor.is_floating_point() or bool(tensor.isfinite().all()))
