"""Algorithm 1 for many independent chains at once, one per row: what one chain measures in hours, they measure in a minute.

The notation, the constants and the order of the lines are those of `ctld.optimizers.reference`, to which it is tested equal,
with N = T = mass = 1 and exploration throughout. Hills are deposited up to 8.75 σ from their centre, where exp(−z²/2) is
2·10⁻¹⁷ and adds nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DELTA, DELTA_PRIME, SIGMA, K = 0.4, 1.5, 0.04, 300
BIN = 2.0 * DELTA_PRIME / K
REACH = round(8.75 * SIGMA / BIN)
"""Bins to either side of a hill's centre that it reaches."""


class Replicas:
    """The state of n chains.

    Parameters
    ----------
    theta, r : arrays of shape (n, d)
    r_alpha : array of shape (n,), or None
        None: g ≡ 1, there is no α, and this is Langevin dynamics.
    eta, friction
        η and γ.
    L_s : int
        The number of steps over which the paper's w spreads the hills.
    alpha_eta : float, optional
        The η in the paper's γ_α = 1/η, C = δ′/η² and w = 20/(η² L_s K); the step's own, if left out. With one for all
        step sizes they integrate one and the same equation.
    depth, height_factor
        S, and the 20 of w.
    noise_factor : float
        Multiplies the variance of θ's noise. 1 is right; anything else is a deliberate mistake, for tests.
    """

    def __init__(
        self,
        theta: Array,
        r: Array,
        r_alpha: Array | None,
        *,
        eta: float,
        friction: float,
        L_s: int,
        alpha_eta: float | None = None,
        depth: float = 0.85,
        height_factor: float = 20.0,
        noise_factor: float = 1.0,
    ) -> None:
        self.theta, self.r, self.r_alpha = theta.copy(), r.copy(), None if r_alpha is None else r_alpha.copy()
        self.eta, self.friction, self.depth, self.noise_factor = eta, friction, depth, noise_factor
        self.alpha = np.zeros(len(theta))
        alpha_eta = eta if alpha_eta is None else alpha_eta
        self.C = DELTA_PRIME / alpha_eta**2
        self.gamma_alpha = 1.0 / alpha_eta
        self.w = height_factor / (alpha_eta**2 * L_s * K)
        # V_b on the nodes, with room for hills that reach over the ends of the grid.
        self._V_b = np.zeros((len(theta), K + 1 + 2 * (REACH + 1)))
        self._first = np.arange(len(theta)) * self._V_b.shape[1] + REACH + 1  # of each row's node 0, in the flat array
        self._reached = np.arange(-REACH, REACH + 2)

    @property
    def V_b(self) -> Array:
        """Of shape (n, K + 1)."""
        return self._V_b[:, REACH + 1 : REACH + K + 2]

    def g(self) -> Array:
        """g(α) of each chain; 1 where nothing is tempered."""
        return 1.0 - self.depth * _smoothstep(self._z())

    def step(
        self, U: Array, grad_U: Array, g: Array, epsilon: Callable[[], Array], epsilon_alpha: Callable[[], Array]
    ) -> None:
        """One iteration, given U(θ), ∇U(θ) and g(α); the callables draw noise of the shapes of θ and α."""
        eta, gamma = self.eta, self.friction
        deviation = np.sqrt(2.0 * eta * gamma * self.noise_factor / g)
        self.r = (1.0 - eta * gamma) * self.r - eta * grad_U + deviation[:, None] * epsilon()
        if self.r_alpha is not None:
            self._temper(U + 0.5 * np.square(self.r).sum(axis=1), self.r_alpha, epsilon_alpha())
        self.theta = self.theta + eta * self.r

    def _temper(self, H: Array, r_alpha: Array, epsilon_alpha: Array) -> None:
        """The lines of α, V_b, h̃ and r_α."""
        eta, gamma_alpha = self.eta, self.gamma_alpha
        self.alpha = self.alpha + eta * r_alpha
        inside = np.abs(self.alpha) <= DELTA_PRIME
        slope = self._deposit(inside) if self.w else 0.0
        pull = np.where(inside, 0.0, self.C * np.sign(self.alpha))
        z = self._z()
        g_slope = -self.depth * 6.0 * z * (1.0 - z) * np.sign(self.alpha) / (DELTA_PRIME - DELTA)
        h = -g_slope * H - pull - slope
        self.r_alpha = (1.0 - eta * gamma_alpha) * r_alpha + eta * h + np.sqrt(2.0 * eta * gamma_alpha) * epsilon_alpha

    def _deposit(self, inside: NDArray[np.bool_]) -> Array:
        """A hill at each α that is inside; returns the slope of V_b there, 0 outside."""
        k = np.clip(((self.alpha + DELTA_PRIME) / BIN).astype(np.int64), 0, K - 1)
        distance = (k * BIN - DELTA_PRIME - self.alpha)[:, None] + self._reached * BIN
        hills = np.exp(distance * distance * (-0.5 / SIGMA**2))
        hills *= np.where(inside, self.w, 0.0)[:, None]
        flat = self._V_b.reshape(-1)
        here = self._first + k
        flat[here[:, None] + self._reached] += hills
        return np.where(inside, (flat[here + 1] - flat[here]) / BIN, 0.0)

    def _z(self) -> Array:
        return np.clip((np.abs(self.alpha) - DELTA) / (DELTA_PRIME - DELTA), 0.0, 1.0)


def _smoothstep(z: Array) -> Array:
    return z * z * (3.0 - 2.0 * z)
