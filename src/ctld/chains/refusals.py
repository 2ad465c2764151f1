"""Refusals, with reasons: optimizers that do not fit, batches of another shape, models that `torch.func.vmap` cannot take."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ctld.checks import warn_user


def check_optimizers(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """Refuse optimizers unless each model has one, of its own parameters; warn if two have the same noise."""
    if not models or len(models) != len(optimizers):
        raise ValueError(f"there are {len(models)} models and {len(optimizers)} optimizers; give one for each chain")
    for chain, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        own = set(model.parameters())
        if not all(parameter in own for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError(
                f"optimizer {chain} has parameters that are not of model {chain}; build it from its own model"
            )
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"{type(optimizer).__name__} evaluates the loss as often as it likes: it cannot step with others; run it "
                "by itself"
            )
    noisy = [optimizer for optimizer in optimizers if "seed" in inspect.signature(type(optimizer)).parameters]
    seeds = [getattr(optimizer, "seed", None) for optimizer in noisy]
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        warn_user(f"several chains have seed {twice}, hence the same noise, and are not independent. Give each its own")


def check_modes(models: list[nn.Module]) -> None:
    mode = models[0].training
    odd = next((chain for chain, model in enumerate(models) if model.training != mode), None)
    if odd is not None:
        raise ValueError(
            f"chain {odd} is in {'eval' if mode else 'training'} mode, chain 0 is not, and one pass serves all; call "
            "train() or eval() on every model"
        )


def check_batch(batch: tuple[Any, ...], num_chains: int) -> None:
    """Refuse a batch that is not shared unless it has an entry for each chain."""
    for tensor in tree_leaves(batch):
        if isinstance(tensor, Tensor) and (tensor.ndim == 0 or len(tensor) != num_chains):
            raise ValueError(
                f"with shared=False, a tensor of shape {tuple(tensor.shape)} should have {num_chains} entries in its first "
                "dimension, one for each chain"
            )


def failing_module(model: nn.Module, run: Callable[[], Any]) -> str:
    """Return the innermost module in which `run` fails."""
    entered: list[str] = []
    handles = []
    for name, module in model.named_modules():
        label = f"{name or 'the model'} ({type(module).__name__})"
        handles.append(module.register_forward_pre_hook(lambda *_, label=label: entered.append(label)))
        handles.append(module.register_forward_hook(lambda *_: entered.pop() and None))
    try:
        run()
    except Exception:
        return entered[-1] if entered else "the loss"
    finally:
        for handle in handles:
            handle.remove()
    return "the loss"


def refusal(place: str, error: Exception) -> NotImplementedError:
    """Return the reason and what to do, in place of torch's words where these are known."""
    text = str(error)
    missing = re.search(r"(?:[Bb]atching rule not implemented for|we do not yet support) (aten::\w+(?:\.\w+)?)", text)
    if missing:
        reason = f"torch.func.vmap has no rule for {missing[1]}"
        remedy = "write it with operations that have one (for an LSTM: a cell by hand, of nn.Linear)"
    elif "data-dependent control flow" in text or ".item()" in text:
        reason = "it reads a number from a tensor (if, float, .item()) of which each chain has its own"
        remedy = "leave it in tensors (torch.where)"
    elif "vmap: inplace" in text or "doesn't match the broadcast shape" in text:
        reason = "it writes into a tensor of which there is one for all chains"
        remedy = "make that a buffer (register_buffer)"
    else:
        reason = (
            text.strip().partition("\n")[0].rstrip(".") or f"it raises {type(error).__name__} under torch.func.vmap"
        )
        remedy = "write it otherwise"
    return NotImplementedError(
        f"{place} cannot be run for all chains in one pass: {reason}. Either {remedy}, or run the chains one by one"
    )
