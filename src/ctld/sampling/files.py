"""Files of draws: arrays without pickle, numbers as JSON, the state of a run by torch.save and read with weights_only.

Each file is written whole beside its name and then renamed: a kill leaves the old one or the new one.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ABOUT = "about"


def write(path: Path, content: bytes) -> None:
    """Write a file whole, to the disk, in place of an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as JSON."""
    write(path, json.dumps(value, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return a mapping from a JSON file."""
    try:
        found = json.loads(path.read_bytes())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON, got a damaged file ({error}). Restore it, or sample anew") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(found).__name__}. Restore it, or sample anew")
    return found


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state of tensors and numbers."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    write(path, buffer.getvalue())


def read_state(path: Path) -> dict[str, Any]:
    """Return a state of tensors and numbers; nothing in the file can execute code."""
    try:
        found = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError) as error:
        reason = (str(error).splitlines() or ["it ends too early"])[0][:200]
        raise ValueError(
            f"{path} must be a state of a run, got a damaged file ({reason}). Remove it to sample anew"
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a state of a run, got a {type(found).__name__}. Remove it to sample anew")
    return found


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Write arrays and a JSON object as one .npz file."""
    buffer = io.BytesIO()
    described: Any = {ABOUT: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    np.savez(buffer, **(dict(arrays) | described))
    write(path, buffer.getvalue())


def read_arrays(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Return what `write_arrays` wrote."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        about = json.loads(arrays.pop(ABOUT).tobytes())
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged zip raises whatever its first bad byte leads to
        raise ValueError(
            f"{path} must be a file of draws, got something else ({error}). Give what Draws.save wrote"
        ) from None
    return arrays, about
