"""Potentials whose averages are known: at temperature 1 the law is exp(−U), U = N·(mean loss + weight decay·‖θ‖²/2).

gaussian       ten directions of one curvature
anisotropic    six directions, curvatures from 1 to 25
double-well    8(x² − 1)² + ½‖y‖², of any dimension: a barrier of 8 T between two wells; quadrature
funnel         v ~ N(0, ½), x ~ N(0, e^v) (Neal 2003, narrowed): the curvature depends on the place; closed form
regression     Bayesian linear regression, whose prior is CTLD's weight decay; closed form
nine-modes     Gaussians of width 1/8 on {−1, 0, 1}², weights 1 : 2 : … : 9; quadrature
network        eight tanh units on twelve points of a curve, standard normal prior; its answer is another algorithm's
               (`ctld_lab.sampling.network`)

All is numpy in double precision, for one θ of shape (d,) or for many, of shape (n, d).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctld_lab.sampling.network import Network

Array = NDArray[np.float64]
BARRIER = 8.0
MINIMUM = 0.0
"""U* of the double well, at x = ±1."""
Potential = Callable[[Array], tuple[Any, Array]]
"""U, of shape () or (n,), and ∇U, of the shape of θ."""


@dataclass(frozen=True)
class Quantity:
    """An average at T; `of` maps many θ, of shape (n, d), to n numbers."""

    name: str
    of: Callable[[Array], Array]
    expected: float = math.nan
    """NaN where only another algorithm knows."""
    scale: float = math.nan
    """The unit of its errors: the value itself, or a standard deviation where the value may be zero."""
    across: bool = False
    """True if it rests on crossings of the barrier; only `ctld check` looks at such quantities."""
    checked: bool = True
    """True if `ctld check` looks at it."""


@dataclass(frozen=True)
class Target:
    """A potential to sample, and what is known of the answer."""

    name: str
    start: Array
    potential: Potential
    quantities: tuple[Quantity, ...]
    stiffness: float = math.nan
    """The largest curvature of U."""
    mean_energy: float = math.nan
    """⟨U⟩."""
    lr: float = math.nan
    """η², and `momentum` 1 − ηγ, in the study of temperings."""
    momentum: float = math.nan
    center: Array | float = 0.0
    num_data: float = 1000.0
    """Any number but 1, which would hide a wrong unit, where a target has no data."""
    weight_decay: float = 0.0
    spreads: bool = False
    """True if the variance of each quantity is compared too."""
    place: Callable[[Array], NDArray[np.int64]] | None = None
    """The mode in which each of many θ is; −1 between modes."""
    cell: Callable[[Array], NDArray[np.int64]] | None = None
    """The mode to which each belongs; none is left out."""
    weights: Array | None = None
    """The share of each cell."""


def build(name: str, dimensions: int = 3) -> Target:
    """`dimensions` is the double well's; the others have their own."""
    return double_well(dimensions) if name == "double-well" else BUILDERS[name]()


def gaussian() -> Target:
    curvature = 4.0
    return Target(
        name="gaussian",
        stiffness=curvature,
        start=np.zeros(10),
        potential=lambda theta: (0.5 * curvature * np.square(theta).sum(axis=-1), curvature * theta),
        quantities=(Quantity("variance", lambda theta: np.square(theta).mean(axis=1), 1 / curvature, 1 / curvature),),
    )


def anisotropic() -> Target:
    curvatures = np.logspace(2, 0, 6, base=5.0)
    return Target(
        name="anisotropic",
        stiffness=25.0,
        start=np.zeros(6),
        potential=lambda theta: (0.5 * (curvatures * theta * theta).sum(axis=-1), curvatures * theta),
        quantities=(
            Quantity("variance, stiffest", lambda theta: theta[:, 0] ** 2, 0.04, 0.04),
            Quantity("variance, softest", lambda theta: theta[:, -1] ** 2, 1.0, 1.0),
        ),
    )


# ---- the double well ----


@dataclass(frozen=True)
class DoubleWell:
    """U = 8(x² − 1)² + ½Σy²: x is the first of the `dimensions`, the others are y."""

    dimensions: int

    def __post_init__(self) -> None:
        if self.dimensions < 1:
            raise ValueError(f"dimensions = {self.dimensions}: the well itself has one; give 1 or more")

    def __call__(self, theta: Array) -> tuple[Any, Array]:
        x, rest = theta[..., 0], theta[..., 1:]
        depth = x * x - 1.0
        gradient = theta.copy()
        gradient[..., 0] = 4.0 * BARRIER * x * depth
        return BARRIER * depth**2 + 0.5 * np.square(rest).sum(axis=-1), gradient

    # Exact answers.

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


def double_well(dimensions: int) -> Target:
    """η = 0.02 and friction 1: the highest frequency, 8, has 0.16 of a radian per step."""
    well = DoubleWell(dimensions)
    square = well.mean_square()
    start = np.zeros(dimensions)
    start[0] = 1.0
    return Target(
        name="double-well",
        stiffness=8.0 * BARRIER,
        start=start,
        lr=4e-4,
        momentum=0.98,
        potential=well,
        mean_energy=well.mean_energy(),
        quantities=(
            Quantity("x²", lambda theta: theta[:, 0] ** 2, square, square),
            Quantity("share, right well", lambda theta: (theta[:, 0] > 0).astype(float), 0.5, 1.0, across=True),
        ),
        place=lambda theta: np.where(np.abs(theta[:, 0]) > 0.5, (theta[:, 0] > 0).astype(np.int64), -1),
    )


# ---- the others ----


def funnel() -> Target:
    """lr × curvature is 0.02 three standard deviations down the neck."""
    variance, width = 0.5, 2
    deviation = math.sqrt(variance)

    def potential(theta: Array) -> tuple[Any, Array]:
        v, x = theta[..., 0], theta[..., 1:]
        narrow = np.exp(-v)
        wide = 0.5 * narrow * np.square(x).sum(axis=-1)
        slope = np.empty_like(theta)
        slope[..., 0] = v / variance + 0.5 * width - wide
        slope[..., 1:] = narrow[..., None] * x
        return 0.5 * (v * v / variance + width * v) + wide, slope

    return Target(
        name="funnel",
        stiffness=math.exp(3 * deviation),
        start=np.zeros(1 + width),
        lr=0.02 * math.exp(-3.0 * deviation),
        momentum=0.95,
        potential=potential,
        mean_energy=1.5,  # v² + v + ½e^{−v}(x² + y²)
        quantities=(
            Quantity("v", lambda theta: theta[:, 0], 0.0, deviation),
            Quantity("v²", lambda theta: theta[:, 0] ** 2, variance, variance),
            Quantity("x²", lambda theta: theta[:, 1] ** 2, math.exp(0.5 * variance), checked=False),  # ⟨e^v⟩
        ),
    )


def regression() -> Target:
    """y = Xw + N(0, 1), 64 rows, prior w ~ N(0, 1/(N·weight decay)): the posterior is a Gaussian, in closed form."""
    rows, weight_decay = 64, 0.1
    generator = np.random.default_rng(2017)
    features = generator.standard_normal((rows, 4)) * [1.0, 0.8, 0.5, 0.3]
    answers = features @ [1.0, -2.0, 0.5, 3.0] + generator.standard_normal(rows)
    prior = rows * weight_decay
    precision = features.T @ features + prior * np.eye(4)
    center = np.asarray(np.linalg.solve(precision, features.T @ answers), dtype=np.float64)
    curvatures, directions = np.linalg.eigh(precision)

    def potential(theta: Array) -> tuple[Any, Array]:
        residual = theta @ features.T - answers
        energy = 0.5 * (np.square(residual).sum(axis=-1) + prior * np.square(theta).sum(axis=-1))
        return energy, residual @ features + prior * theta

    def along(index: int, name: str) -> tuple[Quantity, Quantity]:
        direction = directions[:, index]
        mean, variance = float(center @ direction), 1 / float(curvatures[index])
        return (
            Quantity(f"mean, {name}", lambda theta: theta @ direction, mean, math.sqrt(variance)),
            Quantity(f"variance, {name}", lambda theta: (theta @ direction - mean) ** 2, variance, variance),
        )

    return Target(
        name="regression",
        stiffness=float(curvatures[-1]),
        start=np.zeros(4),
        potential=potential,
        quantities=along(-1, "stiffest") + along(0, "softest"),
        center=center,
        num_data=float(rows),
        weight_decay=weight_decay,
    )


WIDTH = 0.125
CENTERS = np.array([[x, y] for x in (-1.0, 0.0, 1.0) for y in (-1.0, 0.0, 1.0)])
# So arranged that neighbours differ: the heaviest mode, 0.2, is in a corner, and light ones lie between heavy ones.
WEIGHTS = np.array([1.0, 8.0, 3.0, 6.0, 2.0, 7.0, 4.0, 5.0, 9.0]) / 45.0


def nine_modes() -> Target:
    log_weights = np.log(WEIGHTS)

    def potential(theta: Array) -> tuple[Any, Array]:
        away = theta[..., None, :] - CENTERS
        exponents = log_weights - np.square(away).sum(axis=-1) * (0.5 / WIDTH**2)
        largest = exponents.max(axis=-1, keepdims=True)
        shares = np.exp(exponents - largest)
        total = shares.sum(axis=-1, keepdims=True)
        slope = (shares[..., None] * away).sum(axis=-2) / (total * WIDTH**2)
        return -(largest + np.log(total))[..., 0], slope

    def cell(theta: Array) -> NDArray[np.int64]:
        nearest = np.clip(np.rint(theta), -1.0, 1.0).astype(np.int64) + 1
        return 3 * nearest[:, 0] + nearest[:, 1]

    def place(theta: Array) -> NDArray[np.int64]:
        cells = cell(theta)
        return np.where(np.square(theta - CENTERS[cells]).sum(axis=1) < (2 * WIDTH) ** 2, cells, -1)

    # The density and its slopes vanish at ±2, eight widths from the last mode, and so the error of the plain sum.
    axis = np.linspace(-2.0, 2.0, 401)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    energy, _ = potential(grid)
    share = np.exp(-energy) / np.exp(-energy).sum()
    return Target(
        name="nine-modes",
        start=np.array([-1.0, -1.0]),
        lr=4e-4,
        momentum=0.98,
        potential=potential,
        mean_energy=float(share @ energy),
        quantities=(
            Quantity("x²", lambda theta: theta[:, 0] ** 2, float(share @ grid[:, 0] ** 2)),
            Quantity("xy", lambda theta: theta[:, 0] * theta[:, 1], float(share @ (grid[:, 0] * grid[:, 1]))),
        ),
        place=place,
        cell=cell,
        weights=np.asarray(np.bincount(cell(grid), weights=share, minlength=9), dtype=np.float64),
    )


def network() -> Target:
    """η = 0.005 and friction 4; curvatures of U reach about 2,000."""
    known = Network()
    return Target(
        name="network",
        start=np.random.default_rng(1).standard_normal(known.dimensions),
        lr=2.5e-5,
        momentum=0.98,
        potential=known,
        quantities=tuple(Quantity(f"f({x:g})", lambda theta, x=x: known.answer(theta, x)) for x in known.ASKED),  # type: ignore[misc]
        spreads=True,
    )


BUILDERS: dict[str, Callable[[], Target]] = {
    "gaussian": gaussian,
    "anisotropic": anisotropic,
    "double-well": lambda: double_well(3),
    "funnel": funnel,
    "regression": regression,
    "nine-modes": nine_modes,
    "network": network,
}
CHECKED = ("gaussian", "anisotropic", "double-well", "funnel", "regression")
"""The targets of `ctld check`."""
