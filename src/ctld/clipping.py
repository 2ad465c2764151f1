"""Gradients that are clipped, noticed by a norm that stays the same while the gradients change.

A clipped gradient is the force of another potential, one that is flatter where gradients are large, and a thermometer which
reads clipped gradients finds nothing amiss. `torch.nn.utils.clip_grad_norm_`, which the frameworks call by default or by an
option, leaves a mark: the norm of everything is the threshold, step after step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

LOOKS = 5
"""Norms of so many steps in a row are compared."""
FIRST_LOOK = 10
"""The step at which they are taken first; then at ten times as many, and so on, since a norm reads all gradients."""
SAME = 1e-5
"""Clipping agrees with itself to rounding, and to the 1e-6 that torch adds to the norm it divides by."""
DIFFERENT = 1e-3
"""By so much the norms of single parameters have to change in between; else the gradients themselves are the same."""


class RepeatedNorms:
    """Compares the norms of gradients over a few steps in a row, seldom enough to cost nothing."""

    def __init__(self) -> None:
        self.next_look = FIRST_LOOK
        self._norms: list[Tensor] = []

    def repeated(self, gradients: Iterable[Tensor], step: int) -> float | None:
        """The norm that has come out the same `LOOKS` times in a row, if it has; call it from step `next_look` on."""
        parts = torch.stack([norm.double().cpu() for norm in torch._foreach_norm(list(gradients))])
        if self._norms and len(self._norms[-1]) != len(parts):
            self._norms.clear()  # other parameters than before have a gradient
        self._norms.append(parts)
        if len(self._norms) < LOOKS:
            return None
        norms, self._norms, self.next_look = torch.stack(self._norms), [], 10 * max(step, FIRST_LOOK)
        totals = norms.norm(dim=1)
        mean = totals.mean()
        if not mean > 0 or (totals - mean).abs().max() > SAME * mean:
            return None
        # A single parameter's norm is the total, and says nothing of its own.
        moved = (norms[1:] - norms[:-1]).abs().amax(1) > DIFFERENT * mean
        return float(mean) if moved.all() else None


def message(norm: float) -> str:
    """What to say of it."""
    return (
        f"the norm of the gradient was {norm:.4g} in {LOOKS} steps in a row, while its parts changed: gradients are clipped to "
        "it. What is sampled then is another law, flatter where gradients are large, and thermometers cannot see that, since "
        "they read the clipped gradient. Turn clipping off (max_grad_norm=0 in transformers, gradient_clip_val=None in "
        "Lightning), or raise the threshold until it is seldom reached"
    )
