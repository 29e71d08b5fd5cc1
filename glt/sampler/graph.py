"""What goes into a sampler and comes out: graphs out of what users have, and batches as PyG's sampler output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._reprs import repr_of_fields
from glt.data.arrays import require_in_range
from glt.data.dataset import Dataset, Graph
from glt.data.pyg import GraphArrays, arrays_of_pyg, require_num_nodes
from glt.data.schema import EdgeType, Schema, reverse_edge_type
from glt.data.topology import Topology, as_times
from glt.sampler.config import SamplingConfig

if TYPE_CHECKING:
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
    from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

    from glt.sampler.device_batch import DeviceBatch, Edges, Nodes

    Output: TypeAlias = SamplerOutput | HeteroSamplerOutput
    Source: TypeAlias = Graph | Mapping[EdgeType, Graph] | Dataset | Data | HeteroData | tuple[FeatureStore, GraphStore]

Finish = Callable[[], Any]  # waits for a batch that was begun, and returns it; to be called once
Counts = tuple[list[list[int]], list[list[int]]]


@dataclass(frozen=True)
class SampledGraph:
    """A graph as samplers see it; by position of the type, all but the first two.

    Attributes:
        schema: Node and edge types.
        edge_dir: ``'in'`` expands a node along its in-edges, ``'out'`` along its out-edges.
        num_nodes, topologies: Number of nodes of each node type; rows of each edge type.
        time_level: What carries the times: ``'node'``, ``'edge'`` or None.
        node_time: With node-level times, those of each node type, ``[num_nodes]``, int64, or None.
        id_dtype: Dtype of the ids in a batch: that of the user's ``edge_index``.
        graphs: Where samplers on a GPU read the topologies; empty: nowhere.
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
        by_type = zip(arrays.schema.node_types, arrays.node_tables, arrays.num_nodes, strict=True)
        for node_type, tables, num_nodes in by_type:
            table = tables.get(arrays.time_attr or "") if arrays.time_level == "node" else None
            name = f"time_attr = {arrays.time_attr!r} of {node_type!r} nodes"
            time.append(None if table is None else torch.from_numpy(as_times(table, name, num_nodes, "node")))
        narrow = bool(arrays.edge_index) and arrays.edge_index[0][0].dtype == np.int32
        dtype = torch.int32 if narrow else torch.int64
        nodes, topologies = tuple(arrays.num_nodes), tuple(arrays.topologies(edge_dir))
        return cls(arrays.schema, edge_dir, nodes, topologies, arrays.time_level, tuple(time), dtype)

    @property
    def ends(self) -> tuple[tuple[int, int], ...]:
        """``(expanded node type, neighbour node type)`` of each edge type, as positions."""
        return self.schema.ends(self.edge_dir)

    def csrs(self, config: SamplingConfig) -> list[_core.Csr]:
        """The rows of each edge type as these options need them: by time, with weights, or plain."""
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


def sampled_graph(
    source: Source | SampledGraph, *, edge_dir: str, time_attr: str | None, weight_attr: str | None
) -> SampledGraph:
    """Returns ``source`` as samplers see it. ``edge_dir`` is for PyG's data and stores, which have no direction of
    their own; a dataset has times of one name, and the weights that it was built with. Raises IndexError, KeyError,
    TypeError or ValueError if the source or an attribute does not fit, NotImplementedError if weights are asked for of
    stores other than glt's."""
    from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData  # sampling processes do without

    from glt.data.stores import DatasetGraphStore, dataset_of_stores

    if isinstance(source, SampledGraph):
        return source
    if isinstance(source, Graph):
        source = Dataset(source)
    if isinstance(source, Mapping):
        source = _of_graphs(source)
    if isinstance(source, Dataset):
        return _of_dataset(source, time_attr, weight_attr)
    if isinstance(source, Data) and source.get("edge_index") is None and source.get("adj_t") is None:
        require_num_nodes(source)
        source = copy.copy(source)  # a graph without edges, as PyG has it
        source.edge_index = torch.empty(2, 0, dtype=torch.int64)
    if isinstance(source, Data | HeteroData):
        arrays = arrays_of_pyg(source, weight_attr=weight_attr, time_attr=time_attr, with_tables=False)
        return SampledGraph.from_arrays(arrays, edge_dir)
    pair = source if isinstance(source, tuple | list) and len(source) == 2 else (None, None)
    if isinstance(pair[0], FeatureStore) and isinstance(pair[1], GraphStore):
        if weight_attr is not None and not isinstance(pair[1], DatasetGraphStore):
            raise NotImplementedError(
                f"weight_attr = {weight_attr!r} and a (FeatureStore, GraphStore): stores do not say what the weights "
                "of their edges are; use a Data, HeteroData or glt Dataset"
            )
        dataset = dataset_of_stores(*pair, edge_dir=edge_dir, time_attr=time_attr)
        return _of_dataset(dataset, time_attr, weight_attr)
    raise TypeError(
        f"data has type {type(source).__name__}: expected a PyG Data or HeteroData, a glt Dataset or Graph, a dict of "
        "graphs by edge type, or a pair (FeatureStore, GraphStore)"
    )


def _of_graphs(graphs: Mapping[EdgeType, Graph]) -> Dataset:
    """A dataset of graphs by edge type, each of which may know of the nodes alone that its own edges name."""
    if not graphs:
        raise ValueError("data is an empty dict: expected a glt Graph for each edge type")
    for edge_type, graph in graphs.items():
        if not isinstance(graph, Graph):
            raise TypeError(f"data[{edge_type!r}] is a {type(graph).__name__}: expected a glt Graph for each edge type")
    ends = [t[::2] for t in graphs if isinstance(t, tuple) and len(t) == 3]  # what is no edge type, Schema refuses
    schema = Schema(tuple(dict.fromkeys(end for pair in ends for end in pair)), tuple(graphs))
    num_nodes = dict.fromkeys(schema.node_types, 0)
    for pair, graph in zip(ends, graphs.values(), strict=True):
        for end, count in zip(pair, graph.topology.size, strict=True):
            num_nodes[end] = max(num_nodes[end], count)
    of_all = []
    for (source, target), graph in zip(ends, graphs.values(), strict=True):
        of_all.append(graph.widened((num_nodes[source], num_nodes[target])))
    return Dataset.of_graphs(schema, of_all, list(num_nodes.values()), edge_dir=of_all[0].edge_dir)


def _of_dataset(dataset: Dataset, time_attr: str | None, weight_attr: str | None) -> SampledGraph:
    topologies = tuple(graph.topology for graph in dataset.graphs)
    level, known = dataset.time_level, dataset.time_attr
    if level is None and any(topology.by_time is not None for topology in topologies):
        level, known = "edge", time_attr  # bare graphs, whose times have no name
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
    size, graphs = dataset.num_nodes_of, tuple(dataset.graphs)
    return SampledGraph(dataset.schema, dataset.edge_dir, size, topologies, level, node_time, graphs=graphs)


def call_once(finish: Finish) -> Finish:
    """Calls ``finish`` the first time, and raises RuntimeError after that, as batches on a GPU do."""
    left = [finish]

    def finish_once() -> Output:
        if not left:
            raise RuntimeError("the batch was ended before; begin another")
        return left.pop()()

    return finish_once


def sampler_output(
    batch: _core.Batch, graph: SampledGraph, config: SamplingConfig, *, col_first: bool = False
) -> Output:
    """Hands a finished batch over: the tensors own its memory, and the batch takes no call but ``start``. Rows and
    columns are those of one ``[2, E]`` each, ``col_first``: the other way round."""
    counts = hop_counts(batch, graph, config)
    nodes, edges = batch.hand_over(expanded_first=col_first)
    node = [(torch.from_numpy(ids), _tensor(trees)) for ids, trees in nodes]
    row, col = (1, 0) if col_first else (0, 1)
    ends = [torch.from_numpy(both) for both, _ in edges]
    edge = [(both[row], both[col], _tensor(ids)) for both, (_, ids) in zip(ends, edges, strict=True)]
    return typed_output(graph, config, node, edge, counts)


def hop_counts(batch: _core.Batch | DeviceBatch, graph: SampledGraph, config: SamplingConfig) -> Counts | None:
    """Nodes per hop of each node type and edges per hop of each edge type; like PyG, None of induced edges."""
    if config.subgraph_type == "induced":
        return None
    node_types, edge_types = range(len(graph.schema.node_types)), range(len(graph.schema.edge_types))
    return [batch.num_sampled_nodes(t) for t in node_types], [batch.num_sampled_edges(r) for r in edge_types]


def typed_output(
    graph: SampledGraph, config: SamplingConfig, nodes: Sequence[Nodes], edges: Sequence[Edges], counts: Counts | None
) -> Output:
    """Names what a batch holds: dicts with every type of the schema, or single tensors when homogeneous, in the dtype
    of the graph's ids; bidirectional edges are not made here.

    Edges run neighbour -> expanded node, so along out-edges a batch holds the reverses, under the reverse types
    (:func:`~glt.data.schema.reverse_edge_type`). ``nodes`` are ids, and trees where disjoint, by node type; ``edges``
    rows, columns, and ids with ``with_edge``, by edge type.
    """
    from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput  # sampling processes do without

    schema, dtype = graph.schema, graph.id_dtype
    node, tree = _columns(nodes, 2, dtype)
    row, col, edge = _columns(edges, 3, dtype)
    num_nodes, num_edges = (None, None) if counts is None else counts
    if not schema.is_hetero:
        counted = {"num_sampled_nodes": num_nodes and num_nodes[0], "num_sampled_edges": num_edges and num_edges[0]}
        return SamplerOutput(node=node[0], row=row[0], col=col[0], edge=edge[0], batch=tree[0], **counted)
    names = schema.edge_types if graph.edge_dir == "in" else tuple(map(reverse_edge_type, schema.edge_types))
    return HeteroSamplerOutput(
        node=schema.by_node_type(node),
        row=dict(zip(names, row, strict=True)),
        col=dict(zip(names, col, strict=True)),
        edge=dict(zip(names, edge, strict=True)) if config.with_edge else None,
        batch=schema.by_node_type(tree) if config.disjoint else None,
        num_sampled_nodes=None if num_nodes is None else schema.by_node_type(num_nodes),
        num_sampled_edges=None if num_edges is None else dict(zip(names, num_edges, strict=True)),
    )


def _columns(rows: Sequence[tuple[Any, ...]], num_columns: int, dtype: torch.dtype) -> list[list[Any]]:
    return [[None if row[c] is None else row[c].to(dtype) for row in rows] for c in range(num_columns)]


def require_distinct_reverses(schema: Schema, edge_dir: str) -> None:
    """Raises ValueError if, along out-edges, batches would hold two edge types under one name."""
    names: dict[EdgeType, EdgeType] = {}
    for edge_type in schema.edge_types if edge_dir == "out" else ():
        name = reverse_edge_type(edge_type)
        if name in names:
            raise ValueError(
                f"edge_dir = 'out': batches hold reverses, and those of {names[name]} and {edge_type} would both be "
                f"called {name}: rename one, or use edge_dir='in'"
            )
        names[name] = edge_type


def _tensor(array: np.ndarray | None) -> Tensor | None:
    return None if array is None else torch.from_numpy(array)


def bidirectional(out: Output, keep_orig_edges: bool = False) -> Output:
    """As PyG's ``out.to_bidirectional``, with the CPU's result on every device. Of edges that become one, PyG keeps the
    id that is written last, on a GPU any of them: homogeneous samples with ids go over the CPU; those of several types
    keep no ids."""
    if isinstance(out.row, dict) or out.edge is None or not out.row.is_cuda:
        return out.to_bidirectional(keep_orig_edges=keep_orig_edges)
    here = copy.copy(out)
    here.row, here.col, here.edge = out.row.cpu(), out.col.cpu(), out.edge.cpu()
    made = here.to_bidirectional(keep_orig_edges=keep_orig_edges)
    made.row, made.col, made.edge = (each.to(out.row.device) for each in (made.row, made.col, made.edge))
    if keep_orig_edges:
        made.orig_row, made.orig_col = out.row, out.col
    return made


@dataclass(frozen=True)
class NeighborOutput:
    """One hop: ids ``nbr [E]`` of the seeds' neighbours, seed after seed; edges per seed ``nbr_num [S]``, which sum to
    E; edge ids ``edge [E]`` or None; int64.

    Example:
        >>> dataset = glt.testing.ring_graph().to_dataset()
        >>> sampler = glt.sampler.NeighborSampler(dataset, [2], random_seed=0)
        >>> out = sampler.sample_one_hop(torch.tensor([5, 9]), 2)
        >>> out
        NeighborOutput(nbr=int64 [4], nbr_num=int64 [2], edge=int64 [4])
        >>> out.nbr
        tensor([3, 4, 7, 8])
    """

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None

    __repr__ = repr_of_fields
