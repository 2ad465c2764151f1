"""An `Ensemble` in a training that a framework drives: the framework steps the optimizer, the ensemble follows by itself."""

from typing import Any

from torch import Tensor

from ctld import Ensemble


def follow(ensemble: Ensemble, loss: Tensor, *, scaler: Any = None) -> Tensor:
    """Let an ensemble hear the loss of the step to come; call it before `backward`. Return the loss.

    >>> loss = ctld.integrations.follow(ensemble, loss); accelerator.backward(loss)            # doctest: +SKIP

    The framework is given `ensemble.optimizer`, and no scheduler, or `ensemble.scheduler` where it wants one. This is
    `Ensemble.watch`: all else that `Ensemble.step` does comes by itself after each step of the optimizer.

    Parameters
    ----------
    ensemble : Ensemble
    loss : Tensor
        The loss of a batch or micro-batch. One that needs no gradient, as in validation, is left alone.
    scaler : GradScaler, optional
        As in `Ensemble.watch`.
    """
    return ensemble.watch(loss, scaler=scaler)
