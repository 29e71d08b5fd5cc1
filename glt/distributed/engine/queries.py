"""What a server answers about the graph itself: degrees, ends of edges, single hops, books."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.topology import Topology
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.local_partition import LocalPartition
from glt.distributed.engine.requests import HasEdgesRequest, OneHopRequest

_CHUNK = 1 << 24  # edges that are counted at a time: their ids are widened for it


class EdgeDirectory:
    """What can be asked about the edges of one type that a partition holds, besides rows.

    Each index is made when it is first needed, and kept: 4 to 8 bytes per edge for finding edges by id, 4 to 8 per node
    of the neighbours' type for their degrees, 8 to 16 per edge for their edges.

    Args:
        part: The partition.
        edge_type: Position of the edge type.
    """

    def __init__(self, part: LocalPartition, edge_type: int) -> None:
        self.part, self.edge_type = part, edge_type
        self.topology = part.graphs[edge_type].topology
        self._making = threading.RLock()  # cached_property would let several threads make the same

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Finds edges by id.

        Args:
            ids: ``[n]``, int64.

        Returns:
            Which of them are here ``[n]``, bool, and sources and destinations of those ``[2, m]``, int64.
        """
        with self._making:
            sorted_ids, order = self._by_id
        # In one dtype, else NumPy would widen all ids; and in order, since far jumps in long arrays cost most.
        wanted, back = np.unique(ids.numpy().clip(-1, np.iinfo(sorted_ids.dtype).max), return_inverse=True)
        wanted = wanted.astype(sorted_ids.dtype)
        at = np.searchsorted(sorted_ids, wanted)
        is_here = np.zeros(len(wanted), bool)
        inside = at < len(sorted_ids)
        is_here[inside] = sorted_ids[at[inside]] == wanted[inside]
        position = at[is_here] if order is None else order[at[is_here]].astype(np.int64)
        row = np.searchsorted(self.topology.indptr.numpy(), position, side="right") - 1
        center = torch.from_numpy(np.asarray(self._centers[row], np.int64))
        ends = self._ends(center, self.topology.indices[torch.from_numpy(position)].long())
        found = is_here[back]
        rank = np.cumsum(is_here) - 1  # among those that are here
        return torch.from_numpy(found), ends[:, torch.from_numpy(rank[back[found]])]

    def ids(self) -> Tensor:
        """Ids of the edges that are here, ascending ``[E]``, int64."""
        with self._making:
            return torch.from_numpy(self._by_id[0].astype(np.int64))

    def near_degrees(self, nodes: Tensor) -> Tensor:
        """Edges of nodes that this partition owns and expands, ``[n]`` int64.

        Raises:
            IndexError: If a node is outside the graph or owned by another partition; names the first.
        """
        book = self.topology.book
        assert book is not None
        _core.require_owned(book.native, nodes.numpy(), self.part.index)
        row = torch.from_numpy(book.rows(nodes.numpy()))
        return self.topology.indptr[row + 1] - self.topology.indptr[row]

    def far_degrees(self, nodes: Tensor) -> Tensor:
        """Of any nodes at the other end, the edges that are here, ``[n]`` int64.

        Raises:
            IndexError: If a node is outside the graph; names the first.
        """
        self._require_neighbors(nodes)
        with self._making:
            return self._far_counts[nodes].long()

    def far_edges(self, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of any nodes at the other end, the edges that are here.

        Returns:
            Their number by node ``[n]``, int64, the nodes that this partition expands ``[E]``, int64, and the ids of
            the edges ``[E]``, int64, ascending for each node.

        Raises:
            IndexError: If a node is outside the graph; names the first.
        """
        with self._making:
            csr = self._far_side.csr
        hop = _core.OneHop(csr, nodes.numpy(), -1, False, 0, 0, self.edge_type, with_edge=True)
        return copied(hop, len(nodes))

    def _require_neighbors(self, nodes: Tensor) -> None:
        wrong = ((nodes < 0) | (nodes >= self.topology.num_neighbor_nodes)).nonzero()
        if len(wrong):
            at = int(wrong[0])
            raise IndexError(f"nodes[{at}] = {int(nodes[at])} is outside [0, {self.topology.num_neighbor_nodes})")

    def _ends(self, center: Tensor, neighbor: Tensor) -> Tensor:
        return torch.stack([neighbor, center] if self.topology.edge_dir == "in" else [center, neighbor])

    @cached_property
    def _centers(self) -> np.ndarray:
        """The nodes that the rows are of."""
        name = self.part.schema.edge_types[self.edge_type]
        end = name[2] if self.topology.edge_dir == "in" else name[0]
        return self.part.nodes[self.part.schema.node_index(end)].ids

    @property
    def _by_id(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Ids of the edges, ascending, and where each is; None where they are in that order already."""
        return (self._ids, None) if self._sorted is None else self._sorted

    @property
    def _ids(self) -> np.ndarray:
        assert self.topology.edge_ids is not None, "partitions have them"
        return self.topology.edge_ids.numpy()

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray] | None:
        ids = self._ids
        if len(ids) == 0 or bool((ids[1:] > ids[:-1]).all()):
            return None
        order = np.argsort(ids, kind="stable")
        narrow = np.uint32 if len(ids) <= np.iinfo(np.uint32).max else np.int64
        return ids[order], order.astype(narrow)

    @cached_property
    def _far_counts(self) -> Tensor:
        indices, num_nodes = self.topology.indices, self.topology.num_neighbor_nodes
        counts = torch.zeros(num_nodes, dtype=torch.int32 if len(indices) < 2**31 else torch.int64)
        chunk = max(_CHUNK, num_nodes)
        for first in range(0, len(indices), chunk):
            counts += torch.bincount(indices[first : first + chunk], minlength=num_nodes)
        return counts

    @cached_property
    def _far_side(self) -> Topology:
        ends, ids = self.part.all_edges(self.edge_type)
        size = self.topology.size
        return Topology(ends, size, edge_ids=ids, layout="CSR" if self.topology.layout == "CSC" else "CSC")


def copied(hop: _core.OneHop, num_nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a hop found: edges by node ``[n]``, int64, and of each edge the other end and the id ``[E]``, int64."""
    count = np.empty(num_nodes, np.uint32)
    neighbor, edge = np.empty(hop.num_edges, np.int64), np.empty(hop.num_edges, np.int64)
    hop.copy_out(count, neighbor, edge)
    return torch.from_numpy(count.astype(np.int64)), torch.from_numpy(neighbor), torch.from_numpy(edge)


Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class GraphQueries:
    """Answers questions about the partitions whose files are on this host. Types are positions in the schema.

    Args:
        dataset: The partition that this process has loaded; others are mapped from its directory when they are asked
            for.
    """

    def __init__(self, dataset: DistDataset) -> None:
        self.dataset = dataset
        self._lock = threading.Lock()
        self._parts: dict[int, LocalPartition] = {dataset.partition_idx: dataset.own}
        self._directories: dict[tuple[int, int], EdgeDirectory] = {}

    def part(self, part: int) -> LocalPartition:
        """A partition.

        Raises:
            ValueError: If there is no such partition.
            glt.errors.PartitionError: If its files are not here; names them.
        """
        data = self.dataset
        if isinstance(part, bool) or not isinstance(part, int) or not 0 <= part < data.num_partitions:
            raise ValueError(f"partition {part!r} is asked for: there are {data.num_partitions}, from 0")
        with self._lock:
            if part not in self._parts:
                self._parts[part] = data.map_other(data.load_args["graph_dir"], part)
            return self._parts[part]

    def directory(self, part: int, edge_type: int) -> EdgeDirectory:
        """The edges of a type in a partition.

        Raises:
            ValueError: If there is no such type or partition.
        """
        own = self.part(part)
        if isinstance(edge_type, bool) or not isinstance(edge_type, int) or not 0 <= edge_type < len(own.graphs):
            raise ValueError(f"edge type {edge_type!r} is asked for: there are {len(own.graphs)}, from 0")
        with self._lock:
            return self._directories.setdefault((part, edge_type), EdgeDirectory(own, edge_type))

    def degrees(self, part: int, edge_type: int, nodes: Tensor, far: bool) -> Tensor:
        """How many edges nodes have here ``[n]``, int64.

        Args:
            part, edge_type: Which partition and which edges.
            nodes: Ids ``[n]``, int64.
            far: False: nodes that the partition owns. True: any nodes, at the other end of its edges.
        """
        directory = self.directory(part, edge_type)
        return (directory.far_degrees if far else directory.near_degrees)(_ids(nodes))

    def find_edges(self, part: int, edge_type: int, ids: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`EdgeDirectory.find`."""
        return self.directory(part, edge_type).find(_ids(ids))

    def has_edges(self, part: int, edge_type: int, centers: Tensor, neighbors: Tensor) -> Tensor:
        """See :meth:`LocalPartition.has_edges`."""
        return self.part(part).has_edges(HasEdgesRequest(edge_type, _ids(centers), _ids(neighbors)))

    def sample(
        self, part: int, edge_type: int, nodes: Tensor, num_neighbors: int, replace: bool, key: int, weighted: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One hop from nodes that the partition owns; returns what :func:`copied` does."""
        nodes = _ids(nodes)
        asked = OneHopRequest(
            edge_type, nodes, int(num_neighbors), bool(replace), int(key) % 2**64, 0, True, bool(weighted)
        )
        return copied(self.part(part).one_hop(asked), len(nodes))

    def far_edges(self, part: int, edge_type: int, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See :meth:`EdgeDirectory.far_edges`."""
        return self.directory(part, edge_type).far_edges(_ids(nodes))

    def edge_ids(self, part: int, edge_type: int) -> Tensor:
        """Ids of the edges that a partition holds, ascending ``[E]``, int64."""
        return self.directory(part, edge_type).ids()

    def book(self, kind: str, type_index: int) -> dict[str, Tensor]:
        """Owners and rows of all nodes (``kind='node'``) or edges of a type: what :class:`PartitionBook` is made of."""
        if kind not in ("node", "edge"):
            raise ValueError(f"kind = {kind!r}: expected 'node' or 'edge'")
        book = (self.dataset.node_books if kind == "node" else self.dataset.edge_books)[type_index]
        if book is None:
            raise ValueError(f"{kind}s of type {type_index} have no book")
        columns = {"owner": book.owner, "row_of": book.row_of, "offset": book.offset}
        return {name: column for name, column in columns.items() if column is not None}

    def stored_rows(self, kind: str, type_index: int, table: str, parts: list[int]) -> Tensor:
        """The rows of a stored table that these partitions own, one partition behind the other ``[rows, ...]``; mapped
        memory, not a copy, where it is one partition.

        Raises:
            LookupError: If there is no such table; names those there are.
        """
        found = []
        for part in parts:
            tables = self.part(part).tables(kind, type_index)
            if table not in tables:
                raise LookupError(f"partition {part} has no {kind} table {table!r}: there are {sorted(tables)}")
            found.append(tables[table].tensor)
        return found[0] if len(found) == 1 else torch.cat(found)


_CALLS = ("degrees", "find_edges", "has_edges", "sample", "far_edges", "edge_ids", "book")


def graph_calls(queries: GraphQueries) -> dict[str, Call]:
    """What trainers may ask, by name; each takes the caller, its arguments and its keyword arguments."""

    def answer(query: Callable[..., Any], caller: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return query(*args, **kwargs)

    return {f"glt.graph.{name}": partial(answer, getattr(queries, name)) for name in _CALLS}


def _ids(ids: Any) -> Tensor:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
        raise TypeError(f"ids are {ids!r}: expected a one-dimensional int64 tensor")
    return ids.contiguous()
