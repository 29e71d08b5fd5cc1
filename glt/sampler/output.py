"""A native batch as PyG's sampler output."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt import _core
from glt.data.schema import EdgeType, Schema
from glt.sampler.config import SamplingConfig

Finish = Callable[[], SamplerOutput | HeteroSamplerOutput]
"""Ends a batch that was begun: waits for it and returns it, or raises what was wrong with it. For one call."""


def once(finish: Finish) -> Finish:
    """Returns what calls ``finish`` the first time and raises RuntimeError after that, as batches on a GPU do."""
    left = [finish]

    def finish_once() -> SamplerOutput | HeteroSamplerOutput:
        if not left:
            raise RuntimeError("the batch was ended before; begin another")
        return left.pop()()

    return finish_once


def sampler_output(
    batch: _core.Batch, schema: Schema, edge_dir: str, config: SamplingConfig, id_dtype: torch.dtype = torch.int64
) -> SamplerOutput | HeteroSamplerOutput:
    """Hands a finished batch over: the tensors own its memory, and the batch takes no call but ``start``.

    Args:
        batch: Sampled, and induced where the options ask for it.
        schema, edge_dir: Of the graph. Edges run neighbour -> expanded node, so along out-edges a batch holds the
            reverses, under the reverse types (:func:`reverse_edge_type`).
        config: The options that it was sampled with.
        id_dtype: Dtype of the result.

    Returns:
        Dicts with every type of the schema, or single tensors when homogeneous. Bidirectional edges are not made here.
    """
    # Like PyG, no counts per hop of induced edges: they belong to none.
    counts = None
    if config.subgraph_type != "induced":
        counts = (
            [batch.num_sampled_nodes(t) for t in range(len(schema.node_types))],
            [batch.num_sampled_edges(r) for r in range(len(schema.edge_types))],
        )
    nodes, edges = batch.hand_over()
    node, tree = [torch.from_numpy(ids) for ids, _ in nodes], [_tensor(trees) for _, trees in nodes]
    ends = [(e[0], e[1]) for e in (torch.from_numpy(both) for both, _ in edges)]
    return typed_output(
        node, tree, ends, [_tensor(ids) for _, ids in edges], counts, schema, edge_dir, config, id_dtype
    )


def typed_output(
    node: list[Tensor],
    tree: list[Tensor | None],
    ends: list[tuple[Tensor, Tensor]],
    edge: list[Tensor | None],
    counts: tuple[list[list[int]], list[list[int]]] | None,
    schema: Schema,
    edge_dir: str,
    config: SamplingConfig,
    id_dtype: torch.dtype,
) -> SamplerOutput | HeteroSamplerOutput:
    """Names what a batch holds.

    Args:
        node, tree: Of each node type; trees are None unless disjoint.
        ends: ``(row, col)`` of each edge type.
        edge: Edge ids of each edge type, None without ``with_edge``.
        counts: Nodes per hop of each node type and edges per hop of each edge type, or None.
        schema, edge_dir, config, id_dtype: As for :func:`sampler_output`.
    """
    if id_dtype != torch.int64:
        node, ends = [t.to(id_dtype) for t in node], [(row.to(id_dtype), col.to(id_dtype)) for row, col in ends]
        tree, edge = (
            [None if t is None else t.to(id_dtype) for t in tree],
            [None if t is None else t.to(id_dtype) for t in edge],
        )
    num_nodes, num_edges = (None, None) if counts is None else counts
    if not schema.is_hetero:
        return SamplerOutput(
            node=node[0],
            row=ends[0][0],
            col=ends[0][1],
            edge=edge[0],
            batch=tree[0],
            num_sampled_nodes=num_nodes and num_nodes[0],
            num_sampled_edges=num_edges and num_edges[0],
        )
    names = schema.edge_types if edge_dir == "in" else tuple(map(reverse_edge_type, schema.edge_types))

    def by_edge_type(values: list[Any]) -> dict[EdgeType, Any]:
        return dict(zip(names, values, strict=True))

    return HeteroSamplerOutput(
        node=schema.by_node_type(node),
        row=by_edge_type([row for row, _ in ends]),
        col=by_edge_type([col for _, col in ends]),
        edge=by_edge_type(edge) if config.with_edge else None,
        batch=schema.by_node_type(tree) if config.disjoint else None,
        num_sampled_nodes=None if num_nodes is None else schema.by_node_type(num_nodes),
        num_sampled_edges=None if num_edges is None else by_edge_type(num_edges),
    )


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """The type of an edge type's reverses, by GLT's rule: ``rev_`` before the relation, or no longer; the same type
    where both ends are of one node type."""
    source, relation, target = edge_type
    if source != target:
        relation = relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}"
    return target, relation, source


def require_distinct_reverses(schema: Schema, edge_dir: str) -> None:
    """Raises ValueError if, along out-edges, batches would hold two edge types under one name, as those of a graph that
    was made undirected twice."""
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

    Of edges that become one, PyG keeps the id that is written last. On a GPU that is any of them, so that the edges of
    a homogeneous sample with ids take the way over the CPU; those of several types keep no ids.
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
