"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.partition.adjacency_partitioner import AdjacencyPartitioner
from glt.partition.fennel_partitioner import FennelPartitioner
from glt.partition.forecast import Forecast
from glt.partition.load import EdgePart, NodePart, Partition, TimedEdges, load_partition
from glt.partition.manifest import Manifest
from glt.partition.metis_partitioner import MetisPartitioner
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

__all__ = [
    "AdjacencyPartitioner",
    "EdgePart",
    "FennelPartitioner",
    "Forecast",
    "Manifest",
    "MetisPartitioner",
    "NodePart",
    "Partition",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "load_partition",
]
