"""The temperature of every replica, as a factor on its T. What moves by itself is the library's, one object for each row."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ctld import Tempering
from ctld.tempering import Exploration, TemperatureControl

Array = NDArray[np.float64]


class Constant:
    """A temperature that stays at T; and the interface of the others, which are begun and ended around each step."""

    needs_energy = False

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        """Return the factor on T for each row, and a factor on the momenta after the step, if there is one.

        `phase` is the part of the exploration that has passed, in [0, 1); `potential` is U/T, if it is needed.
        """
        return np.ones_like(phase), None

    def end(self, hamiltonian: Array) -> None:
        """Hear H/T of each row, if it is needed."""

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with these rows alone."""


class Falling(Constant):
    """A temperature that falls linearly from T to zero."""

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        return 1.0 - phase, None


LIBRARY: dict[str, Callable[[float, int], TemperatureControl]] = {
    "driven": lambda eta, steps: Tempering.driven(steps),
    "paper": Tempering.paper,
    "calibrated": lambda eta, steps: Tempering.calibrated(warm_up=max(steps // 4, 100)),
}
"""Each is built from the step size η and the number of exploration steps."""
DRAWS = {"driven": (), "paper": ("prepare", "end"), "calibrated": ("begin",)}
"""The calls in which each needs a normal number. One that is not needed is not drawn: the noise of θ comes after it."""


class Moving(Constant):
    """The library's own tempering, one object for each row; a row that has diverged is left alone."""

    needs_energy = True

    def __init__(self, kind: str, etas: Array, steps: int, normals: Callable[[], Array]) -> None:
        self._kind, self._normals = kind, normals
        self._dead = np.zeros(len(etas), dtype=bool)
        self._controls = [LIBRARY[kind](eta, steps) for eta in etas.tolist()]
        for control, eta, normal in zip(self._controls, *_lists(etas, self._draw("prepare")), strict=True):
            control.prepare(Exploration(eta, normal, steps))

    def _draw(self, call: str) -> Array:
        return self._normals() if call in DRAWS[self._kind] else np.zeros(len(self._dead))

    def keep(self, rows: NDArray[np.bool_]) -> None:
        self._controls = [control for control, kept in zip(self._controls, rows.tolist(), strict=True) if kept]
        self._dead = self._dead[rows]

    def begin(self, phase: Array, potential: Array | None) -> tuple[Array, Array | None]:
        assert potential is not None
        self._dead |= ~(np.abs(potential) < 1e100)
        ratio, scale = np.ones(len(self._controls)), np.ones(len(self._controls))
        for row, (energy, normal, dead) in enumerate(
            zip(*_lists(potential, self._draw("begin"), self._dead), strict=True)
        ):
            if not dead:
                leg = self._controls[row].begin(energy, normal)
                ratio[row], scale[row] = leg.ratio, leg.before * leg.after
        return ratio, scale

    def end(self, hamiltonian: Array) -> None:
        self._dead |= ~(np.abs(hamiltonian) < 1e100)
        for row, (energy, normal, dead) in enumerate(
            zip(*_lists(hamiltonian, self._draw("end"), self._dead), strict=True)
        ):
            if not dead:
                self._controls[row].end(energy, normal)


def _lists(*arrays: NDArray) -> list[list]:
    return [array.tolist() for array in arrays]


def build(kind: str, etas: Array, steps: int, normals: Callable[[], Array]) -> Constant:
    """Return the temperatures of this kind for rows with these step sizes, over so many steps of exploration."""
    if kind in LIBRARY:
        return Moving(kind, etas, steps, normals)
    return Falling() if kind == "falling" else Constant()
