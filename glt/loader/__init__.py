"""Loaders in the trainer's process or its DataLoader workers."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.loader.loaders import LinkNeighborLoader, NeighborLoader, SubGraphLoader
    from glt.loader.relbench import LinkTable, RelBenchLinkNeighborLoader
    from glt.loader.walks import RandomWalkLoader

__all__ = [
    "LinkNeighborLoader",
    "LinkTable",
    "NeighborLoader",
    "RandomWalkLoader",
    "RelBenchLinkNeighborLoader",
    "SubGraphLoader",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "loaders": ["LinkNeighborLoader", "NeighborLoader", "SubGraphLoader"],
        "relbench": ["LinkTable", "RelBenchLinkNeighborLoader"],
        "walks": ["RandomWalkLoader"],
    },
)
