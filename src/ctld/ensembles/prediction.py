"""Prediction: the average of what samples predict, one sample in memory at a time, and how sure it is.

With p_i the probabilities of sample i and p̄ their mean, H(p̄) = mean H(p_i) + I. The total uncertainty is what each sample
admits on its own (aleatoric) plus what they disagree about (epistemic, the mutual information of label and parameters).
For numbers the law of total variance says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ctld.checks import warn_user
from ctld.ensembles.averages import Average, Calibration, OfLogits, OfValues, entropy
from ctld.ensembles.inputs import Inputs, Passes, as_batches, called, moved
from ctld.ensembles.metrics import as_labels, classification_metrics, regression_metrics, risk_coverage, smooth_ece
from ctld.ensembles.samples import Sample, bare, check_fits
from ctld.ensembles.task import Head, Task, TaskName, as_task

Samples = Iterable[Sample | Mapping[str, Tensor]]
Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Prediction:
    """Predicted labels, classes in the last dimension. Entropies in nats, float64, on the CPU."""

    log_probabilities: Tensor
    """Logarithms of the averaged probabilities; finite wherever a sample's is, since they never were probabilities."""
    aleatoric: Tensor
    """Mean entropy of the samples' own distributions."""
    num_samples: int
    outliers: dict[int, str] = field(default_factory=dict)
    """By the number of the sample, from 0, what is wrong with it: it predicts the same for every input, or is far from the
    others (`ctld.ensembles.outliers`). They are in the average all the same: whoever averages decides."""

    @property
    def probabilities(self) -> Tensor:
        """Averaged probabilities."""
        # Rounding could leave 1 + 1e-16, which others would take for a logit.
        return self.log_probabilities.exp().clamp(max=1.0)

    @property
    def labels(self) -> Tensor:
        """The most probable class of each input."""
        return self.log_probabilities.argmax(-1)

    @property
    def total(self) -> Tensor:
        """Entropy of the averaged distribution."""
        return entropy(self.log_probabilities)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information of label and parameters: what the samples disagree about."""
        return (self.total - self.aleatoric).clamp(min=0.0)

    def metrics(self, labels: Any, *, num_bins: int = 15) -> dict[str, float]:
        """Return mean nll (nats), error, Brier score (sum over classes, 0 to 2), ECE (top label, l1) and smooth ECE."""
        found = classification_metrics(self.log_probabilities, labels, num_bins=num_bins)
        confidence, guess = self.log_probabilities.exp().max(-1)
        return found | {"smooth_ece": smooth_ece(confidence, guess == as_labels(labels, self.log_probabilities))}

    def risk_coverage(self, labels: Any) -> dict[str, Any]:
        """Return the error among the surest share of the inputs (`risk`), for each share (`coverage`), and the `area` below."""
        return risk_coverage(self.log_probabilities, labels, self.total)

    def plot(self, labels: Any) -> Any:
        """Return a matplotlib figure: how often labels are right by confidence, and risk against coverage."""
        from ctld.ensembles.plots import plot_classification

        return plot_classification(self, labels)


@dataclass(frozen=True)
class MultilabelPrediction(Prediction):
    """Predicted labels that do not exclude each other: `log_probabilities` have a last dimension of no and yes."""

    @property
    def probabilities(self) -> Tensor:
        """Averaged probability of each label."""
        return super().probabilities[..., 1]


@dataclass(frozen=True)
class RegressionPrediction:
    """Predicted numbers, in the unit of the model's output, squared for variances. Float64, on the CPU."""

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
        """Variance of a new value around the mean."""
        return self.aleatoric + self.epistemic

    def metrics(self, targets: Any, *, noise: float | None = None) -> dict[str, float]:
        """Return rmse and mae, and by a Gaussian of variance `total` the nll, the CRPS and the coverage of central intervals.

        A model that predicts no variance needs `noise`, the standard deviation of the targets around their mean, for the last
        three; without it they are left out.
        """
        return regression_metrics(self, targets, noise=noise)

    def interval(self, coverage: float = 0.9, *, noise: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper end of the central interval of a Gaussian of variance `total` + noise².

        A model that predicts no variance needs `noise`, the standard deviation of the targets around their mean. With 0 the
        interval is that of the mean, not of a new value.
        """
        if noise is None and not bool((self.aleatoric > 0).any()):
            raise ValueError(
                "noise must be given for a model that predicts no variance: its interval would hold the mean, and far fewer "
                "targets than asked for. Give noise=, or take ctld.ensembles.conformal with held-out data"
            )
        noise = 0.0 if noise is None else noise
        half = _quantile(0.5 + coverage / 2) * (self.total + noise**2).sqrt()
        return self.mean - half, self.mean + half

    def plot(self, inputs: Any, targets: Any = None, *, coverage: float = 0.9) -> Any:
        """Return a matplotlib figure of mean and predictive band along one input, and the targets if they are given."""
        from ctld.ensembles.plots import plot_regression

        return plot_regression(self, inputs, targets, coverage=coverage)


AnyPrediction = Prediction | RegressionPrediction


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    task: Literal["classification", "binary", "multilabel"] = "classification",
    class_dim: int | None = None,
    head: None = None,
    batch_size: int | None = None,
    forward: Forward | None = None,
    calibration: Calibration | None = None,
) -> Prediction: ...


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    task: Literal["regression"],
    class_dim: None = None,
    head: Head | None = None,
    batch_size: int | None = None,
    forward: Forward | None = None,
    calibration: Calibration | None = None,
) -> RegressionPrediction: ...


@overload
def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    task: TaskName | Task | None = None,
    class_dim: int | None = None,
    head: Head | None = None,
    batch_size: int | None = None,
    forward: Forward | None = None,
    calibration: Calibration | None = None,
    kind: str | None = None,
) -> Any: ...


def predict(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    *,
    task: TaskName | Task | None = None,
    class_dim: int | None = None,
    head: Head | None = None,
    batch_size: int | None = None,
    forward: Forward | None = None,
    calibration: Calibration | None = None,
    kind: str | None = None,
) -> Any:
    """Return the averaged prediction of `samples`. Memory goes with the inputs and not with the number of samples.

    Parameters
    ----------
    model : Module
        In eval mode meanwhile. Its tensors are neither read nor written (`torch.func.functional_call`), its modes are put back.
    samples : iterable of `Sample` or of dicts of tensors by name
        A `SampleCollector`, `collector.of_kind("cold")`, any generator: gone through once, none held longer than its turn.
    inputs : Tensor, array, or batches
        A tensor or numpy array of all inputs, or what gives the same batches each time it is gone through, as a DataLoader that
        neither shuffles nor augments. Of a tuple or list the first is the input; a dict is handed over by keywords, without its
        "labels". Inputs are moved to where the model is.
    task : "classification", "binary", "multilabel" or "regression"
        What the outputs are: one logit for each class (the default), one logit for each input, one logit for each label, or
        numbers. What has `logits`, as a key or an attribute, gives these.
    class_dim : int, optional
        The dimension of the classes, for outputs of more than two dimensions; it is the last one of the prediction.
    head : "mean", "mean_variance" or "mean_log_variance", optional
        What a regression gives: numbers, a pair with variances, or means and logarithms of variances.
    batch_size : int, optional
        Into which an input tensor is cut; all at once, if left out.
    forward : callable, optional
        forward(model, batch) in place of all that: for models that are called otherwise.
    calibration : Calibration, optional
        Weights of the members and the scale of their logits or variances, from `Ensemble.calibrate`.
    kind : str, optional
        The name that `task` had before 0.3.
    """
    known = as_task(task, class_dim=class_dim, head=head, kind=kind) or Task(("classification",))
    return finished(averaged(model, samples, inputs, known, batch_size, forward, calibration))


def averaged(
    model: nn.Module,
    samples: Samples,
    inputs: Inputs,
    task: Task,
    batch_size: int | None = None,
    forward: Forward | None = None,
    calibration: Calibration | None = None,
) -> Average:
    """Return the running average after all samples."""
    call = _Call(bare(model), forward)
    average = (OfValues if "regression" in task.names else OfLogits)(task, call.model, calibration)
    batches = Passes(as_batches(inputs, batch_size, call.model))
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
    if average.num_samples == 1:
        batches.check_again()
    return average


def finished(average: Average) -> AnyPrediction:
    """Return the prediction of an average, and warn of samples that spoil it."""
    first, second, *third = average.means()
    outliers = average.outliers()
    if outliers:
        named = "; ".join(f"sample {number} {what}" for number, what in outliers.items())
        warn_user(
            f"of {average.num_samples} samples some spoil the average: {named}. Predict again without them, or "
            "train at a lower lr"
        )
    if isinstance(average, OfValues):
        return RegressionPrediction(first, third[0], second, average.num_samples, outliers)
    kind = MultilabelPrediction if average.task.name == "multilabel" else Prediction
    return kind(first, second, average.num_samples, outliers)


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


def _state(sample: Sample | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return sample.state if isinstance(sample, Sample) else sample


def _device(model: nn.Module, name: str) -> torch.device:
    place, _, last = name.rpartition(".")
    device: torch.device = getattr(model.get_submodule(place), last).device
    return device


def _quantile(share: float) -> float:
    return float(torch.special.ndtri(torch.tensor(share, dtype=torch.float64)))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
