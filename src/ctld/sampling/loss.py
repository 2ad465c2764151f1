"""The loss of a batch, and how many examples a loader has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from typing import Any

from torch import Tensor, nn

from ctld.checks import real
from ctld.ensembles.prediction import called


def batch_loss(loss_fn: Callable[..., Tensor]) -> Callable[[nn.Module, Any], Tensor]:
    """Return loss(model, batch): loss_fn(model(inputs), targets) for pairs, loss_fn(model, batch) for other batches."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        if isinstance(batch, tuple | list) and len(batch) == 2 and not isinstance(batch[1], Mapping):
            return loss_fn(called(model, batch), batch[1])
        return loss_fn(model, batch)

    return loss


def num_data_of(loader: Any, num_data: float | None) -> float:
    """Return the number of examples: as given, or that of the loader's dataset."""
    if num_data is not None:
        return real("num_data", num_data, above=0)
    dataset = getattr(loader, "dataset", None)
    if not isinstance(dataset, Sized):
        raise ValueError("num_data must be given for a loader whose dataset has no length, got None. Give num_data=")
    return float(len(dataset))
