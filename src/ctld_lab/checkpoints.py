"""Nested state (dicts, lists, numbers, tensors) in one safetensors file: tensors as they are, the nesting as JSON beside them.

Loading builds dicts, lists, tuples, numbers, strings and tensors, and nothing else: a checkpoint cannot execute anything.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from ctld_lab.records import RecordError, write_bytes

FORMAT = "1"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Atomically."""
    tensors: dict[str, torch.Tensor] = {}
    nesting = json.dumps(_take_apart(state, tensors))
    write_bytes(path, to_bytes(tensors, {"format": FORMAT, "nesting": nesting}))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """What `save_checkpoint` wrote, to the bit."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise RecordError(f"{path} is no checkpoint of format {FORMAT}; remove it, and the run starts anew")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict
        state = _put_together(json.loads(metadata["nesting"]), tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RecordError(f"{path} cannot be read ({error}); remove it, and the run starts anew") from error
    if not isinstance(state, dict):
        raise RecordError(f"{path} holds no state; remove it, and the run starts anew")
    return state


def _take_apart(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON for `value`; each tensor goes to `tensors` and leaves its name. JSON floats keep every bit, also nan and inf."""
    if isinstance(value, torch.Tensor):
        name = f"{len(tensors):06d}"
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        # Pairs, since keys of an optimizer's state are integers, which JSON's objects do not have.
        return {"dict": [[key, _take_apart(item, tensors)] for key, item in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_take_apart(item, tensors) for item in value]}
    if isinstance(value, list):
        return [_take_apart(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a {type(value).__name__} cannot be stored in a checkpoint; use tensors, numbers, strings, lists, dicts"
    )


def _put_together(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_together(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_put_together(item, tensors) for item in content)
    if kind == "dict":
        return {key: _put_together(item, tensors) for key, item in content}
    raise ValueError(f"unknown mark {kind!r}")
