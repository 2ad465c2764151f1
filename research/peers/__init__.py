"""Peers: cycles beside other ways to know how sure a network is, at equal numbers of gradients."""

from peers.tables import findings

__all__ = ["findings"]
