"""Tensors that the kernels of CPUs cannot read where they lie: copies in row-major order go in their place.

So parameters in channels_last or any other order of strides, and float16, take the kernels too. The copies are row-major. So
the noise of an element is found by its logical index, and trajectories do not depend on the layout. float16 is computed in
float32 and rounded once a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ctld.sharding import local
from ctld.stepping import native

STORED = native.TYPES | {torch.float16: native.TYPES[torch.float32]}
"""dtypes of parameters that the kernels take, where float16 is copied to float32."""


def in_place(*tensors: Tensor | None) -> bool:
    """Return whether the kernels can read tensors where they lie."""
    return all(
        tensor is None
        or (
            tensor.is_contiguous()
            and tensor.dtype is not torch.float16
            and not tensor.is_neg()
            and (tensor.data_ptr() != 0 or not tensor.numel())  # torch has tensors of zeros that are nowhere in memory
        )
        for tensor in tensors
    )


class Staged:
    """A parameter with its gradient and buffers, of which the kernels have copies.

    Parameters
    ----------
    owner : Tensor
        The parameter.
    entries : mapping
        Its state.
    buffers : sequence of str
        Names of what the kernels need of the state.
    row : structure
        The row of the kernels' table, which gets the addresses of the copies.
    """

    def __init__(self, owner: Tensor, entries: Mapping[str, Any], buffers: Sequence[str], row: Any) -> None:
        self._owner, self._entries, self._row = owner, entries, row
        here, gradient = local(owner), local(owner.grad)
        kept = {"parameter": here, "gradient": gradient} | {name: local(entries[name]) for name in buffers}
        self._copies: dict[str, Tensor] = {}
        for name, tensor in kept.items():
            if not in_place(tensor):
                dtype = torch.float32 if tensor.dtype is torch.float16 else tensor.dtype
                self._copies[name] = torch.empty(tensor.shape, dtype=dtype)
        self.point()

    def point(self) -> None:
        """Write the addresses of the copies into the row."""
        for name, copy in self._copies.items():
            setattr(self._row, "momentum" if name == "momentum_buffer" else name, copy.data_ptr())

    def _there(self, name: str) -> Tensor:
        found = self._owner if name == "parameter" else self._owner.grad if name == "gradient" else self._entries[name]
        tensor: Tensor = local(found)
        return tensor

    @torch.no_grad()
    def fetch(self) -> None:
        """Copy everything as it is now."""
        for name, copy in self._copies.items():
            _copy(copy, self._there(name))

    @torch.no_grad()
    def give_back(self) -> None:
        """Copy back what the kernels write to: all but the gradient."""
        for name, copy in self._copies.items():
            if name != "gradient":
                _copy(self._there(name), copy)


def _copy(to: Tensor, source: Tensor) -> None:
    """Copy between orders of strides. numpy takes a third of torch's time for it."""
    same = to.dtype is source.dtype and to.dtype in (torch.float32, torch.float64)
    if same and source.data_ptr() and not source.is_neg():
        np.copyto(to.detach().numpy(), source.detach().numpy())
    else:
        to.copy_(source)
