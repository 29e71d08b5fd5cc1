"""Sampling over partitions: beside the trainer, in worker processes, or on servers."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.distributed.context import DistContext, DistRole, get_context, init_worker_group
    from glt.distributed.endpoint.endpoint import StatsEndpoint, publish_stats
    from glt.distributed.engine.dataset import DistDataset
    from glt.distributed.engine.sampler import DistNeighborSampler
    from glt.distributed.graph.blocks import EID, NID, Block, to_block
    from glt.distributed.graph.evaluation import gather_metrics
    from glt.distributed.graph.graph import DistGraph, sample_neighbors
    from glt.distributed.graph.inference import infer_layerwise
    from glt.distributed.graph.loaders import DistDataLoader, EdgeDataLoader, NodeDataLoader
    from glt.distributed.graph.samplers import (
        GlobalUniform,
        LaborSampler,
        MultiLayerFullNeighborSampler,
        MultiLayerNeighborSampler,
        PerSourceUniform,
    )
    from glt.distributed.graph.split import edge_split, node_split
    from glt.distributed.job.initialize import barrier, finalize, get_num_clients, get_rank, initialize, num_trainers
    from glt.distributed.loader.anchors import DistABLPLoader
    from glt.distributed.loader.loaders import DistLinkNeighborLoader, DistNeighborLoader, DistSubGraphLoader
    from glt.distributed.loader.node_sets import DistClusterLoader, DistGraphSAINTRandomWalkSampler, DistHGTLoader
    from glt.distributed.loader.oneshot import SamplingClient
    from glt.distributed.loader.page_rank import DistPageRankLoader
    from glt.distributed.loader.walks import DistRandomWalkLoader
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
        node_keys,
        request_server,
        server_stats,
        shutdown_client,
        wait_and_shutdown_server,
    )
    from glt.distributed.server.options import ServerOptions
    from glt.distributed.tensors.embedding import DistEmbedding
    from glt.distributed.tensors.optimizer import SparseAdagrad, SparseAdam
    from glt.distributed.tensors.tensor import DistTensor
    from glt.distributed.wire.calls import register_server_function
    from glt.distributed.wire.credentials import TlsOptions
    from glt.distributed.wire.threads import ConcurrentEventLoop
    from glt.partition import partition_graph

__all__ = [
    "EID",
    "NID",
    "Block",
    "CollocatedDistSamplingWorkerOptions",
    "ConcurrentEventLoop",
    "DistABLPLoader",
    "DistClusterLoader",
    "DistContext",
    "DistDataLoader",
    "DistDataset",
    "DistEmbedding",
    "DistGraph",
    "DistGraphSAINTRandomWalkSampler",
    "DistHGTLoader",
    "DistLinkNeighborLoader",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistPageRankLoader",
    "DistRandomWalkLoader",
    "DistRole",
    "DistSubGraphLoader",
    "DistTensor",
    "EdgeDataLoader",
    "GlobalUniform",
    "LaborSampler",
    "MpDistSamplingWorkerOptions",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NodeDataLoader",
    "PerSourceUniform",
    "RemoteDistSamplingWorkerOptions",
    "SamplingClient",
    "ServerOptions",
    "SparseAdagrad",
    "SparseAdam",
    "StatsEndpoint",
    "TlsOptions",
    "async_request_server",
    "barrier",
    "edge_split",
    "finalize",
    "gather_metrics",
    "get_context",
    "get_num_clients",
    "get_rank",
    "get_server",
    "infer_layerwise",
    "init_client",
    "init_server",
    "init_worker_group",
    "initialize",
    "node_keys",
    "node_split",
    "num_trainers",
    "partition_graph",
    "publish_stats",
    "register_server_function",
    "request_server",
    "sample_neighbors",
    "server_stats",
    "shutdown_client",
    "to_block",
    "wait_and_shutdown_server",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "context": ["DistContext", "DistRole", "get_context", "init_worker_group"],
        "endpoint.endpoint": ["StatsEndpoint", "publish_stats"],
        "engine.dataset": ["DistDataset"],
        "engine.sampler": ["DistNeighborSampler"],
        "graph.blocks": ["EID", "NID", "Block", "to_block"],
        "graph.evaluation": ["gather_metrics"],
        "graph.graph": ["DistGraph", "sample_neighbors"],
        "graph.inference": ["infer_layerwise"],
        "graph.loaders": ["DistDataLoader", "EdgeDataLoader", "NodeDataLoader"],
        "graph.samplers": [
            "GlobalUniform",
            "LaborSampler",
            "MultiLayerFullNeighborSampler",
            "MultiLayerNeighborSampler",
            "PerSourceUniform",
        ],
        "graph.split": ["edge_split", "node_split"],
        "job.initialize": ["barrier", "finalize", "get_num_clients", "get_rank", "initialize", "num_trainers"],
        "loader.anchors": ["DistABLPLoader"],
        "loader.loaders": ["DistLinkNeighborLoader", "DistNeighborLoader", "DistSubGraphLoader"],
        "loader.node_sets": ["DistClusterLoader", "DistGraphSAINTRandomWalkSampler", "DistHGTLoader"],
        "loader.page_rank": ["DistPageRankLoader"],
        "loader.walks": ["DistRandomWalkLoader"],
        "loader.oneshot": ["SamplingClient"],
        "options": [
            "CollocatedDistSamplingWorkerOptions",
            "MpDistSamplingWorkerOptions",
            "RemoteDistSamplingWorkerOptions",
        ],
        "server.api": [
            "async_request_server",
            "get_server",
            "init_client",
            "init_server",
            "request_server",
            "node_keys",
            "server_stats",
            "shutdown_client",
            "wait_and_shutdown_server",
        ],
        "server.options": ["ServerOptions"],
        "tensors.embedding": ["DistEmbedding"],
        "tensors.optimizer": ["SparseAdagrad", "SparseAdam"],
        "tensors.tensor": ["DistTensor"],
        "wire.calls": ["register_server_function"],
        "wire.credentials": ["TlsOptions"],
        "wire.threads": ["ConcurrentEventLoop"],
        "glt.partition": ["partition_graph"],
    },
)
