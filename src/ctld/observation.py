"""Observation at θ_t, before anything moves: the loss over ranks, the fitness of loss and gradients, the prior.

It stays on its device until somebody asks for a number. Whether a step is accepted, and why it is refused, is decided here and
nowhere else: `accept` on the host, and `refused` on a device whose kernels are to know before the host does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ctld.checks import NonFiniteError
from ctld.observing import Loss
from ctld.ranks import Facts, Ranks, disagree, mark
from ctld.stepping.foreach import wide_dtype


@dataclass(slots=True)
class Observation:
    """Observation at the present parameters."""

    numbers: Sequence[float] | Tensor
    """Sums over ranks: the loss, how many refuse the step, one, marks and their squares, and the prior over N."""
    ranks: Ranks
    device: Callable[[], torch.device]
    facts: Callable[[], Facts]
    """Return what must be equal on all ranks."""
    unfit: Callable[[], NonFiniteError | None]
    """Return an error that names a gradient which is not fit for a step, or None."""
    scale: float
    """N/T. N/T times the loss must be finite."""
    sign: float
    """The sign of the loss in the potential."""
    gradients_seen: bool
    """True if the gradients have been looked at; else whoever moves the parameters does, first."""
    failure: Exception | None = None
    mean_loss: float = field(default=math.nan, init=False)
    accepted: bool = field(default=False, init=False)

    def accept(self) -> float:
        """Return the mean loss, or raise the reason why this step is refused."""
        if self.accepted:
            return self.mean_loss
        numbers: Sequence[float] = self.numbers.tolist() if isinstance(self.numbers, Tensor) else self.numbers
        self.numbers = numbers
        total, refusing, size, marks, squares, _ = numbers
        if size != 1.0 and disagree(size, marks, squares):
            self.ranks.name_differences(self.facts(), self.device())
        if not math.isfinite(total) and not refusing:
            raise NonFiniteError(
                f"the loss is {total / size}; the step was refused and nothing has changed. Skip the batch, or lower lr, if "
                "it happens again"
            )
        if refusing:
            self.refuse()
        self.mean_loss = total / size
        if not math.isfinite(self.scale * self.mean_loss):
            raise NonFiniteError(
                f"N/T times the loss of {self.mean_loss:g} overflows; the step was refused: check the loss"
            )
        self.accepted = True
        return self.mean_loss

    def refuse(self) -> None:
        """Raise the reason why the gradients here, or another rank, refuse the step."""
        mine = self.failure or self.unfit()
        if self.ranks.size > 1:
            self.ranks.refuse(mine, self.device())
        raise mine or NonFiniteError("a gradient was not fit for a step and is now; the step was refused")

    def refused(self) -> Tensor | None:
        """Return a tensor that says if the step is to be refused, while the host does not know; None if it does."""
        if not isinstance(self.numbers, Tensor):
            return None
        loss, refusing, size, marks, squares, _ = self.numbers
        refused: Tensor = ~(loss * self.scale).isfinite() | (refusing > 0) | disagree(size, marks, squares)
        return refused

    @property
    def potential(self) -> float:
        """U/N, the signed mean loss and the prior λ‖θ‖²/2 over all ranks; for a method that asks for it ahead."""
        return self.sign * self.accept() + float(self.numbers[5])


def observe(
    losses: list[Loss],
    fit: Sequence[bool | Tensor],
    *,
    prior: float,
    failed: bool,
    ranks: Ranks,
    device: torch.device,
    facts: Callable[[], Facts],
) -> Sequence[float] | Tensor:
    """Return the numbers of an observation, in one reduction over ranks.

    `fit` says whether gradients are, for each look at them; a rank that has `failed` makes all of them refuse the step.
    """
    together = ranks.size > 1
    fit = [not failed, *fit]
    if not together and not any(isinstance(value, Tensor) for value in (*losses, *fit)):
        loss = losses[0] if len(losses) == 1 else float(sum(losses))
        return loss, 0.0 if all(fit) else 1.0, 1.0, 0.0, 0.0, prior  # type: ignore[return-value]
    marks = mark(facts()) if together else 0.0
    # Filled in on the device: a tensor made of numbers here would be copied from pageable memory, for which the host waits.
    numbers = torch.zeros(6, dtype=wide_dtype(device), device=device)
    total, odd = numbers[0], numbers[1]
    for loss in losses:
        total += loss.reshape(()).to(device, numbers.dtype, non_blocking=True) if isinstance(loss, Tensor) else loss
    for value in fit:
        if isinstance(value, Tensor):
            odd += value.to(device, non_blocking=True).logical_not()
        elif not value:
            odd += 1.0
    for place, number in ((2, 1.0), (3, marks), (4, marks * marks), (5, prior)):
        if number:
            numbers[place].fill_(number)
    return ranks.sum(numbers)


def on_host(rows: list[Any]) -> list[Sequence[float]]:
    """Return numbers for rows of numbers, of which some may be on a device; one read from there."""
    there = [row for row in rows if isinstance(row, Tensor)]
    if not there:
        return rows
    device = there[0].device
    dtype = wide_dtype(device)
    read: list[float] = torch.cat([row.to(device, dtype) for row in there]).tolist()
    numbers = iter(read)
    return [[next(numbers) for _ in row] if isinstance(row, Tensor) else row for row in rows]
