"""What samples predict together, one sample in memory at a time, and how sure they are.

With p_i the probabilities of sample i and p̄ their mean, H(p̄) = mean H(p_i) + I: the total uncertainty is what each sample
admits on its own (aleatoric) plus what they disagree about (epistemic, the mutual information of label and parameters).
For numbers the same, by the law of total variance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from ctld.checks import integer, warn_user
from ctld.ensembles.averages import OfLogits, OfValues, entropy
from ctld.ensembles.metrics import classification_metrics
from ctld.ensembles.samples import Sample, bare, check_fits

Samples = Iterable[Sample | Mapping[str, Tensor]]
Inputs = Tensor | Iterable[Any]
Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Prediction:
    """Of labels, classes in the last dimension. Entropies in nats, float64, on the CPU."""

    log_probabilities: Tensor
    """Of the averaged distribution; finite wherever a sample's is, since it never was a probability."""
    aleatoric: Tensor
    """Mean entropy of the samples' own distributions."""
    num_samples: int
    outliers: dict[int, str] = field(default_factory=dict)
    """By the number of the sample, from 0, what is wrong with it: it predicts the same for every input, or is far from the
    others (`ctld.ensembles.outliers`). They are in the average all the same: whoever averages decides."""

    @property
    def probabilities(self) -> Tensor:
        # Rounding could leave 1 + 1e-16, which others would take for a logit.
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
        """Returns mean nll (nats), error, Brier score (sum over classes, 0 to 2) and ECE (top label, l1)."""
        return classification_metrics(self.log_probabilities, labels, num_bins=num_bins)


@dataclass(frozen=True)
class RegressionPrediction:
    """Of numbers, in the unit of the model's output, squared for variances. Float64, on the CPU."""

    mean: Tensor
    aleatoric: Tensor
    """Mean of the variances that the samples predict; 0 for a model that predicts none."""
    epistemic: Tensor
    """Variance of the means that the samples predict (divided by their number)."""
    num_samples: int
    outliers: dict[int, str] = field(default_factory=dict)
    """As in `Prediction`."""

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
    forward: Forward | None = None,
) -> Prediction: ...


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    kind: Literal["regression"],
    batch_size: int | None = None,
    forward: Forward | None = None,
) -> RegressionPrediction: ...


def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    kind: Literal["classification", "regression"] = "classification",
    batch_size: int | None = None,
    forward: Forward | None = None,
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
        shuffle; of a tuple or list the first is the input, a dict is handed over by keywords, without its "labels". They are
        moved to where the model is.
    kind : "classification" or "regression"
        The model gives logits, classes in the last dimension; or it gives numbers, or a pair (mean, variance) of them. What has
        `logits`, as a key or an attribute, gives these.
    batch_size : int, optional
        Into which an input tensor is cut; all at once, if left out.
    forward : callable, optional
        forward(model, batch) in place of all that: for models that are called otherwise.
    """
    if kind not in ("classification", "regression"):
        raise ValueError(f'kind = {kind!r} is unknown; give "classification" or "regression"')
    call = _Call(bare(model), forward)
    average = OfLogits() if kind == "classification" else OfValues()
    batches = _batches(inputs, batch_size)
    with torch.no_grad(), _evaluating(call):
        for state in map(_state, samples):
            check_fits(call.model, state)
            placed = {f"model.{name}": tensor.to(_device(call.model, name)) for name, tensor in state.items()}
            del state  # before the next one is made
            average.begin()
            for batch in batches:
                average.add(torch.func.functional_call(call, placed, (batch,)))
            del placed
            average.end()
    first, second, *third = average.means()
    outliers = average.outliers()
    if outliers:
        named = "; ".join(f"sample {number} {what}" for number, what in outliers.items())
        warn_user(
            f"of {average.num_samples} samples some spoil the average: {named}. Leave them out of the samples that are handed "
            "over, and train at a lower temperature or lr"
        )
    if kind == "classification":
        return Prediction(first, second, average.num_samples, outliers)
    return RegressionPrediction(first, third[0], second, average.num_samples, outliers)


class _Call(nn.Module):
    """A model and how it is called: `functional_call` takes a module."""

    def __init__(self, model: nn.Module, forward: Forward | None) -> None:
        super().__init__()
        self.model = model
        self._forward = forward
        first = next(iter(model.parameters()), None)
        self._device = None if first is None else first.device

    def forward(self, batch: Any) -> Any:
        batch = moved(batch, self._device)
        return called(self.model, batch) if self._forward is None else self._forward(self.model, batch)


def called(model: nn.Module, batch: Any) -> Any:
    """Returns what the model gives for a batch's inputs; its logits, where it gives more."""
    if isinstance(batch, Mapping):
        output = model(**{name: value for name, value in batch.items() if name not in ("labels", "label")})
    else:
        output = model(batch[0] if isinstance(batch, tuple | list) else batch)
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def moved(batch: Any, device: torch.device | None) -> Any:
    """Returns a batch with its tensors on `device`."""
    if isinstance(batch, Tensor):
        return batch if device is None else batch.to(device)
    if isinstance(batch, Mapping):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list) and not hasattr(batch, "_fields"):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def _state(sample: Sample | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return sample.state if isinstance(sample, Sample) else sample


def _device(model: nn.Module, name: str) -> torch.device:
    place, _, last = name.rpartition(".")
    device: torch.device = getattr(model.get_submodule(place), last).device
    return device


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
