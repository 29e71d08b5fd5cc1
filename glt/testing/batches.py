"""Small graphs whose answers are known, of one type or several, and what every batch of them must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt._reprs import says
from glt.data import Dataset
from glt.data.schema import HOMOGENEOUS, Schema
from glt.testing.reference import (
    ReferenceEdges,
    ReferenceTypedBatch,
    reference_shared_key,
    reference_typed_batch,
)

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from glt.sampler.neighbor_sampler import NeighborSampler


@dataclass(frozen=True)
class SmallGraph:
    """A graph, ``edge_index [2, E]`` int64, whose features are its ids, so that a batch shows by itself whether its
    rows are right.

    Example:
        >>> glt.testing.SmallGraph(torch.tensor([[0, 1], [1, 2]]), num_nodes=3).to_data()
        Data(x=[3, 4], edge_index=[2, 2], edge_attr=[2, 2], y=[3], num_nodes=3)
    """

    edge_index: Tensor
    num_nodes: int

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def x(self) -> Tensor:
        """Row i is i, four times: ``[N, 4]``, float32."""
        return torch.arange(self.num_nodes, dtype=torch.float32).view(-1, 1).repeat(1, 4)

    @property
    def y(self) -> Tensor:
        """The label of node i is i: ``[N]``, int64."""
        return torch.arange(self.num_nodes)

    @property
    def edge_attr(self) -> Tensor:
        """Row e is e, twice: ``[E, 2]``, float32."""
        return torch.arange(self.num_edges, dtype=torch.float32).view(-1, 1).repeat(1, 2)

    def to_data(self) -> Data:
        from torch_geometric.data import Data

        return Data(x=self.x, edge_index=self.edge_index, edge_attr=self.edge_attr, y=self.y, num_nodes=self.num_nodes)

    def to_dataset(self, edge_dir: str = "in") -> Dataset:
        tables = {"node_features": self.x, "node_labels": self.y, "edge_features": self.edge_attr}
        return Dataset.from_arrays(self.edge_index, self.num_nodes, **tables, edge_dir=edge_dir)

    @says
    def __repr__(self) -> str:
        return f"{self.num_nodes} nodes, {self.num_edges} edges"


def ring_graph(num_nodes: int = 40, degree: int = 2) -> SmallGraph:
    """A ring: node v has edges to v + 1, ..., v + ``degree`` (modulo ``num_nodes``), with ids from v * degree on.

    Example:
        >>> glt.testing.ring_graph(num_nodes=5, degree=1).edge_index
        tensor([[0, 1, 2, 3, 4],
                [1, 2, 3, 4, 0]])
    """
    source = torch.arange(num_nodes).repeat_interleave(degree)
    step = torch.arange(1, degree + 1).repeat(num_nodes)
    return SmallGraph(torch.stack([source, (source + step) % max(1, num_nodes)]), num_nodes)


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> SmallGraph:
    """A graph with everything that breaks samplers: a fifth of the nodes isolated, the others' degrees by a power law
    in both directions, about one edge in ten a self-loop, one in ten the copy of another; edges in random order.

    Example:
        >>> glt.testing.random_graph(num_nodes=100, num_edges=300)
        SmallGraph(100 nodes, 300 edges)
    """
    rng = np.random.default_rng(seed)
    connected = rng.permutation(num_nodes)[: max(1, num_nodes - num_nodes // 5)]
    places = [(len(connected) * rng.random(num_edges) ** power).astype(np.int64) for power in (2.0, 4.0)]
    source, target = (connected[at] for at in places)
    kind = rng.random(num_edges)
    source = np.where(kind < 0.1, target, source)
    copied = np.flatnonzero(kind > 0.9)
    original = rng.integers(0, max(1, num_edges), len(copied))
    source[copied], target[copied] = source[original], target[original]
    return SmallGraph(torch.from_numpy(np.stack([source, target])), num_nodes)


def check_batch(
    data: Any,
    edge_index: Any,
    num_neighbors: Sequence[int],
    *,
    seeds: Any = None,
    replace: bool = False,
    edge_dir: str = "in",
    num_nodes: int | None = None,
    **attributes: Any,
) -> None:
    """Checks everything that a homogeneous PyG batch promises; raises AssertionError naming the first promise that is
    broken.

    Args:
        data: The batch: ``n_id``, ``edge_index``, ``batch_size``, ``input_id``, the counts, and ``e_id`` if sampled.
        edge_index: The whole graph, ``[2, E]``.
        num_neighbors, replace, edge_dir: How it was sampled.
        seeds: The seeds of this batch in order, if known.
        num_nodes: Number of nodes of the whole graph. Default: one more than the largest id in sight.
        **attributes: Whole node attributes (rows by ``n_id``), and those whose names begin with ``edge_``, by ``e_id``.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> for batch in glt.NeighborLoader(graph.to_data(), [2, 2], batch_size=10):
        ...     glt.testing.check_batch(batch, graph.edge_index, [2, 2], x=graph.x)
        ...
    """
    from torch_geometric.data import Data

    ends, n_id = np.asarray(edge_index)[:: 1 if edge_dir == "in" else -1], data.n_id.numpy()
    if num_nodes is None:
        rows = [len(value) for name, value in attributes.items() if not name.startswith("edge_")]
        num_nodes = max(int(ends.max(initial=-1)) + 1, int(n_id.max(initial=-1)) + 1, *rows)
    whole = Data(edge_index=torch.from_numpy(ends.copy()), num_nodes=num_nodes)
    for name, value in attributes.items():
        is_of_edges = name.startswith("edge_")
        size = ends.shape[1] if is_of_edges else num_nodes
        expect(len(value) >= size, f"the source has a row of {name} for each")
        whole[name] = torch.as_tensor(value)[:size]
        expect(
            (name in data) == ("e_id" in data or not is_of_edges), f"{name} is there, of edges if there are their ids"
        )
    hops, batch_size = len(num_neighbors), data.batch_size
    check_typed_batch(data, whole, hops)
    row, col = data.edge_index.numpy()
    node_end, edge_end = np.cumsum(data.num_sampled_nodes), np.cumsum([0, *data.num_sampled_edges])

    expect(type(batch_size) is int and batch_size == data.num_sampled_nodes[0], f"batch_size = {batch_size!r}")
    expect(len(data.input_id) == batch_size, "one input_id per seed")
    if seeds is not None:
        expect(np.array_equal(n_id[:batch_size], np.asarray(seeds)), "n_id starts with the seeds as given")
    found = n_id[batch_size:]
    expect(len(np.unique(found)) == len(found), "a node that is no seed appears once")
    expect(not np.isin(found, n_id[:batch_size]).any(), "a seed is not found again as another node")

    seen = np.maximum.accumulate(np.concatenate([[batch_size - 1], row]))
    expect(bool((np.diff(seen) <= 1).all()), "nodes are numbered in order of first occurrence")
    in_order = np.array_equal(seen[edge_end] + 1, np.maximum(node_end, batch_size))
    expect(in_order, "a node belongs to the hop of its first edge")
    first_row = {int(s): i for i, s in reversed(list(enumerate(n_id[:batch_size])))}
    are_first = all(first_row[int(n_id[r])] == r for r in np.unique(row[row < batch_size]))
    expect(are_first, "a seed found means its first row")

    degree = np.bincount(ends[1], minlength=num_nodes)[n_id]
    k = np.repeat(np.array([*num_neighbors, 0]), data.num_sampled_nodes)  # nodes of the last hop are not expanded
    expected = np.where(k < 0, degree, np.where(degree > 0, k, 0) if replace else np.minimum(k, degree))
    found_edges = np.bincount(col, minlength=len(n_id))
    expect(np.array_equal(found_edges, expected), "every node is expanded once, to the right count")
    by_hop = [int(part.sum()) for part in np.split(expected, node_end[:-1])[:hops]]
    expect(by_hop == data.num_sampled_edges, f"num_sampled_edges = {data.num_sampled_edges}: expected {by_hop}")

    if "e_id" in data:
        pairs = np.stack([col, data.e_id.numpy()], axis=1)
        if not replace:
            expect(len(np.unique(pairs, axis=0)) == len(pairs), "no edge twice in one row without replacement")
            all_of = pairs[(expected == degree)[col]]
            in_order = np.array_equal(all_of, all_of[np.lexsort(all_of.T[::-1])])
            expect(in_order, "all edges of a node come in graph order")
    else:
        global_ends = n_id[[row, col]]
        known, room = np.unique(ends, axis=1, return_counts=True)
        room_of = {(int(s), int(d)): int(n) for s, d, n in zip(*known, room, strict=True)}
        expect(all((int(s), int(d)) in room_of for s, d in global_ends.T), "every edge exists")
        if not replace:
            keys, used = np.unique(np.stack([col, *global_ends]), axis=1, return_counts=True)
            fits = all(n <= room_of[int(s), int(d)] for _, s, d, n in zip(*keys, used, strict=True))
            expect(fits, "no edge twice in one row without replacement")


def expect(condition: bool, promise: str) -> None:
    if not condition:
        raise AssertionError(f"broken promise: {promise}")


__all__ = ["check_typed_batch", "random_hetero_graph", "reference_output"]

# Source, relation, target, number of edges; two types between the same ends, one without edges.
_EDGE_TYPES = (
    ("user", "follows", "user", 240),
    ("user", "buys", "item", 300),
    ("item", "rev_buys", "user", 300),
    ("user", "rates", "item", 90),
    ("item", "of", "shop", 60),
    ("shop", "sells", "item", 0),
)
_NUM_NODES = {"user": 60, "item": 45, "shop": 8}


def random_hetero_graph(seed: int = 0) -> HeteroData:
    """A graph with everything that breaks samplers of several types: hubs, isolated nodes, self-loops, parallel edges,
    two edge types between the same node types, a type without edges, and types that lack attributes which others have.

    Node features are ids: row i of ``x`` is i, and row e of ``edge_attr`` is e. ``user`` and ``item`` nodes have a
    ``time``, all edges but those of ``shop`` an ``edge_time`` and an ``edge_weight``, a quarter of which is 0.
    ``rev_buys`` holds the reverses of ``buys``.
    """
    from torch_geometric.data import HeteroData

    rng = np.random.default_rng(seed)
    data = HeteroData()
    for node_type, num_nodes in _NUM_NODES.items():
        data[node_type].x = torch.arange(num_nodes, dtype=torch.float32).view(-1, 1).repeat(1, 3)
        data[node_type].y = torch.arange(num_nodes)
        if node_type != "shop":
            data[node_type].time = torch.from_numpy(rng.integers(0, 20, num_nodes))
    for source, relation, target, num_edges in _EDGE_TYPES:
        ends = np.stack([_NUM_NODES[end] * rng.random(num_edges) ** 2 * 0.9 for end in (source, target)])
        store = data[source, relation, target]
        store.edge_index = torch.from_numpy(ends.astype(np.int64))
        if relation == "rev_buys":
            store.edge_index = data["user", "buys", "item"].edge_index.flip([0])
        store.edge_attr = torch.arange(num_edges, dtype=torch.float32).view(-1, 1).repeat(1, 2)
        if source != "shop":
            weight = rng.random(num_edges) * (rng.random(num_edges) < 0.75)
            store.edge_weight = torch.from_numpy(weight)
            store.edge_time = torch.from_numpy(rng.integers(0, 20, num_edges))
    return data


def reference_output(
    data: Data | HeteroData,
    seeds: Sequence[tuple[int, Sequence[int]]],
    sampler: NeighborSampler,
    key: int,
    *,
    seed_time: Sequence[int] | None = None,
    exclusions: Any = None,
) -> ReferenceTypedBatch:
    """Samples one batch of ``data`` by the letter of the law, with the options of ``sampler``; bidirectional and
    induced edges are not made here. ``seeds``, ``key``, ``seed_time`` (default: the seeds' own) and ``exclusions`` are
    as in :func:`glt.testing.reference_typed_batch`."""
    config, edge_dir, time_attr = sampler.config, sampler.graph.edge_dir, sampler.time_attr
    schema = Schema(*data.metadata()) if hasattr(data, "node_types") else HOMOGENEOUS
    node_stores = [data[t] for t in schema.node_types] if schema.is_hetero else [data]
    edge_stores = [data[t] for t in schema.edge_types] if schema.is_hetero else [data]
    level = config.time_level
    edges = []
    for store, (expanded, found) in zip(edge_stores, schema.ends(edge_dir), strict=True):
        center, neighbor = store["edge_index"].numpy()[:: -1 if edge_dir == "in" else 1]
        time = store.get(time_attr) if level == "edge" else node_stores[found].get(time_attr) if level else None
        if time is not None:
            time = time.numpy()[neighbor] if level == "node" else time.numpy()
        weight = store.get(sampler.weight_attr) if config.weighted else None
        edges.append(
            ReferenceEdges(expanded, found, center, neighbor, time, None if weight is None else weight.numpy())
        )
    if level == "node" and seed_time is None:
        seed_time = [int(node_stores[t][time_attr][i]) for t, ids in seeds for i in ids]
    options: dict[str, Any] = {"replace": config.replace, "disjoint": config.disjoint, "last": config.last, "key": key}
    num_types = len(schema.node_types)
    times = {"seed_time": seed_time, "exclusions": exclusions}
    times |= {name: getattr(config, name) for name in ("time_bound", "time_window", "half_life")}
    if config.sampler == "labor":
        times["shared_key"] = reference_shared_key(key)
    return reference_typed_batch(num_types, edges, seeds, config.num_neighbors, **options, **times)


def check_typed_batch(
    batch: Data | HeteroData, data: Data | HeteroData, num_hops: int, *, bidirectional: bool = False, **times: Any
) -> None:
    """Checks what every batch of ``data``, the whole graph, promises, of one type or several, whatever the options;
    raises AssertionError naming the first promise that is broken.

    Args:
        batch: The batch of a loader along in-edges.
        num_hops: Length of the fan-outs.
        bidirectional: Whether the batch holds reverses too, with the ids of the edges that they reverse; edges of
            ``rev_`` types then follow the order of those types.
        **times: ``time_attr``: the attribute that the batch obeys; ``seed_time``: time of each seed, if not its own;
            ``time_bound`` and ``time_window``, one integer.
    """
    hetero = hasattr(data, "node_types")
    node_stores: dict[Any, Any] = {t: batch[t] for t in data.node_types} if hetero else {None: batch}
    edge_stores: dict[Any, Any] = {t: batch[t] for t in data.edge_types} if hetero else {None: batch}
    if hetero:
        expect(list(batch.node_types) == list(data.node_types), "every node type is there")
        expect(list(batch.edge_types) == list(data.edge_types), "every edge type is there")
    directional = all("num_sampled_edges" in store for store in edge_stores.values())
    for node_type, store in node_stores.items():
        _check_rows(store, data[node_type] if hetero else data, "n_id")
        expect(store.num_nodes == len(store.n_id), f"{node_type}: one n_id per node")
        if directional:
            _check_counts(store.num_sampled_nodes, num_hops + 1, len(store.n_id))
    for edge_type, store in edge_stores.items():
        source, target = (node_stores[t] for t in (edge_type[0], edge_type[2])) if hetero else (batch, batch)
        row, col = store.edge_index
        expect(store.edge_index.dtype == source.n_id.dtype == torch.int64, f"{edge_type}: ids are int64")
        inside = all(bool(((0 <= ids) & (ids < len(of.n_id))).all()) for ids, of in ((row, source), (col, target)))
        expect(inside, f"{edge_type}: local ids are below the number of nodes")
        sorted_by = row if bidirectional and hetero and edge_type[1].startswith("rev_") else col
        expect(bool((sorted_by[1:] >= sorted_by[:-1]).all()), f"{edge_type}: edges are sorted by column")
        if "e_id" in store:
            expect(store.e_id.shape == row.shape and store.e_id.dtype == torch.int64, f"{edge_type}: one e_id per edge")
            ends = torch.stack([source.n_id[row], target.n_id[col]])
            whole: Any = data[edge_type] if hetero else data
            expected = whole["edge_index"][:, store.e_id]
            right = (ends == expected).all(0) | (bidirectional & (ends == expected.flip([0])).all(0))
            expect(bool(right.all()), f"{edge_type}: n_id[edge_index] is e_id's edge")
            _check_rows(store, whole, "e_id")
        if directional:
            _check_counts(store.num_sampled_edges, num_hops, len(row))
        if "batch" in source:
            expect(torch.equal(source.batch[row], target.batch[col]), f"{edge_type}: trees share no edge")
    if times:
        _check_times(node_stores, edge_stores, **times)


def _check_rows(store: Any, whole: Any, ids: str) -> None:
    for name in store.keys():
        if name == "edge_index" or name.startswith("edge_") != (ids == "e_id"):
            continue
        value = whole[name] if name in whole else None
        size = whole.num_nodes if ids == "n_id" else whole.num_edges
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == size:
            expect(torch.equal(store[name], value[store[ids]]), f"{name} holds the source's rows")
            expect(store[name].dtype == value.dtype, f"{name} keeps its dtype")


def _check_counts(counts: Any, length: int, total: int) -> None:
    expect(type(counts) is list and all(type(c) is int for c in counts), f"counts are a list of int: {counts!r}")
    expect(len(counts) == length and sum(counts) == total, f"counts {counts}: expected {length} that sum to {total}")


def _check_times(
    node_stores: Any,
    edge_stores: Any,
    time_attr: str = "time",
    seed_time: Any = None,
    time_bound: str = "<=",
    time_window: int | None = None,
) -> None:
    (seeds,) = (store for store in node_stores.values() if "batch_size" in store)
    if seed_time is None:
        seed_time = seeds[time_attr][: seeds.batch_size]

    def in_time(time: torch.Tensor, of: torch.Tensor) -> bool:
        early = False if time_window is None else time < of - time_window
        return not bool(((time > of - int(time_bound == "<")) | early).any())

    for node_type, store in node_stores.items():
        if time_attr in store and "edge" not in time_attr:
            first = seeds.batch_size if store is seeds else 0
            right = in_time(store[time_attr][first:], seed_time[store.batch[first:]])
            expect(right, f"{node_type}: no neighbour is later than its seed, or before its window")
    for edge_type, store in edge_stores.items():
        if time_attr in store and "edge" in time_attr:
            tree = (node_stores[edge_type[2]] if edge_type else store).batch[store.edge_index[1]]
            right = in_time(store[time_attr], seed_time[tree])
            expect(right, f"{edge_type}: no edge is later than its seed, or before its window")
