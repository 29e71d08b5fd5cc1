"""Which partition owns what, as a graph's user sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import as_ids
from glt.data.partition_book import PartitionBook
from glt.data.schema import EdgeType, NodeType
from glt.distributed.graph_router import GraphRouter


class GraphPartitionBook:
    """Owners of nodes and edges. :func:`node_split` and :func:`edge_split` take it.

    Args:
        router: To the graph.

    Attributes:
        num_partitions: How many there are.
        is_relabelled: Whether each partition owns a range of ids.
        schema, manifest, num_nodes_of, num_edges_of, node_books, edge_books: As of a
            :class:`~glt.distributed.DistDataset`.
    """

    def __init__(self, router: GraphRouter) -> None:
        self._router, data = router, router.data
        self.num_partitions = data.num_partitions
        self.schema, self.manifest = data.schema, data.manifest
        self.is_relabelled = data.manifest.is_relabelled
        self.num_nodes_of, self.num_edges_of = data.num_nodes_of, data.num_edges_of
        self.node_books, self.edge_books = data.node_books, data.edge_books

    def node_owners(self, ids: Any, ntype: NodeType | None = None) -> Tensor:
        """The partition of each node ``[n]``, int64 (DGL's ``nid2partid``).

        Raises:
            IndexError: If there is no such node; names the first.
        """
        book = self._node_book(ntype)
        return torch.from_numpy(book.owners(as_ids(ids, "ids", book.num_ids).numpy()))

    def edge_owners(self, ids: Any, etype: EdgeType | None = None) -> Tensor:
        """The partition of each edge ``[n]``, int64 (DGL's ``eid2partid``); errors as of :meth:`node_owners`."""
        at = self.schema.edge_index(etype)
        return self._router.edge_owners(at, as_ids(ids, "ids", self.num_edges_of[at]))

    def nodes_of(self, partition: int, ntype: NodeType | None = None) -> Tensor:
        """Ids of the nodes that a partition owns, ascending ``[n]``, int64 (DGL's ``partid2nids``)."""
        self._require_partition(partition)
        book = self._node_book(ntype)
        if book.offset is not None:
            return torch.arange(int(book.offset[partition]), int(book.offset[partition + 1]))
        return torch.from_numpy(np.flatnonzero(book.owners() == partition))

    def edges_of(self, partition: int, etype: EdgeType | None = None) -> Tensor:
        """Ids of the edges that a partition holds, ascending ``[n]``, int64 (DGL's ``partid2eids``)."""
        self._require_partition(partition)
        return self._router.edges_of(self.schema.edge_index(etype), partition)

    def node_offsets(self, ntype: NodeType | None = None) -> Tensor | None:
        """Where the ids of each partition begin, and the number of nodes ``[num_partitions + 1]``, int64; None where
        the graph was not relabelled."""
        offset = self._node_book(ntype).offset
        return None if offset is None else offset.clone()

    def edge_offsets(self, etype: EdgeType | None = None) -> Tensor | None:
        """As :meth:`node_offsets`, of edges."""
        book = self.edge_books[self.schema.edge_index(etype)]
        return None if book is None or book.offset is None else book.offset.clone()

    def _node_book(self, ntype: NodeType | None) -> PartitionBook:
        book = self.node_books[self.schema.node_index(ntype)]
        assert book is not None, "nodes have one"
        return book

    def _require_partition(self, partition: int) -> None:
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise TypeError(f"partition = {partition!r}: expected an integer")
        if not 0 <= partition < self.num_partitions:
            raise ValueError(f"partition = {partition}: expected 0 to {self.num_partitions - 1}")

    def __repr__(self) -> str:
        kind = "ranges" if self.is_relabelled else "arrays"
        return f"GraphPartitionBook({self.num_partitions} partitions, {kind})"
