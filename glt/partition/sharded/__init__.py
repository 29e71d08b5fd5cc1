"""Partitioning of graphs that no machine can hold: every rank brings a slice and writes its partitions."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt.partition.sharded.run import partition_distributed

__all__ = ["partition_distributed"]

__getattr__, __dir__ = lazy_names(__name__, {"run": ["partition_distributed"]})
