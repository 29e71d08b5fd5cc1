"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.partition.adjacency_partitioner import AdjacencyPartitioner
from glt.partition.assigned_partitioner import AssignedPartitioner
from glt.partition.distributed import partition_distributed
from glt.partition.fennel_partitioner import FennelPartitioner
from glt.partition.forecast import Forecast
from glt.partition.importers import import_dgl, import_glt, import_pyg
from glt.partition.inputs import graph_arguments, read_graph
from glt.partition.inspection import inspect_partitions
from glt.partition.inspection_report import Inspection
from glt.partition.load import EdgePart, NodePart, Partition, TimedEdges, load_partition
from glt.partition.manifest import Manifest
from glt.partition.metis_partitioner import MetisPartitioner
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

__all__ = [
    "AdjacencyPartitioner",
    "AssignedPartitioner",
    "EdgePart",
    "FennelPartitioner",
    "Forecast",
    "Inspection",
    "Manifest",
    "MetisPartitioner",
    "NodePart",
    "Partition",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "graph_arguments",
    "import_dgl",
    "import_glt",
    "import_pyg",
    "inspect_partitions",
    "load_partition",
    "partition_distributed",
    "read_graph",
]
