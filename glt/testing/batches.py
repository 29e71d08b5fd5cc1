"""Small graphs whose answers are known, and what every batch of :class:`~torch_geometric.data.Data` must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from glt.data import Dataset

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class SmallGraph:
    """A graph whose features are its ids, so that a batch shows by itself whether its rows are right.

    Attributes:
        edge_index: Source and destination ids ``[2, E]``, int64.
        num_nodes: Number of nodes N.
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
        """Returns a PyG ``Data`` with ``edge_index``, ``x``, ``y`` and ``edge_attr``."""
        from torch_geometric.data import Data

        return Data(x=self.x, edge_index=self.edge_index, edge_attr=self.edge_attr, y=self.y, num_nodes=self.num_nodes)

    def to_dataset(self, edge_dir: str = "in") -> Dataset:
        """Returns the same as a :class:`glt.data.Dataset`."""
        return Dataset.from_arrays(
            self.edge_index,
            self.num_nodes,
            node_features=self.x,
            node_labels=self.y,
            edge_features=self.edge_attr,
            edge_dir=edge_dir,
        )


def ring_graph(num_nodes: int = 40, degree: int = 2) -> SmallGraph:
    """A ring: node v has edges to v + 1, ..., v + ``degree`` (modulo ``num_nodes``), with ids from v * degree on."""
    source = torch.arange(num_nodes).repeat_interleave(degree)
    step = torch.arange(1, degree + 1).repeat(num_nodes)
    return SmallGraph(torch.stack([source, (source + step) % max(1, num_nodes)]), num_nodes)


def random_graph(num_nodes: int, num_edges: int, seed: int = 0) -> SmallGraph:
    """A graph with everything that breaks samplers: a fifth of the nodes isolated, the others' degrees by a power law
    in both directions, about one edge in ten a self-loop, one in ten the copy of another; edges in random order."""
    rng = np.random.default_rng(seed)
    connected = rng.permutation(num_nodes)[: max(1, num_nodes - num_nodes // 5)]
    source, target = (
        connected[(len(connected) * rng.random(num_edges) ** power).astype(np.int64)] for power in (2.0, 4.0)
    )
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
    """Checks everything that a homogeneous PyG batch promises.

    Args:
        data: The batch: ``n_id``, ``edge_index``, ``batch_size``, ``input_id``, the counts, and ``e_id`` if sampled.
        edge_index: The whole graph, ``[2, E]``.
        num_neighbors, replace, edge_dir: How it was sampled.
        seeds: The seeds of this batch in order, if known.
        num_nodes: Number of nodes of the whole graph. Default: one more than the largest id in sight.
        **attributes: Whole node attributes (rows by ``n_id``), and those whose names begin with ``edge_``, by ``e_id``.

    Raises:
        AssertionError: Naming the first promise that is broken.
    """
    ends = np.asarray(edge_index)
    n_id, local = data.n_id.numpy(), data.edge_index.numpy()
    hops, batch_size = len(num_neighbors), data.batch_size
    expect(data.n_id.dtype == data.edge_index.dtype == torch.int64, "n_id and edge_index are int64")
    expect(local.ndim == 2 and local.shape[0] == 2 and n_id.ndim == 1, "edge_index is [2, E], n_id is [N]")
    row, col = local
    for name, length in (("num_sampled_nodes", hops + 1), ("num_sampled_edges", hops)):
        counts = data[name]
        expect(type(counts) is list and all(type(c) is int for c in counts), f"{name} is a list of int: {counts!r}")
        expect(len(counts) == length, f"{name} has {length} entries: {counts}")
    node_end, edge_end = np.cumsum(data.num_sampled_nodes), np.cumsum([0, *data.num_sampled_edges])
    expect(node_end[-1] == len(n_id), f"num_sampled_nodes = {data.num_sampled_nodes} add up to {len(n_id)} nodes")
    expect(edge_end[-1] == len(row), f"num_sampled_edges = {data.num_sampled_edges} add up to {len(row)} edges")

    expect(type(batch_size) is int and batch_size == data.num_sampled_nodes[0], f"batch_size = {batch_size!r}")
    expect(len(data.input_id) == batch_size, "one input_id per seed")
    if seeds is not None:
        expect(np.array_equal(n_id[:batch_size], np.asarray(seeds)), "n_id starts with the seeds as given")
    found = n_id[batch_size:]
    expect(len(np.unique(found)) == len(found), "a node that is no seed appears once")
    expect(not np.isin(found, n_id[:batch_size]).any(), "a seed is not found again as another node")

    if len(row):
        expect(local.min() >= 0 and local.max() < len(n_id), "local ids are below the number of nodes")
    expect(bool((np.diff(col) >= 0).all()), "edges are sorted by column")
    seen = np.maximum.accumulate(np.concatenate([[batch_size - 1], row]))
    expect(bool((np.diff(seen) <= 1).all()), "nodes are numbered in order of first occurrence")
    expect(
        np.array_equal(seen[edge_end] + 1, np.maximum(node_end, batch_size)),
        "a node belongs to the hop of its first edge",
    )
    first_row = {int(s): i for i, s in reversed(list(enumerate(n_id[:batch_size])))}
    expect(
        all(first_row[int(n_id[r])] == r for r in np.unique(row[row < batch_size])), "a seed found means its first row"
    )

    center_row = 1 if edge_dir == "in" else 0
    global_ends = n_id[local] if edge_dir == "in" else n_id[local][::-1]
    if num_nodes is None:
        num_nodes = int(max(ends.max(initial=-1), n_id.max(initial=-1))) + 1
    degree = np.bincount(ends[center_row], minlength=num_nodes)[n_id]
    k = np.repeat(np.array([*num_neighbors, 0]), data.num_sampled_nodes)  # nodes of the last hop are not expanded
    if replace:
        expected = np.where((degree > 0) & (k >= 0), k, np.where(k < 0, degree, 0))
    else:
        expected = np.where(k < 0, degree, np.minimum(k, degree))
    expect(
        np.array_equal(np.bincount(col, minlength=len(n_id)), expected),
        "every node is expanded once, to the right count",
    )
    by_hop = [int(part.sum()) for part in np.split(expected, node_end[:-1])[:hops]]
    expect(by_hop == data.num_sampled_edges, f"num_sampled_edges = {data.num_sampled_edges}: expected {by_hop}")

    if "e_id" in data:
        e_id = data.e_id.numpy()
        expect(e_id.shape == row.shape and e_id.dtype == np.int64, "one int64 e_id per edge")
        expect(np.array_equal(global_ends, ends[:, e_id]), "n_id[edge_index] == edge_index[:, e_id]")
        pairs = np.stack([col, e_id], axis=1)
        if not replace:
            expect(len(np.unique(pairs, axis=0)) == len(pairs), "no edge twice in one row without replacement")
            whole = pairs[(expected == degree)[col]]
            expect(np.array_equal(whole, whole[np.lexsort(whole.T[::-1])]), "all edges of a node come in graph order")
    else:
        known, room = np.unique(ends, axis=1, return_counts=True)
        room_of = {(int(s), int(d)): int(n) for s, d, n in zip(*known, room, strict=True)}
        expect(all((int(s), int(d)) in room_of for s, d in global_ends.T), "every edge exists")
        if not replace:
            keys, used = np.unique(np.stack([col, *global_ends]), axis=1, return_counts=True)
            fits = all(n <= room_of[int(s), int(d)] for _, s, d, n in zip(*keys, used, strict=True))
            expect(fits, "no edge twice in one row without replacement")

    for name, value in attributes.items():
        if name.startswith("edge_") and "e_id" not in data:
            expect(name not in data, f"{name} needs edge ids")
            continue
        rows = torch.as_tensor(value)[data.e_id if name.startswith("edge_") else data.n_id]
        expect(torch.equal(data[name], rows) and data[name].dtype == rows.dtype, f"{name} holds the source's rows")


def expect(condition: bool, promise: str) -> None:
    if not condition:
        raise AssertionError(f"broken promise: {promise}")
