"""PyG's data as partition directories, as a user would write them."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from glt.partition import RandomPartitioner
from glt.partition.inputs.read import graph_arguments

_NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


class Partitions:
    """Partition directories of data, written when a loader first asks for one.

    Args:
        root: Where to.
        num_parts: Number of partitions.
    """

    def __init__(self, root: Path, num_parts: int) -> None:
        self.root, self.num_parts = root, num_parts
        self._numbers = itertools.count()
        self._made: dict[Any, tuple[Any, Path]] = {}

    def of(
        self, data: Data | HeteroData, time_attr: str | None, weight_attr: str | None, seed_edges: Any = None
    ) -> Path:
        """Returns the directory of ``data``; the same one for as long as no tensor of it changes.

        Args:
            data: The graph.
            time_attr, weight_attr: Attributes to sample by.
            seed_edges: The type of a loader's seed edges, which a directory names even if the graph has none of them.
        """
        tensors = [
            (store._key, name, id(value), getattr(value, "_version", None))
            for store in data.stores
            for name, value in store.items()
        ]
        key = (id(data), *tensors, time_attr, weight_attr, seed_edges)
        if key not in self._made:
            path = self.root / str(next(self._numbers))
            arguments = graph_arguments(_with_edges(data, seed_edges), weight_attr=weight_attr, time_attr=time_attr)
            RandomPartitioner(path, self.num_parts, edge_assign_strategy="by_dst", **arguments).partition()
            self._made[key] = data, path  # the data is kept, so that no other gets its id
        return self._made[key][1]

    def forget(self) -> None:
        """Lets go of the data."""
        self._made.clear()


def _with_edges(data: Any, seed_edges: Any) -> Any:
    """The data with a place for edges even if there are none, as a partition has one."""
    data = copy.copy(data)
    if isinstance(data, HeteroData):
        if seed_edges is not None and seed_edges not in data.edge_types:
            data[seed_edges].edge_index = _NO_EDGES
    elif data.edge_index is None:
        data.edge_index = _NO_EDGES
    return data
