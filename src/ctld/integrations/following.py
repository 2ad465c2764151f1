"""An `Ensemble` in a training that a framework drives: the framework steps the optimizer, the rest follows."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ctld import Ensemble
from ctld.checks import warn_user


def follow(ensemble: Ensemble, loss: Tensor, *, scaler: Any = None) -> Tensor:
    """Let an ensemble follow the step that this loss leads to; call it before `backward`. Returns the loss.

    >>> loss = ctld.integrations.follow(ensemble, loss); accelerator.backward(loss)            # doctest: +SKIP

    The framework is given `ensemble.optimizer`, and no scheduler, or `ensemble.scheduler` where it wants one. What else
    `Ensemble.step` does comes by itself after each step of the optimizer: lr follows the cycle, members are kept, the
    temperature is adapted, a collapse is noticed. Steps beyond `total_steps` leave the members alone.

    Parameters
    ----------
    ensemble : Ensemble
    loss : Tensor
        The loss of a batch or micro-batch. One that needs no gradient, as in validation, is left alone.
    scaler : GradScaler, optional
        As in `optimizer.watch`.
    """
    follower = _followers.get(ensemble)
    if follower is None:
        follower = _followers[ensemble] = _Follower(ensemble)
    if loss.requires_grad:
        follower.hear(loss, ensemble, scaler)
    return ensemble.optimizer.watch(loss, scaler=scaler)


class _Follower:
    """Gathers the losses of a step's micro-batches, and hands their sum to the ensemble after the step."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._parts: list[Tensor] = []
        self._warned = False
        ensemble.optimizer.register_step_post_hook(lambda *_: self._after_step(ensemble))

    def hear(self, loss: Tensor, ensemble: Ensemble, scaler: Any) -> None:
        value = loss.detach().clone()  # some loops divide the loss in place

        def entered_backward(factor: Tensor) -> None:
            groups = ensemble.optimizer.param_groups
            if all(parameter.grad is None for group in groups for parameter in group["params"]):
                self._parts.clear()  # of a step that a scaler has skipped
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            self._parts.append(((value.double() if value.is_cpu else value) * factor.detach() / scale).sum())

        loss.register_hook(entered_backward)  # type: ignore[no-untyped-call]

    def _after_step(self, ensemble: Ensemble) -> None:
        parts, self._parts = self._parts, []
        ensemble.scheduler.step()  # goes by the optimizer's steps: it may be stepped by the framework as well
        if ensemble.steps > ensemble.cycles * ensemble.cycle_steps:
            if not self._warned:
                warn_user(
                    f"training goes on after the ensemble's {ensemble.total_steps} steps, and its members stay as they are: "
                    "give Ensemble as total_steps how many steps of the optimizer there are"
                )
            self._warned = True
        elif parts:
            ensemble.after_step(torch.stack(parts).sum())


_followers: "WeakKeyDictionary[Ensemble, _Follower]" = WeakKeyDictionary()
