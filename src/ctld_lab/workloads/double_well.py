"""A double well with harmonic dimensions beside it, of which everything is known: U = 8(x² − 1)² + ½Σy².

At temperature T the law is exp(−U/T). The minimum is U* = 0, at x = ±1; between the wells is a barrier of height 8.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BARRIER = 8.0
MINIMUM = 0.0
"""U*."""


@dataclass(frozen=True)
class DoubleWell:
    """x is the first of the `dimensions`, the others are y."""

    dimensions: int

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ValueError(f"dimensions = {self.dimensions}: the well itself has one; give 1 or more")

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """U and ∇U of one θ."""
        x = theta[0]
        gradient = theta.copy()
        gradient[0] = 4.0 * BARRIER * x * (x * x - 1.0)
        rest = theta[1:]
        return float(BARRIER * (x * x - 1.0) ** 2 + 0.5 * (rest @ rest)), gradient

    def of_many(self, theta: Array) -> tuple[Array, Array]:
        """U, of shape (n,), and ∇U, of shape (n, d), of n of them."""
        x = theta[:, 0]
        depth = x * x - 1.0
        gradient = theta.copy()
        gradient[:, 0] = 4.0 * BARRIER * x * depth
        return BARRIER * depth**2 + 0.5 * np.square(theta[:, 1:]).sum(axis=1), gradient

    # ---- exact answers ----

    def mean_square(self, temperature: float = 1.0) -> float:
        """⟨x²⟩ by quadrature."""
        x, density = _law_of_x(temperature)
        return float((x * x * density).sum() / density.sum())

    def mean_energy(self, temperature: float = 1.0) -> float:
        """⟨U⟩: quadrature for x, T/2 for each of the others."""
        x, density = _law_of_x(temperature)
        of_x = float((BARRIER * (x * x - 1.0) ** 2 * density).sum() / density.sum())
        return of_x + 0.5 * temperature * (self.dimensions - 1)


def _law_of_x(temperature: float) -> tuple[Array, Array]:
    """Nodes, and the density there up to a factor.

    The density and all its slopes vanish at ±3 (U = 512) up to T = 7, and so the error of the plain sum.
    """
    if not 0.0 < temperature <= 7.0:
        raise ValueError(f"temperature = {temperature} is outside (0, 7], where the quadrature is exact")
    x = np.linspace(-3.0, 3.0, 200_001)
    return x, np.exp(-BARRIER * (x * x - 1.0) ** 2 / temperature)
