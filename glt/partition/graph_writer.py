"""Writes the rows of one edge type, of all partitions, by an external sort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glt import _core
from glt.partition import layout
from glt.partition.book import Book, id_dtype
from glt.partition.graph_input import EdgeInput
from glt.partition.npy_file import NpyWriter, scratch_file
from glt.partition.partition_writer import PartitionWriter

CHUNK_ROWS = 1 << 20  # of indptr, looked at together


@dataclass(frozen=True)
class SortMemory:
    """What sorting the edges of one type takes, see ``csrc/core/edge_sort.h``.

    Attributes:
        thread_bytes: Memory of each thread; what was asked for, or more where scratch files exceed 275 GB.
        scratch_bytes: Size of the scratch file; 0 where all edges fit into ``thread_bytes``.
        bucket_edges: Edges that are sorted in memory together.
    """

    thread_bytes: int
    scratch_bytes: int
    bucket_edges: int

    @classmethod
    def of(cls, edges: EdgeInput, num_neighbors: int, thread_bytes: int) -> SortMemory:
        weight_bytes = 0 if edges.weight is None else edges.weight.itemsize
        indices, edge_ids = id_dtype(num_neighbors), id_dtype(edges.num_ids)
        return cls(
            *_core.edge_sort_plan(
                edges.num_edges, edges.num_ids, weight_bytes, edges.has_time, indices.itemsize, edge_ids.itemsize,
                thread_bytes,
            )
        )  # fmt: skip


def write_graph(
    writer: PartitionWriter,
    edges: EdgeInput,
    books: Sequence[Book],
    thread_bytes: int,
    new_ids: Callable[[Sequence[int]], np.ndarray] | None = None,
) -> tuple[tuple[int, ...], int]:
    """Writes the rows, columns and edge ids of ``writer.parts``, which own all edges, with weights and times.

    Edges are read twice, front to back: once to count those of each row, once to sort them; to relabel, once more.
    Memory is 12 bytes per node at the expanded end, and ``SortMemory.thread_bytes`` for each thread.

    Args:
        writer: Where to.
        edges: The edges of one type.
        books: Of all node types. That of the expanded end may have the nodes of ``writer.parts`` alone.
        thread_bytes: Memory of each thread for sorting.
        new_ids: Gives the new id of each edge, given the number of edges of each partition; neighbours are then written
            with their new ids, which takes 4 bytes more for each node at the other end. None: ids stay.

    Returns:
        The number of edges of each partition, and how many edges have ends of different owners.
    """
    book, neighbor_book = books[edges.expanded], books[edges.neighbor]
    num_neighbors = neighbor_book.owner.size
    position = book.position()
    indptr = np.empty(book.owner.size + 1, np.int64)
    num_cut_edges = _core.count_rows(
        edges.row_ids, edges.col_ids, position, book.owner, neighbor_book.owner, book.num_parts, indptr,
        num_threads=writer.num_threads, tick=writer.advance,
    )  # fmt: skip
    counts = tuple(np.diff(indptr[book.offset]).tolist())
    _write_indptr(writer, edges, book, indptr)
    files = _files(writer, edges, book, num_neighbors, counts)
    memory = SortMemory.of(edges, num_neighbors, thread_bytes)
    edge_id, neighbor_id = edges.edge_ids, None
    if new_ids is not None:
        edge_id = new_ids(counts)
        neighbor_id = position if neighbor_book is book else neighbor_book.position()
    time = edges.time if edges.time is not None else edges.neighbor_time
    with scratch_file(writer.root, memory.scratch_bytes) as scratch:
        _core.sort_edges(
            edges.row_ids, edges.col_ids, edges.weight, time, edges.time is None, num_neighbors, position,
            book.offset[[*writer.parts, -1]].tolist(), indptr, [[file.rows for file in array] for array in files],
            id_dtype(num_neighbors).itemsize, id_dtype(edges.num_ids).itemsize, scratch, thread_bytes,
            num_threads=writer.num_threads, tick=writer.advance, neighbor_id=neighbor_id,
            edge_id=edge_id, num_ids=edges.num_ids,
        )  # fmt: skip
    for array in files:
        writer.close(array)
    return counts, num_cut_edges


def _write_indptr(writer: PartitionWriter, edges: EdgeInput, book: Book, indptr: np.ndarray) -> None:
    for idx in writer.parts:
        file = writer.writer(layout.graph(idx, edges.edge_type, "indptr"), indptr.dtype, (book.counts[idx] + 1,))
        first, end = book.offset[idx], book.offset[idx + 1] + 1
        for begin in range(first, end, CHUNK_ROWS):
            writer.advance(file.write(indptr[begin : min(begin + CHUNK_ROWS, end)] - indptr[first]))
        writer.close([file])


def _files(
    writer: PartitionWriter, edges: EdgeInput, book: Book, num_neighbors: int, counts: Sequence[int]
) -> list[list[NpyWriter]]:
    """Begins the files of the arrays of ``_core.sort_edges``, in its order; none of what there is not."""
    indices, edge_ids = id_dtype(num_neighbors), id_dtype(edges.num_ids)
    arrays = [
        ("indices", indices, True),
        ("edge_ids", edge_ids, True),
        ("weight_sum", np.dtype(np.uint64), edges.weight is not None),
        ("weight_guide", np.dtype(np.uint32), edges.weight is not None),
        ("by_time/indices", indices, edges.has_time),
        ("by_time/edge_ids", edge_ids, edges.has_time),
        ("by_time/time", np.dtype(np.int64), edges.has_time),
    ]

    def size(name: str, idx: int) -> int:
        return _core.weight_guide_size(book.counts[idx], counts[idx]) if name == "weight_guide" else counts[idx]

    return [
        [
            writer.writer(layout.graph(idx, edges.edge_type, name), dtype, (size(name, idx),))
            for idx in (writer.parts if wanted else ())
        ]
        for name, dtype, wanted in arrays
    ]
