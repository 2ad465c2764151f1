"""Bad minima: problems whose global minimum is known, and which methods reach it."""

from traps.study import findings

__all__ = ["findings"]
