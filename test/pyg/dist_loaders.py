"""Classes with the signatures of PyG's loaders that iterate over glt's distributed ones.

Each loader partitions the data that it is given and samples from the partitions. Next to each batch it makes the same
one with glt's local loader on the whole data, and compares them: whatever PyG's test asserts, all of the batch is
right, element for element.

Pairs of a ``FeatureStore`` and a ``GraphStore`` are read in this process, by glt's local loaders: what PyG's tests
compare with them is distributed.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
import torch_geometric.loader
from job import Job
from torch import Tensor
from torch_geometric.loader.utils import get_edge_label_index, get_input_nodes
from torch_geometric.sampler import NumNeighbors

import glt.loader

# About how torch's DataLoader runs, which is not how batches are made here.
_OF_DATALOADERS = ("filter_per_worker", "persistent_workers", "prefetch_factor", "pin_memory")
_SAMPLING = ("replace", "subgraph_type", "disjoint", "temporal_strategy", "time_attr", "weight_attr")


class Distributed:
    """What both have in common. Goes before a loader of PyG's, for whose sake ``isinstance`` is true; none of its code
    runs.

    Attributes:
        job: Which makes the loaders; set by whoever runs tests.
        kind, local: The class of :mod:`glt.distributed`, and the class of :mod:`glt.loader` to compare it with.
        columns: Arguments that have one entry per seed, beside the seeds.
    """

    job: Job
    kind: str
    local: Any
    columns: tuple[str, ...]

    def __new__(cls, data, *given, **options):
        return cls.local(data, *given, **options) if isinstance(data, tuple) else object.__new__(cls)

    def _init(self, data, arguments, transform, options):
        """Makes the distributed loader, and the local one of the same seed."""
        given = self.__dict__
        given["data"], given["transform"] = data, transform
        options = {name: value for name, value in options.items() if name not in _OF_DATALOADERS}
        given["_num_workers"] = max(1, options.pop("num_workers", 0))
        given["_order"] = options.pop("sampler", None)
        given["_arguments"] = arguments | options
        given["_graph_dir"] = self.job.partitions.of(
            data, arguments["time_attr"], arguments["weight_attr"], self._edge_type(arguments)
        )
        # With an order of the caller's, each epoch has seeds of its own, and so a loader.
        given["_made"] = None if given["_order"] is not None else self._make(self._arguments)

    def _edge_type(self, arguments):
        return None

    def _make(self, arguments):
        made = self.job.loader(
            self._graph_dir, self.kind, self._num_workers, with_edge=True, collect_features=True, **arguments
        )
        return made, self.local(self.data, **arguments, random_seed=made.random_seed)

    def _of(self, positions, **others):
        """The arguments with the seeds at these positions alone."""
        columns = {name: self._arguments[name] for name in self.columns if self._arguments[name] is not None}
        return self._arguments | {name: column[positions] for name, column in columns.items()} | others

    def __len__(self):
        if self._made is None:
            return -(-len(self._order) // self._arguments.get("batch_size", 1))
        return len(self._made[0])

    def __iter__(self):
        made = self._made or self._make(self._of(list(self._order)))
        with torch.random.fork_rng(devices=[]):  # torch's DataLoader draws a seed
            wanted = iter(made[1])
        return self._batches(iter(made[0]), wanted)

    def _batches(self, batches, wanted):
        for batch, local in zip(batches, wanted, strict=True):
            yield self._checked(batch, local)

    def _checked(self, batch, local):
        self.job.num_batches += 1
        batch = as_of(self.data, batch)
        assert_same(batch, local)
        return batch if self.transform is None else self.transform(batch)

    def __call__(self, index):
        """Samples around some of the seeds: an epoch of one batch."""
        batch, local = self._make(self._of(torch.as_tensor(index), batch_size=len(index), shuffle=False))
        return self._checked(next(iter(batch)), next(iter(local)))

    def __repr__(self):
        return f"{type(self).__name__}()"


class NeighborLoader(Distributed, torch_geometric.loader.NeighborLoader):
    kind, local, columns = "DistNeighborLoader", glt.loader.NeighborLoader, ("input_time",)

    def __init__(
        self, data, num_neighbors, input_nodes = None, input_time = None, replace = False,
        subgraph_type = "directional", disjoint = False, temporal_strategy = "uniform",
        time_attr = None, weight_attr = None, transform = None, **options,
    ) :  # fmt: skip
        given = locals()
        if input_nodes is None:
            input_nodes = torch.arange(data.num_nodes)  # a trainer is told its seeds
        arguments = {name: given[name] for name in _SAMPLING}
        arguments |= {"num_neighbors": num_neighbors, "input_nodes": input_nodes, "input_time": input_time}
        self._init(data, arguments, transform, options)
        self.__dict__["dataset"] = range(len(get_input_nodes(data, input_nodes)[1]))
        # What PyG's models ask a loader of.
        self.__dict__["node_sampler"] = SimpleNamespace(num_neighbors=NumNeighbors(num_neighbors))

    def _of(self, positions, **others):
        arguments = self._arguments
        node_type, nodes, input_id = get_input_nodes(self.data, arguments["input_nodes"], arguments.get("input_id"))
        input_id = torch.arange(len(nodes)) if input_id is None else input_id
        seeds = nodes[positions]
        return super()._of(positions, **others) | {
            "input_nodes": seeds if node_type is None else (node_type, seeds),
            "input_id": input_id[positions],
        }


class LinkNeighborLoader(Distributed, torch_geometric.loader.LinkNeighborLoader):
    kind, local = "DistLinkNeighborLoader", glt.loader.LinkNeighborLoader
    columns = ("edge_label", "edge_label_time")

    def __init__(
        self, data, num_neighbors, edge_label_index = None, edge_label = None,
        edge_label_time = None, replace = False, subgraph_type = "directional", disjoint = False,
        temporal_strategy = "uniform", neg_sampling = None, neg_sampling_ratio = None,
        time_attr = None, weight_attr = None, transform = None, **options,
    ) :  # fmt: skip
        given = locals()
        edge_type, edges = get_edge_label_index(data, edge_label_index)
        arguments = {name: given[name] for name in (*_SAMPLING, "edge_label", "edge_label_time")}
        arguments |= {
            "num_neighbors": num_neighbors, "edge_label_index": edges if edge_type is None else (edge_type, edges),
            "neg_sampling": neg_sampling, "neg_sampling_ratio": neg_sampling_ratio,
        }  # fmt: skip
        self._init(data, arguments, transform, options)

    def _edge_type(self, arguments):
        edges = arguments["edge_label_index"]
        return edges[0] if isinstance(edges, tuple) else None

    def _of(self, positions, **others):
        edge_type, edges = get_edge_label_index(self.data, self._arguments["edge_label_index"])
        input_id = self._arguments.get("input_id")
        input_id = torch.arange(edges.shape[1]) if input_id is None else input_id
        edges = edges[:, positions]
        return super()._of(positions, **others) | {
            "edge_label_index": edges if edge_type is None else (edge_type, edges),
            "input_id": input_id[positions],
        }


def as_of(data, batch):
    """The batch as PyG's: with ``num_nodes`` only if the data says it, which partitions do not remember."""
    batch = copy.copy(batch)
    said = {store._key for store in data.stores if "num_nodes" in store}
    for store in batch.stores:
        if store._key not in said:
            assert store.pop("num_nodes", len(store.get("n_id", ()))) == len(store.get("n_id", ()))
    return batch


def assert_same(batch, local):
    """Compares a batch with the local one, which may have attributes of the graph as a whole besides."""
    assert type(batch) is type(local)
    stores = {store._key: store for store in batch.stores}
    for wanted in local.stores:
        store = stores[wanted._key]
        for name in dict.fromkeys([*wanted.keys(), *store.keys()]):
            if name not in store:
                assert not wanted.is_node_attr(name) and not wanted.is_edge_attr(name), f"{wanted._key} has no {name}"
            elif name not in wanted:  # a partition has room for edges even where the data says nothing of them
                assert name in ("edge_index", "e_id", "num_sampled_edges") and "edge_index" not in wanted, name
            else:
                value, other = store[name], wanted[name]
                same = torch.equal(value, other.to(value.dtype)) if isinstance(value, Tensor) else value == other
                assert same, f"{wanted._key}, {name}: {value} in place of {other}"
