"""Exact counts of what batches ask of other hosts: nodes, edges, rows, messages and their bytes.

The rules are those of :mod:`glt.distributed.engine`. A hop asks each other owner of nodes that it expands once; then
each other owner of rows that are not here is asked once. Of ``gather_window`` batches only the first that needs a row
asks for it. An answer with edges has 4 bytes per node and those of the ids per edge, one with rows the bytes of rows.
Owners read rows that they do not keep in memory from disk each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from glt._checks import check_at_least, check_count, real_number
from glt._reprs import says
from glt._tracebacks import short_traceback
from glt.distributed.engine.requests import id_dtype
from glt.forecast.batches import BatchTrace


@dataclass(frozen=True, eq=False)
class Placement:
    """Who owns which node, and of which others each partition has copies.

    Attributes:
        owner: Of each node ``[num_nodes]``, any integer dtype.
        num_parts: Number of partitions, one per host.
        hotness: How often nodes are read ``[num_nodes]``, or by partition ``[num_parts, num_nodes]``; None: there are
            no caches, or ``cached`` says which.
        cached: By partition, the ids that its cache has; they come before ``hotness``.
        memory_hotness: As ``hotness``, of the rows that owners keep in memory, where they go by something else.

    Example:
        >>> placement = glt.forecast.Placement(np.array([0, 0, 1, 1]), 2, hotness=np.array([3.0, 1.0, 4.0, 2.0]))
        >>> placement.in_cache(0, cache_ratio=0.25)
        array([False, False,  True, False])
    """

    owner: np.ndarray
    num_parts: int
    hotness: np.ndarray | None = None
    cached: Sequence[np.ndarray] | None = None
    memory_hotness: np.ndarray | None = None
    _ranks: dict[int, np.ndarray] = field(default_factory=dict, repr=False)
    _ends: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    @cached_property
    def _by_owner(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.owner, kind="stable")
        return order, np.cumsum([0, *np.bincount(self.owner, minlength=self.num_parts)])

    def owned(self, part: int) -> np.ndarray:
        """The ids that a partition owns, ascending."""
        order, begin = self._by_owner
        return order[begin[part] : begin[part + 1]]

    def _rank(self, part: int) -> tuple[np.ndarray, int]:
        """The place of each node among all from the hottest, smaller ids first; and how many are read at all."""
        assert self.hotness is not None
        own = self.hotness.ndim == 2
        key = part if own else -1
        hotness = self.hotness[part] if own else self.hotness
        if key not in self._ranks:
            if own:
                self._ranks.clear()  # the ranks of one partition at a time: they are as large as the graph
            rank = np.empty(len(hotness), np.int64)
            rank[np.argsort(-hotness.astype(np.float64), kind="stable")] = np.arange(len(hotness))
            self._ranks[key] = rank
        return self._ranks[key], int(np.count_nonzero(hotness))

    def in_cache(self, part: int, cache_ratio: float, nodes: np.ndarray | None = None) -> np.ndarray:
        """Whether a partition's cache of ``cache_ratio`` of all nodes has each of ``nodes`` (default: of all), by the
        rule of partitioners: the hottest that others own, of equally hot ones the smaller ids. Bool."""
        nodes = np.arange(len(self.owner)) if nodes is None else nodes
        if self.cached is not None:
            return np.isin(nodes, self.cached[part])
        most = int(cache_ratio * len(self.owner))
        if most == 0 or self.hotness is None:
            return np.zeros(len(nodes), bool)
        rank, num_read = self._rank(part)
        if (part, most) not in self._ends:
            own = np.sort(rank[self.owned(part)])
            # Before own node i there are own[i] - i of others: the cache ends behind `most` of these.
            end = most + int(np.searchsorted(own - np.arange(len(own)), most, side="left"))
            self._ends[part, most] = min(end, num_read)
        return (rank[nodes] < self._ends[part, most]) & (self.owner[nodes] != part)

    @cached_property
    def _own_ranks(self) -> tuple[np.ndarray, np.ndarray]:
        """The place of each node among its owner's, from the hottest; and how many each owns."""
        hotness = self.hotness if self.memory_hotness is None else self.memory_hotness
        assert hotness is not None
        hotness = hotness if hotness.ndim == 1 else hotness[self.owner, np.arange(len(self.owner))]
        _, begin = self._by_owner
        rank = np.empty(len(hotness), np.int64)
        rank[np.lexsort((-hotness.astype(np.float64), self.owner))] = np.arange(len(hotness))
        return rank - begin[self.owner], np.diff(begin)

    def in_memory(self, memory_ratio: float, nodes: np.ndarray) -> np.ndarray:
        """Whether the owners of ``nodes`` keep their rows in memory: each the hottest ``memory_ratio`` of its own, of
        equally hot ones the smaller ids. Bool."""
        if self.hotness is None and self.memory_hotness is None:
            raise ValueError(f"memory_ratio = {memory_ratio:g} and hotness = None: expected how often nodes are read")
        rank, owned = self._own_ranks
        return rank[nodes] < (memory_ratio * owned).astype(np.int64)[self.owner[nodes]]


@dataclass(frozen=True)
class Counts:
    """Means per batch of one trainer, over the batches that were counted.

    Attributes:
        num_batches: That were counted.
        num_nodes, num_edges: Sampled.
        frontier: Nodes that each hop expands ``(hops,)``.
        remote_frontier: Of them, nodes that other hosts own.
        hop_requests: Messages of each hop: other owners of nodes that it expands.
        remote_edges: Edges that other hosts sample.
        remote_rows: Rows that other hosts are asked for; ``num_remote_nodes`` of ``loader.stats()``.
        cached_rows, window_rows: Rows of others that a cache has, or that another batch of the window asks for.
        row_requests: Messages for rows: owners that are asked.
        edge_bytes, row_bytes: Of the answers; together ``remote_bytes`` of ``loader.stats()``.
        request_bytes: Ids in the requests.
        peers: Distinct hosts that a batch asks anything.
        most_served: Largest share of all that is asked for that one host serves, times the hosts; 1 is even.
        disk_rows: Rows, its own and those it asks for, that owners read from disk.

    Example:
        >>> csr = glt.testing.ring_graph().to_dataset().get_graph().csr
        >>> tracer = glt.forecast.GraphTracer([csr], 40, [2, 2])
        >>> placement = glt.forecast.Placement(np.arange(40) % 2, 2)
        >>> glt.forecast.count_batches([tracer.trace(np.array([5, 7]))], [0], placement).hop_requests
        (1.0, 1.0)
    """

    num_batches: int
    num_nodes: float
    num_edges: float
    frontier: tuple[float, ...]
    remote_frontier: tuple[float, ...]
    hop_requests: tuple[float, ...]
    remote_edges: float
    remote_rows: float
    cached_rows: float
    window_rows: float
    row_requests: float
    edge_bytes: float
    row_bytes: float
    request_bytes: float
    peers: float
    most_served: float
    disk_rows: float = 0.0

    @property
    def num_messages(self) -> float:
        """Requests per batch; each has an answer."""
        return sum(self.hop_requests) + self.row_requests

    @property
    def remote_bytes(self) -> float:
        """Of answers per batch, as ``loader.stats()`` counts them."""
        return self.edge_bytes + self.row_bytes

    @property
    def num_waits(self) -> int:
        """Times that a batch waits for answers: its hops that ask any host, and its rows."""
        return sum(each > 0 for each in (*self.hop_requests, self.row_requests))

    @says
    def __repr__(self) -> str:
        return (
            f"{self.num_nodes:.0f} nodes, {self.num_edges:.0f} edges, {self.remote_rows:.0f} remote rows, "
            f"{self.num_messages:.1f} messages, {self.remote_bytes / 1e6:.3f} MB per batch"
        )


@short_traceback
def count_batches(
    traces: Sequence[BatchTrace],
    homes: Sequence[int],
    placement: Placement,
    *,
    bytes_of_row: int = 0,
    cache_ratio: float = 0.0,
    gather_window: int = 1,
    memory_ratio: float = 1.0,
    with_edge: bool = False,
    num_edges: int = 0,
) -> Counts:
    """Counts what batches ask of other hosts.

    Args:
        traces: Batches, in the order of their indices.
        homes: The partition of the trainer of each batch. Windows are of batches that follow each other at one home.
        placement: Who owns which node.
        bytes_of_row: Of the features of a node; 0: none are looked up.
        cache_ratio: Copies that each partition has, as a share of all nodes.
        gather_window: Batches that ask for a row once, 1 to 1024.
        memory_ratio: Rows that each owner keeps in memory, as a share of its own: the hottest.
        with_edge: Whether ids of edges are sampled, too.
        num_edges: Of the graph, which says how wide these are.

    Raises:
        IndexError: If a batch has a node that the placement does not know.
        ValueError: If there are no batches, or not as many homes, or an argument is out of range.

    Example:
        >>> tracer = glt.forecast.GraphTracer([glt.testing.ring_graph().to_dataset().get_graph().csr], 40, [2, 2])
        >>> placement = glt.forecast.Placement(np.arange(40) % 2, 2)
        >>> glt.forecast.count_batches([tracer.trace(np.array([5, 7]))], [0], placement, bytes_of_row=16)
        Counts(7 nodes, 10 edges, 4 remote rows, 3.0 messages, 0.000 MB per batch)
    """
    gather_window = check_count("gather_window", gather_window, 1, 1024)
    check_at_least("bytes_of_row", bytes_of_row, 0)
    if real_number("cache_ratio", cache_ratio) > 1:
        raise ValueError(f"cache_ratio = {cache_ratio}: expected a share of the nodes, 0 to 1")
    memory_ratio = real_number("memory_ratio", memory_ratio)
    if memory_ratio > 1:
        raise ValueError(f"memory_ratio = {memory_ratio}: expected a share of the rows, 0 to 1")
    if not traces or len(homes) != len(traces):
        raise ValueError(
            f"homes has {len(homes)} elements: expected one for each batch, of which there are {len(traces)}"
        )
    num_parts, num_hops = placement.num_parts, traces[0].num_hops
    edge_width = id_dtype(len(placement.owner)).itemsize + (id_dtype(num_edges).itemsize if with_edge else 0)
    totals, hops = np.zeros(12), np.zeros((3, num_hops))
    served = np.zeros(num_parts)
    order = np.argsort(homes, kind="stable")  # windows of one home follow each other
    claimed, window, at = np.zeros(len(placement.owner) if gather_window > 1 else 0, np.int64), 0, 0
    for position, index in enumerate(order):
        trace, home = traces[index], int(homes[index])
        at = at + 1 if position and home == homes[order[position - 1]] else 0
        window += at % gather_window == 0
        owner = placement.owner[trace.nodes]
        is_remote = owner != home
        away = is_remote[: trace.begin[num_hops]]  # of the nodes that are expanded
        owners = np.zeros(num_parts, bool)
        for hop in range(num_hops):
            frontier = slice(trace.begin[hop], trace.begin[hop + 1])
            is_asked = np.bincount(owner[frontier][away[frontier]], minlength=num_parts) > 0
            hops[:, hop] += [len(away[frontier]), np.sum(away[frontier]), np.sum(is_asked)]
            owners |= is_asked
        given = trace.num_edges_of[away]
        num_asked, remote_edges = int(away.sum()), int(given.sum())
        served += np.bincount(owner[: len(away)][away], weights=4 + edge_width * given, minlength=num_parts)
        remote_rows = cached = shared = row_requests = disk_rows = 0
        if bytes_of_row:
            ids, of = trace.nodes[is_remote], owner[is_remote]
            rest = ~placement.in_cache(home, cache_ratio, ids)
            cached = int((~rest).sum())
            ids, of = ids[rest], of[rest]
            if gather_window > 1:
                is_new = claimed[ids] != window
                shared = int((~is_new).sum())
                ids, of = ids[is_new], of[is_new]
                claimed[ids] = window
            per_owner = np.bincount(of, minlength=num_parts)
            remote_rows, row_requests = len(ids), int((per_owner > 0).sum())
            served += per_owner * bytes_of_row
            owners |= per_owner > 0
            if memory_ratio < 1:
                read = np.concatenate([trace.nodes[~is_remote], ids])
                disk_rows = len(read) - int(placement.in_memory(memory_ratio, read).sum())
        totals += [
            *(len(trace.nodes), trace.num_edges, remote_edges, remote_rows, cached, shared, row_requests),
            *(4 * num_asked + edge_width * remote_edges, remote_rows * bytes_of_row, 8 * (num_asked + remote_rows)),
            *(int(owners.sum()), disk_rows),
        ]
    mean = [float(each) for each in totals / len(traces)]
    nodes, edges, away_edges, rows, in_cache, in_window, row_messages, *num_bytes, peers, on_disk = mean
    frontiers, away_frontiers, messages = (tuple(map(float, row)) for row in hops / len(traces))
    return Counts(
        *(len(traces), nodes, edges, frontiers, away_frontiers, messages, away_edges, rows, in_cache, in_window),
        *(row_messages, *num_bytes, peers, _most_served(served, homes, num_parts), on_disk),
    )


def _most_served(served: np.ndarray, homes: Sequence[int], num_parts: int) -> float:
    """The largest share that a host serves, over what it would serve if all others of each trainer served alike."""
    if served.sum() == 0:
        return 1.0
    of_home = np.bincount(np.asarray(homes), minlength=num_parts)
    even = (len(homes) - of_home) / max(num_parts - 1, 1)
    asked = even > 0
    return float((served[asked] / even[asked]).max() * even.sum() / served.sum())
