"""Chains that take their passes together where the model allows it, and one after the other where it does not."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ctld.chains import Chains, SeparateChains
from ctld.sampling.batches import Batches

_log = logging.getLogger("ctld")

MANY_STEPS = 100_000
"""Steps from which compiling is worth its while: some 0.4 ms are saved in each, and half a minute goes before the first."""


def chains_of(
    models: Sequence[nn.Module],
    optimizers: Sequence[torch.optim.Optimizer],
    loss: Callable[..., Tensor],
    batches: Batches,
    *,
    compile: bool = False,
) -> Chains:
    """Return `Chains` if two copies of the model pass one batch together, else `SeparateChains`."""
    if len(models) > 1 and not any(map(_has_hooks, models[0].modules())):
        trial = [copy.deepcopy(model) for model in models[:2]]
        resting = [torch.optim.SGD(model.parameters(), lr=0.0) for model in trial]
        epoch, place = batches.epoch, batches.place
        batch = batches.next()
        batches.seek(epoch, place)
        if not batches.shared:
            batch = tree_map_only(Tensor, lambda tensor: tensor[:2], batch)
        try:
            Chains(trial, resting, loss).backward(batch, shared=batches.shared)
        except NotImplementedError as error:
            _log.info("%s: the chains take their passes one after the other", error)
        else:
            return Chains(models, optimizers, loss, compile=compile)
    return SeparateChains(models, optimizers, loss)


def worth_compiling(wanted: bool | str, num_steps: int) -> bool:
    """True if passes are to be compiled: as wanted, or by "auto" where the steps outweigh the time to compile."""
    if wanted == "auto":
        return num_steps >= MANY_STEPS
    if not isinstance(wanted, bool):
        raise ValueError(f'compile must be True, False or "auto", got {wanted!r}. Give one of them')
    return wanted


def _has_hooks(module: nn.Module) -> bool:
    """True if the module calls functions of the user's in a pass, which are to be called once for each chain."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name, None) for name in names)
