"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.data.partition_book import PartitionBook
from glt.partition.adjacency_partitioner import AdjacencyPartitioner
from glt.partition.assigned_partitioner import AssignedPartitioner
from glt.partition.distributed import partition_distributed
from glt.partition.fennel_partitioner import FennelPartitioner
from glt.partition.forecast import Forecast
from glt.partition.frequency_partitioner import FrequencyPartitioner
from glt.partition.id_map import IdMap, to_original_order
from glt.partition.importers import import_dgl, import_glt, import_pyg
from glt.partition.inputs import graph_arguments, read_graph
from glt.partition.inspection import inspect_partitions
from glt.partition.inspection_report import Inspection
from glt.partition.load import CachePart, EdgePart, NodePart, Partition, TimedEdges, load_id_map, load_partition
from glt.partition.manifest import Manifest
from glt.partition.metis_partitioner import MetisPartitioner
from glt.partition.part_config import PartConfig, read_part_config
from glt.partition.partition_graph import partition_graph
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

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
