"""The three pieces of the paper's tempering, g(α), φ(α) and V_b(α), as base classes for pieces of one's own."""

from abc import ABC, abstractmethod
from typing import Any


class Piece(ABC):
    """A piece without constants or memory has nothing to save, and need not say where α is meant to stay."""

    edge: float | None = None
    """α is meant to stay within ±edge, as far as this piece is concerned."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, or raise an error and stay unchanged."""


class Scaling(Piece):
    """g(α): see `TemperatureScaling`."""

    @abstractmethod
    def value(self, alpha: float) -> float:
        """g(α)."""

    @abstractmethod
    def derivative(self, alpha: float) -> float:
        """g′(α)."""


class Well(Piece):
    """φ(α): see `ConfiningWell`."""

    @abstractmethod
    def force(self, alpha: float) -> float:
        """−φ′(α), per unit of α's mass."""


class Bias(Piece):
    """V_b(α): see `Metadynamics`."""

    @abstractmethod
    def deposit(self, alpha: float) -> None:
        """Learn that α is here."""

    @abstractmethod
    def force(self, alpha: float) -> float:
        """−dV_b/dα, per unit of α's mass."""

    def meet(self, normal: float) -> None:
        """Called once, before the first step, with the first number that the run draws; for biases that are shared."""
