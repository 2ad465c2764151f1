"""Check of parameters: those that can be trained are real, have values, and are given once each."""

from itertools import chain
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ctld.sharding import sharded


def check_parameters(groups: list[dict[str, Any]]) -> None:
    """Refuse integer, complex and repeated parameters, and those on the meta device."""
    parameters: list[Tensor] = list(chain.from_iterable(group["params"] for group in groups))
    for parameter in parameters:
        if parameter.is_meta:
            raise ValueError(
                f"a parameter of shape {tuple(parameter.shape)} is on the meta device and has no values; materialize the "
                "model (model.to_empty, then initialize it) before building the optimizer"
            )
        wraps: Any = is_traceable_wrapper_subclass  # whose type says that there is no such tensor
        if wraps(parameter) and not sharded(parameter):
            raise ValueError(
                f"a parameter must be a plain tensor, got a {type(parameter).__name__}, which keeps its numbers in other "
                "tensors. Train the plain model, and quantize it afterwards"
            )
        if not parameter.is_floating_point():
            raise ValueError(
                f"a parameter has dtype {parameter.dtype}; only real floating-point parameters can be trained: leave it "
                "out, or give torch.view_as_real of a complex one"
            )
    twice = len(parameters) - len(set(parameters))
    if twice:
        raise ValueError(f"{twice} parameters are given more than once, and would get noise as often; give each once")
