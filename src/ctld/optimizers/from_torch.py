"""torch's own SGD, RMSprop, Adam and Adadelta, accepting and ignoring the loss: one line is all that changes in a loop."""

from typing import Any

import torch

from ctld.observing import Closure, Loss, TakesLoss, told_apart


class _IgnoresLoss(TakesLoss):
    """Put before an optimizer of torch's."""

    def step(  # type: ignore[override]
        self, closure: Closure | Loss | None = None, *, loss: Loss | None = None
    ) -> Loss | None:
        """Take torch's step; return the closure's value, or the loss."""
        closure, loss = told_apart(closure, loss)
        parent: Any = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("torch.optim"))
        plain = parent.step
        if getattr(plain, "hooked", False):
            # torch has wrapped the parent's step to run the hooks; it has wrapped this one too, and once is enough.
            plain = plain.__wrapped__
        result: Loss | None = plain(self, closure)
        return loss if result is None else result


class SGD(_IgnoresLoss, torch.optim.SGD):
    """`torch.optim.SGD`; momentum 0.9 by default in `ctld.create`, as SGD-M in the paper."""


class RMSprop(_IgnoresLoss, torch.optim.RMSprop):
    """`torch.optim.RMSprop`."""


class Adam(_IgnoresLoss, torch.optim.Adam):
    """`torch.optim.Adam`."""


class Adadelta(_IgnoresLoss, torch.optim.Adadelta):
    """`torch.optim.Adadelta`."""
