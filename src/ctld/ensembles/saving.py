"""Saving of an `Ensemble`: one file of all tensors by `torch.save`, and an index with its checksum and what builds it again."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ctld.ensembles import legacy
from ctld.ensembles.folder import INDEX, read_bounded, read_index, write_whole
from ctld.ensembles.groups import groups_of_names
from ctld.ensembles.progress import rank
from ctld.ensembles.samples import bare

if TYPE_CHECKING:
    from ctld.ensembles.ensemble import Ensemble

FORMAT = 2  # 1, of version 0.2, was a collector's folder with the state beside it
NAME = re.compile(r"ensemble-[0-9a-f]{16}\.pt", re.ASCII)
CHANGEABLE = ("lr", "momentum", "weight_decay", "temperature", "members", "keep", "guard", "task", "class_dim", "head")
"""Options that may change after loading; all others stay as they were when the state was reached."""
OF_CTLD = ("lr", "momentum", "weight_decay", "temperature")
HANDED_AGAIN = ("tempering", "process_group", "optimizer", "members_on")
"""Options that cannot be written down."""


def save(ensemble: Ensemble, folder: str | os.PathLike[str]) -> None:
    """Write the state, then the index that names it: a kill leaves the old save or the new one."""
    state = ensemble.state_dict()
    if rank() != 0:
        return
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if (place / INDEX).exists():
        if "ensemble" not in read_index(place):
            raise FileExistsError(f"{place} has samples of a SampleCollector: give a folder of its own")
    elif any(not entry.name.endswith(".unfinished") for entry in place.iterdir()):
        raise FileExistsError(f"{place} is not empty and has no {INDEX}: give a folder of its own")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getbuffer()
    checksum = hashlib.sha256(content).hexdigest()
    name = f"ensemble-{checksum[:16]}.pt"
    write_whole(place, name, content)
    file = {"name": name, "bytes": len(content), "sha256": checksum}
    index = {"format": FORMAT, "ensemble": {"rebuild": ensemble.rebuild, "file": file}}
    write_whole(place, INDEX, json.dumps(index, indent=1, allow_nan=False).encode())
    for entry in place.iterdir():
        if entry.name != name and (NAME.fullmatch(entry.name) or legacy.NAME.fullmatch(entry.name)):
            entry.unlink(missing_ok=True)


def read(folder: str | os.PathLike[str], model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what builds the ensemble again, and its state; nothing in the folder can run code."""
    place = Path(folder)
    index = read_index(place)
    if not isinstance(index.get("ensemble"), dict):
        raise ValueError(f"{place} has samples and no Ensemble: SampleCollector.open reads them")
    try:
        if index["format"] == 1:
            rebuild, state = legacy.read(place, index)
        else:
            rebuild, state = index["ensemble"]["rebuild"], _read_state(place, index["ensemble"]["file"])
        options = dict(rebuild)
        options["params"] = groups_of_names(bare(model), options["params"])
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{place / INDEX} is damaged or foreign: {error!r}") from None
    return options, state


def refuse_changes(changed: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise an error for what cannot be another within a run."""
    for name, value in changed.items():
        if name not in CHANGEABLE or ("around" in options and name in OF_CTLD):
            raise ValueError(
                f"{name} must be what it was, {options.get(name)!r}, got {value!r}. Leave it out, or begin another Ensemble"
            )


def refuse_missing(options: dict[str, Any], again: dict[str, Any]) -> None:
    """Raise an error for what has to be given again and is not."""
    if options.get("tempering", "constant") is None and "tempering" not in again:
        raise ValueError(
            "the ensemble was made with a tempering of its own, which is no name; give load(tempering=...)"
        )
    if "around" in options and "optimizer" not in again:
        raise ValueError(f"the ensemble is around {options['around']}, which is not saved; give load(optimizer=...)")
    if "around" not in options and "optimizer" in again:
        raise ValueError("optimizer must be left out: the ensemble has one of its own, which is saved")


def check_model(model: nn.Module, state: Any) -> None:
    """Raise an error unless a state is that of the model: torch would copy what fits before it says so."""
    own = model.state_dict()
    if not isinstance(state, dict) or own.keys() != state.keys():
        odd = sorted(own.keys() ^ state.keys()) if isinstance(state, dict) else state
        raise ValueError(
            f"the state and the model have not the same tensors: {odd!r:.200}; build the model as it was saved"
        )
    for name, tensor in own.items():
        theirs = state[name]
        if isinstance(tensor, Tensor) and (not isinstance(theirs, Tensor) or theirs.shape != tensor.shape):
            shape = tuple(theirs.shape) if isinstance(theirs, Tensor) else theirs
            raise ValueError(
                f"{name} must have shape {tuple(tensor.shape)}, got {shape!r:.60}; build the model as it was saved"
            )


def _read_state(place: Path, file: dict[str, Any]) -> dict[str, Any]:
    name = file["name"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an ensemble's file")
    content = read_bounded(place / name, size=file["bytes"])
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(
            f"{place / name} is damaged or another file: its checksum is not the one in {INDEX}; restore it"
        )
    try:
        state = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except (UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place / name} is no state of an ensemble ({error})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{place / name} is no state of an ensemble, but a {type(state).__name__}")
    return state
