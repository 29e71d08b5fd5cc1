"""Sampling over partitions, in worker processes or beside the trainer."""

from typing import TYPE_CHECKING, Any

from glt.distributed.context import DistContext, DistRole, get_context, init_worker_group
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_neighbor_sampler import DistNeighborSampler
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.options import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions

if TYPE_CHECKING:
    from glt.distributed.dist_neighbor_loader import DistNeighborLoader

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistContext",
    "DistDataset",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRole",
    "MpDistSamplingWorkerOptions",
    "get_context",
    "init_worker_group",
]


def __getattr__(name: str) -> Any:
    if name == "DistNeighborLoader":  # imports torch_geometric, which sampling processes do without
        from glt.distributed.dist_neighbor_loader import DistNeighborLoader

        return DistNeighborLoader
    raise AttributeError(f"module 'glt.distributed' has no attribute {name!r}")
