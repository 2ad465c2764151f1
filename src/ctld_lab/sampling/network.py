"""A Bayesian network small enough to be sampled to the end: f(x) = b + Σ_k a_k tanh(w_k x + c_k), y ~ N(f(x), 0.2²)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Network:
    """Eight units, twelve points of a sine with a gap, standard normal prior. θ = (w, c, a, b), one of them or many."""

    UNITS = 8
    NOISE = 0.2
    ASKED = (-3.0, 0.0, 0.9, 3.0)
    """Inputs of the predictions: beyond the data, in their gap, among them."""

    def __init__(self) -> None:
        generator = np.random.default_rng(2017)
        self.inputs = np.concatenate([generator.uniform(-2.0, -0.6, 6), generator.uniform(0.6, 2.0, 6)])
        self.answers = np.sin(2.0 * self.inputs) + self.NOISE * generator.standard_normal(12)
        self.dimensions = 3 * self.UNITS + 1

    def __call__(self, theta: Array) -> tuple[Any, Array]:
        """U and ∇U."""
        n = self.UNITS
        w, c, a = theta[..., None, :n], theta[..., None, n : 2 * n], theta[..., 2 * n : 3 * n]
        hidden = np.tanh(self.inputs[:, None] * w + c)
        residual = (hidden @ a[..., None])[..., 0] + (theta[..., -1:] - self.answers)
        pull = residual / self.NOISE**2
        back = pull[..., None] * a[..., None, :] * (1.0 - hidden * hidden)
        slope = theta.copy()
        slope[..., :n] += self.inputs @ back
        slope[..., n : 2 * n] += back.sum(axis=-2)
        slope[..., 2 * n : 3 * n] += (pull[..., None, :] @ hidden)[..., 0, :]
        slope[..., -1] += pull.sum(axis=-1)
        return 0.5 * (residual * pull).sum(axis=-1) + 0.5 * np.square(theta).sum(axis=-1), slope

    def answer(self, theta: Array, x: float) -> Array:
        """f(x) of many θ."""
        n = self.UNITS
        hidden = np.tanh(x * theta[:, :n] + theta[:, n : 2 * n])
        found: Array = (hidden * theta[:, 2 * n : 3 * n]).sum(axis=1) + theta[:, -1]
        return found
