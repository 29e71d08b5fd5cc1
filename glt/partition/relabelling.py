"""New ids for nodes and edges: each partition owns a range of those of each type, in the order of the input."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from glt import _core
from glt.data.arrays import map_npy
from glt.data.schema import NodeType
from glt.partition import layout
from glt.partition.book import Book, id_dtype
from glt.partition.graph_input import EdgeInput
from glt.partition.partition_writer import PartitionWriter

CHUNK_EDGES = 1 << 18  # that each thread numbers at a time: 5 MiB at most, less than it has to sort them


def relabel_nodes(writer: PartitionWriter, node_type: NodeType, book: Book) -> None:
    """Writes the maps between the input's ids of a node type and the new ones, which are partition-major and in the
    order of the input inside a partition: rows of tables are the same with and without them."""
    dtype = id_dtype(book.owner.size)
    writer.owned(layout.node_map(node_type), dtype, book)
    writer.array(layout.node_map_inverse(node_type), book.position(), dtype)


def relabel_edges(writer: PartitionWriter, edges: EdgeInput, book: Book, counts: Sequence[int]) -> np.ndarray:
    """Writes the maps of an edge type, whose edges go with their owners, and returns the new id of each, mapped.

    Args:
        writer: Where to.
        edges: The edges of one type.
        book: Owners of the nodes at the expanded ends.
        counts: Number of edges of each partition.
    """
    dtype = id_dtype(edges.num_edges)
    paths = layout.edge_map(edges.edge_type), layout.edge_map_inverse(edges.edge_type)
    original, new = (writer.writer(path, dtype, (edges.num_edges,)) for path in paths)
    offset = np.concatenate([[0], np.cumsum(counts)])
    _core.number_edges(
        edges.row_ids, book.owner, offset, original.rows, new.rows, dtype.itemsize, CHUNK_EDGES,
        num_threads=writer.num_threads, tick=writer.advance,
    )  # fmt: skip
    writer.close([original, new])
    return map_npy(new.path, mode="r")
