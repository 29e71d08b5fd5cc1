"""Batches as layers: what each layer of a model reads, and of which nodes it makes something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.arrays import as_ids


@dataclass(frozen=True)
class Block:
    """One layer of a batch: edges from its sources to its destinations, which are the first of the sources.

    A convolution takes it as ``conv((x, x[:block.num_dst]), block.edge_index)`` with the features ``x [num_src, F]`` of
    the sources. Of a heterogeneous batch all attributes are dicts by node type, and by edge type ``edge_index`` and
    ``e_id``.

    Attributes:
        edge_index: Positions among the sources and among the destinations ``[2, E]``.
        src_id, dst_id: Ids of the nodes ``[num_src]``, ``[num_dst]``; DGL's ``srcdata[NID]`` and ``dstdata[NID]``.
        e_id: Ids of the edges ``[E]``; None where the loader was not asked for them.
    """

    edge_index: Any
    src_id: Any
    dst_id: Any
    e_id: Any = None

    @property
    def num_src(self) -> Any:
        """Number of sources."""
        return _each(self.src_id, len)

    @property
    def num_dst(self) -> Any:
        """Number of destinations."""
        return _each(self.dst_id, len)

    def to(self, device: torch.device | str | int) -> Block:
        """The same on another device."""
        return Block(*(_each(getattr(self, each.name), lambda t: t.to(device)) for each in fields(self)))


def layered(batch: Data | HeteroData) -> list[Block]:
    """Takes a sampled batch apart, a layer for each hop; the first is that of the widest neighbourhood.

    A node that was expanded for an inner layer has the same edges in the outer ones: they are sampled once per batch.

    Args:
        batch: Of a loader with ``subgraph_type='directional'``, whose edges come hop by hop.

    Returns:
        The blocks; sources of one are the destinations of the one before it.
    """
    if not isinstance(batch, HeteroData):
        nodes, edges = _sums(batch.num_sampled_nodes), _sums(batch.num_sampled_edges)
        e_id = batch.get("e_id")
        return [
            Block(
                batch.edge_index[:, : edges[hops]], batch.n_id[: nodes[hops + 1]], batch.n_id[: nodes[hops]],
                None if e_id is None else e_id[: edges[hops]],
            )
            for hops in range(len(edges) - 1, 0, -1)
        ]  # fmt: skip
    nodes_of = {t: _sums(batch[t].num_sampled_nodes) for t in batch.node_types}
    edges_of = {t: _sums(batch[t].num_sampled_edges) for t in batch.edge_types}
    ids = {t: batch[t].n_id for t in nodes_of}
    with_ids = all("e_id" in batch[t] for t in edges_of)
    return [
        Block(
            {t: batch[t].edge_index[:, : sums[hops]] for t, sums in edges_of.items()},
            {t: ids[t][: sums[hops + 1]] for t, sums in nodes_of.items()},
            {t: ids[t][: sums[hops]] for t, sums in nodes_of.items()},
            {t: batch[t].e_id[: sums[hops]] for t, sums in edges_of.items()} if with_ids else None,
        )
        for hops in range(max(map(len, edges_of.values())) - 1, 0, -1)
    ]


def to_block(graph: Data, dst_nodes: Any = None) -> Block:
    """Makes a block of a graph of global ids, such as ``DistGraph.sample_neighbors`` returns; DGL's ``to_block``.

    Args:
        graph: With ``edge_index [2, E]`` of ids, and perhaps ``e_id [E]``.
        dst_nodes: Ids of the destinations, each once, also those without edges. Default: all nodes that edges end in,
            ascending.

    Returns:
        The block. Its sources are the destinations and, after them, the other nodes that edges begin in, ascending.

    Raises:
        TypeError: If it is heterogeneous.
        ValueError: If ids come twice, or an edge ends in a node that is no destination; names it.
    """
    if not isinstance(graph, Data):
        raise TypeError(f"graph is a {type(graph).__name__}: expected Data, with one type of nodes and one of edges")
    source, target = graph.edge_index
    given = torch.unique(target) if dst_nodes is None else as_ids(dst_nodes, "dst_nodes")
    ordered, order = given.sort()
    twice = (ordered[1:] == ordered[:-1]).nonzero()
    if len(twice):
        raise ValueError(f"dst_nodes has {int(ordered[twice[0]])} twice: expected each once")
    at, is_there = _positions(ordered, target)
    if not bool(is_there.all()):
        raise ValueError(f"an edge ends in node {int(target[~is_there][0])}, which is none of dst_nodes")
    others = torch.unique(source[~_positions(ordered, source)[1]])
    in_given, is_given = _positions(ordered, source)
    in_others, _ = _positions(others, source)
    local = in_others + len(given)
    local[is_given] = order[in_given[is_given]]
    ends = torch.stack([local, order[at] if len(at) else at])
    return Block(ends, torch.cat([given, others]), given, graph.get("e_id"))


def _positions(ordered: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Where ids are among ascending ones, and whether they are."""
    at = torch.searchsorted(ordered, ids)
    if not len(ordered):
        return at, torch.zeros(len(ids), dtype=torch.bool)
    at = at.clamp(max=len(ordered) - 1)
    return at, ordered[at] == ids


def _sums(counts: Any) -> list[int]:
    return [0, *accumulate(int(each) for each in counts)]


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    if values is None:
        return None
    return {t: change(each) for t, each in values.items()} if isinstance(values, dict) else change(values)
