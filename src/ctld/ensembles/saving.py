"""An `Ensemble` in a folder: its members as a `SampleCollector` keeps them, and beside them what the run goes on from."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from ctld.ensembles.folder import INDEX, Folder
from ctld.ensembles.plain import pack, unpack
from ctld.ensembles.progress import rank
from ctld.ensembles.samples import bare, to_plain

if TYPE_CHECKING:
    from ctld.ensembles.ensemble import Ensemble


def save(ensemble: Ensemble, folder: str | os.PathLike[str]) -> None:
    """Writes members and state, then the index that names them: a kill leaves the old save or the new one."""
    state = ensemble.state_dict()
    if rank() != 0:
        return
    place = Folder(folder)
    place.create(overwrite=True)
    serial = 0
    if (place.path / INDEX).exists():
        index = place.read_index()
        if "ensemble" not in index:
            raise FileExistsError(f"{place.path} has samples of a SampleCollector: give a folder of its own")
        serial = int(index["serial"])
    del state["collector"]["samples"]  # they have files of their own
    written = []
    for sample in ensemble.collector:
        serial += 1
        written.append((sample.record, place.write_sample(serial, sample.state)))
    tensors: dict[str, Any] = {}
    packed = pack(state, tensors)
    rest = place.write_sample(serial + 1, tensors)
    collector = ensemble.collector
    index = {
        "at_most": collector.at_most,
        "cold_every": None,
        "keep": collector.keep,
        "dropped": collector.dropped,
        "serial": serial + 1,
        "reading": state["collector"]["reading"],
        "samples": [{"record": to_plain(record), "file": asdict(file)} for record, file in written],
        "ensemble": {"rebuild": ensemble.rebuild, "state": packed, "file": asdict(rest)},
    }
    place.write_index(index, [rest.name, *(file.name for _, file in written)])


def load(kind: type[Ensemble], folder: str | os.PathLike[str], model: nn.Module, changed: dict[str, Any]) -> Ensemble:
    """Builds the ensemble as it was, and gives it its state."""
    place = Folder(folder)
    index = place.read_index()
    if not isinstance(index.get("ensemble"), dict):
        raise ValueError(f"{place.path} has samples and no Ensemble: SampleCollector.open reads them")
    try:
        saved = index["ensemble"]
        state = unpack(saved["state"], place.read_sample(place.file(saved["file"])))
        state["collector"]["samples"] = [
            {"record": item["record"], "state": place.read_sample(place.file(item["file"]))}
            for item in index["samples"]
        ]
        options = dict(saved["rebuild"])
        options["params"] = groups_of_names(bare(model), options["params"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{place.path / INDEX} is damaged or foreign: {error!r}") from None
    if options["tempering"] is None and "tempering" not in changed:
        raise ValueError(
            "the ensemble was made with a tempering of its own, which is no name; give load(tempering=...)"
        )
    ensemble = kind(model, **(options | changed))
    ensemble.load_state_dict(state)
    return ensemble


# ---- parameter groups by name, so that they can be written down ----


def named_groups(model: nn.Module, params: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Returns groups of (name, parameter), from whatever a torch optimizer takes; all of the model's, if `params` is None."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}, not a torch.nn.Module: give the model itself; which of its parameters are "
            "trained, and how, goes into params="
        )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = list(model.parameters() if params is None else params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    found = []
    for group in groups:
        members = group["params"]
        parameters = [members] if isinstance(members, nn.Parameter) else list(members)
        parameters = [item[1] if isinstance(item, tuple) else item for item in parameters]
        foreign = [tuple(p.shape) for p in parameters if id(p) not in names]
        if foreign:
            raise ValueError(
                f"params has a parameter of shape {foreign[0]} that is not the model's: the ensemble would not keep it; train "
                "it by an optimizer of its own, or make it part of the model"
            )
        found.append({**group, "params": [(names[id(p)], p) for p in parameters]})
    return found


def names_of_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns groups with names in place of parameters."""
    return [{**group, "params": [name for name, _ in group["params"]]} for group in groups]


def groups_of_names(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns groups with the model's parameters in place of names."""
    own = dict(model.named_parameters())
    for group in groups:
        missing = [name for name in group["params"] if name not in own]
        if missing:
            raise ValueError(f"the model has no parameter {missing[0]!r}; build the model as it was saved")
    return [{**group, "params": [own[name] for name in group["params"]]} for group in groups]
