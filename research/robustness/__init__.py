"""Robustness of the ensemble's default, on settings that nobody tuned."""

from robustness.tables import findings

__all__ = ["findings"]
