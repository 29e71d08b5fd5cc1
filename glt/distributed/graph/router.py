"""Questions about the graph, asked of the servers that have the partitions, and their answers put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.partition_book import PartitionBook
from glt.distributed.engine.queries import copied
from glt.distributed.server.client import Reply
from glt.distributed.world import World


class Edges(NamedTuple):
    """Edges from some nodes.

    Attributes:
        num_edges: By node ``[n]``, int64; sums to E.
        neighbor: The other end of each ``[E]``, int64, node after node.
        edge: Its id ``[E]``, int64.
    """

    num_edges: Tensor
    neighbor: Tensor
    edge: Tensor


class _Share(NamedTuple):
    part: int
    ids: np.ndarray
    positions: Tensor


class GraphRouter:
    """Asks the servers of a world. Types are positions in the schema; ids are int64, one-dimensional.

    Args:
        world: With a graph.
    """

    def __init__(self, world: World) -> None:
        assert world.data is not None
        self.world, self.data = world, world.data

    def _ask(self, part: int, name: str, *args: Any) -> Reply:
        return self.world.call(self.world.owner_of(part), f"glt.graph.{name}", part, *args)

    def _ask_all(self, name: str, *args: Any) -> list[Any]:
        replies = [self._ask(part, name, *args) for part in range(self.data.num_partitions)]
        return [reply.result() for reply in replies]

    def _centers(self, edge_type: int) -> PartitionBook:
        """The book of the nodes that partitions expand."""
        book = self.data.node_books[self.data.ends[edge_type][0]]
        assert book is not None, "nodes have one"
        return book

    def _shares(self, book: PartitionBook, ids: Tensor) -> Iterator[_Share]:
        grouped, positions, bounds = book.group(ids.numpy())
        where = torch.from_numpy(positions.astype(np.int64))
        for part in np.flatnonzero(np.diff(bounds)).tolist():
            here = slice(bounds[part], bounds[part + 1])
            yield _Share(part, grouped[here], where[here])

    def _near(self, edge_dir: str) -> bool:
        """Whether the edges of a node in this direction are all with its owner."""
        return edge_dir == self.data.edge_dir

    def degrees(self, edge_type: int, nodes: Tensor, edge_dir: str) -> Tensor:
        """Edges into (``'in'``) or out of (``'out'``) nodes ``[n]``, int64.

        Raises:
            IndexError: If there is no such node; names the first.
        """
        if not self._near(edge_dir):
            found: list[Tensor] = self._ask_all("degrees", edge_type, nodes, True)
            return torch.stack(found).sum(0)
        shares = list(self._shares(self._centers(edge_type), nodes))
        replies = [self._ask(each.part, "degrees", edge_type, torch.from_numpy(each.ids), False) for each in shares]
        out = torch.empty(len(nodes), dtype=torch.int64)
        for share, reply in zip(shares, replies, strict=True):
            out[share.positions] = reply.result()
        return out

    def find_edges(self, edge_type: int, ids: Tensor) -> Tensor:
        """Sources and destinations of edges ``[2, n]``, int64.

        Raises:
            IndexError: If there is no such edge; names the first.
        """
        return self._located(edge_type, ids)[0]

    def edge_owners(self, edge_type: int, ids: Tensor) -> Tensor:
        """The partition of each edge ``[n]``, int64; errors as of :meth:`find_edges`."""
        book = self.data.edge_books[edge_type]
        if book is None:
            return self._located(edge_type, ids)[1]
        self._require_edges(edge_type, ids)
        return torch.from_numpy(book.owners(ids.numpy()))

    def edges_of(self, edge_type: int, part: int) -> Tensor:
        """Ids of the edges of a partition, ascending ``[E]``, int64."""
        found: Tensor = self._ask(part, "edge_ids", edge_type).result()
        return found

    def _require_edges(self, edge_type: int, ids: Tensor) -> None:
        num_edges = self.data.num_edges_of[edge_type]
        wrong = ((ids < 0) | (ids >= num_edges)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise IndexError(f"edge_ids[{at}] = {int(ids[at])} is outside [0, {num_edges})")

    def _located(self, edge_type: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of edges ``[2, n]``, and the partitions that hold them ``[n]``."""
        self._require_edges(edge_type, ids)
        book = self.data.edge_books[edge_type]
        if book is None:  # nobody knows who has which: everyone is asked
            everywhere = torch.arange(len(ids))
            shares = [_Share(part, ids.numpy(), everywhere) for part in range(self.data.num_partitions)]
        else:
            shares = list(self._shares(book, ids))
        replies = [self._ask(each.part, "find_edges", edge_type, torch.from_numpy(each.ids)) for each in shares]
        ends = torch.full((2, len(ids)), -1, dtype=torch.int64)
        parts = torch.full((len(ids),), -1, dtype=torch.int64)
        for share, reply in zip(shares, replies, strict=True):
            is_here, found = reply.result()
            where = share.positions[is_here]
            ends[:, where], parts[where] = found, share.part
        missing = (parts < 0).nonzero()
        if len(missing):
            at = int(missing[0])
            raise LookupError(f"edge_ids[{at}] = {int(ids[at])} is in no partition: their edge ids are not 0 to E - 1")
        return ends, parts

    def has_edges(self, edge_type: int, source: Tensor, target: Tensor) -> Tensor:
        """Which pairs are edges ``[n]``, bool.

        Raises:
            IndexError: If there is no such node; names the first.
        """
        centers, neighbors = (target, source) if self.data.edge_dir == "in" else (source, target)
        shares = list(self._shares(self._centers(edge_type), centers))
        replies = [
            self._ask(each.part, "has_edges", edge_type, torch.from_numpy(each.ids), neighbors[each.positions])
            for each in shares
        ]
        out = torch.empty(len(centers), dtype=torch.bool)
        for share, reply in zip(shares, replies, strict=True):
            out[share.positions] = reply.result()
        return out

    def sample(
        self, edge_type: int, nodes: Tensor, num_neighbors: int, edge_dir: str, replace: bool, key: int, weighted: bool
    ) -> Edges:
        """One hop from nodes along edges of a type, in the order of the nodes.

        Where partitions are of the other direction, all edges of the nodes are fetched, and sampled here: what comes
        out is the same as if they were of this one.

        Args:
            edge_type: Which edges.
            nodes: Ids ``[n]`` of destinations (``edge_dir='in'``) or sources.
            num_neighbors, replace: As in the loaders.
            edge_dir: ``'in'`` or ``'out'``.
            key: Of the draws; at least 0.
            weighted: Draw proportionally to weight.

        Raises:
            IndexError: If there is no such node; names the first.
        """
        if not self._near(edge_dir):
            return self._sample_far(edge_type, nodes, num_neighbors, replace, key)
        shares = list(self._shares(self._centers(edge_type), nodes))
        replies = [
            self._ask(each.part, "sample", edge_type, torch.from_numpy(each.ids), num_neighbors, replace, key, weighted)
            for each in shares
        ]
        found = [Edges(*reply.result()) for reply in replies]
        return _in_order(len(nodes), [each.positions for each in shares], found)

    def _sample_far(self, edge_type: int, nodes: Tensor, num_neighbors: int, replace: bool, key: int) -> Edges:
        unique, back = torch.unique(nodes, return_inverse=True)
        found = [Edges(*each) for each in self._ask_all("far_edges", edge_type, unique)]
        row = torch.cat([torch.repeat_interleave(torch.arange(len(unique)), each.num_edges) for each in found])
        center, ids = torch.cat([each.neighbor for each in found]), torch.cat([each.edge for each in found])
        # The order of the edges of a node is that of their ids, as in one partition.
        order = torch.from_numpy(np.lexsort((ids.numpy(), row.numpy())))
        indptr = np.zeros(len(unique) + 1, np.int64)
        np.cumsum(np.bincount(row.numpy(), minlength=len(unique)), out=indptr[1:])
        near, far = self.data.ends[edge_type]
        # Draws depend on the id of a node, so it keeps its id; of this array only the pages that are written exist.
        row_of = np.zeros(self.data.num_nodes_of[far], np.uint32)
        row_of[unique.numpy()] = np.arange(len(unique), dtype=np.uint32)
        csr = _core.Csr(
            indptr,
            center[order].numpy(),
            ids[order].numpy(),
            row_of,
            self.data.num_nodes_of[far],
            self.data.num_nodes_of[near],
        )
        hop = _core.OneHop(csr, unique.numpy(), num_neighbors, replace, key, 0, edge_type, with_edge=True)
        sampled = Edges(*copied(hop, len(unique)))
        if len(unique) == len(nodes) and bool((back[1:] > back[:-1]).all()):
            return sampled
        return _chosen(sampled, back)


def _in_order(num_nodes: int, positions: list[Tensor], found: list[Edges]) -> Edges:
    """Puts the edges of nodes that several servers have answered for into the order of the nodes."""
    if len(found) == 1 and bool((positions[0] == torch.arange(num_nodes)).all()):
        return found[0]
    if not found:
        empty = torch.empty(0, dtype=torch.int64)
        return Edges(torch.zeros(num_nodes, dtype=torch.int64), empty, empty)
    where = torch.cat(positions)
    back = torch.empty(num_nodes, dtype=torch.int64)
    back[where] = torch.arange(num_nodes)
    joined = Edges(*(torch.cat(column) for column in zip(*found, strict=True)))
    return _chosen(joined, back)


def _chosen(edges: Edges, nodes: Tensor) -> Edges:
    """The edges of these nodes, named by position."""
    first = edges.num_edges.cumsum(0) - edges.num_edges
    count = edges.num_edges[nodes]
    begin = torch.repeat_interleave(first[nodes] - (count.cumsum(0) - count), count)
    at = torch.arange(len(begin)) + begin
    return Edges(count, edges.neighbor[at], edges.edge[at])
