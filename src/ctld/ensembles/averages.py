"""Running averages of what one sample after the other predicts: memory goes with the inputs, not with the samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from ctld.ensembles.outliers import Sketch, outlying_classifiers, outlying_regressors


class Average(ABC):
    """Outputs of one sample after the other, batch by batch; `_join` folds a sample's batch into what is there."""

    def __init__(self) -> None:
        self.num_samples = 0
        self._parts: list[list[Tensor]] = []
        self._sketch = Sketch()

    def begin(self) -> None:
        self.num_samples += 1
        self._sketch.begin()
        self._position = 0

    def add(self, output: Any) -> None:
        found = self._read(output)
        self._sketch.add(found[0])
        if self.num_samples == 1:
            self._parts.append(found)
        elif self._position == len(self._parts) or self._parts[self._position][0].shape != found[0].shape:
            raise ValueError("the inputs differ from one sample to the next; give the same batches each time")
        else:
            self._join(self._parts[self._position], found)
        self._position += 1

    def end(self) -> None:
        if self._position != len(self._parts) or not self._parts:
            raise ValueError(
                "the inputs differ from one sample to the next, or are empty; give the same batches each time"
            )

    def _whole(self) -> list[Tensor]:
        if not self._parts:
            raise ValueError("there are no samples to predict with")
        return [torch.cat(parts) for parts in zip(*self._parts, strict=True)]

    @abstractmethod
    def means(self) -> list[Tensor]: ...

    @abstractmethod
    def outliers(self) -> dict[int, str]:
        """Returns, by the sample's number, why its predictions do not belong to those of the others."""

    @abstractmethod
    def _read(self, output: Any) -> list[Tensor]: ...

    @abstractmethod
    def _join(self, held: list[Tensor], found: list[Tensor]) -> None: ...


class OfLogits(Average):
    """Logarithm of the summed probabilities, and summed entropies."""

    def _read(self, output: Any) -> list[Tensor]:
        if not isinstance(output, Tensor) or output.ndim < 2:
            raise TypeError(
                f"labels are predicted by a tensor of logits, classes last; the model gave {_description(output)}"
            )
        log_probabilities = output.detach().to("cpu", torch.float64).log_softmax(-1)
        return [log_probabilities, entropy(log_probabilities)]

    def _join(self, held: list[Tensor], found: list[Tensor]) -> None:
        torch.logaddexp(held[0], found[0], out=held[0])
        held[1] += found[1]

    def means(self) -> list[Tensor]:
        """Logarithm of the mean probabilities, mean entropy."""
        log_sum, entropies = self._whole()
        return [log_sum - math.log(self.num_samples), entropies / self.num_samples]

    def outliers(self) -> dict[int, str]:
        return outlying_classifiers(self._sketch.samples())


class OfValues(Average):
    """Mean, summed squared deviations from it (Welford), and summed variances."""

    def _read(self, output: Any) -> list[Tensor]:
        pair = isinstance(output, tuple | list) and len(output) == 2
        mean, variance = output if pair else (output, None)
        if not isinstance(mean, Tensor) or (pair and not isinstance(variance, Tensor)):
            raise TypeError(
                f"values are predicted by a tensor or a pair (mean, variance); the model gave {_description(output)}"
            )
        mean = mean.detach().to("cpu", torch.float64, copy=True)
        variance = torch.zeros_like(mean) if variance is None else variance.detach().to("cpu", torch.float64, copy=True)
        if variance.shape != mean.shape or (variance < 0).any():
            raise ValueError("the variances must have the shape of the means, and none may be negative")
        return [mean, torch.zeros_like(mean), variance]

    def _join(self, held: list[Tensor], found: list[Tensor]) -> None:
        deviation = found[0] - held[0]
        held[0] += deviation / self.num_samples
        held[1] += deviation * (found[0] - held[0])
        held[2] += found[2]

    def means(self) -> list[Tensor]:
        """Mean, variance of the means, mean variance."""
        mean, squares, variances = self._whole()
        return [mean, squares / self.num_samples, variances / self.num_samples]

    def outliers(self) -> dict[int, str]:
        return outlying_regressors(self._sketch.samples())


def entropy(log_probabilities: Tensor) -> Tensor:
    """In nats, over the last dimension; 0·log 0 = 0, and NaN stays NaN."""
    found: Tensor = torch.special.entr(log_probabilities.exp()).sum(-1)
    return found


def _description(output: Any) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
