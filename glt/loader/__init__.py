"""Loaders in the trainer's process or its DataLoader workers."""

from glt.loader.link_neighbor_loader import LinkNeighborLoader
from glt.loader.neighbor_loader import NeighborLoader
from glt.loader.subgraph_loader import SubGraphLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader", "SubGraphLoader"]
