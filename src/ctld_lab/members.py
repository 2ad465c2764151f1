"""The models that a run keeps along its way, for what they predict together."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Members:
    """Copies of the model after given steps of every stage; or, `average`, the one model that is the mean of them.

    What is kept is part of the run's checkpoint: a run that goes on has the members that it would have had.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self._steps = frozenset(map(int, plan["steps"]))
        self.averages = bool(plan.get("average", False))
        self._kept: list[dict[str, Tensor]] = []
        self._count = 0

    @torch.no_grad()
    def update(self, stage_step: int, model: nn.Module) -> None:
        """After every step."""
        if stage_step not in self._steps:
            return
        self._count += 1
        if not self.averages:
            self._kept.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        elif self._count == 1:
            # In double precision: what is added has to matter after many. Copied: a model in double precision moves on.
            self._kept = [{name: tensor.to(torch.float64, copy=True) for name, tensor in model.state_dict().items()}]
        else:
            for name, tensor in model.state_dict().items():
                mean = self._kept[0][name]
                mean += (tensor.double() - mean) / self._count

    def states(self, model: nn.Module) -> list[dict[str, Tensor]]:
        """In the order in which they were kept, in the model's own precision."""
        own = model.state_dict()
        return [{name: tensor.to(own[name].dtype) for name, tensor in state.items()} for state in self._kept]

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"count": self._count, "kept": self._kept}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._count, self._kept = int(state["count"]), list(state["kept"])
