"""Integrations: one module per framework, imported only by those who have it. docs/integrations has a page for each.

`watch` serves any loop: it finds the optimizer inside the wrapper that a framework has put around it; `follow` lets an ensemble
hear of the training in the same way. No framework is imported here; `ctld.integrations.lightning`, `.transformers`, `.keras`
and `.sklearn` import theirs.
"""

from typing import Any

from torch import Tensor

from ctld import Ensemble, ensembles
from ctld.integrations.following import follow
from ctld.observing import TakesLoss

__all__ = ["ensemble_of", "follow", "innermost", "unwrap", "watch"]

WRAPPED = ("optimizer", "opt")
"""Under which names wrappers keep what they wrap: Accelerate's, Lightning's and Fabric's; fastai's."""


def unwrap(optimizer: Any) -> TakesLoss:
    """Return the optimizer of this package inside a wrapper of Accelerate's, Lightning's, Fabric's or fastai's, or itself."""
    found = innermost(optimizer)
    if not isinstance(found, TakesLoss):
        raise TypeError(
            f"{type(found).__name__} is not an optimizer of ctld's; give one, or what a framework has made of it"
        )
    return found


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside the wrappers that frameworks put around it."""
    found, seen = optimizer, 0
    while (inner := _inner(found)) is not None and seen < 10:
        found, seen = inner, seen + 1
    return found


def ensemble_of(optimizer: Any) -> Ensemble | None:
    """Return the ensemble whose optimizer this is, whatever wraps it; None if it is no ensemble's."""
    return ensembles.ensemble_of(innermost(optimizer))


def watch(optimizer: Any, loss: Tensor, *, scaler: Any = None) -> Tensor:
    """Let the optimizer observe the loss when it goes into `backward`, whatever wraps the optimizer. Return the loss.

    >>> loss = ctld.integrations.watch(optimizer, loss); accelerator.backward(loss)            # doctest: +SKIP

    A GradScaler that Accelerate keeps is found; another is given as `scaler`. Where an ensemble follows the optimizer, it hears
    of the loss, too.
    """
    ensemble = ensemble_of(optimizer)
    if scaler is None and not isinstance(optimizer, TakesLoss):
        scaler = getattr(optimizer, "scaler", None)
    return unwrap(optimizer).watch(loss, scaler=scaler) if ensemble is None else ensemble.watch(loss, scaler=scaler)


def _inner(optimizer: Any) -> Any:
    found = (getattr(optimizer, name, None) for name in WRAPPED)
    return next((inner for inner in found if hasattr(inner, "param_groups")), None)
