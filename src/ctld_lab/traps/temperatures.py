"""The temperature of every replica, as a factor on its T: what the library's temperings do, for many rows at once.

The paper's α is that of `ctld_lab.sampling.replicas`; the calibrated one is the library's own object, one for each row.
"""

import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ctld import Tempering
from ctld.tempering import Exploration
from ctld_lab.sampling.replicas import DELTA_PRIME, Alphas, g

Array = NDArray[np.float64]
Normals = Callable[[], Array]
"""Draws one standard normal number for each row."""


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
        self._normals = normals
        self._alphas = Alphas(normals(), eta, steps)

    def keep(self, rows: NDArray[np.bool_]) -> None:
        self._alphas.keep(rows)

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        return 1.0 / self._alphas.g(), None

    def end(self, hamiltonian: Array) -> None:
        # A replica that has diverged keeps its row, and must not spoil the others'.
        self._alphas.move(np.where(np.isfinite(hamiltonian), hamiltonian, 0.0), self._normals())


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
        self._dead |= ~(np.abs(potential) < 1e100)  # nor may it be infinite
        ratio, scale = np.ones(len(self._controls)), np.ones(len(self._controls))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not fit into so short an exploration is part of the question
            rows = zip(self._controls, potential.tolist(), self._normals().tolist(), self._dead.tolist(), strict=True)
            for row, (control, own, normal, dead) in enumerate(rows):
                if not dead:
                    move = control.begin(own, normal)
                    ratio[row], scale[row] = move.ratio, move.before * move.after
        return ratio, scale


def build(kind: str, *, rates: Array, num_data: float, steps: int, normals: Normals) -> Constant:
    """Returns the temperatures of this kind for rows with these learning rates, over so many steps of exploration."""
    if kind == "paper":
        return Paper(np.sqrt(rates / num_data), steps, normals)
    if kind == "calibrated":
        return Calibrated(len(rates), steps, normals)
    return {"constant": Constant, "falling": Falling, "driven": Driven}[kind]()
