"""What a sampler reads: rows of edges per edge type, and the times of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.arrays import require_in_range
from glt.data.graph import Graph
from glt.data.pyg import GraphArrays
from glt.data.schema import Schema
from glt.data.topology import Topology, as_times
from glt.sampler.config import SamplingConfig


@dataclass(frozen=True)
class SampledGraph:
    """A graph as samplers see it, from whatever holds it (:mod:`glt.sampler.sources`).

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
        """The rows of each edge type as these options need them: by time, with weights, or plain. An edge type without
        times is not bound by any; one without weights is drawn from uniformly."""
        if config.temporal is not None:
            return [t.csr if t.by_time is None else t.csr_by_time for t in self.topologies]
        return [t.csr if config.weighted else t.csr_unweighted for t in self.topologies]

    def seed_time(self, node_type: int, nodes: Tensor) -> Tensor:
        """The nodes' own times, ``[n]``, from which a temporal sample starts by default; raises ValueError if nodes of
        this type have no time, IndexError if a node is outside the graph."""
        time = self.node_time[node_type] if self.node_time else None
        if time is None:
            name = self.schema.node_types[node_type]
            what = "the times are those of edges" if self.time_level == "edge" else f"{name!r} nodes have no time"
            raise ValueError(f"input_time is not given and {what}: give one time per seed")
        require_in_range("seeds", nodes, len(time))
        return time[nodes]
