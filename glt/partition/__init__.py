"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.data.schema import PartitionBook
    from glt.partition.format.book import IdMap, to_original_order
    from glt.partition.format.load import (
        CachePart,
        EdgePart,
        NodePart,
        Partition,
        TimedEdges,
        load_id_map,
        load_partition,
    )
    from glt.partition.format.manifest import Manifest
    from glt.partition.format.part_config import PartConfig, read_part_config
    from glt.partition.graph_call import partition_graph
    from glt.partition.importers import import_dgl, import_glt, import_pyg
    from glt.partition.inputs import graph_arguments, read_graph
    from glt.partition.inspect import Inspection, inspect_partitions
    from glt.partition.methods.edge_cut import AdjacencyPartitioner, FennelPartitioner
    from glt.partition.methods.forecast import Forecast
    from glt.partition.methods.metis import MetisPartitioner
    from glt.partition.methods.partitioner import PartitionerBase
    from glt.partition.methods.partitioners import AssignedPartitioner, FrequencyPartitioner, RandomPartitioner
    from glt.partition.sharded import partition_distributed

__all__ = [
    "AdjacencyPartitioner",
    "AssignedPartitioner",
    "CachePart",
    "EdgePart",
    "FennelPartitioner",
    "Forecast",
    "FrequencyPartitioner",
    "IdMap",
    "Inspection",
    "Manifest",
    "MetisPartitioner",
    "NodePart",
    "PartConfig",
    "Partition",
    "PartitionBook",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "graph_arguments",
    "import_dgl",
    "import_glt",
    "import_pyg",
    "inspect_partitions",
    "load_id_map",
    "load_partition",
    "partition_distributed",
    "partition_graph",
    "read_graph",
    "read_part_config",
    "to_original_order",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "glt.data.schema": ["PartitionBook"],
        "sharded": ["partition_distributed"],
        "format.book": ["IdMap", "to_original_order"],
        "format.load": [
            "CachePart",
            "EdgePart",
            "NodePart",
            "Partition",
            "TimedEdges",
            "load_id_map",
            "load_partition",
        ],
        "format.manifest": ["Manifest"],
        "format.part_config": ["PartConfig", "read_part_config"],
        "graph_call": ["partition_graph"],
        "importers": ["import_dgl", "import_glt", "import_pyg"],
        "inputs": ["graph_arguments", "read_graph"],
        "inspect": ["Inspection", "inspect_partitions"],
        "methods.edge_cut": ["AdjacencyPartitioner", "FennelPartitioner"],
        "methods.forecast": ["Forecast"],
        "methods.metis": ["MetisPartitioner"],
        "methods.partitioner": ["PartitionerBase"],
        "methods.partitioners": ["AssignedPartitioner", "FrequencyPartitioner", "RandomPartitioner"],
    },
)
