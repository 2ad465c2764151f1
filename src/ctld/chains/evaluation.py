"""Models in evaluation mode for a while, and what they return."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put every module into evaluation mode, and back into its own mode afterwards."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        for model in models:
            model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def checked_outputs(outputs: Any) -> Tensor:
    """Return the outputs, which must be one tensor."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"model(inputs) must be a tensor, got a {type(outputs).__name__}. Wrap the model in a module that returns the "
            "tensor that is to be kept"
        )
    return outputs
