"""The interface of workloads. A workload knows nothing of optimizers, methods or files of results."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctld.ensembles import Metrics
from ctld_lab.streams import numpy_generator


@dataclass(frozen=True)
class Probe:
    """A loss on fixed training data in eval mode, the same at every call and for every method: flatness is measured of it."""

    loss: Callable[[], Tensor]
    parameters: list[nn.Parameter]
    """All that it depends on."""
    examples: int
    what: str
    """The loss in words."""
    metric: str
    """The same of test data, by its name in the result of a run."""


def evenly_spaced(size: int, total: int) -> NDArray[np.int64]:
    """`size` of `total` places, or all: drawn by no seed, and of all classes where data are sorted by class."""
    size = min(size, total)
    return np.arange(size) * total // size


def averaged(logits: Sequence[Tensor]) -> Tensor:
    """Logarithms of the models' mean probabilities, in double precision."""
    each = torch.stack([scores.double().log_softmax(-1) for scores in logits])
    return each.logsumexp(0) - math.log(len(logits))


def mean_state(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensor by tensor, summed in double precision: what is added has to matter after many."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


def in_percent(metrics: Metrics) -> dict[str, float]:
    """Metrics as records have them: nll in nats, Brier score from 0 to 2, error and calibration error in percent."""
    found = metrics.compute()
    return {"nll": found["nll"], "error": 100.0 * found["error"], "ece": 100.0 * found["ece"], "brier": found["brier"]}


class Shuffled:
    """Rows of the batch of each step. The order is new in each epoch; what does not fill a batch is left out of the epoch."""

    def __init__(self, seed: int, num_data: int, batch_size: int) -> None:
        if not 1 <= batch_size <= num_data:
            raise ValueError(f"batch_size must be 1 to {num_data}, the number of training data, got {batch_size}")
        self._seed, self._num_data, self._batch_size = seed, num_data, batch_size
        self._order: tuple[int, int, Tensor] | None = None

    def rows(self, stage: int, step: int) -> Tensor:
        epoch, place = divmod(step, self._num_data // self._batch_size)
        if self._order is None or self._order[:2] != (stage, epoch):
            shuffled = numpy_generator(self._seed, "data", stage, epoch).permutation(self._num_data)
            self._order = (stage, epoch, torch.from_numpy(shuffled))
        return self._order[2][place * self._batch_size : (place + 1) * self._batch_size]


class Workload:
    """A model with its data, loss and metrics, as the training loop asks for it.

    `model`, `num_data`, `batch_size`, `loss` and `evaluate` are a workload's own. Training has one stage or, where it is
    greedy, several.
    """

    stages: int = 1
    model: nn.Module
    """All of it, whatever the stage."""
    num_data: int
    """N: the data that the loss of a stage is the mean over."""
    batch_size: int

    def begin(self, stage: int) -> list[nn.Parameter]:
        """Make ready for a stage, counted from 0; return what is trained in it."""
        return list(self.model.parameters())

    def loss(self, step: int) -> Tensor:
        """Mean loss on the batch of this step, counted from 0 in each stage. Each step is asked for once, in order."""
        raise NotImplementedError

    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Metrics by split; on all data if `thorough`, else on as much as a learning curve needs. Draws no random number."""
        raise NotImplementedError

    def judge(self, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """nll, error, ece and brier of the members' mean prediction, by split: of all that is held out, and of nothing else."""
        raise NotImplementedError(f"{type(self).__name__} predicts no labels, so that members cannot be averaged")

    def probe(self, size: int | None = None) -> Probe:
        """The loss whose flatness is measured, on `size` training data; by default on as many as take seconds."""
        raise NotImplementedError(f"{type(self).__name__} says no loss whose flatness could be measured")

    def epochs(self, step: int) -> float:
        """Number of times the data of the stage have been seen after `step` steps."""
        return step * self.batch_size / self.num_data

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def state(self) -> dict[str, Any]:
        """State that a checkpoint needs besides the configuration."""
        return dict(self.model.state_dict())

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)


def judged(workload: Workload, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
    """Score, by split, what the members predict together and, as `last_…`, the last of them alone."""
    last = workload.judge(members[-1:])
    together = workload.judge(members) if len(members) > 1 else last
    return {
        split: found | {f"last_{name}": value for name, value in last[split].items()}
        for split, found in together.items()
    }


DTYPES = {"float32": torch.float32, "float64": torch.float64}


def floating_point(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype = {name!r} is unknown; give one of {', '.join(map(repr, DTYPES))}")
    return DTYPES[name]
