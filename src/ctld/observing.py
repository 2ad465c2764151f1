"""Ways to give an optimizer the loss: with `step`, through `observe`, or by watching it go into `backward`.

Frameworks differ in who calls `step`, and in what they multiply the loss by before `backward`: one over the number of
micro-batches, the scale of a GradScaler, the number of processes. What drives the temperature has to be the number whose
gradient is in `p.grad`. `Losses.watch` reads the factor off the gradient of the loss itself, so that one line serves them all.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ctld.checks import warn_user
from ctld.sharding import sharded

Loss = Tensor | float
Closure = Callable[[], Loss | None]


class TakesLoss(Optimizer):
    """Optimizer of this package: torch's interface, and a loss that may come with the step."""

    @abstractmethod
    def step(  # type: ignore[override]
        self, closure: Closure | Loss | None = None, *, loss: Loss | None = None
    ) -> Loss | None:
        """Take one step; the loss may be given by keyword, by position, or returned by a closure."""

    def observe(self, loss: Loss) -> None:
        """Hand over the loss where a framework calls `step()` itself; ignored by methods that do not read it."""

    def watch(self, loss: Tensor, *, scaler: Any = None) -> Tensor:
        """Observe the loss when it goes into `backward`; ignored by methods that do not read it. Return the loss."""
        return loss


class Losses:
    """Losses that were handed over for the step to come: one for each microbatch.

    The list is changed in place and never replaced: wrappers that copy an optimizer's attributes see the same one.
    """

    def __init__(self) -> None:
        self.pending: list[Loss] = []
        self._warned_of_scale = False

    def add(self, loss: Loss) -> None:
        """Keep a loss until the step that it belongs to."""
        self.pending.append(one_element(loss))

    def clear(self) -> None:
        """Drop what belongs to a step that will not be taken."""
        self.pending.clear()

    def gather(
        self, closure: Closure | Loss | None, loss: Loss | None, *, needed: bool
    ) -> tuple[Loss | None, list[Loss]]:
        """Run the closure and return what `step` returns, and the losses of this step, if `needed`.

        What was added before is used rather than what the closure returns.
        """
        if closure is not None:
            closure, loss = told_apart(closure, loss)
        returned: Loss | None = None
        pending = self.pending
        try:
            if closure is not None:
                with torch.enable_grad():
                    returned = closure()
            if needed and loss is not None:
                pending.append(one_element(loss))
            elif needed and returned is not None and not pending:
                pending.append(one_element(returned))
            return loss if returned is None else returned, pending.copy()
        finally:
            pending.clear()

    def watch(self, loss: Tensor, scaler: Any, observe: Callable[[Loss], None]) -> None:
        """Call `observe` when the loss goes into `backward`, with the loss times whatever it was multiplied by."""
        value = loss.detach().clone()  # some loops divide the loss in place

        def entered_backward(factor: Tensor) -> None:
            if value.is_cpu:
                scale = 1.0 if scaler is None else float(scaler.get_scale())
                self._check_factor(factor, scale)
                part = value.double() * factor.detach() / scale
            else:  # nothing is read from the device here, where the host would wait for it
                there = getattr(scaler, "_scale", None)  # of torch's GradScaler, which `get_scale` reads
                if not isinstance(there, Tensor):
                    there = 1.0 if scaler is None else float(scaler.get_scale())
                part = value * factor.detach() / there
            observe(part.sum())

        loss.register_hook(entered_backward)  # type: ignore[no-untyped-call]

    def _check_factor(self, factor: Tensor, scale: float) -> None:
        """Warn once of a loss that was multiplied by what can only be a scale for half precision."""
        if not factor.is_cpu or factor.numel() != 1:
            return
        mantissa, exponent = math.frexp(factor.item() / scale)
        if mantissa == 0.5 and exponent > 6 and not self._warned_of_scale:
            self._warned_of_scale = True
            warn_user(
                f"the watched loss was multiplied by {factor.item() / scale:g} before backward: the potential is too large by "
                "this factor, if it is the scale of a GradScaler. Then give watch(loss, scaler=scaler)"
            )


def told_apart(closure: Closure | Loss | None, loss: Loss | None) -> tuple[Closure | None, Loss | None]:
    """Closure and loss, where the loss may have come in the closure's place: frameworks pass one argument on, by position."""
    if closure is None or callable(closure):
        return closure, loss
    if not hasattr(closure, "__float__"):
        raise TypeError(f"step was given {closure!r}; give a closure that returns the loss, or the loss")
    if loss is not None:
        raise TypeError(f"step was given the loss twice, {closure!r} and loss={loss!r}; give it once")
    return None, closure


def one_element(loss: Loss) -> Loss:
    """The loss as a number on a CPU, as a tensor of its own elsewhere; an error if it is not one real number."""
    if type(loss) is float:
        return loss
    if type(loss) is Tensor and loss.is_cpu and not loss.dim() and not loss.is_complex():
        return loss.item()  # by far the most frequent case; the user's tensor may be written to before the step
    if sharded(loss):
        loss = loss.full_tensor()  # type: ignore[union-attr]
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ValueError(
                f"the loss has {loss.numel()} elements (shape {tuple(loss.shape)}); give the mean loss of the batch, the "
                "number whose gradient is in p.grad"
            )
        if loss.is_complex():
            raise TypeError(f"the loss is {loss}; give a real number")
        return loss.item() if loss.is_cpu else loss.detach().clone()  # reading it is no wait on a CPU only
    number: Any = loss.item() if hasattr(loss, "item") and getattr(loss, "size", 0) == 1 else loss
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"the loss is {loss!r}; give a number or a tensor with one element")
    return number
