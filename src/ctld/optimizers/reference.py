"""Algorithm 1 of the paper, line by line, on one flat float64 vector: slow, obvious, and what `CTLD` is tested against.

Notation is the paper's. Nothing is shared with the fast implementation, not even g(α). The errata of docs/maths.md are
applied; what goes beyond the paper (T, the mass m of α, a learning rate that changes) is marked.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass
class ReferenceCTLD:
    """Algorithm 1.

    Parameters
    ----------
    theta, r : float64 vectors
        θ⁽⁰⁾, and r⁽⁰⁾ ~ N(0, T).
    r_alpha : float
        r_α⁽⁰⁾ ~ N(0, 1).
    eta, N, L_s
        η, the number of data, and the number of exploration steps.
    T : float
        Beyond the paper, where it is 1: the temperature of the posterior.
    mass : float, optional
        Beyond the paper, where it is 1: the mass of α. None: max(1, η² max|g′| |H₁|/0.3).
    """

    theta: Vector
    r: Vector
    r_alpha: float
    eta: float
    N: float
    L_s: int
    T: float = 1.0
    mass: float | None = 1.0
    delta: float = 0.4
    delta_prime: float = 1.5
    S: float = 0.85
    sigma: float = 0.04
    K: int = 300
    height_factor: float = 20.0
    alpha: float = 0.0
    t: int = 0
    H: float = np.nan
    h: float = np.nan
    V_b: Vector = field(init=False)

    def __post_init__(self) -> None:
        # η of α's dynamics is fixed; the one of θ's may change from step to step.
        self.eta_alpha = self.eta
        self.eta_before = self.eta
        self.C = self.delta_prime / self.eta**2
        self.w = self.height_factor / (self.eta**2 * max(self.L_s, 1) * self.K)
        self.gamma_alpha = 1.0 / self.eta
        self.nodes = np.linspace(-self.delta_prime, self.delta_prime, self.K + 1)
        self.V_b = np.zeros(self.K + 1)

    def step(
        self,
        U: float,
        grad_U: Vector,
        c_m: float,
        epsilon: Callable[[], Vector],
        epsilon_alpha: Callable[[], float],
        eta: float | None = None,
    ) -> None:
        """One iteration, given Ũ(θ) and ∇Ũ(θ) at the present θ; `epsilon` and `epsilon_alpha` draw the noise."""
        eta = self.eta if eta is None else eta
        gamma = (1.0 - c_m) / eta
        if self.t < self.L_s:
            noise = np.sqrt(2.0 * eta * gamma * self.T / self.g(self.alpha)) * epsilon()
            self.r = (1.0 - eta * gamma) * self.r - grad_U * eta + noise
            self.H = (U + 0.5 * float(self.r @ self.r)) / self.T
            self.temper(epsilon_alpha())
        else:
            # Beyond the paper: η⁽ᵗ⁾/η⁽ᵗ⁻¹⁾ makes this torch's SGD with momentum when the learning rate changes.
            self.r = (1.0 - eta * gamma) * (eta / self.eta_before) * self.r - grad_U * eta
        self.eta_before = eta
        self.theta = self.theta + eta * self.r
        self.t += 1

    def temper(self, epsilon_alpha: float) -> None:
        """The lines of α, V_b, h̃ and r_α."""
        eta, gamma_alpha = self.eta_alpha, self.gamma_alpha
        if self.mass is None:
            steepest = 1.5 * self.S / (self.delta_prime - self.delta)
            self.mass = max(1.0, eta**2 * steepest * abs(self.H) / 0.3)
        m = self.mass
        self.alpha = self.alpha + eta * self.r_alpha / m
        inside = abs(self.alpha) <= self.delta_prime
        if inside:
            self.V_b += m * self.w * np.exp(-((self.nodes - self.alpha) ** 2) / (2.0 * self.sigma**2))
        bin_length = 2.0 * self.delta_prime / self.K
        k = min(int((self.alpha + self.delta_prime) / bin_length), self.K - 1)
        bias_slope = (self.V_b[k + 1] - self.V_b[k]) / bin_length if inside else 0.0
        phi_slope = 0.0 if inside else m * self.C * np.sign(self.alpha)
        self.h = float(-self.g_slope(self.alpha) * self.H - phi_slope - bias_slope)
        self.r_alpha = float(
            (1.0 - eta * gamma_alpha) * self.r_alpha
            + self.h * eta
            + np.sqrt(2.0 * eta * gamma_alpha * m) * epsilon_alpha
        )

    def g(self, alpha: float) -> float:
        if abs(alpha) <= self.delta:
            return 1.0
        if abs(alpha) >= self.delta_prime:
            return 1.0 - self.S
        z = (abs(alpha) - self.delta) / (self.delta_prime - self.delta)
        return float(1.0 - self.S * (3.0 * z**2 - 2.0 * z**3))

    def g_slope(self, alpha: float) -> float:
        if abs(alpha) <= self.delta or abs(alpha) >= self.delta_prime:
            return 0.0
        z = (abs(alpha) - self.delta) / (self.delta_prime - self.delta)
        return float(-self.S * (6.0 * z - 6.0 * z**2) * np.sign(alpha) / (self.delta_prime - self.delta))


def simulate(
    reference: ReferenceCTLD,
    potential: Callable[[Vector], tuple[float, Vector]],
    c_m: float,
    steps: int,
    *,
    generator: np.random.Generator,
    observe: Callable[[ReferenceCTLD, Vector], Any],
) -> list[Any]:
    """Run `steps` iterations on a potential θ ↦ (U, ∇U); return what `observe(reference, r_before)` made of each."""
    records = []
    for _ in range(steps):
        U, grad_U = potential(reference.theta)
        r_before = reference.r
        reference.step(U, grad_U, c_m, lambda: generator.standard_normal(reference.r.size), generator.standard_normal)
        records.append(observe(reference, r_before))
    return records
