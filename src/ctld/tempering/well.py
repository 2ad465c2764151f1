"""φ(α): the force well that brings a stray α back (Eq. 11 of the paper)."""

import math
from typing import Any

from ctld.checks import real
from ctld.tempering.pieces import Well


class ConfiningWell(Well):
    """No force inside ±edge, a constant pull towards the origin outside.

        −φ′(α) = −C·sign(α) for |α| > edge

    The paper prints φ′ = C on both sides, which would push α out on the left (erratum 1).

    Parameters
    ----------
    edge : float
        δ′.
    force : float
        C, per unit of α's mass, so that one well holds an α of any mass. The paper: δ′/η², which moves α by δ′ in one
        step (erratum 6: no discretisation of the SDE, but what the paper does).
    """

    def __init__(self, edge: float, force: float) -> None:
        self.edge: float = real("edge", edge, above=0)
        self.strength = real("force", force, at_least=0)

    def force(self, alpha: float) -> float:
        """−φ′(α), per unit of α's mass."""
        return -math.copysign(self.strength, alpha) if abs(alpha) > self.edge else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"edge": self.edge, "force": self.strength}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__init__(**state_dict)  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"ConfiningWell(edge={self.edge}, force={self.strength})"
