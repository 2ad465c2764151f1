"""α's own step in the call that moves the parameters, for the pieces of the paper's tempering.

The definition is `Tempering`, in Python; kernels.c has the same operations in the same order, and a test holds the two equal to
the bit. This file knows numbers only, none of the tempering's classes.
"""

from array import array
from typing import NamedTuple

from ctld.stepping import native

_LAYOUT = native.LAYOUTS["ALPHA"]
_THIS_STEP = _LAYOUT.packer("alpha", "loss")
_CONSTANTS = _LAYOUT.packer("plateau", "hill_scale")
_AT_CONSTANTS = 8 * _LAYOUT.place["plateau"]
_POTENTIAL, _HAMILTONIAN = _LAYOUT.place["potential"], _LAYOUT.place["hamiltonian"]
_FORCE, _CLAMPED = _LAYOUT.place["force"], _LAYOUT.place["clamped"]


class Smoothstep(NamedTuple):
    """g(α) of `TemperatureScaling`."""

    plateau: float
    edge: float
    depth: float


class Wall(NamedTuple):
    """φ(α) of `ConfiningWell`."""

    edge: float
    strength: float


class Hills(NamedTuple):
    """V_b(α) of `Metadynamics`; the kernel adds a hill to `values`, where they are."""

    values: "array[float]"
    nodes: "array[float]"
    edge: float
    height: float
    width: float


class Alpha:
    """The numbers of α's dynamics, in a place that is made once.

    `set` writes those of a step; `engine.run(..., alpha=)` moves α and r_α; then there is the `outcome` to read.
    Where the Hamiltonian is not finite, the parameters have moved, α and the hills have not.
    """

    def __init__(self, scaling: Smoothstep, well: Wall | None, bias: Hills | None) -> None:
        self._fields = array("q", bytes(8 * _LAYOUT.size))
        self._reals = memoryview(self._fields).cast("B").cast("d")
        self._bias = bias  # keeps the arrays alive
        self.address = native.address(self._fields)
        hills: tuple[float, ...] = (0, 0, 0, 0.0, 0.0, 0.0, 0.0)
        if bias is not None:
            if len(bias.values) != len(bias.nodes) or len(bias.nodes) < 2:
                raise ValueError(
                    f"a bias has {len(bias.values)} values at {len(bias.nodes)} nodes; give a value for each, and two or more"
                )
            addresses = native.address(bias.values), native.address(bias.nodes)
            bins, scale = len(bias.nodes) - 1, 0.5 / bias.width**2
            hills = (*addresses, bins, bias.edge, bias.height, bias.width, scale)
        wall = (0, 0.0, 0.0) if well is None else (1, *well)
        _CONSTANTS.pack_into(self._fields, _AT_CONSTANTS, *scaling, *wall, *hills)

    def set(
        self,
        alpha: float,
        momentum: float,
        mass: float,
        step_size: float,
        friction: float,
        normal: float,
        hamiltonian_variance: float,
        num_data: float,
        temperature: float,
        loss: float,
    ) -> None:
        """Writes what a step begins with; `loss` is the mean loss, negative where it is to grow."""
        _THIS_STEP.pack_into(
            self._fields, 0, alpha, momentum, mass, step_size, friction, normal, hamiltonian_variance, num_data,
            temperature, loss,
        )  # fmt: skip

    @property
    def outcome(self) -> tuple[float, float, float, float, float, int]:
        """α, r_α, U, H/T, the force on α, and 1 if the variance of the noise on r_α would have been negative."""
        reals = self._reals
        return reals[0], reals[1], reals[_POTENTIAL], reals[_HAMILTONIAN], reals[_FORCE], self._fields[_CLAMPED]

    @property
    def potential(self) -> float:
        """N·(±loss + prior), as the last step has found it."""
        return self._reals[_POTENTIAL]


if _LAYOUT.fields[:2] != ("alpha", "momentum"):
    raise ImportError("layout.h has other fields than ctld.stepping.alpha writes; install ctld again")
