"""New ids for nodes and edges: each partition owns a range of those of each type, in the order of the input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glt.partition import layout
from glt.partition.arguments import CHUNK_IDS, chunks
from glt.partition.book import Book, group_by_owner, id_dtype
from glt.partition.graph_input import EdgeInput, GraphInput
from glt.partition.npy_file import scratch_array
from glt.partition.partition_writer import PartitionWriter


class Relabelling:
    """The input of a partitioner in new ids, and the files that lead back to the old ones.

    New ids are partition-major, and in the order of the input inside a partition; an edge belongs to the partition that
    owns it. So rows of tables are the same with and without relabelling, and so is the order of the edges of a node.

    What is put into another order streams through scratch files. Memory: 20 bytes per node beside the books of the old
    ids.

    Args:
        writer: Writes the maps.
        graph: The input.
        books: Owners of its nodes, by position of the node type.

    Attributes:
        books: Owners of the nodes by their new ids.
    """

    def __init__(self, writer: PartitionWriter, graph: GraphInput, books: Sequence[Book]) -> None:
        self._writer, self._graph, self._old = writer, graph, books
        self._new_id = [book.position() for book in books]
        self._times: dict[int, np.ndarray] = {}
        for idx in range(books[0].num_parts):  # a partition without edges and tables has no files
            (writer.root / layout.part(idx)).mkdir(exist_ok=True)
        parts = [np.arange(book.num_parts, dtype=book.owner.dtype) for book in books]
        self.books = [
            Book.of(np.repeat(part, book.counts), book.num_parts) for part, book in zip(parts, books, strict=True)
        ]

    def write_nodes(self, at: int) -> None:
        """Writes the maps of a node type."""
        node_type, dtype = self._graph.nodes[at].node_type, id_dtype(self._graph.nodes[at].num_nodes)
        for path, ids in (
            (layout.node_map(node_type), self._old[at].order),
            (layout.node_map_inverse(node_type), self._new_id[at]),
        ):
            self._writer.array(path, ids, dtype)

    def edges(self, edges: EdgeInput) -> EdgeInput:
        """Writes the maps of an edge type, and returns its edges with new ids at both ends, sorted by owner.

        Features stay behind: they are written from the input, one sequential pass serving all partitions.
        """
        root, num_edges = self._writer.root, edges.num_edges
        counts = self._num_owned(edges)
        place = np.cumsum(counts) - counts  # of the next edge of each partition
        ends = [self._graph.nodes[at].num_nodes for at in (edges.expanded, edges.neighbor)]
        ids_dtype, nodes_dtype = id_dtype(num_edges), id_dtype(max(ends))
        original, new = (scratch_array(root, num_edges, ids_dtype) for _ in range(2))
        edge_index = scratch_array(root, 2 * num_edges, nodes_dtype).reshape(2, num_edges)
        row_ids, col_ids = edge_index if self._graph.edge_dir == "out" else edge_index[::-1]
        weight, time = (
            None if of is None else scratch_array(root, num_edges, of.dtype) for of in (edges.weight, edges.time)
        )
        columns = [(edges.weight, weight), (edges.time, time)]
        owner_of = self._old[edges.expanded].owner
        for begin, rows in chunks(edges.row_ids):
            at = slice(begin, begin + rows.size)
            owner = owner_of[rows]
            order, offset = group_by_owner(owner, counts.size)
            to = np.arange(rows.size) + (place - offset[:-1])[owner[order]]
            place += np.diff(offset)
            row_ids[to] = self._new_id[edges.expanded][rows[order]]
            col_ids[to] = self._new_id[edges.neighbor][edges.col_ids[at][order]]
            original[to] = begin + order
            ids = np.empty(rows.size, ids_dtype)
            ids[order] = to
            new[at] = ids
            for column, out in columns:
                if column is not None and out is not None:
                    out[to] = column[at][order]
        self._writer.array(layout.edge_map(edges.edge_type), original, ids_dtype)
        self._writer.array(layout.edge_map_inverse(edges.edge_type), new, ids_dtype)
        return replace(
            edges, edge_index=edge_index, row_ids=row_ids, col_ids=col_ids, feat=None, weight=weight, time=time,
            neighbor_time=None if edges.neighbor_time is None else self._node_time(edges.neighbor, edges.neighbor_time),
        )  # fmt: skip

    def _num_owned(self, edges: EdgeInput) -> np.ndarray:
        book = self._old[edges.expanded]
        counts = np.zeros(book.num_parts, np.int64)
        for _, rows in chunks(edges.row_ids):
            counts += np.bincount(book.owner[rows], minlength=book.num_parts)
        return counts

    def _node_time(self, at: int, time: np.ndarray) -> np.ndarray:
        """Times of the nodes of a type by their new ids."""
        if at not in self._times:
            self._times[at] = scratch_array(self._writer.root, time.size, time.dtype)
            for begin, ids in chunks(self._old[at].order):
                self._times[at][begin : begin + CHUNK_IDS] = time[ids]
        return self._times[at]
