"""Sampling over partitions: beside the trainer, in worker processes, or on servers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glt.distributed.context import DistContext, DistRole, get_context, init_worker_group
from glt.distributed.dist_dataset import DistDataset
from glt.distributed.dist_embedding import DistEmbedding
from glt.distributed.dist_neighbor_sampler import DistNeighborSampler
from glt.distributed.evaluation import gather_metrics
from glt.distributed.event_loop import ConcurrentEventLoop
from glt.distributed.initialize import barrier, finalize, get_rank, initialize, num_trainers
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from glt.distributed.server_client import (
    async_request_server,
    get_server,
    init_client,
    init_server,
    request_server,
    server_stats,
    shutdown_client,
    wait_and_shutdown_server,
)
from glt.distributed.service.functions import register_server_function
from glt.distributed.sparse_optim import SparseAdagrad, SparseAdam
from glt.distributed.split import edge_split, node_split
from glt.partition import partition_graph

if TYPE_CHECKING:
    from glt.distributed.dist_graph import DistGraph
    from glt.distributed.dist_link_neighbor_loader import DistLinkNeighborLoader
    from glt.distributed.dist_neighbor_loader import DistNeighborLoader
    from glt.distributed.dist_subgraph_loader import DistSubGraphLoader

__all__ = [
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistContext",
    "DistDataset",
    "DistEmbedding",
    "DistGraph",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRole",
    "DistSubGraphLoader",
    "MpDistSamplingWorkerOptions",
    "RemoteDistSamplingWorkerOptions",
    "SparseAdagrad",
    "SparseAdam",
    "async_request_server",
    "barrier",
    "edge_split",
    "finalize",
    "gather_metrics",
    "get_context",
    "get_rank",
    "get_server",
    "init_client",
    "init_server",
    "init_worker_group",
    "initialize",
    "node_split",
    "num_trainers",
    "partition_graph",
    "register_server_function",
    "request_server",
    "server_stats",
    "shutdown_client",
    "wait_and_shutdown_server",
]

# They import torch_geometric, which sampling processes do without.
_LOADERS = {
    "DistGraph": "dist_graph",
    "DistLinkNeighborLoader": "dist_link_neighbor_loader",
    "DistNeighborLoader": "dist_neighbor_loader",
    "DistSubGraphLoader": "dist_subgraph_loader",
}


def __getattr__(name: str) -> Any:
    if name in _LOADERS:
        return getattr(import_module(f"glt.distributed.{_LOADERS[name]}"), name)
    raise AttributeError(f"module 'glt.distributed' has no attribute {name!r}")
