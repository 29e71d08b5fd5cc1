"""Loaders in the trainer's process or its DataLoader workers."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.loader.link_neighbor_loader import LinkNeighborLoader
    from glt.loader.neighbor_loader import NeighborLoader, SubGraphLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader", "SubGraphLoader"]

__getattr__, __dir__ = lazy_names(
    __name__, {"link_neighbor_loader": ["LinkNeighborLoader"], "neighbor_loader": ["NeighborLoader", "SubGraphLoader"]}
)
