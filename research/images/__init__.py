"""Photographs fitted by Gaussians: bad minima in a real problem."""

from images.study import findings

__all__ = ["findings"]
