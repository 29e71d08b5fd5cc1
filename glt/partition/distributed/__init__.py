"""Partitioning of graphs that no machine can hold: every rank brings a slice and writes its partitions."""

from glt.partition.distributed.run import partition_distributed

__all__ = ["partition_distributed"]
