"""One pass of all chains as one compiled function, for small models whose time goes to Python."""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

Tensors = dict[str, Tensor]
_RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def can_compile(model: nn.Module) -> bool:
    """True if there is a compiler, and the model draws no random numbers, which compiled code would draw otherwise."""
    compiler = os.environ.get("CXX") or "g++"
    return shutil.which(compiler) is not None and not any(isinstance(module, _RANDOM) for module in model.modules())


class CompiledPass:
    """Gradients, losses and buffers of all chains by `torch.compile(vmap(grad_and_value(...)))`, compiled once a shape."""

    def __init__(self, program: nn.Module) -> None:
        self._program = program
        self._made: dict[bool, Callable[..., Any]] = {}

    def __call__(
        self, trained: Tensors, resting: Tensors, buffers: Tensors, batch: tuple[Any, ...], *, shared: bool
    ) -> tuple[Tensors, Tensor, list[Tensor]]:
        """Return the gradients by name, the losses, and the buffers after the pass."""
        if shared not in self._made:
            self._made[shared] = self._compile(shared)
        gradients, (losses, after) = self._made[shared](trained, resting, buffers, batch)
        return gradients, losses, after

    def _compile(self, shared: bool) -> Callable[..., Any]:
        program = self._program

        def one(
            trained: Tensors, resting: Tensors, buffers: Tensors, batch: tuple[Any, ...]
        ) -> tuple[Tensor, list[Tensor]]:
            everything = resting | trained | buffers
            loss = functional_call(program, everything, batch)
            return loss.reshape(()), [everything[name] for name in buffers]

        together = vmap(grad_and_value(one, has_aux=True), in_dims=(0, 0, 0, None if shared else 0))
        compiled: Callable[..., Any] = torch.compile(together, dynamic=False)
        return compiled
