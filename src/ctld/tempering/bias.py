"""V_b(α): metadynamics, a bias potential that fills the minima of α's free energy (Eq. 13 of the paper)."""

import math
from array import array
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ctld.checks import integer, real
from ctld.stepping import native
from ctld.tempering.pieces import Bias

# A hill is 3e-17 of its height at this many widths: beyond, adding it would not change a float64.
_REACH = 8.8


class Metadynamics(Bias):
    """A sum of Gaussian hills, one deposited at each visited α, kept on a grid.

        V_b(α) ← V_b(α) + w exp(−(α − α_t)²/(2σ²)) on the num_bins + 1 nodes of [−edge, edge]
        force(α) = −[V_b(k* + 1) − V_b(k*)]/(2·edge/num_bins) in the bin k* that holds α

    The grid makes the cost of a deposit and of a force independent of how many hills there are. Outside ±edge no hill
    is deposited and there is no force.

    Parameters
    ----------
    height, width : float
        w and σ of a hill; the height is per unit of α's mass, as the well's force is.
    num_bins : int
        K; the grid has K + 1 nodes (erratum 4).
    edge : float
        δ′.
    """

    def __init__(self, height: float, width: float = 0.04, num_bins: int = 300, edge: float = 1.5) -> None:
        self.height = real("height", height, at_least=0)
        self.width = _checked_width(width)
        self.num_bins = integer("num_bins", num_bins, at_least=1)
        self.edge: float = real("edge", edge, above=0)
        # A hill is deposited at every step, for which numpy's arrays are slow to begin with.
        self._nodes = array("d", np.linspace(-self.edge, self.edge, self.num_bins + 1))
        self._values = array("d", bytes(8 * (self.num_bins + 1)))

    @property
    def grid(self) -> "tuple[array[float], array[float]]":
        """V_b and α at the nodes, in memory: a kernel adds hills there."""
        return self._values, self._nodes

    @property
    def nodes(self) -> NDArray[np.float64]:
        """The grid: num_bins + 1 values of α."""
        return np.array(self._nodes)

    @property
    def values(self) -> NDArray[np.float64]:
        """V_b at the nodes."""
        return np.array(self._values)

    @property
    def spacing(self) -> float:
        """Length of a bin."""
        return 2.0 * self.edge / self.num_bins

    def deposit(self, alpha: float) -> None:
        """Add one hill at `alpha`."""
        if abs(alpha) > self.edge:
            return
        reach, spacing, place = _REACH * self.width, self.spacing, alpha + self.edge
        first = max(math.ceil((place - reach) / spacing), 0)
        last = min(math.floor((place + reach) / spacing), self.num_bins)
        scale = 0.5 / self.width**2
        library = native.load()
        if library is not None:
            library.add_hill(self._values, self._nodes, first, last, alpha, self.height, scale)
            return
        nodes, values = (np.frombuffer(numbers)[first : last + 1] for numbers in (self._nodes, self._values))
        values += self.height * np.exp(-scale * (nodes - alpha) ** 2)

    def force(self, alpha: float) -> float:
        """−dV_b/dα, per unit of α's mass."""
        if abs(alpha) > self.edge:
            return 0.0
        spacing, values = self.spacing, self._values
        bin_index = min(int((alpha + self.edge) / spacing), self.num_bins - 1)
        return (values[bin_index] - values[bin_index + 1]) / spacing

    def state_dict(self) -> dict[str, Any]:
        return {
            "values": torch.tensor(self._values, dtype=torch.float64),
            "edge": self.edge,
            "height": self.height,
            "width": self.width,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["values"]
        if not isinstance(saved, torch.Tensor) or saved.dtype != torch.float64 or not bool(saved.isfinite().all()):
            raise ValueError(
                "the values of the bias are no tensor of finite numbers; load a state that a run has saved"
            )
        values = saved.to("cpu", torch.float64).numpy().copy()
        if values.shape != (self.num_bins + 1,) or state_dict["edge"] != self.edge:
            raise ValueError(
                f"the state has a bias of {values.size - 1} bins over ±{state_dict['edge']:g}, this one has "
                f"{self.num_bins} over ±{self.edge:g}; build Metadynamics with the state's num_bins and edge"
            )
        height, width = real("height", state_dict["height"], at_least=0), _checked_width(state_dict["width"])
        self._values[:] = array("d", values)  # where a kernel may know them
        self.height, self.width = height, width

    def __repr__(self) -> str:
        return f"Metadynamics(height={self.height}, width={self.width}, num_bins={self.num_bins}, edge={self.edge})"


def _checked_width(width: Any) -> float:
    return real("width", width, above=1e-100, below=1e100)  # its square has to be a number
