"""Batches as layers: which nodes each layer of a model reads, and which it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt._reprs import options, says
from glt._tracebacks import short_traceback
from glt.data.arrays import as_ids

# Under these names blocks have the ids of nodes and edges beside the tables, as DGL's have.
NID = EID = "_ID"


@dataclass(frozen=True)
class Block:
    """One layer of a batch: edges from its sources to its destinations, which are the first of the sources.

    A convolution takes it as ``conv((x, x[:block.num_dst]), block.edge_index, block.edata["edge_attr"])`` with the
    features ``x [num_src, F]`` of the sources. Of a heterogeneous batch attributes and tables are dicts by node type,
    or edge type. ``HeteroConv`` is called as ``conv(x, block.edge_index, edge_attr_dict=block.edata["edge_attr"])``;
    the first ``num_dst[t]`` rows of its output of a type are those of the destinations.

    Attributes:
        edge_index: Positions among the sources and among the destinations ``[2, E]``.
        src_id, dst_id: Ids of the nodes ``[num_src]``, ``[num_dst]``; also ``srcdata[NID]`` and ``dstdata[NID]``, as
            DGL has them.
        e_id: Ids of the edges ``[E]``, also ``edata[EID]``; None where the loader was not asked for them.
        srcdata, dstdata: By name, the tables of the nodes that the graph was partitioned with, such as ``x [num_src,
            F]``, where the loader was asked for them (``collect_features``); and the ids.
        edata: Likewise those of the edges, ``edge_attr`` and others ``[E, ...]``.

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> inputs, seeds, blocks = glt.distributed.MultiLayerNeighborSampler([2]).sample(graph, torch.tensor([5]))
        >>> blocks[0]
        Block(edge_index=int64 [2, 2], src_id=int64 [3], dst_id=int64 [1], e_id=int64 [2])
        >>> blocks[0].srcdata[glt.distributed.NID]
        tensor([5, 3, 4])
        >>> glt.distributed.finalize()
    """

    edge_index: Any
    src_id: Any
    dst_id: Any
    e_id: Any = None
    srcdata: dict[str, Any] = field(default_factory=dict)
    dstdata: dict[str, Any] = field(default_factory=dict)
    edata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = {"srcdata": (NID, self.src_id), "dstdata": (NID, self.dst_id), "edata": (EID, self.e_id)}
        for name, (key, each) in ids.items():
            if each is not None:
                object.__setattr__(self, name, {**getattr(self, name), key: each})

    @property
    def num_src(self) -> Any:
        return _each(self.src_id, len)

    @property
    def num_dst(self) -> Any:
        return _each(self.dst_id, len)

    def to(self, device: torch.device | str | int) -> Block:
        """The same on another device."""
        return Block(*(_each(getattr(self, each.name), lambda t: t.to(device)) for each in fields(self)))

    @says
    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        tables = {name: {n: t for n, t in given[name].items() if n != NID} for name in ("srcdata", "dstdata", "edata")}
        return options({name: value for name, value in (given | tables).items() if value != {}})


def layered(batch: Data | HeteroData, tables: tuple[list[str], list[str]]) -> list[Block]:
    """Takes a sampled batch (``subgraph_type='directional'``) apart, a block for each hop, the widest first, with these
    tables of nodes and of edges. A node that was expanded for an inner layer has the same edges in the outer ones."""
    is_hetero = isinstance(batch, HeteroData)
    node_stores = {t: batch[t] for t in batch.node_types} if is_hetero else {None: batch}
    # Seed edges have a store of their own type, which along out-edges is none of those that were sampled.
    sampled = [t for t in batch.edge_types if "edge_index" in batch[t]] if is_hetero else []
    edge_stores = {t: batch[t] for t in sampled} if is_hetero else {None: batch}
    nodes = _Rows(node_stores, "num_sampled_nodes", ("n_id", *tables[0]))
    edges = _Rows(edge_stores, "num_sampled_edges", ("e_id", *tables[1]))
    blocks = []
    for hops in range(edges.num_hops, 0, -1):
        source, target, edge = nodes.first(hops + 1), nodes.first(hops), edges.first(hops)
        ends = {t: store.edge_index[:, : edges.sums[t][hops]] for t, store in edge_stores.items()}
        ids = source.pop("n_id"), target.pop("n_id"), edge.pop("e_id", None)
        blocks.append(Block(ends if is_hetero else ends[None], *ids, source, target, edge))
    return blocks


class _Rows:
    """Named rows of a batch's nodes or edges by type, hop by hop; the only type of a homogeneous batch is None."""

    def __init__(self, stores: Mapping[Any, Any], count_name: str, names: Iterable[str]) -> None:
        self.sums = {t: [0, *accumulate(map(int, store[count_name]))] for t, store in stores.items()}
        self.num_hops = max(map(len, self.sums.values())) - 1
        given = {name: {t: store[name] for t, store in stores.items() if name in store} for name in names}
        found = {name: {t: each for t, each in by_type.items() if each is not None} for name, by_type in given.items()}
        self._rows = {name: by_type for name, by_type in found.items() if by_type}

    def first(self, hops: int) -> dict[str, Any]:
        """The rows of so many hops, by name, and by type where there are types."""
        found = {n: {t: rows[: self.sums[t][hops]] for t, rows in each.items()} for n, each in self._rows.items()}
        return {name: by_type.get(None, by_type) for name, by_type in found.items()}


@short_traceback
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

    Example:
        >>> glt.distributed.initialize(part_config="parts")
        >>> graph = glt.distributed.DistGraph("ring")
        >>> block = glt.distributed.to_block(graph.sample_neighbors(torch.tensor([5]), 2), torch.tensor([5]))
        >>> block.src_id, block.dst_id
        (tensor([5, 3, 4]), tensor([5]))
        >>> glt.distributed.finalize()
    """
    if not isinstance(frontier, Data | HeteroData):
        raise TypeError(f"frontier is a {type(frontier).__name__}: expected what sample_neighbors returns")
    is_hetero = isinstance(frontier, HeteroData)
    if is_hetero and not isinstance(seeds, Mapping | None):
        raise TypeError(f"seeds have type {type(seeds).__name__}: expected a dict by node type, the graph having types")
    # The only type of a homogeneous graph is None.
    edges = {t: frontier[t] for t in frontier.edge_types} if is_hetero else {(None, None, None): frontier}
    wanted = seeds if is_hetero or seeds is None else {None: seeds}
    none = torch.empty(0, dtype=torch.int64)
    given, nodes = {}, {}
    for t in frontier.node_types if is_hetero else [None]:
        if wanted is None:
            given[t] = torch.cat([none, *(each.edge_index[1] for e, each in edges.items() if e[2] == t)]).unique()
        else:
            given[t] = as_ids(wanted[t], "seeds" if t is None else f"seeds[{t!r}]") if t in wanted else none
        nodes[t] = _Numbered(given[t], [each.edge_index[0] for e, each in edges.items() if e[0] == t])
    ends = {}
    for t, each in edges.items():
        source, target = each.edge_index
        ends[t] = torch.stack([nodes[t[0]].positions(source), nodes[t[2]].seed_positions(target)])
    if not is_hetero:
        return Block(ends[None, None, None], nodes[None].ids, given[None], frontier.get("e_id"))
    e_id = {t: each.e_id for t, each in edges.items()} if all("e_id" in each for each in edges.values()) else None
    return Block(ends, {t: each.ids for t, each in nodes.items()}, given, e_id)


class _Numbered:
    """Nodes of a layer: the seeds, then the others as they first come."""

    def __init__(self, seeds: Tensor, sources: list[Tensor]) -> None:
        self.ids, self._num_seeds = unique_in_order(torch.cat([seeds, *sources])), len(seeds)
        self._sorted, self._position = self.ids.sort()
        if not torch.equal(self.ids[: len(seeds)], seeds):
            values, counts = seeds.unique(return_counts=True)
            raise ValueError(f"seeds name node {int(values[counts > 1][0])} more than once: expected each once")

    def positions(self, ids: Tensor) -> Tensor:
        return self._position[torch.searchsorted(self._sorted, ids)]

    def seed_positions(self, ids: Tensor) -> Tensor:
        """Positions among the seeds; ValueError if a node is no seed."""
        wrong = ~torch.isin(ids, self.ids[: self._num_seeds])
        if bool(wrong.any()):
            raise ValueError(
                f"frontier has an edge into node {int(ids[wrong][0])}, which is no seed: expected in-edges of the seeds"
            )
        return self.positions(ids)


def unique_in_order(ids: Tensor) -> Tensor:
    """Each id once, in the order in which they first come."""
    values, back = torch.unique(ids, return_inverse=True)
    if len(values) == len(ids):
        return ids
    first = torch.full((len(values),), len(ids)).scatter_reduce(0, back, torch.arange(len(ids)), "amin")
    return ids[first.sort().values]


def _each(values: Any, change: Callable[[Any], Any]) -> Any:
    if values is None:
        return None
    return {t: _each(each, change) for t, each in values.items()} if isinstance(values, dict) else change(values)
