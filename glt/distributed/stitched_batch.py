"""A batch on a GPU whose rows come from several partitions: those here are there already, the others are brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.device import Accelerator

# As of glt.distributed.partitions.RowsPart; counts, neighbours and edges may be int64 tensors of the device.
_Part = tuple[np.ndarray, Any, Any, Any]


class StitchedBatch:
    """Puts the rows of each hop together, and numbers nodes in the order in which the CPU would meet them.

    It answers what :class:`glt.distributed.hop_loop.HopLoop` asks of ``_core.Batch``, with the same results. All that
    grows with the number of edges is on the device: rows are sorted by place in the frontier, nodes are found again by
    sorting what they are called, no table has an element per node of the graph. The frontiers come to the host, which
    asks other partitions for their rows. Sorting for distinct names (``unique``) and choosing by mask wait for the
    device, which alone knows how many there will be: about three waits per hop and node type, beside that for the
    frontier.

    Has not run on a GPU yet; on the device ``cpu`` the same operations run on the host.

    Args:
        num_nodes: Number of nodes of each node type.
        ends: ``(expanded node type, neighbour node type)`` of each edge type.
        place: The GPU.
        stream: All is done in its order.
    """

    def __init__(
        self,
        num_nodes: Sequence[int],
        ends: Sequence[tuple[int, int]],
        place: Accelerator,
        stream: torch.cuda.Stream | None,
    ) -> None:
        self._num_nodes, self._ends, self._place, self._stream = tuple(num_nodes), tuple(ends), place, stream

    def start(
        self, seeds: Sequence[tuple[int, np.ndarray]], with_edge: bool, disjoint: bool, seed_time: np.ndarray | None
    ) -> None:
        """Starts a batch; ``seed_time`` is with those who sample.

        Raises:
            IndexError: If a seed is outside the graph; names the first.
            ValueError: If the batch has more trees than numbers for them.
        """
        self._with_edge, self._disjoint = with_edge, disjoint
        by_type: list[list[np.ndarray]] = [[] for _ in self._num_nodes]
        trees: list[list[np.ndarray]] = [[] for _ in self._num_nodes]
        num_trees = 0
        for s, (t, ids) in enumerate(seeds):
            self._require_ids(t, ids, "seeds" if len(seeds) == 1 else f"seeds[{s}]")
            by_type[t].append(ids)
            trees[t].append(np.arange(num_trees, num_trees + len(ids)))
            num_trees += len(ids)
        if disjoint and num_trees * max(self._num_nodes, default=0) >= 2**63:
            raise ValueError(f"a disjoint batch of {num_trees} seeds, of {max(self._num_nodes)} nodes: use fewer seeds")
        nothing = [np.empty(0, np.int64)]
        with self._place.on(self._stream):
            self._node = [self._brought(np.concatenate(each or nothing)) for each in by_type]
            self._tree = [self._brought(np.concatenate(each or nothing)) for each in trees] if disjoint else None
            self._begin = [0] * len(self._num_nodes)  # of the frontier
            self._per_hop = [[len(node)] for node in self._node]
            self._drop_edges()
            self._hop_edges: list[list[int]] = [[] for _ in self._ends]
            self._found: dict[int, tuple[Tensor, Tensor, Tensor | None]] = {}  # of this hop, by edge type

    def _drop_edges(self) -> None:
        none = torch.empty(0, dtype=torch.int64, device=self._place.device)
        self._edges: list[list[tuple[Tensor, Tensor, Tensor | None]]] = [[] for _ in self._ends]
        self._no_edges = none, none, none if self._with_edge else None

    def _require_ids(self, node_type: int, ids: np.ndarray, name: str) -> None:
        bad = np.flatnonzero((ids < 0) | (ids >= self._num_nodes[node_type]))
        if len(bad):
            raise IndexError(
                f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {self._num_nodes[node_type]}) (num_nodes = "
                f"{self._num_nodes[node_type]})"
            )

    def _brought(self, array: Any) -> Tensor:
        """Integers on the device, as int64; those of the host are copied by way of pinned memory, without waiting."""
        if isinstance(array, Tensor):
            return array
        tensor = torch.from_numpy(np.ascontiguousarray(array, np.int64))
        if self._place.is_host:
            return tensor
        return tensor.pin_memory().to(self._place.device, non_blocking=True)

    def _keys(self, node_type: int, node: Tensor, tree: Tensor | None) -> Tensor:
        """What nodes are called: in a disjoint batch a node is one per tree."""
        return node if tree is None else tree * self._num_nodes[node_type] + node

    def frontier(self, node_type: int) -> np.ndarray:
        """Ids of the nodes that the next hop expands, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            return self._node[node_type][self._begin[node_type] :].cpu().numpy()

    def frontier_trees(self, node_type: int) -> np.ndarray:
        """Their trees, uint32."""
        assert self._tree is not None, "only disjoint batches have trees"
        with self._place.on(self._stream):
            return self._tree[node_type][self._begin[node_type] :].cpu().numpy().astype(np.uint32)

    def expand_from(self, edge_type: int, parts: Sequence[_Part]) -> None:
        """Takes one hop of an edge type that partitions sampled.

        Args:
            edge_type: Which.
            parts: Where in the frontier rows stand ``[n]``, edges of each ``[n]``, their other ends and their ids
                ``[E]``: all of the frontier, each once.

        Raises:
            IndexError: If a neighbour is outside the graph.
            ValueError: If the parts are not of one piece.
        """
        expanded, found = self._ends[edge_type]
        with self._place.on(self._stream):
            begin = self._begin[expanded]
            at, neighbor, edge = self._stitched(parts, len(self._node[expanded]) - begin, found)
            col = at + begin
            self._found[edge_type] = neighbor, col, edge

    def _stitched(self, parts: Sequence[_Part], num_rows: int, found: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """The edges of all parts in the order of the rows: place of the row, neighbour, edge id."""
        covered = np.concatenate([position for position, *_ in parts])
        if len(covered) != num_rows or np.bincount(covered, minlength=num_rows).max(initial=0) > 1:
            raise ValueError(f"{len(covered)} rows were answered: expected each of the {num_rows} asked for, once")
        at, neighbors, edges = [], [], []
        for p, (position, count, neighbor, edge) in enumerate(parts):
            if not isinstance(neighbor, Tensor):  # what kernels sampled, they have checked
                if int(count.sum(dtype=np.int64)) != len(neighbor) or len(count) != len(position):
                    raise ValueError(f"part {p} has {len(neighbor)} edges, its counts add up to {count.sum()}")
                self._require_ids(found, neighbor, f"neighbours of part {p}")
            rows = self._brought(position)
            at.append(torch.repeat_interleave(rows, self._brought(count), output_size=len(neighbor)))
            neighbors.append(self._brought(neighbor))
            if self._with_edge:
                edges.append(self._brought(edge))
        if len(parts) == 1:
            return at[0], neighbors[0], edges[0] if edges else None
        places = torch.cat(at)
        order = torch.argsort(places, stable=True)  # a row is of one part, and its edges are in order there
        return places[order], torch.cat(neighbors)[order], torch.cat(edges)[order] if edges else None

    def end_hop(self) -> None:
        """Numbers the nodes that were found; those that are new are the next frontier."""
        with self._place.on(self._stream):
            by_type: list[list[int]] = [[] for _ in self._num_nodes]
            for r in sorted(self._found):
                by_type[self._ends[r][1]].append(r)
            num_known = [len(node) for node in self._node]
            trees = self._tree  # those of this hop's centers are known
            for t, edge_types in enumerate(by_type):
                if edge_types:
                    self._number(t, edge_types, trees)
            for t, known in enumerate(num_known):
                self._begin[t] = known
                self._per_hop[t].append(len(self._node[t]) - known)
            for r, counts in enumerate(self._hop_edges):
                counts.append(len(self._found[r][0]) if r in self._found else 0)
            self._found = {}

    def _number(self, node_type: int, edge_types: Sequence[int], trees: Sequence[Tensor] | None) -> None:
        """Gives the neighbours of these edge types their local ids, and new nodes of the type a place."""
        neighbors = [self._found[r][0] for r in edge_types]
        node, tree = torch.cat(neighbors), None
        if trees is not None:
            tree = torch.cat([trees[self._ends[r][0]][self._found[r][1]] for r in edge_types])
        known = self._node[node_type]
        keys = self._keys(node_type, node, tree)
        before = self._keys(node_type, known, None if self._tree is None else self._tree[node_type])
        # Of all that has one name, the first: a node that is known, or the first neighbour to be it.
        _, group = torch.unique(torch.cat([before, keys]), return_inverse=True)
        place = torch.arange(len(group), device=self._place.device)
        first = torch.full((len(group),), len(group), device=self._place.device)
        first = first.scatter_reduce(0, group, place, "amin")[group][len(known) :]
        is_new = first == place[len(known) :]
        rank = torch.cumsum(is_new, 0) - 1
        local = torch.where(first < len(known), first, len(known) + rank[(first - len(known)).clamp(min=0)])
        self._node[node_type] = torch.cat([known, node[is_new]])
        if self._tree is not None and tree is not None:
            # Not in place: edge types that come later still look up the trees of centers in the list of before.
            self._tree = [*self._tree]
            self._tree[node_type] = torch.cat([self._tree[node_type], tree[is_new]])
        for r, row in zip(edge_types, local.split([len(each) for each in neighbors]), strict=True):
            self._edges[r].append((row, *self._found[r][1:]))

    def begin_induce(self) -> None:
        """Drops the sampled edges: :meth:`induce_from` brings those among the nodes."""
        self._drop_edges()
        self._hop_edges = [[] for _ in self._ends]

    def induce_from(self, edge_type: int, parts: Sequence[_Part]) -> None:
        """Takes the edges of a type among the nodes; as :meth:`expand_from`, by place among all nodes.

        Raises:
            ValueError: If one leads elsewhere.
        """
        expanded, found = self._ends[edge_type]
        with self._place.on(self._stream):
            at, neighbor, edge = self._stitched(parts, len(self._node[expanded]), found)
            known, order = torch.sort(self._node[found], stable=True)  # of seeds that come twice, the first
            where = torch.searchsorted(known, neighbor)
            if len(neighbor) and not bool((known[where.clamp(max=len(known) - 1)] == neighbor).all()):
                raise ValueError(f"edge type {edge_type}: a neighbour is not in the batch, of which edges were asked")
            self._edges[edge_type].append((order[where], at, edge))

    def _joined(self, edge_type: int) -> tuple[Tensor, Tensor, Tensor | None]:
        hops = self._edges[edge_type]
        if not hops:
            return self._no_edges
        rows, cols, edges = zip(*hops, strict=True)
        return torch.cat(rows), torch.cat(cols), torch.cat(edges) if self._with_edge else None

    def nodes(self, node_type: int) -> np.ndarray:
        """Ids of all nodes so far, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            return self._node[node_type].cpu().numpy()

    def edges(self, edge_type: int) -> np.ndarray:
        """Ids of all edges so far, int64, on the host; waits for the device."""
        with self._place.on(self._stream):
            edge = self._joined(edge_type)[2]
            assert edge is not None, "asked for only where the batch has them"
            return edge.cpu().numpy()

    def num_nodes(self, node_type: int) -> int:
        return len(self._node[node_type])

    def num_edges(self, edge_type: int) -> int:
        return sum(len(row) for row, *_ in self._edges[edge_type])

    def num_sampled_nodes(self, node_type: int) -> list[int]:
        """Nodes per hop, seeds first."""
        return self._per_hop[node_type]

    def num_sampled_edges(self, edge_type: int) -> list[int]:
        """Edges per hop."""
        return self._hop_edges[edge_type]

    def copy_nodes(self, node_type: int, node: Any, tree: Any) -> None:
        """Writes ids and trees into int64 tensors or arrays, wherever they are; on the current stream."""
        _as_tensor(node).copy_(self._node[node_type])
        if tree is not None:
            assert self._tree is not None, "only disjoint batches have trees"
            _as_tensor(tree).copy_(self._tree[node_type])

    def copy_edges(self, edge_type: int, row: Any, col: Any, edge: Any) -> None:
        """Writes local ids of neighbours and of expanded nodes, and edge ids; as :meth:`copy_nodes`."""
        for into, found in zip((row, col, edge), self._joined(edge_type), strict=True):
            if into is not None:
                _as_tensor(into).copy_(found)  # type: ignore[arg-type]


def _as_tensor(of: Any) -> Tensor:
    return torch.from_numpy(of) if isinstance(of, np.ndarray) else of
