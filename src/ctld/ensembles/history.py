"""History: the loss along a run, as means over a few steps each; for plots."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ctld.checks import integer
from ctld.ensembles.collapse import MeanLoss

_POINTS = 200
_LEAST = 10  # steps: on a device each point is a wait


class History:
    """Mean losses, each over so many steps that a run has two hundred of them."""

    def __init__(self, total_steps: int) -> None:
        self.every = max(_LEAST, total_steps // _POINTS)
        self.steps: list[int] = []
        self.losses: list[float] = []
        self._mean = MeanLoss()

    def add(self, step: int, loss: float | Tensor) -> None:
        """Add the loss of a step."""
        self._mean.add(loss)
        if self._mean.count == self.every:
            self.steps.append(step)
            self.losses.append(self._mean.read())
            self._mean = MeanLoss()

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "losses": list(self.losses), "mean": self._mean.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        steps = [integer("a step", step, at_least=0) for step in state_dict["steps"]]
        losses = [float(loss) for loss in state_dict["losses"]]
        if len(steps) != len(losses):
            raise ValueError(f"a history has as many steps as losses, got {len(steps)} and {len(losses)}")
        mean = MeanLoss()
        mean.load_state_dict(state_dict["mean"])
        self.steps, self.losses, self._mean = steps, losses, mean
