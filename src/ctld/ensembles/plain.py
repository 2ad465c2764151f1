"""A nested state as JSON and a flat dict of tensors, and back, to the bit: what safetensors can hold."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Returns `value` in words of JSON; its tensors are added to `tensors`, and named where they were."""
    if isinstance(value, Tensor):
        name = f"{len(tensors):06d}"
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[pack(key, tensors), pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        return {"tuple" if isinstance(value, tuple) else "list": [pack(item, tensors) for item in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a state holds {value!r}, which is neither a tensor, a number, a text nor a collection of these")


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Returns what `pack` was given; a ValueError says what is none of its words."""
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "tensor" and content in tensors:
            return tensors[content]
        if kind == "dict":
            return {unpack(key, tensors): unpack(item, tensors) for key, item in content}
        if kind in ("list", "tuple"):
            items = [unpack(item, tensors) for item in content]
            return tuple(items) if kind == "tuple" else items
        if kind == "float":
            return float(content)
    raise ValueError(f"{str(value)[:60]} is no part of a packed state")
