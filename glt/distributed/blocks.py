"""Batches as layers: what each layer of a model reads, and of which nodes it makes something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.arrays import as_ids
from glt.distributed.graph_data import TableNames


@dataclass(frozen=True)
class Block:
    """One layer of a batch: edges from its sources to its destinations, which are the first of the sources.

    A convolution takes it as ``conv((x, x[:block.num_dst]), block.edge_index, block.edata["edge_attr"])`` with the
    features ``x [num_src, F]`` of the sources. Of a heterogeneous batch all attributes are dicts by node type, and by
    edge type ``edge_index`` and ``e_id``; so are the tables, of the types that have one of that name. ``HeteroConv`` is
    called as ``conv(x, block.edge_index, edge_attr_dict=block.edata["edge_attr"])``, and the first ``num_dst[t]`` rows
    of what it makes of a type are those of the destinations.

    Attributes:
        edge_index: Positions among the sources and among the destinations ``[2, E]``.
        src_id, dst_id: Ids of the nodes ``[num_src]``, ``[num_dst]``; DGL's ``srcdata[NID]`` and ``dstdata[NID]``.
        e_id: Ids of the edges ``[E]``; None where the loader was not asked for them.
        srcdata, dstdata: By name, the tables of the nodes that the graph was partitioned with, such as ``x [num_src,
            F]``; empty unless the loader was asked for them (``collect_features``).
        edata: Likewise those of the edges, ``edge_attr`` and others ``[E, ...]``.
    """

    edge_index: Any
    src_id: Any
    dst_id: Any
    e_id: Any = None
    srcdata: dict[str, Any] = field(default_factory=dict)
    dstdata: dict[str, Any] = field(default_factory=dict)
    edata: dict[str, Any] = field(default_factory=dict)

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


def layered(batch: Data | HeteroData, tables: TableNames) -> list[Block]:
    """Takes a sampled batch apart, a layer for each hop; the first is that of the widest neighbourhood.

    A node that was expanded for an inner layer has the same edges in the outer ones: they are sampled once per batch.

    Args:
        batch: Of a loader with ``subgraph_type='directional'``, whose edges come hop by hop.
        tables: What blocks have of the tables that the batch has.

    Returns:
        The blocks; sources of one are the destinations of the one before it.
    """
    if not isinstance(batch, HeteroData):
        nodes, edges = _sums(batch.num_sampled_nodes), _sums(batch.num_sampled_edges)
        e_id = batch.get("e_id")
        of_nodes, of_edges = (
            {n: batch[n] for n in names if n in batch} for names in (tables.of_nodes, tables.of_edges)
        )
        return [
            Block(
                batch.edge_index[:, : edges[hops]], batch.n_id[: nodes[hops + 1]], batch.n_id[: nodes[hops]],
                None if e_id is None else e_id[: edges[hops]],
                {name: rows[: nodes[hops + 1]] for name, rows in of_nodes.items()},
                {name: rows[: nodes[hops]] for name, rows in of_nodes.items()},
                {name: rows[: edges[hops]] for name, rows in of_edges.items()},
            )
            for hops in range(len(edges) - 1, 0, -1)
        ]  # fmt: skip
    nodes_of = {t: _sums(batch[t].num_sampled_nodes) for t in batch.node_types}
    # Seed edges have a store of their own type, which along out-edges is none of those that were sampled.
    edges_of = {t: _sums(batch[t].num_sampled_edges) for t in batch.edge_types if "edge_index" in batch[t]}
    nodes_by_name, edges_by_name = (
        {
            name: found
            for name in names
            if (found := {t: (batch[t][name], sums) for t, sums in sums_of.items() if name in batch[t]})
        }
        for names, sums_of in ((("n_id", *tables.of_nodes), nodes_of), (("e_id", *tables.of_edges), edges_of))
    )

    def first(tables_of: dict[str, Any], hops: int) -> dict[str, Any]:
        return {n: {t: rows[: sums[hops]] for t, (rows, sums) in each.items()} for n, each in tables_of.items()}

    blocks = []
    for hops in range(max(map(len, edges_of.values())) - 1, 0, -1):
        source, target = first(nodes_by_name, hops + 1), first(nodes_by_name, hops)
        edge = first(edges_by_name, hops)
        blocks.append(
            Block(
                {t: batch[t].edge_index[:, : sums[hops]] for t, sums in edges_of.items()},
                source.pop("n_id"), target.pop("n_id"), edge.pop("e_id", None), source, target, edge,
            )
        )  # fmt: skip
    return blocks


def to_block(frontier: Data | HeteroData, seeds: Any = None) -> Block:
    """Makes a layer of what :meth:`DistGraph.sample_neighbors` has sampled; DGL's ``to_block``::

        for fanout in (10, 25):
            blocks.insert(0, to_block(g.sample_neighbors(seeds, fanout), seeds))
            seeds = blocks[0].src_id

        for conv, block in zip(convs, blocks):
            x = conv((x, x[: block.num_dst]), block.edge_index)

    Args:
        frontier: Edges that end in the seeds: ``edge_index [2, E]`` of ids of the graph, and perhaps ``e_id [E]``; by
            type where there are types.
        seeds: Ids of the destinations ``[n]``, each once, also those without edges; of a heterogeneous graph, a dict of
            such by node type. Default: all nodes that edges end in, ascending.

    Returns:
        The block. Its sources are the seeds and after them, as they first come, the others that edges begin in.

    Raises:
        TypeError: If frontier is no graph, or seeds are not by type where there are types.
        ValueError: If a seed is named twice, or an edge ends in none; names it.
    """
    if not isinstance(frontier, Data | HeteroData):
        raise TypeError(f"frontier is a {type(frontier).__name__}: expected what sample_neighbors returns")
    if isinstance(frontier, Data):
        source, target = frontier.edge_index
        ids = target.unique() if seeds is None else as_ids(seeds, "seeds")
        nodes = _Numbered(ids, [source])
        ends = torch.stack([nodes.positions(source), nodes.seeds_of(target)])
        return Block(ends, nodes.ids, ids, frontier.get("e_id"))
    if seeds is not None and not isinstance(seeds, Mapping):
        raise TypeError(f"seeds have type {type(seeds).__name__}: expected a dict by node type, the graph having types")
    out_of = {t: [frontier[e].edge_index[0] for e in frontier.edge_types if e[0] == t] for t in frontier.node_types}
    none = torch.empty(0, dtype=torch.int64)
    if seeds is None:
        into = {t: [frontier[e].edge_index[1] for e in frontier.edge_types if e[2] == t] for t in frontier.node_types}
        given = {t: torch.cat([none, *ends]).unique() for t, ends in into.items()}
    else:
        given = {t: as_ids(seeds[t], f"seeds[{t!r}]") if t in seeds else none for t in frontier.node_types}
    numbered = {t: _Numbered(ids, out_of[t]) for t, ids in given.items()}
    ends_of = {
        t: torch.stack(
            [numbered[t[0]].positions(frontier[t].edge_index[0]), numbered[t[2]].seeds_of(frontier[t].edge_index[1])]
        )
        for t in frontier.edge_types
    }
    with_ids = all("e_id" in frontier[t] for t in ends_of)
    e_id = {t: frontier[t].e_id for t in ends_of} if with_ids else None
    return Block(ends_of, {t: nodes.ids for t, nodes in numbered.items()}, given, e_id)


class _Numbered:
    """Nodes of a layer: the seeds, then the others as they first come."""

    def __init__(self, seeds: Tensor, sources: Any) -> None:
        every = torch.cat([seeds, *sources])
        self._sorted, back = torch.unique(every, return_inverse=True)
        first = torch.full((len(self._sorted),), len(every))
        first = first.scatter_reduce(0, back, torch.arange(len(every)), "amin")
        order = first.argsort()
        self.ids, self.num_seeds = self._sorted[order], len(seeds)
        self._position = torch.empty_like(order)
        self._position[order] = torch.arange(len(order))
        if len(seeds) and not torch.equal(self.ids[: len(seeds)], seeds):
            values, counts = seeds.unique(return_counts=True)
            raise ValueError(f"seeds name node {int(values[counts > 1][0])} more than once: expected each once")

    def positions(self, ids: Tensor) -> Tensor:
        """Where these nodes are, which are all there."""
        return self._position[torch.searchsorted(self._sorted, ids)]

    def seeds_of(self, ids: Tensor) -> Tensor:
        """Which seeds these nodes are.

        Raises:
            ValueError: If one is none.
        """
        at = torch.searchsorted(self._sorted, ids).clamp(max=max(0, len(self._sorted) - 1))
        found = self._position[at] if len(self._sorted) else at
        wrong = torch.ones_like(ids, dtype=torch.bool) if not len(self._sorted) else self._sorted[at] != ids
        wrong |= found >= self.num_seeds
        if bool(wrong.any()):
            raise ValueError(
                f"frontier has an edge into node {int(ids[wrong][0])}, which is no seed: expected in-edges of the seeds"
            )
        return found


def _sums(counts: Any) -> list[int]:
    return [0, *accumulate(int(each) for each in counts)]


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    if values is None:
        return None
    return {t: _each(each, change) for t, each in values.items()} if isinstance(values, dict) else change(values)
