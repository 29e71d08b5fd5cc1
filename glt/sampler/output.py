"""Native batches as PyG's sampler output."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt import _core
from glt.data.schema import EdgeType, Schema, reverse_edge_type
from glt.sampler.config import SamplingConfig
from glt.sampler.device_batch import DeviceBatch, Edges, Nodes
from glt.sampler.graph import SampledGraph

Finish = Callable[[], SamplerOutput | HeteroSamplerOutput]  # waits for a batch that was begun; to be called once


def call_once(finish: Finish) -> Finish:
    """Returns what calls ``finish`` the first time and raises RuntimeError after that, as batches on a GPU do."""
    left = [finish]

    def finish_once() -> SamplerOutput | HeteroSamplerOutput:
        if not left:
            raise RuntimeError("the batch was ended before; begin another")
        return left.pop()()

    return finish_once


def sampler_output(
    batch: _core.Batch, graph: SampledGraph, config: SamplingConfig
) -> SamplerOutput | HeteroSamplerOutput:
    """Hands a finished batch over: the tensors own its memory, and the batch takes no call but ``start``."""
    counts = hop_counts(batch, graph, config)
    nodes, edges = batch.hand_over()
    return typed_output(
        graph,
        config,
        [(torch.from_numpy(ids), _tensor(trees)) for ids, trees in nodes],
        [(ends[0], ends[1], _tensor(ids)) for ends, ids in ((torch.from_numpy(both), ids) for both, ids in edges)],
        counts,
    )


Counts = tuple[list[list[int]], list[list[int]]]


def hop_counts(batch: _core.Batch | DeviceBatch, graph: SampledGraph, config: SamplingConfig) -> Counts | None:
    """Nodes per hop of each node type and edges per hop of each edge type; like PyG, None of induced edges."""
    if config.subgraph_type == "induced":
        return None
    node_types, edge_types = range(len(graph.schema.node_types)), range(len(graph.schema.edge_types))
    return [batch.num_sampled_nodes(t) for t in node_types], [batch.num_sampled_edges(r) for r in edge_types]


def typed_output(
    graph: SampledGraph, config: SamplingConfig, nodes: Sequence[Nodes], edges: Sequence[Edges], counts: Counts | None
) -> SamplerOutput | HeteroSamplerOutput:
    """Names what a batch holds: dicts with every type of the schema, or single tensors when homogeneous, in the dtype
    of the graph's ids; bidirectional edges are not made here.

    Edges run neighbour -> expanded node, so along out-edges a batch holds the reverses, under the reverse types
    (:func:`~glt.data.schema.reverse_edge_type`). ``nodes`` are ids, and trees where disjoint, by node type; ``edges``
    rows, columns, and ids with ``with_edge``, by edge type; ``counts`` those of :func:`hop_counts`.
    """
    schema, dtype = graph.schema, graph.id_dtype
    node, tree = _columns(nodes, 2, dtype)
    row, col, edge = _columns(edges, 3, dtype)
    num_nodes, num_edges = (None, None) if counts is None else counts
    if not schema.is_hetero:
        return SamplerOutput(
            node=node[0],
            row=row[0],
            col=col[0],
            edge=edge[0],
            batch=tree[0],
            num_sampled_nodes=num_nodes and num_nodes[0],
            num_sampled_edges=num_edges and num_edges[0],
        )
    names = schema.edge_types if graph.edge_dir == "in" else tuple(map(reverse_edge_type, schema.edge_types))

    def by_edge_type(values: Sequence[Any]) -> dict[EdgeType, Any]:
        return dict(zip(names, values, strict=True))

    return HeteroSamplerOutput(
        node=schema.by_node_type(node),
        row=by_edge_type(row),
        col=by_edge_type(col),
        edge=by_edge_type(edge) if config.with_edge else None,
        batch=schema.by_node_type(tree) if config.disjoint else None,
        num_sampled_nodes=None if num_nodes is None else schema.by_node_type(num_nodes),
        num_sampled_edges=None if num_edges is None else by_edge_type(num_edges),
    )


def _columns(rows: Sequence[tuple[Any, ...]], num_columns: int, dtype: torch.dtype) -> list[list[Any]]:
    return [[None if row[c] is None else row[c].to(dtype) for row in rows] for c in range(num_columns)]


def require_distinct_reverses(schema: Schema, edge_dir: str) -> None:
    """Raises ValueError if, along out-edges, batches would hold two edge types under one name, as of a graph that was
    made undirected twice."""
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


# Samples with the reverses of their edges.


def bidirectional(
    out: SamplerOutput | HeteroSamplerOutput, keep_orig_edges: bool = False
) -> SamplerOutput | HeteroSamplerOutput:
    """As PyG's ``out.to_bidirectional``, with the CPU's result on every device.

    Of edges that become one, PyG keeps the id that is written last, on a GPU any of them: homogeneous samples with ids
    go over the CPU; those of several types keep no ids.
    """
    if isinstance(out, HeteroSamplerOutput) or out.edge is None or not out.row.is_cuda:
        return out.to_bidirectional(keep_orig_edges=keep_orig_edges)
    here = copy.copy(out)
    here.row, here.col, here.edge = out.row.cpu(), out.col.cpu(), out.edge.cpu()
    made = here.to_bidirectional(keep_orig_edges=keep_orig_edges)
    made.row, made.col, made.edge = (each.to(out.row.device) for each in (made.row, made.col, made.edge))
    if keep_orig_edges:
        made.orig_row, made.orig_col = out.row, out.col
    return made


# One hop around seeds.


@dataclass(frozen=True)
class NeighborOutput:
    """One hop: neighbours of the seeds, seed after seed.

    Attributes:
        nbr: Neighbour ids ``[E]``, int64.
        nbr_num: Sampled edges per seed ``[S]``, int64; sums to E.
        edge: Edge ids ``[E]``, int64, or None.
    """

    nbr: Tensor
    nbr_num: Tensor
    edge: Tensor | None
