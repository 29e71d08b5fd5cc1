"""Loaders in this process."""

from glt.loader.neighbor_loader import NeighborLoader

__all__ = ["NeighborLoader"]
