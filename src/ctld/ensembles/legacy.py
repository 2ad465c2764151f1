"""Folders that version 0.2 saved an ensemble in: members and state as safetensors files, the rest in the index."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from ctld.ensembles.folder import Folder

NAME = re.compile(r"[0-9]{6,18}\.safetensors", re.ASCII)


def read(place: Path, index: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what builds the ensemble again, and its state."""
    folder, saved = Folder(place), index["ensemble"]
    state = unpack(saved["state"], folder.read_sample(folder.file(saved["file"])))
    state["collector"]["samples"] = [
        {"record": item["record"], "state": folder.read_sample(folder.file(item["file"]))} for item in index["samples"]
    ]
    return saved["rebuild"], state


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `pack` was given; a ValueError says what is none of its words."""
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
