"""scikit-learn: a network that is trained in cycles of exploration and fine-tuning, and predicts by what each cycle ends with.

    CTLDClassifier(hidden_layer_sizes=(64, 64)).fit(X, y).predict_proba(X_new)

Inputs, and the targets of a regression, are standardised inside. The network is in float64, as scikit-learn's numbers are.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from ctld import Ensemble, TemperatureWarning, predict
from ctld.checks import integer
from ctld.ensembles.task import TaskName

Array = Any

PRIOR = 3.0  # precision of the weights' Gaussian prior at weight_decay="auto": the number of rows times weight_decay
RANGE = 4.0  # in which standardised inputs lie, at most


class _Network(BaseEstimator):
    """Both estimators.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int
        Widths of the layers between inputs and outputs.
    cycles : int
        How often exploration and fine-tuning are repeated; each ends with a member of the ensemble.
    epochs : int
        Passes over the data, of all cycles together.
    exploration : float
        Share of each cycle that explores, from 0 on and below 1.
    lr, momentum, temperature
        As in `ctld.Ensemble`: "auto" is adapted to what the network bears, 0 is without noise. The data set's size is the
        number of rows.
    weight_decay : float or "auto"
        "auto" is 3 over the number of rows: one prior for the weights, which counts for less the more data there are.
    batch_size : int
        Rows in a step; fewer, if there are fewer.
    module : callable, optional
        Makes the network from the numbers of inputs and outputs, in place of fully connected layers with ReLU.
    random_state : int, RandomState or None
        Of weights, batches and noise.

    Attributes
    ----------
    network_ : Module
    members_ : list of dict
        The state of the network at the end of each cycle; without those of cycles that collapsed, which a warning says.
    loss_curve_ : list of float
        Loss of each step.
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (100,),
        *,
        cycles: int = 4,
        epochs: int = 100,
        exploration: float = 0.6,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float | Literal["auto"] = "auto",
        temperature: float | Literal["auto"] = "auto",
        batch_size: int = 32,
        module: Callable[[int, int], nn.Module] | None = None,
        random_state: Any = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.cycles = cycles
        self.epochs = epochs
        self.exploration = exploration
        self.lr = lr
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.temperature = temperature
        self.batch_size = batch_size
        self.module = module
        self.random_state = random_state

    def _train(
        self,
        inputs: Array,
        targets: Tensor,
        outputs: int,
        loss_of: Callable[[Tensor, Tensor], Tensor],
        task: TaskName,
    ) -> None:
        # By the range where that is wide beside the deviation: a pixel that is seldom on would be very large when it is.
        self._mean, self._scale = inputs.mean(0), np.maximum(inputs.std(0), np.ptp(inputs, axis=0) / RANGE)
        self._scale[self._scale == 0] = 1.0
        if isinstance(self.weight_decay, str) and self.weight_decay != "auto":
            raise ValueError(f'weight_decay must be a number or "auto", got {self.weight_decay!r}')
        rows, seed = len(inputs), int(check_random_state(self.random_state).randint(2**31 - 1))
        batch = min(integer("batch_size", self.batch_size, at_least=1), rows)
        steps_in_epoch = math.ceil(rows / batch)
        cycles = integer("cycles", self.cycles, at_least=1)
        total_steps = integer("epochs", self.epochs, at_least=1) * steps_in_epoch
        if total_steps < 2 * cycles:
            raise ValueError(
                f"cycles must be at most {total_steps // 2} for the {total_steps} steps of epochs={self.epochs}, got {cycles}. "
                "Give fewer cycles or more epochs"
            )
        with torch.random.fork_rng(devices=[]):  # the user's random numbers stay as they were
            torch.manual_seed(seed)
            make = self._layers if self.module is None else self.module
            network = make(inputs.shape[1], outputs).double()
            self._check_outputs(network, inputs, outputs)
        ensemble = Ensemble(
            network,
            self.lr,
            rows,
            total_steps,
            cycles=cycles,
            exploration=self.exploration,
            momentum=self.momentum,
            weight_decay=PRIOR / rows if isinstance(self.weight_decay, str) else self.weight_decay,
            temperature=self.temperature,
            seed=seed,
            task=task,
            head=None if task == "classification" else "mean",
        )
        data, generator = self._tensor(inputs), torch.Generator().manual_seed(seed)
        order, self.loss_curve_ = torch.empty(0, dtype=torch.long), []
        with warnings.catch_warnings():
            # Here the network is trained; nobody waits for draws of a posterior.
            warnings.simplefilter("ignore", TemperatureWarning)
            while not ensemble.done:
                if len(order) == 0:
                    order = torch.randperm(rows, generator=generator)
                chosen, order = order[:batch], order[batch:]
                loss = ensemble.watch(loss_of(network(data[chosen]), targets[chosen]))
                loss.backward()  # type: ignore[no-untyped-call]
                self.loss_curve_.append(loss.item())
                ensemble.step()
        if not len(ensemble):
            raise ValueError(f"the training diverged with lr = {self.lr}: give a lower one")
        self.network_ = network.eval()
        self.members_ = [dict(sample.state) for sample in ensemble.collector]

    def _check_outputs(self, network: nn.Module, inputs: Array, outputs: int) -> None:
        with torch.no_grad():
            found = network.eval()(self._tensor(inputs[:2]))
        network.train()
        expected = (min(2, len(inputs)), outputs)
        if not isinstance(found, Tensor) or tuple(found.shape) != expected:
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"module must make a network that gives shape {expected} for {expected[0]} rows, got {got}. It is called with "
                "the numbers of inputs and outputs: use the second"
            )

    def _layers(self, inputs: int, outputs: int) -> nn.Module:
        widths = [inputs, *(integer("hidden_layer_sizes", width, at_least=1) for width in self.hidden_layer_sizes)]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    def _tensor(self, inputs: Array) -> Tensor:
        return torch.tensor((inputs - self._mean) / self._scale, dtype=torch.float64)

    def _together(self, X: Array, task: Any) -> Any:
        """Return what the members predict together."""
        check_is_fitted(self)
        inputs = self._tensor(validate_data(self, X, reset=False, dtype=np.float64))
        return predict(self.network_, self.members_, inputs, task=task, head="mean" if task == "regression" else None)


class CTLDClassifier(ClassifierMixin, _Network):
    __doc__ = "Labels, by an ensemble from one training run." + (_Network.__doc__ or "").removeprefix(
        "Both estimators."
    )

    def fit(self, X: Array, y: Array) -> Self:
        """Train on rows of `X` and their labels."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        loss = nn.functional.cross_entropy
        outputs = max(len(self.classes_), 2)  # of one label alone there is nothing to learn, and nothing to refuse
        self._train(X, torch.tensor(labels), outputs, loss, "classification")
        return self

    def predict_proba(self, X: Array) -> Array:
        """Probabilities of `classes_`, the mean of the members'."""
        found = self._together(X, "classification").probabilities.numpy()
        return found if len(self.classes_) > 1 else np.ones((len(found), 1))

    def predict(self, X: Array) -> Array:
        """The most probable label of each row."""
        chosen = self.predict_proba(X).argmax(1)
        return self.classes_[chosen]

    def predict_uncertainty(self, X: Array) -> tuple[Array, Array]:
        """Entropy of the prediction (nats), and the part of it that is the members' disagreement."""
        prediction = self._together(X, "classification")
        return prediction.total.numpy(), prediction.epistemic.numpy()


class CTLDRegressor(RegressorMixin, _Network):
    __doc__ = "Numbers, by an ensemble from one training run." + (_Network.__doc__ or "").removeprefix(
        "Both estimators."
    )

    def fit(self, X: Array, y: Array) -> Self:
        """Train on rows of `X` and their values; the loss is half the mean square in units of the values' variance."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = column_or_1d(y, warn=True).astype(np.float64)
        self._target_mean, self._target_scale = float(y.mean()), float(y.std()) or 1.0
        targets = torch.tensor((y - self._target_mean) / self._target_scale)
        self._train(X, targets, 1, lambda out, y: 0.5 * nn.functional.mse_loss(out[:, 0], y), "regression")
        residuals = y - self.predict(X)
        self.noise_ = float(np.sqrt(np.mean(residuals**2)))
        return self

    def predict(self, X: Array, return_std: bool = False) -> Any:
        """The mean of the members; with `return_std` also the deviation of a new value from it.

        That is the members' spread and, in squares, the root mean square of what is left of the training values.
        """
        prediction = self._together(X, "regression")
        mean = self._target_mean + self._target_scale * prediction.mean[:, 0].numpy()
        if not return_std:
            return mean
        spread = self._target_scale**2 * prediction.epistemic[:, 0].numpy()
        return mean, np.sqrt(spread + self.noise_**2)
