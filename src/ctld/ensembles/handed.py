"""Checks of a loss that was handed over: whether the gradients belong to it, and gathering it where nobody hands it over."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ctld.checks import warn_user

_FIRST_STEPS = 3  # in which a loop shows what it does in every step
_PARTS = ("DivBackward", "MulBackward")


class FirstSteps:
    """Looks at the first steps of a loop for what would go wrong in all of them, silently.

    A loss that a GradScaler has scaled before `backward` has gradients as many times too large. The loss of the last of several
    micro-batches is a part of the loss of the step.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        self._left = _FIRST_STEPS
        self._passes = 0
        self._handle: Any = None
        watched = next((p for p in parameters if p.requires_grad and p.is_leaf), None)
        if watched is not None:
            self._handle = watched.register_post_accumulate_grad_hook(self._count)  # type: ignore[no-untyped-call]

    def _count(self, parameter: Tensor) -> None:
        self._passes += 1

    @property
    def over(self) -> bool:
        """True if there is nothing more to look at."""
        return self._left == 0

    def look(self, loss: Any, optimizer: Optimizer, *, scaled: bool) -> None:
        """Look at a step that is about to be taken with this loss."""
        self._left -= 1
        passes, self._passes = self._passes, 0
        if self._left == 0:
            self.end()
        node = loss.grad_fn if isinstance(loss, Tensor) else None
        if passes > 1 and node is not None and _is_part(node):
            self.end()
            warn_user(
                f"the gradients of {passes} backward passes are in this step, and its loss is one part of theirs: the "
                "losses of the run are recorded too small. Give the sum of the parts, or ensemble.watch(loss) before each "
                "backward and ensemble.step() without a loss"
            )
        if not scaled and self._left == _FIRST_STEPS - 1:
            scale = scale_in_use(optimizer)
            if scale is not None and scale != 1:
                self.end()
                warn_user(
                    f"a GradScaler multiplies losses by {scale:g} and has not unscaled these gradients: steps are too "
                    "large by that factor. Give ensemble.step(loss, scaler=scaler)"
                )

    def end(self) -> None:
        """Stop looking."""
        self._left = 0
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_left": 0, "_passes": 0, "_handle": None}


def scale_in_use(optimizer: Optimizer) -> float | None:
    """Return the scale of a GradScaler that has scaled a loss and not unscaled this optimizer's gradients, if there is one.

    Nothing leads from a loss to the scaler that has multiplied it, so the objects in memory are searched, once in a
    run, in some hundredths of a second.
    """
    for candidate in gc.get_referrers(*_SCALERS):
        if type(candidate) not in _SCALERS or getattr(candidate, "_scale", None) is None:
            continue  # it has scaled nothing
        # `unscale_` marks the optimizer until `update`.
        stage = getattr(candidate, "_per_optimizer_states", {}).get(id(optimizer), {}).get("stage")
        if getattr(stage, "name", None) != "UNSCALED":
            return float(candidate.get_scale())
    return None


def _is_part(node: Any) -> bool:
    """True for a loss times a factor; the mean of two sums, as of two players, is whole."""
    inner = [parent.name() for parent, _ in node.next_functions if parent is not None]
    return node.name().startswith(_PARTS) and not any(name.startswith(("Add", "Sub")) for name in inner)


_SCALERS = {torch.amp.GradScaler, torch.cuda.amp.GradScaler}  # no subclasses: `isinstance` runs code of strange objects


class Losses:
    """Gathers losses on their way into `backward`, times whatever they were multiplied by in between."""

    def __init__(self) -> None:
        self.parts: list[Tensor | float] = []

    def watch(self, loss: Tensor, optimizer: Optimizer, scaler: Any = None) -> None:
        """Gather this loss when it goes into `backward`."""
        value = loss.detach().clone()  # some loops divide the loss in place

        def entered_backward(factor: Tensor) -> None:
            if all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
                self.parts.clear()  # of a step that a scaler has skipped
            scale = 1.0 if scaler is None else float(scaler.get_scale())
            part = ((value.double() if value.is_cpu else value) * factor.detach() / scale).sum()
            self.parts.append(float(part) if part.is_cpu else part)

        loss.register_hook(entered_backward)  # type: ignore[no-untyped-call]

    def taken(self) -> list[Tensor | float]:
        """Return what was gathered for this step, and leave nothing for the next."""
        taken, self.parts = self.parts, []
        return taken
