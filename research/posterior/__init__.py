"""Real posteriors: samplers beside a long NUTS run, and regression on UCI's data."""

from posterior.tables import findings

__all__ = ["findings"]
