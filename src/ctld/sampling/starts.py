"""Starts of chains: at the model, or at parameters that are drawn anew."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn


def started(models: Sequence[nn.Module], seeds: Sequence[int], *, spread: bool) -> list[nn.Module]:
    """Return a copy of each model; with `spread`, all but the first with trained parameters of their own.

    Modules that can reset their parameters do so, as torch's layers can. Other parameters are moved by normal numbers with
    the root mean square of the tensor, and 1 at least.
    """
    copies = [copy.deepcopy(model) for model in models]
    for model, seed in list(zip(copies, seeds, strict=True))[1:] if spread else ():
        torch.manual_seed(seed)
        _draw(model)
    return copies


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    resting = {name: tensor.clone() for name, tensor in model.named_parameters() if not tensor.requires_grad}
    drawn = set()
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
            drawn |= {id(parameter) for parameter in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in drawn:
            width = max(float(parameter.square().mean().sqrt()), 1.0) if parameter.numel() else 1.0
            parameter.add_(width * torch.randn_like(parameter))
    own = dict(model.named_parameters())
    for name, tensor in resting.items():
        own[name].copy_(tensor)
