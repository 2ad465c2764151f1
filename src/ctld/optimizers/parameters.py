"""Which parameters can be trained: real ones, each element in one place only."""

from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ctld.sharding import local


def check_parameters(groups: list[dict[str, Any]]) -> None:
    """Refuses integer, complex and repeated parameters, those that share memory, and those that have none."""
    parameters: list[Tensor] = list(chain.from_iterable(group["params"] for group in groups))
    for parameter in parameters:
        if parameter.is_meta:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is on the meta device and has no values; materialize the "
                "model (model.to_empty, then initialize it) before building the optimizer"
            )
        if not parameter.is_floating_point():
            raise ValueError(
                f"a parameter has dtype {parameter.dtype}; only real floating-point parameters can be trained: leave it "
                "out, or give torch.view_as_real of a complex one"
            )
    twice = len(parameters) - len(set(parameters))
    if twice:
        raise ValueError(f"{twice} parameters are given more than once, and would get noise as often; give each once")
    # Two views of one memory would each get noise, and the sum would have neither's temperature.
    by_storage: dict[int, list[Tensor]] = {}
    for parameter in map(local, parameters):
        if parameter.numel() and parameter.layout == torch.strided:
            by_storage.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
    for address, views in by_storage.items():
        if address and _overlap(views):
            shapes = ", ".join(str(tuple(view.shape)) for view in views)
            raise ValueError(
                f"parameters of shape {shapes} overlap in memory; give the tensor that owns it once, or parameters of "
                "their own"
            )


def _overlap(views: list[Tensor]) -> bool:
    """Whether two elements of these views of one storage lie in one place; element by element only if need be."""
    spans = sorted(_span(view) for view in views)
    apart = all(end <= start for (_, end), (start, _) in pairwise(spans))
    if apart and all(_nested(view) for view in views):
        return False
    places = [_places(view) for view in views]
    return len(np.unique(np.concatenate(places))) < sum(map(len, places))


def _span(view: Tensor) -> tuple[int, int]:
    """First byte and the byte behind the last, counted from the start of the storage."""
    last: int = sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    start = int(view.storage_offset())
    return start * view.element_size(), (start + last + 1) * view.element_size()


def _nested(view: Tensor) -> bool:
    """Whether each dimension steps over all that the finer ones reach: then no two elements coincide."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(view.shape, view.stride(), strict=True) if size > 1
    ):
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _places(view: Tensor) -> NDArray[np.int64]:
    """Byte positions of the view's elements."""
    places = np.zeros(1, dtype=np.int64)
    for size, stride in zip(view.shape, view.stride(), strict=True):
        places = np.add.outer(places, np.arange(size) * stride).reshape(-1)
    return (places + int(view.storage_offset())) * view.element_size()
