"""Questions about the graph, asked of the servers that have the partitions, and their answers put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.schema import PartitionBook
from glt.distributed.context import World
from glt.distributed.engine.partitions import copied
from glt.distributed.server.client import Reply


class Edges(NamedTuple):
    """Edges of some nodes.

    Attributes:
        num_edges: By node ``[n]``, int64; sums to E.
        neighbor: The other end of each ``[E]``, int64, node after node.
        edge: Its id ``[E]``, int64.
    """

    num_edges: Tensor
    neighbor: Tensor
    edge: Tensor


def require_ids(name: str, ids: Tensor, num_ids: int) -> None:
    """Raises IndexError if an id is outside the graph; names the first."""
    wrong = ((ids < 0) | (ids >= num_ids)).nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise IndexError(f"{name}[{at}] = {int(ids[at])} is outside [0, {num_ids})")


class _Share(NamedTuple):
    """Ids that one partition is asked about, and their positions among all ids."""

    part: int
    ids: Tensor
    positions: Tensor


class GraphRouter:
    """Asks the servers of a world. Edge types are positions in the schema; ids are int64, one-dimensional.

    Methods raise IndexError if there is no such node or edge, and name the first.
    """

    def __init__(self, world: World) -> None:
        assert world.data is not None
        self.world, self.data = world, world.data

    def _ask(self, part: int, name: str, *args: Any) -> Reply:
        return self.world.call(self.world.owner_of(part), f"glt.graph.{name}", part, *args)

    def _ask_all(self, name: str, *args: Any) -> list[Any]:
        replies = [self._ask(part, name, *args) for part in range(self.data.num_partitions)]
        return [reply.result() for reply in replies]

    def _ask_owners(
        self, edge_type: int, nodes: Tensor, name: str, more: Callable[[Tensor], tuple[Any, ...]]
    ) -> list[tuple[Tensor, Any]]:
        """Asks the owners of nodes.

        Args:
            edge_type, nodes: Whose nodes are expanded along which edges.
            name: The question.
            more: Its further arguments, for the nodes at some positions.

        Returns:
            Of each owner the positions of its nodes, and its answer.
        """
        book = self.data.node_books[self.data.ends[edge_type][0]]
        assert book is not None, "nodes have one"
        asked = [
            (share.positions, self._ask(share.part, name, edge_type, share.ids, *more(share.positions)))
            for share in _shares(book, nodes)
        ]
        return [(positions, reply.result()) for positions, reply in asked]

    def degrees(self, edge_type: int, nodes: Tensor, edge_dir: str) -> Tensor:
        """Edges into (``'in'``) or out of (``'out'``) nodes ``[n]``, int64."""
        if edge_dir != self.data.edge_dir:
            found: list[Tensor] = self._ask_all("degrees", edge_type, nodes, True)
            return torch.stack(found).sum(0)
        out = torch.empty(len(nodes), dtype=torch.int64)
        for positions, counts in self._ask_owners(edge_type, nodes, "degrees", lambda _: (False,)):
            out[positions] = counts
        return out

    def find_edges(self, edge_type: int, ids: Tensor) -> Tensor:
        """Sources and destinations of edges ``[2, n]``, int64."""
        return self._located(edge_type, ids)[0]

    def edge_owners(self, edge_type: int, ids: Tensor) -> Tensor:
        """The partition of each edge ``[n]``, int64."""
        book = self.data.edge_books[edge_type]
        if book is None:
            return self._located(edge_type, ids)[1]
        require_ids("edge_ids", ids, self.data.num_edges_of[edge_type])
        return torch.from_numpy(book.owners(ids.numpy()))

    def edges_of(self, edge_type: int, part: int) -> Tensor:
        """Ids of the edges of a partition, ascending ``[E]``, int64."""
        found: Tensor = self._ask(part, "edge_ids", edge_type).result()
        return found

    def _located(self, edge_type: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ends of edges ``[2, n]``, and the partitions that hold them ``[n]``."""
        require_ids("edge_ids", ids, self.data.num_edges_of[edge_type])
        book = self.data.edge_books[edge_type]
        if book is None:  # the owner is not known: all partitions are asked
            everywhere = torch.arange(len(ids))
            shares = [_Share(part, ids, everywhere) for part in range(self.data.num_partitions)]
        else:
            shares = list(_shares(book, ids))
        replies = [self._ask(share.part, "find_edges", edge_type, share.ids) for share in shares]
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
        """Which pairs are edges ``[n]``, bool."""
        centers, neighbors = (target, source) if self.data.edge_dir == "in" else (source, target)
        out = torch.empty(len(centers), dtype=torch.bool)
        for positions, found in self._ask_owners(edge_type, centers, "has_edges", lambda at: (neighbors[at],)):
            out[positions] = found
        return out

    def sample(
        self, edge_type: int, nodes: Tensor, num_neighbors: int, edge_dir: str, replace: bool, key: int, weighted: bool
    ) -> Edges:
        """One hop from nodes along edges of a type, in the order of the nodes.

        Where partitions hold the edges of the other direction, all edges of the nodes are fetched and sampled here. The
        result is the same.

        Args:
            edge_type: Which edges.
            nodes: Ids ``[n]`` of destinations (``edge_dir='in'``) or sources.
            num_neighbors, replace: As in the loaders.
            edge_dir: ``'in'`` or ``'out'``.
            key: Of the draws; at least 0.
            weighted: Draw proportionally to weight.
        """
        if edge_dir != self.data.edge_dir:
            return self._sample_far(edge_type, nodes, num_neighbors, replace, key)
        answers = self._ask_owners(edge_type, nodes, "sample", lambda _: (num_neighbors, replace, key, weighted))
        return _in_order(len(nodes), [at for at, _ in answers], [Edges(*found) for _, found in answers])

    def _sample_far(self, edge_type: int, nodes: Tensor, num_neighbors: int, replace: bool, key: int) -> Edges:
        unique, back = torch.unique(nodes, return_inverse=True)
        found = [Edges(*each) for each in self._ask_all("far_edges", edge_type, unique)]
        row = torch.cat([torch.repeat_interleave(torch.arange(len(unique)), each.num_edges) for each in found])
        center, ids = torch.cat([each.neighbor for each in found]), torch.cat([each.edge for each in found])
        # The order of the edges of a node is that of their ids, as in one partition.
        order = torch.from_numpy(np.lexsort((ids.numpy(), row.numpy())))
        indptr = np.zeros(len(unique) + 1, np.int64)
        np.cumsum(np.bincount(row.numpy(), minlength=len(unique)), out=indptr[1:])
        near, far = (self.data.num_nodes_of[end] for end in self.data.ends[edge_type])
        # Draws depend on the id of a node, so it keeps its id; of this array only the pages that are written exist.
        row_of = np.zeros(far, np.uint32)
        row_of[unique.numpy()] = np.arange(len(unique), dtype=np.uint32)
        csr = _core.Csr(indptr, center[order].numpy(), ids[order].numpy(), row_of, far, near)
        hop = _core.OneHop(csr, unique.numpy(), num_neighbors, replace, key, 0, edge_type, with_edge=True)
        sampled = Edges(*copied(hop, len(unique)))
        if len(unique) == len(nodes) and bool((back[1:] > back[:-1]).all()):
            return sampled
        return _chosen(sampled, back)


def _shares(book: PartitionBook, ids: Tensor) -> Iterator[_Share]:
    grouped, positions, bounds = book.group(ids.numpy())
    where = torch.from_numpy(positions.astype(np.int64))
    for part in np.flatnonzero(np.diff(bounds)).tolist():
        here = slice(bounds[part], bounds[part + 1])
        yield _Share(part, torch.from_numpy(grouped[here]), where[here])


def _in_order(num_nodes: int, positions: list[Tensor], found: list[Edges]) -> Edges:
    """Puts the edges that several servers have answered into the order of the nodes."""
    if len(found) == 1 and bool((positions[0] == torch.arange(num_nodes)).all()):
        return found[0]
    if not found:
        empty = torch.empty(0, dtype=torch.int64)
        return Edges(torch.zeros(num_nodes, dtype=torch.int64), empty, empty)
    back = torch.empty(num_nodes, dtype=torch.int64)
    back[torch.cat(positions)] = torch.arange(num_nodes)
    return _chosen(Edges(*(torch.cat(column) for column in zip(*found, strict=True))), back)


def _chosen(edges: Edges, nodes: Tensor) -> Edges:
    """The edges of the nodes at these positions."""
    first = edges.num_edges.cumsum(0) - edges.num_edges
    count = edges.num_edges[nodes]
    begin = torch.repeat_interleave(first[nodes] - (count.cumsum(0) - count), count)
    at = torch.arange(len(begin)) + begin
    return Edges(count, edges.neighbor[at], edges.edge[at])
