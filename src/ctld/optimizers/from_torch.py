"""torch's own SGD, RMSprop, Adam and Adadelta, accepting and ignoring `loss=`: one line is all that changes in a loop."""

from collections.abc import Callable
from typing import Any

import torch


class _AcceptsLoss:
    """Put before an optimizer of torch's."""

    def step(self, closure: Callable[[], Any] | None = None, *, loss: Any = None) -> Any:
        """torch's step; returns the closure's value, or `loss`."""
        parent: Any = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("torch.optim"))
        plain = parent.step
        if getattr(plain, "hooked", False):
            # torch has wrapped the parent's step to run the hooks; it has wrapped this one too, and once is enough.
            plain = plain.__wrapped__
        result = plain(self, closure)
        return loss if result is None else result

    def observe(self, loss: Any) -> None:
        """Ignored, as `loss=` is."""


class SGD(_AcceptsLoss, torch.optim.SGD):
    """`torch.optim.SGD`; momentum 0.9 by default in `ctld.create`, as SGD-M in the paper."""


class RMSprop(_AcceptsLoss, torch.optim.RMSprop):
    """`torch.optim.RMSprop`."""


class Adam(_AcceptsLoss, torch.optim.Adam):
    """`torch.optim.Adam`."""


class Adadelta(_AcceptsLoss, torch.optim.Adadelta):
    """`torch.optim.Adadelta`."""
