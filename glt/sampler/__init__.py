"""Local samplers. Importing this package does not import torch_geometric; using :class:`NeighborSampler` does."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.sampler.config import SamplingConfig
    from glt.sampler.graph import NeighborOutput
    from glt.sampler.hgt import HGTSampler
    from glt.sampler.hotness import hotness_from_counts, hotness_from_degrees
    from glt.sampler.neighbor_sampler import NeighborSampler
    from glt.sampler.order import BatchIndex, SeedOrder
    from glt.sampler.page_rank import PageRankSampler
    from glt.sampler.walks import RandomWalkSampler

__all__ = [
    "BatchIndex",
    "HGTSampler",
    "NeighborOutput",
    "NeighborSampler",
    "PageRankSampler",
    "RandomWalkSampler",
    "SamplingConfig",
    "SeedOrder",
    "hotness_from_counts",
    "hotness_from_degrees",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": ["SamplingConfig"],
        "hotness": ["hotness_from_counts", "hotness_from_degrees"],
        "neighbor_sampler": ["NeighborSampler"],
        "order": ["BatchIndex", "SeedOrder"],
        "graph": ["NeighborOutput"],
        "hgt": ["HGTSampler"],
        "page_rank": ["PageRankSampler"],
        "walks": ["RandomWalkSampler"],
    },
)
