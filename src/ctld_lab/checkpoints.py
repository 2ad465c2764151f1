"""Nested state (dicts, lists, numbers, tensors) in one safetensors file: tensors as they are, the nesting as JSON beside them.

Loading builds dicts, lists, tuples, numbers, strings and tensors, and nothing else: a checkpoint cannot execute anything. A
checksum covers all of it, so what comes back is what was saved, or nothing. The checkpoint before is kept beside the newest.
"""

import hashlib
import json
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from ctld_lab.records import RecordError, write_bytes

FORMAT = "2"  # 1 had no checksum
LARGEST_HEADER = 2**26  # bytes


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all; the one that was there stays, as `previous(path)`.

    A kill may come between any two of these steps, and each leaves a good checkpoint under one of the two names:
    the new one is written under a third name, to the disk; then the old one gets its second name (`path` keeps it too);
    then the new one takes `path`. So `path` is never without a file, and a disk that is full changes neither.
    """
    tensors: dict[str, torch.Tensor] = {}
    nesting = json.dumps(_take_apart(state, tensors))
    metadata = {"format": FORMAT, "nesting": nesting, "checksum": _checksum(nesting, tensors)}
    write_bytes(path, _in_order(to_bytes(tensors, metadata)), keep=previous(path))


def _in_order(content: bytes) -> bytes:
    """The same file for the same state: safetensors writes the keys of its metadata in an order that changes."""
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, memoryview(content)[8 + size :]))


def previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def load_newest(path: Path) -> tuple[dict[str, Any], str] | None:
    """The newest state that is good, and a sentence if that is not the newest that was saved; None if none ever was.

    A newest one that is damaged is renamed, not removed: left where it is, the next `save_checkpoint` would put it in the
    place of the good one. Call it where no other process saves.
    """
    for unfinished in path.parent.glob(f".{path.stem}.*.unfinished"):  # a killed writer's: as large as a checkpoint
        unfinished.unlink(missing_ok=True)
    older = previous(path)
    if not os.path.lexists(older):
        return (load_checkpoint(path), "") if os.path.lexists(path) else None
    try:
        return _load(path), ""
    except _UnusableError as error:
        problem = f"{path.name} {error}"
    try:
        state = _load(older)
    except _UnusableError as error:
        raise RecordError(
            f"{path.parent}: {problem}, and {older.name} {error}; remove both, and the run starts anew"
        ) from None
    aside = path.with_name(f"{path.stem}.damaged{path.suffix}")
    with suppress(FileNotFoundError):  # it may be what is missing
        os.replace(path, aside)
        problem += f" (it is {aside.name} now)"
    return state, f"{problem}; the run went on from the one before it, {older.name}"


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote, to the bit."""
    try:
        return _load(path)
    except _UnusableError as error:
        raise RecordError(f"{path} {error}; remove it, and the run starts anew") from error


class _UnusableError(Exception):
    """A file is no checkpoint; the message goes on from the file's name."""


def _load(path: Path) -> dict[str, Any]:
    try:
        _check_sizes(path)
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise _UnusableError(f"is no checkpoint of format {FORMAT}")
            # Copied, since they are the file itself: who truncates it would kill the run, and a bad block would change it.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, it is no dict
        if metadata["checksum"] != _checksum(metadata["nesting"], tensors):
            raise _UnusableError("is damaged: its checksum is wrong")
        state = _put_together(json.loads(metadata["nesting"]), tensors)
    except FileNotFoundError:
        raise _UnusableError("is missing") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _UnusableError(f"cannot be read ({str(error)[:200]})") from error
    if not isinstance(state, dict):
        raise _UnusableError("holds no state")
    return state


def _check_sizes(path: Path) -> None:
    """Before a parser allocates what a header claims, or opens a pipe that never ends."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise _UnusableError("is no file")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if facts.st_size > memory // 2:  # to save it took the state and a copy
        raise _UnusableError(f"has {facts.st_size:,} bytes, more than half the memory of this machine")
    with path.open("rb") as file:
        start = file.read(8)
    claimed = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= claimed <= min(facts.st_size - 8, LARGEST_HEADER):
        raise _UnusableError(f"is damaged: {facts.st_size:,} bytes, and its header claims {claimed:,}")


def _checksum(nesting: str, tensors: dict[str, torch.Tensor]) -> str:
    """Digest of every name, type, shape and bit."""
    digest = hashlib.sha256(nesting.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
