"""Small posteriors of networks with one hidden layer, as numbers: read by the samplers (torch) and by NUTS (jax).

    f(x) = tanh(x W₁ᵀ + b₁) W₂ᵀ + b₂,     prior N(0, prior_sd²) on every weight and bias,     posterior at T = 1

Parameters in one vector θ are W₁, b₁, W₂, b₂, as torch's `nn.Linear` has them, row after row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Data, network and prior."""

    name: str
    inputs: Array
    targets: Array
    """Numbers of shape (n, 1), or class numbers of shape (n,)."""
    test_inputs: Array
    hidden: int
    outputs: int
    noise: float | None = None
    """Standard deviation of the targets; None: classes, by softmax."""
    prior_sd: float = 1.0
    batch: int | None = None
    """Examples in a minibatch of the samplers; None: all of them."""
    epochs: bool = False
    """True if minibatches come in reshuffled epochs, not drawn with replacement."""
    reference: str = ""
    """The problem whose reference this one is compared with, if not its own."""
    mirrored: bool = False
    """True if f(x) → f(−x) keeps the posterior."""

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        width = self.inputs.shape[1]
        return [(self.hidden, width), (self.hidden,), (self.outputs, self.hidden), (self.outputs,)]

    @property
    def dimension(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    @property
    def num_data(self) -> int:
        return len(self.inputs)

    @property
    def weight_decay(self) -> float:
        """λ, where N·λ‖θ‖²/2 is the prior."""
        return 1.0 / (self.num_data * self.prior_sd**2)


def split(theta: Any, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return θ, an array of numpy or jax, in its parts; leading dimensions stay."""
    parts, first = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(theta[..., first : first + size].reshape(*theta.shape[:-1], *shape))
        first += size
    return parts


def predicted(inputs: Any, parts: list[Any], tanh: Callable[[Any], Any]) -> Any:
    """Return f at the inputs, of shape (..., n, outputs)."""
    first, first_bias, second, second_bias = parts
    hidden = tanh(inputs @ first.swapaxes(-1, -2) + first_bias[..., None, :])
    return hidden @ second.swapaxes(-1, -2) + second_bias[..., None, :]


def predictions(problem: Problem, theta: Array) -> Array:
    """Return what draws predict at the test inputs: numbers, or probabilities of classes; (..., points, outputs)."""
    outputs = np.asarray(predicted(problem.test_inputs, split(theta, problem.shapes), np.tanh))
    if problem.noise is not None:
        return outputs
    shares = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def standardized(train: Array, test: Array) -> tuple[Array, Array]:
    """Return both in units of the first's mean and deviation; a column that is constant stays at zero."""
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return (train - mean) / deviation, (test - mean) / deviation


def _diabetes(name: str = "diabetes", **more: Any) -> Problem:
    from sklearn.datasets import load_diabetes

    inputs, targets = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))
    train, test = order[:300], order[300:]
    x, x_test = standardized(inputs[train], inputs[test])
    y, _ = standardized(targets[train, None], targets[test, None])
    return Problem(name, x, y, x_test, 8, 1, noise=0.7, reference="diabetes", **more)


def _wine() -> Problem:
    from sklearn.datasets import load_wine

    inputs, targets = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(inputs))
    train, test = order[:100], order[100:]
    x, x_test = standardized(inputs[train], inputs[test])
    # Two columns only: with all thirteen the classes are told apart, and every predictive is certain.
    columns = [0, 10]
    return Problem("wine", x[:, columns], targets[train], x_test[:, columns], 6, 3)


def _hats() -> Problem:
    """Two hats for a network that has one: it fits the left one or the right one, by symmetry with equal odds."""
    half = np.arange(0.125, 4.0, 0.25)
    y_half = np.where((half > 2.0) & (half < 3.0), 1.0, 0.0) + 0.1 * np.random.default_rng(0).standard_normal(len(half))
    x = np.concatenate([-half[::-1], half])[:, None]
    y = np.concatenate([y_half[::-1], y_half])[:, None]
    return Problem("hats", x, y, np.linspace(-4.0, 4.0, 41)[:, None], 2, 1, noise=0.3, prior_sd=4.0, mirrored=True)


PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    "diabetes": _diabetes,
    "wine": _wine,
    "hats": _hats,
    "diabetes-batch": lambda: _diabetes("diabetes-batch", batch=32),
    "diabetes-epochs": lambda: _diabetes("diabetes-epochs", batch=30, epochs=True),
}
