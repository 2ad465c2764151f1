"""Parameter groups by name, so that they can be written down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def named_groups(model: nn.Module, params: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Return groups of (name, parameter), from whatever a torch optimizer takes; all of the model's, if `params` is None."""
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
    """Return groups with names in place of parameters."""
    return [{**group, "params": [name for name, _ in group["params"]]} for group in groups]


def groups_of_names(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return groups with the model's parameters in place of names."""
    own = dict(model.named_parameters())
    for group in groups:
        missing = [name for name in group["params"] if name not in own]
        if missing:
            raise ValueError(f"the model has no parameter {missing[0]!r}; build the model as it was saved")
    return [{**group, "params": [own[name] for name in group["params"]]} for group in groups]
