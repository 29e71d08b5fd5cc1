"""PyG's data as partition directories, as a user would write them."""

import copy
import itertools

import torch
from torch_geometric.data import HeteroData

from glt.partition import RandomPartitioner
from glt.partition.inputs.read import graph_arguments

_NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


class Partitions:
    """Partition directories of data, written when a loader first asks for one."""

    def __init__(self, root, num_parts):
        self.root, self.num_parts = root, num_parts
        self._numbers = itertools.count()
        self._made = {}

    def of(self, data, time_attr, weight_attr, seed_edges=None):
        """Returns the directory of ``data``, the same until a tensor changes; it names ``seed_edges`` too."""
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

    def forget(self):
        """Lets go of the data."""
        self._made.clear()


def _with_edges(data, seed_edges):
    """The data with a place for edges even if there are none, as a partition has one."""
    data = copy.copy(data)
    if isinstance(data, HeteroData):
        if seed_edges is not None and seed_edges not in data.edge_types:
            data[seed_edges].edge_index = _NO_EDGES
    elif data.edge_index is None:
        data.edge_index = _NO_EDGES
    return data
