"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.partition.forecast import Forecast
from glt.partition.inputs import graph_arguments, read_graph
from glt.partition.load import EdgePart, NodePart, Partition, TimedEdges, load_partition
from glt.partition.manifest import Manifest
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

__all__ = [
    "EdgePart",
    "Forecast",
    "Manifest",
    "NodePart",
    "Partition",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "graph_arguments",
    "load_partition",
    "read_graph",
]
