"""α's own step in the call that moves the parameters, for the pieces of the paper's tempering.

The definition is `Tempering`, in Python; kernels.c has the same operations in the same order, and a test holds the two equal to
the bit. This file knows numbers only, none of the tempering's classes.
"""

import ctypes
from array import array
from typing import NamedTuple

from ctld.stepping import native

_Alpha = native.STRUCTURES["ALPHA"]
_STEP, _AT_STEP = native.packed(
    _Alpha,
    *("alpha", "momentum", "mass", "step_size", "friction", "normal", "hamiltonian_variance"),
    *("num_data", "temperature", "loss"),
)
_STATE, _AT_STATE = native.packed(_Alpha, "alpha", "momentum")
_FOUND, _AT_FOUND = native.packed(_Alpha, "potential", "hamiltonian", "force", "clamped")


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
        self._fields = fields = _Alpha()
        self._bias = bias  # keeps the arrays alive
        self.address = ctypes.addressof(fields)
        fields.plateau, fields.edge, fields.depth = scaling
        if well is not None:
            fields.has_well, (fields.well_edge, fields.well_strength) = True, well
        if bias is not None:
            if len(bias.values) != len(bias.nodes) or len(bias.nodes) < 2:
                raise ValueError(
                    f"a bias has {len(bias.values)} values at {len(bias.nodes)} nodes; give a value for each, and two or more"
                )
            fields.values, fields.nodes = native.address(bias.values), native.address(bias.nodes)
            fields.num_bins, fields.hill_scale = len(bias.nodes) - 1, 0.5 / bias.width**2
            fields.bias_edge, fields.height, fields.width = bias.edge, bias.height, bias.width

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
        """Write what a step begins with; `loss` is the mean loss, negative where it is to grow."""
        numbers = alpha, momentum, mass, step_size, friction, normal, hamiltonian_variance, num_data, temperature, loss
        _STEP.pack_into(self._fields, _AT_STEP, *numbers)

    @property
    def outcome(self) -> tuple[float, float, float, float, float, int]:
        """α, r_α, U, H/T, the force on α, and 1 if the variance of the noise on r_α would have been negative."""
        return *_STATE.unpack_from(self._fields, _AT_STATE), *_FOUND.unpack_from(self._fields, _AT_FOUND)
