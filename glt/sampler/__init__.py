"""Local samplers. Importing this package does not import torch_geometric; using :class:`NeighborSampler` does."""

from typing import TYPE_CHECKING, Any

from glt.sampler.config import SamplingConfig
from glt.sampler.hotness import hotness_from_counts, hotness_from_degrees
from glt.sampler.neighbor_output import NeighborOutput
from glt.sampler.seed_order import BatchIndex, SeedOrder

if TYPE_CHECKING:
    from glt.sampler.neighbor_sampler import NeighborSampler

__all__ = [
    "BatchIndex",
    "NeighborOutput",
    "NeighborSampler",
    "SamplingConfig",
    "SeedOrder",
    "hotness_from_counts",
    "hotness_from_degrees",
]


def __getattr__(name: str) -> Any:
    if name == "NeighborSampler":
        from glt.sampler.neighbor_sampler import NeighborSampler

        return NeighborSampler
    raise AttributeError(f"module 'glt.sampler' has no attribute {name!r}")
