"""How an optimizer hears of the loss: with `step`, through `observe`, or by watching it on its way into `backward`.

Frameworks differ in who calls `step`, and in what they multiply the loss by before `backward`: one over the number of
micro-batches, the scale of a GradScaler, the number of processes. What drives the temperature has to be the number whose
gradient is in `p.grad`. `watch` reads the factor off the gradient of the loss itself, so that one line serves them all.
"""

import logging
import math
import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ctld.checks import TemperatureWarning, warn_user
from ctld.clipping import RepeatedNorms, message
from ctld.sharding import sharded

_log = logging.getLogger("ctld")

Loss = Tensor | float
Closure = Callable[[], Loss | None]


class TakesLoss(Optimizer):
    """Every optimizer of this package: torch's interface, and a loss that may come with the step."""

    @abstractmethod
    def step(  # type: ignore[override]
        self, closure: Closure | Loss | None = None, *, loss: Loss | None = None
    ) -> Loss | None:
        """Take one step; the loss may be given by keyword, by position, or returned by a closure."""

    def observe(self, loss: Loss) -> None:
        """Hand over the loss where a framework calls `step()` itself; ignored by methods that do not read it."""

    def watch(self, loss: Tensor, *, scaler: Any = None) -> Tensor:
        """Observe the loss when it goes into `backward`; ignored by methods that do not read it. Returns the loss."""
        return loss


class Observing(TakesLoss):
    """What a method that reads the loss needs: losses are gathered until the step that they belong to.

    A subclass says in `_needs_loss` whether the next step reads the loss, and calls `_evaluate` at the start of one. What was
    gathered is changed in place and never replaced: wrappers that copy our attributes or pass them on see the same list.
    """

    steps: int
    _observed: list[Loss]
    _norms: RepeatedNorms
    _warned_of_scale: bool

    def observe(self, loss: Loss) -> None:
        """Hand over the loss where a framework calls `step()` itself; two observations before a step add up.

        Under gradient accumulation, observe each micro-batch's loss divided as it is for `backward`, or leave that to
        `watch`. `zero_grad` drops what was observed before it: that belongs to a step which was not taken.
        """
        if self._needs_loss():
            self._observed.append(one_element(loss))

    def watch(self, loss: Tensor, *, scaler: Any = None) -> Tensor:
        """Observe the loss when it goes into `backward`, times whatever it was multiplied by in between. Returns the loss.

        >>> loss = optimizer.watch(F.cross_entropy(model(x), y))                    # doctest: +SKIP
        >>> accelerator.backward(loss); optimizer.step()                            # doctest: +SKIP

        Parameters
        ----------
        loss : Tensor
            The loss of a batch or micro-batch. One that needs no gradient, as in validation, is left alone.
        scaler : GradScaler, optional
            Whose scale goes before `backward` and is taken out again before the step: it is divided out here. Anything with
            `get_scale()`; None where there is none.

        Notes
        -----
        The gradient of the loss with respect to itself is what it was multiplied by. So `torch.autograd.grad` of a watched loss
        counts as well; watch the one that `backward` is called on.
        """
        if loss.requires_grad and self._needs_loss():
            value = loss.detach().clone()  # some loops divide the loss in place

            def entered_backward(factor: Tensor) -> None:
                scale = 1.0 if scaler is None else float(scaler.get_scale())
                self._check_factor(factor, scale)
                # On a CPU in float64; elsewhere the number stays on its device.
                part = (value.double() if value.is_cpu else value) * factor.detach() / scale
                self.observe(part.sum())

            loss.register_hook(entered_backward)  # type: ignore[no-untyped-call]
        return loss

    def _check_factor(self, factor: Tensor, scale: float) -> None:
        """Say once that a loss was multiplied by what can only be a scale for half precision."""
        if not factor.is_cpu or factor.numel() != 1:
            return
        mantissa, exponent = math.frexp(factor.item() / scale)
        if mantissa == 0.5 and exponent > 6 and not self._warned_of_scale:
            self._warned_of_scale = True
            warn_user(
                f"the watched loss was multiplied by {factor.item() / scale:g} before backward. If that is the scale of a "
                "GradScaler, give watch(loss, scaler=scaler), or the potential is too large by it"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, and what was observed with them: a GradScaler may have skipped the step."""
        self._observed.clear()
        super().zero_grad(set_to_none)

    def _needs_loss(self) -> bool:
        """Whether the next step reads the loss; most methods never do, and ignore it."""
        return False

    def _samples(self) -> bool:
        """Whether there is a law that the next step samples."""
        return False

    def _automatic_temperature(self) -> bool:
        """Whether the temperature was left to the optimizer."""
        return False

    def _evaluate(self, closure: Closure | Loss | None, loss: Loss | None, *, needed: bool = False) -> Loss | None:
        """Run the closure and take in the loss, if `needed`; what was observed is used rather than what the closure returns.

        Returns the closure's value, or `loss`.
        """
        if closure is not None:
            closure, loss = told_apart(closure, loss)
        returned: Loss | None = None
        try:
            if closure is not None:
                with torch.enable_grad():
                    returned = closure()
            if needed and loss is not None:
                self._observed.append(one_element(loss))
            elif needed and returned is not None and not self._observed:
                self._observed.append(one_element(returned))
            if self.steps >= self._norms.next_look:
                self._look_for_clipping()
        except BaseException:
            self._observed.clear()  # belongs to a step that will not be taken
            raise
        return loss if returned is None else returned

    def _look_for_clipping(self) -> None:
        """Say once that gradients are clipped, where a law depends on them."""
        if not self._samples():
            return
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if not gradients or any(sharded(gradient) or gradient.is_sparse for gradient in gradients):
            return  # the norm of what lies here is not what was clipped
        norm = self._norms.repeated(gradients, self.steps)
        if norm is None:
            return
        self._norms.next_look = sys.maxsize
        if self._automatic_temperature():
            # Whoever leaves T to us trains a network: worth a line, not an interruption.
            _log.warning(message(norm))
        else:
            warn_user(message(norm), TemperatureWarning)

    def _taken(self) -> list[Loss]:
        """What was gathered for this step, which it leaves empty for the next."""
        taken = self._observed.copy()
        self._observed.clear()
        return taken


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
