"""Partitions of a graph on disk: partitioners write them, ``load_partition`` maps them."""

from glt.data.partition_book import PartitionBook
from glt.partition.forecast import Forecast
from glt.partition.id_map import IdMap, to_original_order
from glt.partition.load import EdgePart, NodePart, Partition, TimedEdges, load_id_map, load_partition
from glt.partition.manifest import Manifest
from glt.partition.partitioner import PartitionerBase
from glt.partition.random_partitioner import RandomPartitioner

__all__ = [
    "EdgePart",
    "Forecast",
    "IdMap",
    "Manifest",
    "NodePart",
    "Partition",
    "PartitionBook",
    "PartitionerBase",
    "RandomPartitioner",
    "TimedEdges",
    "load_id_map",
    "load_partition",
    "to_original_order",
]
