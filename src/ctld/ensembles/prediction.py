"""What samples predict together, one sample in memory at a time, and how sure they are.

With p_i the probabilities of sample i and p̄ their mean, H(p̄) = mean H(p_i) + I: the total uncertainty is what each sample
admits on its own (aleatoric) plus what they disagree about (epistemic, the mutual information of label and parameters).
For numbers the same, by the law of total variance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from ctld.checks import integer
from ctld.ensembles.averages import OfLogits, OfValues, entropy
from ctld.ensembles.samples import Sample, bare, check_fits

Samples = Iterable[Sample | Mapping[str, Tensor]]
Inputs = Tensor | Iterable[Any]


@dataclass(frozen=True)
class Prediction:
    """Of labels, classes in the last dimension. Entropies in nats, float64, on the CPU."""

    log_probabilities: Tensor
    """Of the averaged distribution; finite wherever a sample's is, since it never was a probability."""
    aleatoric: Tensor
    """Mean entropy of the samples' own distributions."""
    num_samples: int

    @property
    def probabilities(self) -> Tensor:
        # Rounding could leave 1 + 1e-16, which torchmetrics would take for logits.
        return self.log_probabilities.exp().clamp(max=1.0)

    @property
    def total(self) -> Tensor:
        """Entropy of the averaged distribution."""
        return entropy(self.log_probabilities)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and parameters: what the samples disagree about."""
        return (self.total - self.aleatoric).clamp(min=0.0)

    def metrics(self, labels: Tensor, *, num_bins: int = 15) -> dict[str, float]:
        """Mean nll (nats), error, Brier score (sum over classes, 0 to 2) and expected calibration error (top label, l1).

        All but nll, which comes from the logarithms, by torchmetrics (extra `lab`).
        """
        functional = _torchmetrics()
        classes = self.log_probabilities.shape[-1]
        labels = labels.detach().cpu()
        if labels.shape != self.log_probabilities.shape[:-1]:
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}; one class for each prediction would be "
                f"{tuple(self.log_probabilities.shape[:-1])}"
            )
        if labels.is_floating_point() or labels.numel() == 0 or labels.min() < 0 or labels.max() >= classes:
            raise ValueError(f"labels must be whole numbers from 0 to {classes - 1}, and there must be some")
        labels = labels.reshape(-1).long()
        log_probabilities = self.log_probabilities.reshape(-1, classes)
        probabilities = self.probabilities.reshape(-1, classes)
        truth = nn.functional.one_hot(labels, classes).to(probabilities)
        accuracy = functional.classification.multiclass_accuracy(probabilities, labels, classes, average="micro")
        calibration = functional.classification.multiclass_calibration_error(
            probabilities, labels, classes, n_bins=integer("num_bins", num_bins, at_least=1), norm="l1"
        )
        return {
            "nll": -float(log_probabilities.gather(1, labels[:, None]).mean()),
            "error": 1.0 - float(accuracy),
            "brier": classes * float(functional.mean_squared_error(probabilities, truth)),
            "ece": float(calibration),
        }


@dataclass(frozen=True)
class RegressionPrediction:
    """Of numbers, in the unit of the model's output, squared for variances. Float64, on the CPU."""

    mean: Tensor
    aleatoric: Tensor
    """Mean of the variances that the samples predict; 0 for a model that predicts none."""
    epistemic: Tensor
    """Variance of the means that the samples predict (divided by their number)."""
    num_samples: int

    @property
    def total(self) -> Tensor:
        return self.aleatoric + self.epistemic


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    kind: Literal["classification"] = "classification",
    batch_size: int | None = None,
) -> Prediction: ...


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    kind: Literal["regression"],
    batch_size: int | None = None,
) -> RegressionPrediction: ...


def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    kind: Literal["classification", "regression"] = "classification",
    batch_size: int | None = None,
) -> Prediction | RegressionPrediction:
    """The averaged prediction of `samples`. Memory goes with the inputs and not with the number of samples.

    Parameters
    ----------
    model : Module
        In eval mode meanwhile; its tensors are neither read nor written (`torch.func.functional_call`), its modes are put back.
    samples : iterable of `Sample` or of dicts of tensors by name
        A `SampleCollector`, `collector.of_kind("cold")`, any generator: gone through once, none held longer than its turn.
    inputs : Tensor, or batches
        A tensor of all inputs, or what gives the same batches each time it is gone through, as a DataLoader that does not
        shuffle; of a tuple or list the first is the input.
    kind : "classification" or "regression"
        The model gives logits, classes in the last dimension; or it gives numbers, or a pair (mean, variance) of them.
    batch_size : int, optional
        Into which an input tensor is cut; all at once, if left out.
    """
    if kind not in ("classification", "regression"):
        raise ValueError(f'kind = {kind!r} is unknown; give "classification" or "regression"')
    model = bare(model)
    average = OfLogits() if kind == "classification" else OfValues()
    batches = _batches(inputs, batch_size)
    with torch.no_grad(), _evaluating(model):
        for state in map(_state, samples):
            check_fits(model, state)
            placed = {name: tensor.to(_device(model, name)) for name, tensor in state.items()}
            del state  # before the next one is made
            average.begin()
            for batch in batches:
                average.add(torch.func.functional_call(model, placed, (batch[0] if _several(batch) else batch,)))
            del placed
            average.end()
    first, second, *third = average.means()
    if kind == "classification":
        return Prediction(first, second, average.num_samples)
    return RegressionPrediction(first, third[0], second, average.num_samples)


def _state(sample: Sample | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return sample.state if isinstance(sample, Sample) else sample


def _device(model: nn.Module, name: str) -> torch.device:
    place, _, last = name.rpartition(".")
    device: torch.device = getattr(model.get_submodule(place), last).device
    return device


def _several(batch: Any) -> bool:
    return isinstance(batch, tuple | list)


def _batches(inputs: Inputs, batch_size: int | None) -> Iterable[Any]:
    if isinstance(inputs, Tensor):
        if len(inputs) == 0:
            raise ValueError("inputs are empty")
        return torch.split(inputs, len(inputs) if batch_size is None else integer("batch_size", batch_size, at_least=1))
    if batch_size is not None:
        raise ValueError("inputs come in batches of their own; leave batch_size out")
    if isinstance(inputs, Iterator):
        raise TypeError("inputs are gone through once for each sample; give a list or a DataLoader, not an iterator")
    if isinstance(inputs, DataLoader) and isinstance(inputs.sampler, RandomSampler):
        raise ValueError("inputs are shuffled anew for each sample; give a DataLoader with shuffle=False")
    return inputs


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def _torchmetrics() -> Any:
    try:
        return import_module("torchmetrics.functional")
    except ImportError as error:
        raise ImportError('torchmetrics is needed for this; pip install "ctld[lab]", or torchmetrics') from error
