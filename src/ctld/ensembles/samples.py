"""A sample: a model's tensors, and what was known about them when they were kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ctld.checks import integer, real

Kind = Literal["cycle", "cold"]
Keep = Literal["newest", "best"]


@dataclass(frozen=True, slots=True)
class Reading:
    """The thermometer at one step of exploration."""

    step: int
    """How many steps were done when it was read."""
    alpha: float | None
    temperature_ratio: float
    """1/g(α) of that step's noise."""
    kinetic_temperature: float
    target_temperature: float
    """T·temperature_ratio, what the kinetic temperature should be on average."""


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """What is kept beside a sample. Nothing is left out because of it: whoever averages decides."""

    kind: Kind
    """"cycle": the model at the end of a cycle, fine-tuned. "cold": a draw of the exploration at temperature ratio 1."""
    step: int
    """How many steps were done."""
    cycle: int
    """Of the last step, from 0."""
    loss: float | None = None
    """The one that was handed over."""
    reading: Reading | None = None
    """At a cold sample's own step; for a cycle's model at the last step of the exploration that it comes from."""
    batch_norm_refreshed: bool = False
    """Whether the statistics of batch norm were computed anew for this sample; else they are those of the path."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A model as it was at one step."""

    record: SampleRecord
    state: dict[str, Tensor]
    """Parameters and persistent buffers by name, on the CPU, in the model's own precision."""


def to_plain(record: SampleRecord) -> dict[str, Any]:
    return asdict(record)


def from_plain(value: Any) -> SampleRecord:
    """What `to_plain` made, each field checked; a ValueError or TypeError says which is wrong."""
    fields = _fields("record", value, SampleRecord)
    if fields["kind"] not in ("cycle", "cold"):
        raise ValueError(f'kind = {fields["kind"]!r}; it is "cycle" or "cold"')
    if not isinstance(fields["batch_norm_refreshed"], bool):
        raise ValueError(f"batch_norm_refreshed = {fields['batch_norm_refreshed']!r} is neither true nor false")
    return SampleRecord(
        kind=fields["kind"],
        step=integer("step", fields["step"], at_least=0),
        cycle=integer("cycle", fields["cycle"], at_least=0),
        loss=_optional("loss", fields["loss"]),
        reading=reading_from_plain(fields["reading"]),
        batch_norm_refreshed=fields["batch_norm_refreshed"],
    )


def reading_from_plain(value: Any) -> Reading | None:
    if value is None:
        return None
    fields = _fields("reading", value, Reading)
    return Reading(
        step=integer("step", fields["step"], at_least=0),
        alpha=_optional("alpha", fields["alpha"]),
        temperature_ratio=real("temperature_ratio", fields["temperature_ratio"]),
        kinetic_temperature=real("kinetic_temperature", fields["kinetic_temperature"]),
        target_temperature=real("target_temperature", fields["target_temperature"]),
    )


def _fields(name: str, value: Any, of: type) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != set(of.__slots__):  # type: ignore[attr-defined]
        raise ValueError(f"a {name} has the fields {', '.join(of.__slots__)}")  # type: ignore[attr-defined]
    return value


def _optional(name: str, value: Any) -> float | None:
    return None if value is None else real(name, value)


# ---- models ----


def bare(model: nn.Module) -> nn.Module:
    """Without the wrappers of DistributedDataParallel and torch.compile, whose prefixes would go into the names."""
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


def copied(model: nn.Module) -> dict[str, Tensor]:
    """As they are now, on the CPU. Every rank calls it: a sharded tensor is put together by all of them."""
    with torch.no_grad():
        return {name: whole(tensor).to("cpu", copy=True) for name, tensor in tensors_of(bare(model)).items()}


@torch.no_grad()
def restore(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    """Puts a sample's tensors into the model; where these are shards it does nothing, and returns False."""
    own = tensors_of(model)
    if any(hasattr(tensor, "full_tensor") for tensor in own.values()):
        return False
    for name, tensor in own.items():
        tensor.copy_(state[name])
    return True


def whole(tensor: Tensor) -> Tensor:
    """Returns a tensor without its graph; a sharded one put together, by all ranks."""
    full_tensor = getattr(tensor, "full_tensor", None)
    found: Tensor = tensor if full_tensor is None else full_tensor()
    return found.detach()


def check_fits(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Whether `state` has the model's names and shapes, no more and no fewer."""
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
