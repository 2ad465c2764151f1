"""Targets on which temperings are compared, at T = 1: what is sampled, at which step, and what is known of the answer.

double-well   8(x² − 1)² + ½‖y‖², of any dimension; quadrature
funnel        that of `ctld check`: v ~ N(0, ½), x ~ N(0, e^v); closed form
nine-modes    Gaussians of width 1/8 on {−1, 0, 1}², weights 1 : 2 : … : 9; quadrature
network       eight tanh units on twelve points of a curve, standard normal prior; its answer is another algorithm's
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ctld_lab.workloads.double_well import DoubleWell

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """A target; `evaluate` gives U and ∇U. N = 1, so lr is η²."""

    start: Array
    lr: float
    momentum: float
    evaluate: Callable[[Array], tuple[float, Array]]
    quantities: Callable[[Array], Mapping[str, Array]]
    """Of many θ, of which the first `kept` coordinates are given: series whose averages are compared."""
    expected: Mapping[str, float] = field(default_factory=dict)
    """By the same names, and "U"; empty if nobody knows."""
    spreads: bool = False
    """Whether the variance of each quantity is compared too, as "var" and its name."""
    kept: int = 1
    place: Callable[[Array], NDArray[np.int64]] | None = None
    """In which mode each of many θ is; −1 between modes."""
    cell: Callable[[Array], NDArray[np.int64]] | None = None
    """To which mode it belongs; none is left out."""
    weights: Array | None = None
    """The share of each cell."""


def build(name: str, dimensions: int) -> Known:
    """`dimensions` is the double well's; the others have their own."""
    return double_well(dimensions) if name == "double-well" else BUILDERS[name]()


def double_well(dimensions: int) -> Known:
    """η = 0.02 and friction 1: the highest frequency, 8, has 0.16 of a radian per step."""
    well = DoubleWell(dimensions)
    start = np.zeros(dimensions)
    start[0] = 1.0
    return Known(
        start=start,
        lr=4e-4,
        momentum=0.98,
        evaluate=well,
        quantities=lambda kept: {"x²": kept[:, 0] ** 2},
        expected={"x²": well.mean_square(), "U": well.mean_energy()},
        place=lambda kept: np.where(np.abs(kept[:, 0]) > 0.5, (kept[:, 0] > 0).astype(np.int64), -1),
    )


def funnel() -> Known:
    """The funnel of `ctld check`, in numpy; lr × curvature is 0.02 three standard deviations down the neck."""

    def evaluate(theta: Array) -> tuple[float, Array]:
        v, x, y = theta.tolist()
        narrow = math.exp(-v)
        wide = 0.5 * narrow * (x * x + y * y)
        return v * v + v + wide, np.array([2.0 * v + 1.0 - wide, narrow * x, narrow * y])

    return Known(
        start=np.zeros(3),
        lr=0.02 * math.exp(-3.0 * math.sqrt(0.5)),
        momentum=0.95,
        evaluate=evaluate,
        quantities=lambda kept: {"v": kept[:, 0], "v²": kept[:, 0] ** 2, "x²": kept[:, 1] ** 2},
        # ⟨x²⟩ = ⟨e^v⟩, and U = v² + v + ½e^{−v}(x² + y²).
        expected={"v": 0.0, "v²": 0.5, "x²": math.exp(0.25), "U": 1.5},
        kept=2,
    )


# ---- nine modes ----

WIDTH = 0.125
_CENTERS = np.array([[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])
# So arranged that neighbours differ: the heaviest mode, 0.2, is in a corner, and light ones lie between heavy ones.
_WEIGHTS = np.array([1.0, 8.0, 3.0, 6.0, 2.0, 7.0, 4.0, 5.0, 9.0]) / 45.0


def nine_modes() -> Known:
    log_weights = np.log(_WEIGHTS)

    def evaluate(theta: Array) -> tuple[float, Array]:
        away = theta - _CENTERS
        exponents = log_weights - (away * away).sum(axis=1) * (0.5 / WIDTH**2)
        largest = exponents.max()
        shares = np.exp(exponents - largest)
        total = shares.sum()
        return -float(largest + math.log(total)), (shares @ away) / (total * WIDTH**2)

    def cell(kept: Array) -> NDArray[np.int64]:
        nearest = np.clip(np.rint(kept), -1.0, 1.0).astype(np.int64) + 1
        return 3 * nearest[:, 0] + nearest[:, 1]

    def place(kept: Array) -> NDArray[np.int64]:
        cells = cell(kept)
        return np.where(np.square(kept - _CENTERS[cells]).sum(axis=1) < (2 * WIDTH) ** 2, cells, -1)

    # The density and its slopes vanish at ±2, eight widths from the last mode, and so the error of the plain sum.
    axis = np.linspace(-2.0, 2.0, 401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    away = np.square(grid[:, None, :] - _CENTERS).sum(axis=2)
    density = np.exp(-away * (0.5 / WIDTH**2)) @ _WEIGHTS
    share = density / density.sum()
    energy = -np.log(np.maximum(density, 1e-300))
    return Known(
        start=np.array([-1.0, -1.0]),
        lr=4e-4,
        momentum=0.98,
        evaluate=evaluate,
        quantities=lambda kept: {"x²": kept[:, 0] ** 2, "xy": kept[:, 0] * kept[:, 1]},
        expected={
            "x²": float(share @ grid[:, 0] ** 2),
            "xy": float(share @ (grid[:, 0] * grid[:, 1])),
            "U": float(share @ energy),
        },
        kept=2,
        place=place,
        cell=cell,
        weights=np.asarray(np.bincount(cell(grid), weights=share, minlength=9), dtype=np.float64),
    )


# ---- a Bayesian network ----


class Network:
    """f(x) = b + Σ_k a_k tanh(w_k x + c_k), eight units, y ~ N(f(x), 0.2²), standard normal prior. θ = (w, c, a, b)."""

    UNITS = 8
    NOISE = 0.2
    ASKED = np.array([-3.0, 0.0, 0.9, 3.0])
    """Inputs of the predictions: beyond the data, in their gap, among them."""

    def __init__(self) -> None:
        generator = np.random.default_rng(2017)
        self.inputs = np.concatenate([generator.uniform(-2.0, -0.6, 6), generator.uniform(0.6, 2.0, 6)])
        self.answers = np.sin(2.0 * self.inputs) + self.NOISE * generator.standard_normal(12)
        self.dimensions = 3 * self.UNITS + 1

    def __call__(self, theta: Array) -> tuple[float, Array]:
        n = self.UNITS
        w, c, a = theta[:n], theta[n : 2 * n], theta[2 * n : 3 * n]
        hidden = np.tanh(self.inputs[:, None] * w + c)
        residual = hidden @ a + (theta[-1] - self.answers)
        pull = residual / self.NOISE**2
        back = pull[:, None] * a * (1.0 - hidden * hidden)
        slope = theta.copy()
        slope[:n] += self.inputs @ back
        slope[n : 2 * n] += back.sum(axis=0)
        slope[2 * n : 3 * n] += pull @ hidden
        slope[-1] += pull.sum()
        return float(0.5 * (residual @ pull) + 0.5 * (theta @ theta)), slope

    def of_many(self, theta: Array) -> tuple[Array, Array]:
        n = self.UNITS
        w, c, a = theta[:, None, :n], theta[:, None, n : 2 * n], theta[:, 2 * n : 3 * n]
        hidden = np.tanh(self.inputs[:, None] * w + c)
        residual = (hidden @ a[:, :, None])[:, :, 0] + (theta[:, -1:] - self.answers)
        pull = residual / self.NOISE**2
        back = pull[:, :, None] * a[:, None, :] * (1.0 - hidden * hidden)
        slope = theta.copy()
        slope[:, :n] += self.inputs @ back
        slope[:, n : 2 * n] += back.sum(axis=1)
        slope[:, 2 * n : 3 * n] += (pull[:, None, :] @ hidden)[:, 0]
        slope[:, -1] += pull.sum(axis=1)
        return 0.5 * (residual * pull).sum(axis=1) + 0.5 * (theta * theta).sum(axis=1), slope

    def quantities(self, theta: Array) -> dict[str, Array]:
        """f at the inputs asked for."""
        n = self.UNITS
        found = {}
        for x in self.ASKED:
            hidden = np.tanh(x * theta[:, :n] + theta[:, n : 2 * n])
            found[f"f({x:g})"] = (hidden * theta[:, 2 * n : 3 * n]).sum(axis=1) + theta[:, -1]
        return found


def network() -> Known:
    """η = 0.005 and friction 4; curvatures of U reach about 2,000."""
    known = Network()
    return Known(
        start=np.random.default_rng(1).standard_normal(known.dimensions),
        lr=2.5e-5,
        momentum=0.98,
        evaluate=known,
        quantities=known.quantities,
        spreads=True,
        kept=known.dimensions,
    )


BUILDERS: dict[str, Callable[[], Known]] = {"funnel": funnel, "nine-modes": nine_modes, "network": network}
