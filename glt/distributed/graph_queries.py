"""What a server answers about the graph itself: degrees, ends of edges, single hops, books."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glt.distributed.dist_dataset import DistDataset
from glt.distributed.edge_directory import EdgeDirectory, copied
from glt.distributed.local_partition import LocalPartition
from glt.distributed.requests import HasEdgesRequest, OneHopRequest

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
            far: False: nodes that the partition owns, and their rows. True: nodes at the other end of edges, whosever
                they are.
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


def graph_calls(queries: GraphQueries) -> dict[str, Call]:
    """What trainers may ask, by name; each takes who asks, its arguments and its keyword arguments."""
    return {
        "glt.graph.degrees": lambda who, args, kwargs: queries.degrees(*args, **kwargs),
        "glt.graph.find_edges": lambda who, args, kwargs: queries.find_edges(*args, **kwargs),
        "glt.graph.has_edges": lambda who, args, kwargs: queries.has_edges(*args, **kwargs),
        "glt.graph.sample": lambda who, args, kwargs: queries.sample(*args, **kwargs),
        "glt.graph.far_edges": lambda who, args, kwargs: queries.far_edges(*args, **kwargs),
        "glt.graph.edge_ids": lambda who, args, kwargs: queries.edge_ids(*args, **kwargs),
        "glt.graph.book": lambda who, args, kwargs: queries.book(*args, **kwargs),
    }


def _ids(ids: Any) -> Tensor:
    if not isinstance(ids, Tensor) or ids.dtype != torch.int64 or ids.dim() != 1:
        raise TypeError(f"ids are {ids!r}: expected a one-dimensional int64 tensor")
    return ids.contiguous()
