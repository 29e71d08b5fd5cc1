"""New ids for nodes and edges: each partition owns a range of those of each type, in the order of the input."""

from __future__ import annotations

import numpy as np

from glt.data.schema import NodeType
from glt.partition import layout
from glt.partition.book import Book, group_by_owner, id_dtype
from glt.partition.graph_input import EdgeInput
from glt.partition.partition_writer import PartitionWriter

CHUNK_EDGES = 1 << 17  # numbered together


def relabel_nodes(writer: PartitionWriter, node_type: NodeType, book: Book) -> None:
    """Writes the maps between the input's ids of a node type and the new ones, which are partition-major and in the
    order of the input inside a partition: rows of tables are the same with and without them."""
    dtype = id_dtype(book.owner.size)
    writer.owned(layout.node_map(node_type), dtype, book.offset, book.owner, None)
    writer.array(layout.node_map_inverse(node_type), book.position(), dtype)


def relabel_edges(writer: PartitionWriter, edges: EdgeInput, book: Book) -> np.ndarray:
    """Writes the maps of an edge type, whose edges go with their owners, and returns the new id of each, mapped.

    Args:
        writer: Where to.
        edges: The edges of one type.
        book: Owners of the nodes at the expanded ends.
    """
    counts = np.zeros(book.num_parts, np.int64)
    for begin in range(0, edges.num_edges, CHUNK_EDGES):
        counts += np.bincount(book.owner[edges.row_ids[begin : begin + CHUNK_EDGES]], minlength=book.num_parts)
    offset = np.concatenate([[0], np.cumsum(counts)])
    dtype = id_dtype(edges.num_edges)
    writer.owned(layout.edge_map(edges.edge_type), dtype, offset, book.owner, edges.row_ids)
    inverse = writer.writer(layout.edge_map_inverse(edges.edge_type), dtype, (edges.num_edges,))
    following = offset[:-1].copy()
    for begin in range(0, edges.num_edges, CHUNK_EDGES):
        owner = book.owner[edges.row_ids[begin : begin + CHUNK_EDGES]]
        order, bounds = group_by_owner(owner, book.num_parts)
        new = np.empty(owner.size, dtype)
        new[order] = np.arange(owner.size) + np.repeat(following - bounds[:-1], np.diff(bounds))
        following += np.diff(bounds)
        writer.advance(inverse.write(new))
    writer.close([inverse])
    return np.load(inverse.path, mmap_mode="r", allow_pickle=False)
