"""Cycles of an ensemble: how many steps each has, which of them explore, and the learning rate at each."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ctld.checks import integer, real
from ctld.cycles import cycle_factor


class Cycles:
    """Equal cycles, each of which explores first and lowers lr to zero then.

    Parameters
    ----------
    total_steps, number : int
        Each of `number` cycles has total_steps // number steps; what is left over is not trained.
    exploration : float
        The share of a cycle that explores.
    """

    def __init__(self, total_steps: int, number: int, exploration: float) -> None:
        self.total_steps = integer("total_steps", total_steps, at_least=1)
        self.number = integer("cycles", number, at_least=1)
        self.steps = self.total_steps // self.number
        if self.steps < 2:
            left = f"{self.steps} for each of {number} cycles"
            raise ValueError(f"total_steps = {total_steps} leave {left}: give more steps, or fewer cycles")
        self.exploration = real("exploration", exploration, at_least=0, below=1)
        self.exploration_steps = min(int(self.exploration * self.steps), self.steps - 1)
        self.last = self.number * self.steps
        """The step at which all cycles are over."""

    def factor(self, steps: int) -> float:
        """Return what lr is multiplied by after so many steps; 0 when all cycles are over."""
        if steps >= self.last:
            return 0.0
        return cycle_factor(steps, cycle_steps=self.steps, hold_steps=self.exploration_steps)


class LearningRates:
    """Writes the learning rate of the step to come into an optimizer's groups."""

    def __init__(self, optimizer: Optimizer, cycles: Cycles) -> None:
        self._optimizer, self._cycles = optimizer, cycles  # whose groups are others after a state was loaded
        self._written: list[float] = []
        self.set(0)

    def foreign(self) -> float | None:
        """Return a learning rate that somebody else has written, if there is one."""
        for group, written in zip(self._optimizer.param_groups, self._written, strict=False):
            if group["lr"] != written:
                return float(group["lr"])
        return None

    def set(self, steps: int) -> None:
        """Write what the cycle has after so many steps."""
        factor, self._written = self._cycles.factor(steps), []
        for group in self._optimizer.param_groups:
            lr = factor * float(group.setdefault("initial_lr", float(group["lr"])))
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
                lr = float(group["lr"])  # as the tensor rounds it
            else:
                group["lr"] = lr
            self._written.append(lr)

    def accept(self) -> None:
        """Take what a loaded state has left in the groups."""
        self._written = [float(group["lr"]) for group in self._optimizer.param_groups]


class CyclesLR(LRScheduler):
    """A scheduler for frameworks that want one: it writes what the ensemble writes anyway, however often it is stepped."""

    def __init__(self, ensemble: Any) -> None:
        self._ensemble = ensemble
        super().__init__(ensemble.optimizer)

    def get_lr(self) -> list[float]:  # type: ignore[override]
        factor = self._ensemble.factor(self._ensemble.steps)
        return [factor * float(group["initial_lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_ensemble"}
