"""g(α): how the tempering variable scales the inverse temperature (Eq. 7 of the paper)."""

from typing import Any

from ctld.checks import real
from ctld.tempering.pieces import Scaling


class TemperatureScaling(Scaling):
    """The paper's smoothstep: 1 on the cold plateau, 1 − depth beyond the edge, a cubic between.

        g(α) = 1                      |α| ≤ plateau
               1 − S (3z² − 2z³)      z = (|α| − plateau)/(edge − plateau)
               1 − S                  |α| ≥ edge

    The temperature ratio 1/g(α) lies in [1, 1/(1 − depth)]; the paper prints the range of g in its place (erratum 2).

    Parameters
    ----------
    plateau, edge : float
        δ and δ′.
    depth : float
        S, in [0, 1). The hottest temperature is T/(1 − depth); 0.85 gives 6.67 T.
    """

    def __init__(self, plateau: float = 0.4, edge: float = 1.5, depth: float = 0.85) -> None:
        self.plateau = real("plateau", plateau, at_least=0)
        self.edge: float = real("edge", edge, above=self.plateau)
        self.depth = real("depth", depth, at_least=0, below=1)

    def value(self, alpha: float) -> float:
        """g(α)."""
        z = min(max((abs(alpha) - self.plateau) / (self.edge - self.plateau), 0.0), 1.0)
        return 1.0 - self.depth * z * z * (3.0 - 2.0 * z)

    def derivative(self, alpha: float) -> float:
        """g′(α); zero on the plateau and beyond the edge."""
        z = min(max((abs(alpha) - self.plateau) / (self.edge - self.plateau), 0.0), 1.0)
        slope = -6.0 * self.depth * z * (1.0 - z) / (self.edge - self.plateau)
        return slope if alpha >= 0 else -slope

    def state_dict(self) -> dict[str, Any]:
        return {"plateau": self.plateau, "edge": self.edge, "depth": self.depth}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__init__(**state_dict)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"TemperatureScaling(plateau={self.plateau}, edge={self.edge}, depth={self.depth})"
