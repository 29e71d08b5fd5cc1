"""Loaders in the trainer's process or its DataLoader workers."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt._stats import Stats
    from glt._trace import Trace
    from glt.loader.anchors import ABLPLoader
    from glt.loader.clusters import ClusterData, ClusterLoader
    from glt.loader.hgt import HGTLoader
    from glt.loader.loaders import LinkNeighborLoader, NeighborLoader, SubGraphLoader
    from glt.loader.node_sets import RandomNodeLoader
    from glt.loader.page_rank import PageRankLoader
    from glt.loader.relbench import LinkTable, RelBenchLinkNeighborLoader
    from glt.loader.saint import GraphSAINTEdgeSampler, GraphSAINTNodeSampler, GraphSAINTRandomWalkSampler
    from glt.loader.shadow import ShaDowKHopSampler
    from glt.loader.walks import RandomWalkLoader

__all__ = [
    "ABLPLoader",
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTEdgeSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "HGTLoader",
    "LinkNeighborLoader",
    "LinkTable",
    "NeighborLoader",
    "PageRankLoader",
    "RandomNodeLoader",
    "RandomWalkLoader",
    "RelBenchLinkNeighborLoader",
    "ShaDowKHopSampler",
    "Stats",
    "SubGraphLoader",
    "Trace",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "glt._stats": ["Stats"],
        "glt._trace": ["Trace"],
        "anchors": ["ABLPLoader"],
        "clusters": ["ClusterData", "ClusterLoader"],
        "hgt": ["HGTLoader"],
        "loaders": ["LinkNeighborLoader", "NeighborLoader", "SubGraphLoader"],
        "node_sets": ["RandomNodeLoader"],
        "page_rank": ["PageRankLoader"],
        "relbench": ["LinkTable", "RelBenchLinkNeighborLoader"],
        "saint": ["GraphSAINTEdgeSampler", "GraphSAINTNodeSampler", "GraphSAINTRandomWalkSampler"],
        "shadow": ["ShaDowKHopSampler"],
        "walks": ["RandomWalkLoader"],
    },
)
