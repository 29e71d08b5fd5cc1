"""Sampling over partitions: beside the trainer, in worker processes, or on servers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glt.distributed.context import DistContext, DistRole, get_context, init_worker_group
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.event_loop import ConcurrentEventLoop
from glt.distributed.engine.sampler import DistNeighborSampler
from glt.distributed.graph.evaluation import gather_metrics
from glt.distributed.graph.split import edge_split, node_split
from glt.distributed.job.initialize import barrier, finalize, get_rank, initialize, num_trainers
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from glt.distributed.server.api import (
    async_request_server,
    get_server,
    init_client,
    init_server,
    request_server,
    server_stats,
    shutdown_client,
    wait_and_shutdown_server,
)
from glt.distributed.tensors.embedding import DistEmbedding
from glt.distributed.tensors.optimizer import SparseAdagrad, SparseAdam
from glt.distributed.tensors.tensor import DistTensor
from glt.distributed.wire.calls import register_server_function
from glt.partition import partition_graph

if TYPE_CHECKING:
    from glt.distributed.graph.graph import DistGraph
    from glt.distributed.graph.inference import infer_layerwise
    from glt.distributed.graph.loaders import (
        Block,
        DistDataLoader,
        EdgeDataLoader,
        GlobalUniform,
        MultiLayerFullNeighborSampler,
        MultiLayerNeighborSampler,
        NodeDataLoader,
        PerSourceUniform,
        to_block,
    )
    from glt.distributed.loader.loaders import DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader

__all__ = [
    "Block",
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistContext",
    "DistDataLoader",
    "DistDataset",
    "DistEmbedding",
    "DistGraph",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRole",
    "DistSubGraphLoader",
    "DistTensor",
    "EdgeDataLoader",
    "GlobalUniform",
    "MpDistSamplingWorkerOptions",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NodeDataLoader",
    "PerSourceUniform",
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
    "infer_layerwise",
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
    "to_block",
    "wait_and_shutdown_server",
]

# They import torch_geometric, which sampling processes do without.
_LOADERS = {
    "Block": "blocks",
    "DistDataLoader": "dist_data_loader",
    "DistGraph": "dist_graph",
    "DistLinkNeighborLoader": "dist_link_neighbor_loader",
    "DistNeighborLoader": "dist_neighbor_loader",
    "DistSubGraphLoader": "dist_subgraph_loader",
    "EdgeDataLoader": "dist_data_loader",
    "GlobalUniform": "graph_samplers",
    "MultiLayerFullNeighborSampler": "graph_samplers",
    "MultiLayerNeighborSampler": "graph_samplers",
    "NodeDataLoader": "dist_data_loader",
    "PerSourceUniform": "graph_samplers",
    "infer_layerwise": "inference",
    "to_block": "blocks",
}


def __getattr__(name: str) -> Any:
    if name in _LOADERS:
        return getattr(import_module(f"glt.distributed.{_LOADERS[name]}"), name)
    raise AttributeError(f"module 'glt.distributed' has no attribute {name!r}")
