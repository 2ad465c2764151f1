"""The temperature of every replica, as a factor on its T: what the library's temperings do, for many rows at once.

The paper's α is written here for rows, in the notation of `ctld.optimizers.reference`, to which it is tested equal. The
calibrated one is the library's own object, one for each row.
"""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ctld import Tempering
from ctld.tempering import Exploration

Array = NDArray[np.float64]
Normals = Callable[[], Array]
"""Draws one standard normal number for each row."""

DELTA, DELTA_PRIME, S, SIGMA, K, HEIGHT = 0.4, 1.5, 0.85, 0.04, 300, 20.0
BIN = 2.0 * DELTA_PRIME / K
REACH = round(8.75 * SIGMA / BIN)
"""Bins to either side of a hill's centre beyond which it would not change a float64."""


class Constant:
    """The temperature stays at T; and the interface of the others, which are begun and ended around each step."""

    needs_potential = needs_hamiltonian = False

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        """Returns the factor on T for each row, and what momenta are multiplied by after the step, if by anything.

        `phase` is the part of the exploration that has passed, in [0, 1); `potential` is U/T, if it is needed.
        """
        return np.ones_like(phase), None

    def end(self, hamiltonian: Array) -> None:
        """Hears H/T of each row, if it is needed."""

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Goes on with these rows alone."""


class Falling(Constant):
    """From T to zero, linearly."""

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        return 1.0 - phase, None


class Driven(Constant):
    """α as a triangle wave, once around: from 0 to δ′, to −δ′ and back, so that T/g(α) rises and falls twice."""

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        alpha = DELTA_PRIME * (1.0 - np.abs(4.0 * ((phase + 0.25) % 1.0) - 2.0))
        return 1.0 / g(alpha), None


class Paper(Constant):
    """Algorithm 1's lines of α, with the mass of α that the library chooses."""

    needs_hamiltonian = True

    def __init__(self, eta: Array, steps: int, normals: Normals) -> None:
        self._eta, self._normals = eta, normals
        self._C = DELTA_PRIME / eta**2
        self._w = HEIGHT / (eta**2 * steps * K)
        self._mass: Array | None = None
        self.alpha, self.r_alpha = np.zeros_like(eta), normals()
        # V_b on the nodes, with room for hills that reach over the ends of the grid
        self._V_b = np.zeros((len(eta), K + 1 + 2 * (REACH + 1)))
        self._reached = np.arange(-REACH, REACH + 2)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        for name in ("_eta", "_C", "_w", "_mass", "alpha", "r_alpha", "_V_b"):
            setattr(self, name, getattr(self, name)[rows])

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        return 1.0 / g(self.alpha), None

    def end(self, hamiltonian: Array) -> None:
        # A replica that has diverged keeps its row, and must not spoil the others'.
        H = np.where(np.isfinite(hamiltonian), hamiltonian, 0.0)
        eta = self._eta
        if self._mass is None:
            steepest = 1.5 * S / (DELTA_PRIME - DELTA)
            self._mass = np.maximum(1.0, eta**2 * steepest * np.abs(H) / 0.3)
        m = self._mass
        self.alpha = self.alpha + eta * self.r_alpha / m
        inside = np.abs(self.alpha) <= DELTA_PRIME
        slope = m * self._deposit(inside)
        pull = np.where(inside, 0.0, m * self._C * np.sign(self.alpha))
        h = -g_slope(self.alpha) * H - pull - slope
        # γ_α = 1/η: what r_α was is forgotten at every step
        self.r_alpha = eta * h + np.sqrt(2.0 * m) * self._normals()

    def _deposit(self, inside: NDArray[np.bool_]) -> Array:
        """Puts a hill at each α that is inside; returns the slope of V_b/m there, 0 outside."""
        k = np.clip((self.alpha + DELTA_PRIME) / BIN, 0, K - 1).astype(np.int64)
        distance = (k * BIN - DELTA_PRIME - self.alpha)[:, None] + self._reached * BIN
        hills = np.exp(np.maximum(distance * distance * (-0.5 / SIGMA**2), -700.0))
        hills *= np.where(inside, self._w, 0.0)[:, None]
        flat = self._V_b.reshape(-1)
        here = np.arange(len(k)) * self._V_b.shape[1] + REACH + 1 + k
        flat[here[:, None] + self._reached] += hills
        return np.where(inside, (flat[here + 1] - flat[here]) / BIN, 0.0)


class Calibrated(Constant):
    """`Tempering.calibrated` with a quarter of the exploration as its warm-up, one object for each row."""

    needs_potential = True

    def __init__(self, rows: int, steps: int, normals: Normals) -> None:
        self._normals = normals
        self._controls = [Tempering.calibrated(warm_up=max(steps // 4, 100)) for _ in range(rows)]
        for control in self._controls:
            control.prepare(Exploration(1.0, 0.0, steps))
        self._dead = np.zeros(rows, dtype=bool)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        self._controls = [control for control, kept in zip(self._controls, rows.tolist(), strict=True) if kept]
        self._dead = self._dead[rows]

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        assert potential is not None
        self._dead |= ~np.isfinite(potential)
        ratio, scale = np.ones(len(self._controls)), np.ones(len(self._controls))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not fit into so short an exploration is part of the question
            rows = zip(self._controls, potential.tolist(), self._normals().tolist(), self._dead.tolist(), strict=True)
            for row, (control, own, normal, dead) in enumerate(rows):
                if not dead:
                    move = control.begin(own, normal)
                    ratio[row], scale[row] = move.ratio, move.before * move.after
        return ratio, scale


def g(alpha: Array) -> Array:
    """Returns g(α), the paper's smoothstep."""
    z = _z(alpha)
    return 1.0 - S * z * z * (3.0 - 2.0 * z)


def g_slope(alpha: Array) -> Array:
    """Returns g′(α)."""
    z = _z(alpha)
    return -S * 6.0 * z * (1.0 - z) * np.sign(alpha) / (DELTA_PRIME - DELTA)


def _z(alpha: Array) -> Array:
    return np.clip((np.abs(alpha) - DELTA) / (DELTA_PRIME - DELTA), 0.0, 1.0)


def build(kind: str, *, rates: Array, num_data: float, steps: int, normals: Normals) -> Constant:
    """Returns the temperatures of this kind for rows with these learning rates, over so many steps of exploration."""
    if kind == "paper":
        return Paper(np.sqrt(rates / num_data), steps, normals)
    if kind == "calibrated":
        return Calibrated(len(rates), steps, normals)
    return {"constant": Constant, "falling": Falling, "driven": Driven}[kind]()
