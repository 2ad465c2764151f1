"""Algorithm 1 for many independent chains at once, one per row: what one chain measures in hours, they measure in a minute.

The notation, the constants and the order of the lines are those of `ctld.optimizers.reference`, to which it is tested equal,
with N = T = 1, mass 1 and exploration throughout. Hills are deposited up to 8.75 σ from their centre, where exp(−z²/2) is
2·10⁻¹⁷ and adds nothing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DELTA, DELTA_PRIME, DEPTH, SIGMA, K, HEIGHT = 0.4, 1.5, 0.85, 0.04, 300, 20.0
BIN = 2.0 * DELTA_PRIME / K
REACH = round(8.75 * SIGMA / BIN)
"""Bins to either side of a hill's centre that it reaches."""


class Alphas:
    """α of n chains: the lines of α, V_b, h̃ and r_α.

    Parameters
    ----------
    r_alpha : array of shape (n,)
    eta : float
    L_s : int
        The number of steps over which the paper's w spreads the hills.
    alpha_eta : optional
        The η in the paper's γ_α = 1/η, C = δ′/η² and w = 20/(η² L_s K); the step's own, if left out. With one for all
        step sizes they integrate one and the same equation.
    known_noise : float
        Standard deviation of the minibatch noise on U, by which less noise is injected. 0: none is known.
    """

    def __init__(
        self, r_alpha: Array, eta: float, L_s: int, *, alpha_eta: float | None = None, known_noise: float = 0.0
    ) -> None:
        its_own = eta if alpha_eta is None else alpha_eta
        self.eta, self._known_noise = eta, known_noise
        self._C = DELTA_PRIME / (its_own * its_own)
        self._friction = eta / its_own  # η γ_α: at the step's own, what r_α was is forgotten
        self._w = HEIGHT / (its_own * its_own * L_s * K)
        self.alpha, self.r_alpha = np.zeros(len(r_alpha)), r_alpha.copy()
        # V_b on the nodes, with room for hills that reach over the ends of the grid.
        self._V_b = np.zeros((len(r_alpha), K + 1 + 2 * (REACH + 1)))
        self._reached = np.arange(-REACH, REACH + 2)

    @property
    def V_b(self) -> Array:
        """The bias on the nodes, of shape (n, K + 1)."""
        return self._V_b[:, REACH + 1 : REACH + K + 2]

    def _z(self) -> Array:
        return np.clip((np.abs(self.alpha) - DELTA) / (DELTA_PRIME - DELTA), 0.0, 1.0)

    def g(self) -> Array:
        """g(α), the paper's smoothstep."""
        z = self._z()
        return 1.0 - DEPTH * z * z * (3.0 - 2.0 * z)

    def move(self, H: Array, epsilon: Array) -> None:
        """Hear H and a normal number of each row."""
        self.alpha = self.alpha + self.eta * self.r_alpha
        inside = np.abs(self.alpha) <= DELTA_PRIME
        slope = self._deposit(inside)
        pull = np.where(inside, 0.0, self._C * np.sign(self.alpha))
        z = self._z()
        g_slope = -DEPTH * 6.0 * z * (1.0 - z) * np.sign(self.alpha) / (DELTA_PRIME - DELTA)
        h = -g_slope * H - pull - slope
        variance = np.maximum(2.0 * self._friction - np.square(self.eta * g_slope * self._known_noise), 0.0)
        self.r_alpha = (1.0 - self._friction) * self.r_alpha + self.eta * h + np.sqrt(variance) * epsilon

    def _deposit(self, inside: NDArray[np.bool_]) -> Array:
        """Put a hill at each α that is inside; return the slope of V_b there, 0 outside."""
        k = np.clip((self.alpha + DELTA_PRIME) / BIN, 0, K - 1).astype(np.int64)
        distance = (k * BIN - DELTA_PRIME - self.alpha)[:, None] + self._reached * BIN
        hills = np.exp(np.maximum(distance * distance * (-0.5 / SIGMA**2), -700.0))
        hills *= np.where(inside, self._w, 0.0)[:, None]
        flat = self._V_b.reshape(-1)
        here = np.arange(len(k)) * self._V_b.shape[1] + REACH + 1 + k
        flat[here[:, None] + self._reached] += hills
        return np.where(inside, (flat[here + 1] - flat[here]) / BIN, 0.0)


class Replicas:
    """The state of n chains: θ and r of shape (n, d), and their α; without, g ≡ 1 and this is Langevin dynamics.

    `noise_factor` multiplies the variance of θ's noise: 1 is right, anything else a deliberate mistake, for tests.
    `known_noise` is the standard deviation of the minibatch noise on each element of ∇U, by which less noise is injected.
    """

    def __init__(
        self,
        theta: Array,
        r: Array,
        alphas: Alphas | None,
        *,
        eta: float,
        friction: float,
        noise_factor: float = 1.0,
        known_noise: float = 0.0,
    ) -> None:
        self.theta, self.r, self.alphas = theta.copy(), r.copy(), alphas
        self.eta, self.friction, self.noise_factor, self.known_noise = eta, friction, noise_factor, known_noise

    @property
    def alpha(self) -> Array:
        return np.zeros(len(self.theta)) if self.alphas is None else self.alphas.alpha

    def g(self) -> Array:
        """g(α) of each chain; 1 where nothing is tempered."""
        return np.ones(len(self.theta)) if self.alphas is None else self.alphas.g()

    def step(
        self, U: Array, grad_U: Array, g: Array, epsilon: Callable[[], Array], epsilon_alpha: Callable[[], Array]
    ) -> None:
        """One iteration, given U(θ), ∇U(θ) and g(α); the callables draw noise of the shapes of θ and α."""
        eta, gamma = self.eta, self.friction
        variance = 2.0 * eta * gamma * self.noise_factor / g - np.square(eta * self.known_noise)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        self.r = (1.0 - eta * gamma) * self.r - eta * grad_U + deviation[:, None] * epsilon()
        if self.alphas is not None:
            self.alphas.move(U + 0.5 * np.square(self.r).sum(axis=1), epsilon_alpha())
        self.theta = self.theta + eta * self.r
