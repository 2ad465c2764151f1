"""What the training loop asks of a workload. A workload knows nothing of optimizers, methods or files of results."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ctld.ensembles import Metrics


@dataclass(frozen=True)
class Probe:
    """What flatness is measured of: a loss of fixed training data in eval mode, the same at every call and for every method."""

    loss: Callable[[], Tensor]
    parameters: list[nn.Parameter]
    """All that it depends on."""
    examples: int
    what: str
    """Of what it is the loss, in words."""
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
    """As records have it: nll in nats, Brier score from 0 to 2, error and calibration error in percent."""
    found = metrics.compute()
    return {"nll": found["nll"], "error": 100.0 * found["error"], "ece": 100.0 * found["ece"], "brier": found["brier"]}


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

    def loss(self, step: int) -> Tensor:
        """Mean loss on the batch of this step, counted from 0 in each stage. Each step is asked for once, in order."""
        ...

    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        """Metrics by split; on all data if `thorough`, else on as much as a learning curve needs. Draws no random number."""
        ...

    def epochs(self, step: int) -> float:
        """How often the data of the stage have been seen after `step` steps."""
        ...

    def num_parameters(self) -> int: ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the configuration."""
        ...

    def load_state(self, state: dict[str, Any]) -> None: ...


class OneModel:
    """A workload of one model; `model`, `num_data`, `batch_size`, `loss`, `evaluate` are its own, and `stages` if not one."""

    stages = 1
    model: nn.Module
    num_data: int
    batch_size: int

    def begin(self, stage: int) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def loss(self, step: int) -> Tensor:
        raise NotImplementedError

    def evaluate(self, *, thorough: bool) -> dict[str, dict[str, float]]:
        raise NotImplementedError

    def epochs(self, step: int) -> float:
        return step * self.batch_size / self.num_data

    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def state(self) -> dict[str, Any]:
        return dict(self.model.state_dict())

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)


@runtime_checkable
class Probed(Protocol):
    """A workload whose final models' flatness can be measured."""

    @property
    def model(self) -> nn.Module: ...

    def probe(self, size: int | None = None) -> Probe:
        """Of the model as it is; of `size` training data, by default as many as take seconds."""
        ...


@runtime_checkable
class Classifier(Workload, Protocol):
    """One that predicts labels, so that what several models say can be averaged."""

    def judge(self, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """nll, error, ece and brier of the members' mean prediction, by split: of all that is held out, and of nothing else."""
        ...


def judged(workload: Classifier, members: Sequence[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
    """By split, what the members predict together and, as `last_…`, the last of them alone."""
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
