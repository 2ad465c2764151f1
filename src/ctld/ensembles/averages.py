"""Running averages of what one sample after the other predicts: memory goes with the inputs, not with the samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ctld.checks import real
from ctld.ensembles.outliers import Sketch, outlying_classifiers, outlying_regressors
from ctld.ensembles.task import Task


@dataclass(frozen=True)
class Calibration:
    """Calibration of the members by held-out data: `Ensemble.calibrate` makes it."""

    weights: tuple[float, ...]
    """Share of each member in the average."""
    temperature: float = 1.0
    """Divides logits; for a regression its square multiplies variances. 1 unless held-out data gain by it beyond chance."""
    noise: float = 0.0
    """Variance of the targets around the mean, for a model that predicts no variance."""


class Average(ABC):
    """Outputs of one sample after the other, batch by batch; `_join` folds a sample's batch into what is there."""

    def __init__(self, task: Task, model: nn.Module, calibration: Calibration | None = None) -> None:
        self.task = task
        self.num_samples = 0
        self.calibration = calibration or Calibration(())
        self._settled = False
        self._model = model
        self._parts: list[list[Tensor]] = []
        self._sketch = Sketch()

    def begin(self) -> None:
        """Begin the next sample."""
        weights = self.calibration.weights
        if weights and self.num_samples == len(weights):
            raise ValueError(
                f"there must be {len(weights)} samples, as many as were calibrated, got more. Calibrate anew"
            )
        self._weight = weights[self.num_samples] if weights else 1.0
        self.num_samples += 1
        self._sketch.begin()
        self._position = 0

    def add(self, output: Any) -> None:
        """Add a batch of outputs of the present sample."""
        if not self._settled:
            self.task, self._settled = self.task.settled(output, self._model), True
        found = self._read(output)
        self._sketch.add(found[0])
        if self.num_samples == 1:
            self._parts.append(self._first(found))
        elif self._position == len(self._parts) or self._parts[self._position][0].shape != found[0].shape:
            raise ValueError(
                "outputs must have one shape for all members, got another. Give the same batches each time"
            )
        else:
            self._join(self._parts[self._position], found)
        self._position += 1

    def end(self) -> None:
        """End the present sample."""
        if self._position != len(self._parts) or not self._parts:
            raise ValueError("inputs must be the same for every member and not empty. Give the same batches each time")

    def _whole(self) -> list[Tensor]:
        if not self._parts:
            raise ValueError("there are no samples to predict with. Give at least one")
        return [torch.cat(parts) for parts in zip(*self._parts, strict=True)]

    @property
    def _total(self) -> float:
        weights = self.calibration.weights
        if weights and len(weights) != self.num_samples:
            raise ValueError(
                f"there must be {len(weights)} samples, as many as were calibrated, got {self.num_samples}. Calibrate anew"
            )
        return sum(weights) if weights else float(self.num_samples)

    @abstractmethod
    def means(self) -> list[Tensor]:
        """Return the averages."""

    @abstractmethod
    def outliers(self) -> dict[int, str]:
        """Return, by the sample's number, why its predictions do not belong to those of the others."""

    @abstractmethod
    def _read(self, output: Any) -> list[Tensor]: ...

    @abstractmethod
    def _first(self, found: list[Tensor]) -> list[Tensor]: ...

    @abstractmethod
    def _join(self, held: list[Tensor], found: list[Tensor]) -> None: ...


class OfLogits(Average):
    """Logarithm of the summed probabilities, and summed entropies."""

    def _read(self, output: Any) -> list[Tensor]:
        log_probabilities = self.task.log_probabilities(output)
        if self.calibration.temperature != 1:
            log_probabilities = (log_probabilities / self.calibration.temperature).log_softmax(-1)
        return [log_probabilities, entropy(log_probabilities)]

    def _first(self, found: list[Tensor]) -> list[Tensor]:
        return [found[0] + _log(self._weight), found[1] * self._weight]

    def _join(self, held: list[Tensor], found: list[Tensor]) -> None:
        torch.logaddexp(held[0], found[0] + _log(self._weight), out=held[0])
        held[1] += found[1] * self._weight

    def means(self) -> list[Tensor]:
        """Return the logarithm of the mean probabilities, and the mean entropy."""
        log_sum, entropies = self._whole()
        return [log_sum - math.log(self._total), entropies / self._total]

    def outliers(self) -> dict[int, str]:
        return outlying_classifiers(self._sketch.samples())


class OfValues(Average):
    """Mean, summed squared deviations from it (West's form of Welford's), and summed variances."""

    def _read(self, output: Any) -> list[Tensor]:
        mean, variance = self.task.moments(output)
        variance = (variance + self.calibration.noise) * self.calibration.temperature**2
        return [mean, torch.zeros_like(mean), variance]

    def _first(self, found: list[Tensor]) -> list[Tensor]:
        return [found[0], found[1], found[2] * self._weight]

    def begin(self) -> None:
        super().begin()
        self._so_far = sum(self.calibration.weights[: self.num_samples]) or float(self.num_samples)

    def _join(self, held: list[Tensor], found: list[Tensor]) -> None:
        deviation = found[0] - held[0]
        held[0] += deviation * (self._weight / self._so_far)
        held[1] += deviation * (found[0] - held[0]) * self._weight
        held[2] += found[2] * self._weight

    def means(self) -> list[Tensor]:
        """Return the mean, the variance of the means and the mean variance."""
        mean, squares, variances = self._whole()
        return [mean, squares / self._total, variances / self._total]

    def outliers(self) -> dict[int, str]:
        return outlying_regressors(self._sketch.samples())


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return the entropy in nats over the last dimension; 0·log 0 = 0, and NaN stays NaN."""
    found: Tensor = torch.special.entr(log_probabilities.exp()).sum(-1)
    return found


def calibration_from_plain(value: Any) -> Calibration | None:
    """Return what a state holds of a calibration, each number checked."""
    if value is None:
        return None
    weights = tuple(real("a weight", weight, at_least=0) for weight in value["weights"])
    return Calibration(
        weights, real("temperature", value["temperature"], above=0), real("noise", value["noise"], at_least=0)
    )


def _log(weight: float) -> float:
    return math.log(weight) if weight else -math.inf
