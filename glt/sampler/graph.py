"""Graphs to sample from, out of what users have: PyG's data, glt's datasets, feature and graph stores."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData

from glt import _core
from glt.data.dataset import Dataset
from glt.data.graph import Graph
from glt.data.pyg import GraphArrays, arrays_of_pyg, require_num_nodes
from glt.data.schema import Schema
from glt.data.stores import DatasetGraphStore, dataset_of_stores
from glt.data.topology import Topology, as_times
from glt.sampler.config import SamplingConfig

# What a sampler reads: rows of edges per edge type, and the times of nodes.


@dataclass(frozen=True)
class SampledGraph:
    """A graph as samplers see it, from whatever holds it (:mod:`glt.sampler.graph`).

    Attributes:
        schema: Node and edge types; by position in it, all that follows.
        edge_dir: ``'in'`` expands a node along its in-edges, ``'out'`` along its out-edges.
        num_nodes: Number of nodes of each node type.
        topologies: Rows of each edge type.
        time_level: What carries the times: ``'node'``, ``'edge'`` or None.
        node_time: With node-level times, those of each node type, ``[num_nodes]``, int64, or None.
        id_dtype: Dtype of the ids in a batch: that of the user's ``edge_index``.
        graphs: Where samplers on a GPU read the topologies, by edge type; empty: nowhere.
    """

    schema: Schema
    edge_dir: str
    num_nodes: tuple[int, ...]
    topologies: tuple[Topology, ...]
    time_level: str | None = None
    node_time: tuple[Tensor | None, ...] = field(default=(), repr=False)
    id_dtype: torch.dtype = torch.int64
    graphs: tuple[Graph, ...] = field(default=(), repr=False)

    @classmethod
    def from_arrays(cls, arrays: GraphArrays, edge_dir: str) -> SampledGraph:
        """Builds the rows of a graph."""
        time = []
        for node_type, tables, num_nodes in zip(
            arrays.schema.node_types, arrays.node_tables, arrays.num_nodes, strict=True
        ):
            table = tables.get(arrays.time_attr or "") if arrays.time_level == "node" else None
            name = f"time_attr = {arrays.time_attr!r} of {node_type!r} nodes"
            time.append(None if table is None else torch.from_numpy(as_times(table, name, num_nodes, "node")))
        narrow = bool(arrays.edge_index) and arrays.edge_index[0][0].dtype == np.int32
        return cls(
            arrays.schema,
            edge_dir,
            tuple(arrays.num_nodes),
            tuple(arrays.topologies(edge_dir)),
            arrays.time_level,
            tuple(time),
            torch.int32 if narrow else torch.int64,
        )

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """``(expanded node type, neighbour node type)`` of each edge type, as positions."""
        return self.schema.ends(self.edge_dir)

    def csrs(self, config: SamplingConfig) -> list[_core.Csr]:
        """The rows of each edge type as these options need them: by time, with weights, or plain.

        An edge type without times is not bound by any; one without weights is drawn from uniformly.
        """
        if config.temporal is not None:
            return [t.csr if t.by_time is None else t.csr_by_time for t in self.topologies]
        return [t.csr if config.weighted else t.csr_unweighted for t in self.topologies]

    def seed_time(self, node_type: int, nodes: Tensor) -> Tensor:
        """The nodes' own times, ``[n]``: what a temporal sample starts from unless told otherwise.

        Raises:
            ValueError: If nodes of this type have no time.
            IndexError: If a node is outside the graph; names the first.
        """
        time = self.node_time[node_type] if self.node_time else None
        if time is None:
            name = self.schema.node_types[node_type]
            what = "the times are those of edges" if self.time_level == "edge" else f"{name!r} nodes have no time"
            raise ValueError(f"input_time is not given and {what}: give one time per seed")
        bad = ((nodes < 0) | (nodes >= len(time))).nonzero()
        if len(bad):
            at = int(bad[0])
            raise IndexError(f"seeds[{at}] = {int(nodes[at])} is outside [0, {len(time)})")
        return time[nodes]


Source: TypeAlias = Graph | Dataset | Data | HeteroData | tuple[FeatureStore, GraphStore]


def sampled_graph(
    source: Source | SampledGraph, *, edge_dir: str, time_attr: str | None, weight_attr: str | None
) -> SampledGraph:
    """Returns ``source`` as samplers see it.

    Args:
        source: A PyG ``Data`` or ``HeteroData``, a pair (feature store, graph store), a glt ``Dataset`` or ``Graph``.
        edge_dir: For PyG's data and stores, which have no direction of their own.
        time_attr: Attribute with the times of nodes or of edges, int64. A dataset has times of one name.
        weight_attr: Attribute with the weights of edges; of a dataset, the weights that it was built with.

    Raises:
        IndexError, KeyError, TypeError, ValueError: If the source or an attribute does not fit; names it.
        NotImplementedError: If weights are asked for of stores other than glt's.
    """
    if isinstance(source, SampledGraph):
        return source
    if isinstance(source, Graph):
        source = Dataset(source)
    if isinstance(source, Dataset):
        return _of_dataset(source, time_attr, weight_attr)
    if isinstance(source, Data) and source.get("edge_index") is None and source.get("adj_t") is None:
        require_num_nodes(source)
        source = copy.copy(source)  # a graph without edges, as PyG has it
        source.edge_index = torch.empty(2, 0, dtype=torch.int64)
    if isinstance(source, Data | HeteroData):
        arrays = arrays_of_pyg(source, weight_attr=weight_attr, time_attr=time_attr, with_tables=False)
        return SampledGraph.from_arrays(arrays, edge_dir)
    if (
        isinstance(source, tuple | list)
        and len(source) == 2
        and isinstance(source[0], FeatureStore)
        and isinstance(source[1], GraphStore)
    ):
        if weight_attr is not None and not isinstance(source[1], DatasetGraphStore):
            raise NotImplementedError(
                f"weight_attr = {weight_attr!r} and a (FeatureStore, GraphStore): stores do not say what the weights "
                "of their edges are; use a Data, HeteroData or glt Dataset"
            )
        dataset = dataset_of_stores(source[0], source[1], edge_dir=edge_dir, time_attr=time_attr)
        return _of_dataset(dataset, time_attr, weight_attr)
    raise TypeError(
        f"data has type {type(source).__name__}: expected a PyG Data or HeteroData, a glt Dataset or Graph, or a pair "
        "(FeatureStore, GraphStore)"
    )


def _of_dataset(dataset: Dataset, time_attr: str | None, weight_attr: str | None) -> SampledGraph:
    topologies = tuple(graph.topology for graph in dataset.graphs)
    level = dataset.time_level
    if level is None and len(topologies) == 1 and topologies[0].by_time is not None:
        level, known = "edge", time_attr  # a bare Graph, whose times have no name
    else:
        known = dataset.time_attr
    if time_attr not in (None, known):
        raise ValueError(
            f"time_attr = {time_attr!r}: the dataset has "
            f"{'no times' if known is None else f'the times {known!r}'}; build it with node_time or edge_time"
        )
    if weight_attr is not None and all(t.weights is None for t in topologies):
        raise ValueError(f"weight_attr = {weight_attr!r}: the dataset has no weights; build it with edge_weight")
    if time_attr is None:
        level = None
    node_time = tuple(
        tables[time_attr].tensor.view(-1) if level == "node" and time_attr in tables else None
        for tables in dataset.node_tables
    )
    return SampledGraph(
        dataset.schema, dataset.edge_dir, dataset.num_nodes_of, topologies, level, node_time,
        graphs=tuple(dataset.graphs),
    )  # fmt: skip
