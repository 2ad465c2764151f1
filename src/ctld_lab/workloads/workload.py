"""What the training loop asks of a workload. A workload knows nothing of optimizers, methods or files of results."""

from typing import Any, Protocol

from torch import Tensor, nn

from ctld_lab.ranks import Ranks


class Workload(Protocol):
    """Model, data, loss and metrics. Training has one stage or, where it is greedy, several."""

    stages: int
    num_data: int
    """N: the data that the loss of a stage is the mean over."""

    @property
    def model(self) -> nn.Module:
        """All of it, whatever the stage."""
        ...

    def begin(self, stage: int) -> list[nn.Parameter]:
        """Make ready for a stage, counted from 0; returns what is trained in it."""
        ...

    def divide(self, ranks: Ranks) -> None:
        """From now on this rank takes its share of each batch. Called before anything else, and not for a run of one rank."""
        ...

    def loss(self, step: int) -> Tensor:
        """Mean loss on the batch of this step, counted from 0 in each stage. Each step is asked for once, in order.

        Divided among ranks: a number whose mean over the ranks is that.
        """
        ...

    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Metrics by split; on all data if `thorough`, else on as much as a learning curve needs. Draws no random number."""
        ...

    def epochs(self, step: int) -> float:
        """How often the data of the stage have been seen after `step` steps."""
        ...

    def num_parameters(self) -> int: ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the configuration, the same on any number of ranks; they ask for it together."""
        ...

    def load_state(self, state: dict[str, Any]) -> None: ...
