"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.partition.frequency_partitioner import FrequencyPartitioner
from glt.partition.load import CachePart, EdgePart, NodePart, Partition, TimedEdges, load_partition
from glt.partition.manifest import Manifest
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

__all__ = [
    "CachePart",
    "EdgePart",
    "FrequencyPartitioner",
    "Manifest",
    "NodePart",
    "Partition",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "load_partition",
]
