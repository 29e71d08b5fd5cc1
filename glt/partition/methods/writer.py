"""Writes the files of a partition directory, streaming: no table of rows is ever held whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from glt import _core
from glt.data.arrays import map_npy
from glt.data.schema import EdgeType, NodeType
from glt.partition.format import layout
from glt.partition.format.book import Book, id_dtype
from glt.partition.format.files import CHUNK_IDS, FileEntry, NpyWriter, Rows, chunks, scratch_file
from glt.partition.format.manifest import (
    EdgeTypeEntry,
    FeatureEntry,
    LabelEntry,
    NodeTypeEntry,
    ReadForecast,
    balance_ratio,
)
from glt.partition.graph_input import EdgeInput, NodeInput

Table = tuple[Callable[[int], str], Rows]  # and the path of each partition's rows of it


def node_tables(nodes: NodeInput) -> list[Table]:
    """Returns the tables of the nodes of one type and where they go."""
    of_type = nodes.node_type
    tables: list[Table] = [
        (partial(path_of, node_type=of_type), rows)
        for path_of, rows in ((layout.node_feat, nodes.feat), (layout.node_label, nodes.label))
        if rows is not None
    ]
    return tables + [
        (partial(layout.node_attr, node_type=of_type, name=name), rows) for name, rows in nodes.attrs.items()
    ]


def cache_tables(nodes: NodeInput) -> list[Table]:
    """Returns the tables of the nodes of one type and where caches have their rows."""
    of_type = nodes.node_type
    tables: list[Table] = [
        (partial(layout.cache, node_type=of_type, array=array), rows)
        for array, rows in (("feat", nodes.feat), ("label", nodes.label))
        if rows is not None
    ]
    return tables + [
        (partial(layout.cache_attr, node_type=of_type, name=name), rows) for name, rows in nodes.attrs.items()
    ]


def edge_tables(edges: EdgeInput) -> list[Table]:
    """Returns the tables of the edges of one type and where they go."""
    of_type = edges.edge_type
    tables: list[Table] = [] if edges.feat is None else [(partial(layout.edge_feat, edge_type=of_type), edges.feat)]
    return tables + [
        (partial(layout.edge_attr, edge_type=of_type, name=name), rows) for name, rows in edges.attrs.items()
    ]


class PartitionWriter:
    """Writes books and rows of ``parts`` under ``root``, an empty directory, and collects the manifest's entry of each
    file.

    Rows are read front to back, whatever partition they go to, so that a mapped table is read from disk once. Each of
    ``num_threads`` copies ``chunk_size`` feature rows at a time; what is written does not depend on it. ``advance`` is
    called with the number of bytes after each piece of work.
    """

    def __init__(
        self, root: Path, chunk_size: int, num_threads: int, advance: Callable[[int], object], parts: Sequence[int]
    ) -> None:
        self.root = root
        self.parts = parts
        self.files: dict[str, FileEntry] = {}
        self.num_threads = num_threads
        self.advance = advance
        self._chunk_size = chunk_size
        for idx in parts:  # one that owns nothing has a directory too
            (root / layout.part(idx)).mkdir()

    def nodes(self, node_type: NodeType, book: Book) -> None:
        """Writes the node book, the row of each node, and the ids of each partition."""
        self.array(layout.node_book(node_type), book.owner)
        place = self.writer(layout.node_row(node_type), np.dtype(np.uint32), book.owner.shape)
        ids = [
            self.writer(layout.node_ids(idx, node_type), np.dtype(np.int64), (count,))
            for idx, count in enumerate(book.counts)
        ]
        pieces = (np.arange(begin, begin + owner.size) for begin, owner in chunks(book.owner))
        self._scatter(_rows(ids), pieces, book.owner, None, CHUNK_IDS, places=place)
        self.close([place, *ids])

    def node_rows(self, path_of: Callable[[int], str], rows: Rows, book: Book) -> None:
        """Writes each partition's rows of a table that has one row per node."""
        writers = self.row_writers(path_of, rows, book.counts)
        self._scatter(_rows(writers), self._pieces(rows.array), book.owner, None, self._chunk_size)
        self.close(writers)

    def node_times(self, node_type: NodeType, time: np.ndarray, book: Book) -> None:
        """Writes the times of each partition's nodes."""
        int64 = np.dtype(np.int64)
        writers = [
            self.writer(layout.node_time(idx, node_type), int64, (count,)) for idx, count in enumerate(book.counts)
        ]
        pieces = (piece.astype(int64) for _, piece in chunks(time))
        self._scatter(_rows(writers), pieces, book.owner, None, CHUNK_IDS)
        self.close(writers)

    def node_hotness(self, node_type: NodeType, own: Mapping[int, np.ndarray]) -> None:
        """Writes, of some partitions, how often each reads the nodes that it owns."""
        for idx, hotness in own.items():
            self.array(layout.node_hotness(idx, node_type), hotness)

    def cache(self, partition_idx: int, nodes: NodeInput, ids: np.ndarray, new_id: np.ndarray | None) -> None:
        """Writes a partition's copies of rows of nodes that others own; arguments as of :meth:`cache_ids`."""
        ids = self.cache_ids(partition_idx, nodes, ids, new_id)
        for path_of, table in cache_tables(nodes):
            writer = self.cache_writer(partition_idx, path_of, table, ids.size)
            for begin in range(0, ids.size, self._chunk_size):
                self.advance(writer.write(table.array[ids[begin : begin + self._chunk_size]]))
            self.close([writer])

    def cache_ids(self, partition_idx: int, nodes: NodeInput, ids: np.ndarray, new_id: np.ndarray | None) -> np.ndarray:
        """Writes which nodes the cache of a partition holds, and their times.

        Args:
            partition_idx: The partition.
            nodes: The nodes of one type, with features; ``time`` of all nodes.
            ids: Which of them, ascending.
            new_id: What each node is called where nodes are relabelled, else None.

        Returns:
            The ids in the order of the rows that the cache has.
        """
        path_of = partial(layout.cache, partition_idx, nodes.node_type)
        if new_id is None:
            self.array(path_of("ids"), ids)
        else:
            new_ids = new_id[ids].astype(np.int64)
            order = np.argsort(new_ids)
            ids = ids[order]
            self.array(path_of("ids"), new_ids[order])
        if nodes.time is not None:
            self.array(path_of("time"), nodes.time[ids].astype(np.int64, copy=False))
        return ids

    def cache_writer(self, partition_idx: int, path_of: Callable[[int], str], rows: Rows, num_rows: int) -> NpyWriter:
        """Begins a table of the cache of a partition."""
        return self.writer(path_of(partition_idx), rows.array.dtype, (num_rows, *rows.row_shape), rows.torch_dtype)

    def edge_rows(
        self, edges: EdgeInput, tables: Sequence[Table], book: Book, counts: Sequence[int], with_book: bool = True
    ) -> None:
        """Writes each partition's rows of edges by ascending edge id, with the edge book and the row of each edge.

        Args:
            edges: The edges of one type.
            tables: One row per edge, and the path of each partition's rows.
            book: Owners of the nodes at the expanded ends.
            counts: Number of edges of each partition.
            with_book: Whether to write the edge book and the rows: not where edges are relabelled.
        """
        where = self.edge_books(edges.edge_type, book.owner.dtype, counts) if with_book else ()
        books = where
        for path_of, rows in tables:
            writers = self.row_writers(path_of, rows, counts)
            files = _rows(writers)
            self._scatter(files, self._pieces(rows.array), book.owner, edges.row_ids, self._chunk_size, *where)
            self.close(writers)
            where = ()  # all tables have the same
        self.close(books)

    def edge_books(self, edge_type: EdgeType, owner_dtype: np.dtype, counts: Sequence[int]) -> tuple[NpyWriter, ...]:
        """Begins the edge book and the file of the row of each edge, given the number of edges of each partition."""
        if max(counts) > np.iinfo(np.uint32).max:
            raise ValueError(
                f"edge_feat: a partition owns {max(counts)} edges of type {edge_type}, but their rows are "
                "numbered in 32 bits: use more partitions, or relabel=True"
            )
        shape = (sum(counts),)
        return (
            self.writer(layout.edge_book(edge_type), owner_dtype, shape),
            self.writer(layout.edge_row(edge_type), np.dtype(np.uint32), shape),
        )

    def owned(self, path: str, dtype: np.dtype, book: Book) -> None:
        """Writes which nodes each partition owns: those of partition 0, ascending, then those of partition 1, ..."""
        num_nodes = book.owner.size
        file = self.writer(path, dtype, (num_nodes,))
        block, header_bytes = file.rows
        files = [(block, header_bytes + dtype.itemsize * begin) for begin in book.offset[:-1].tolist()]
        pieces = (
            np.arange(begin, min(begin + CHUNK_IDS, num_nodes), dtype=dtype) for begin in range(0, num_nodes, CHUNK_IDS)
        )
        self._scatter(files, pieces, book.owner, None, CHUNK_IDS)
        self.close([file])

    def array(self, path: str, array: np.ndarray, dtype: np.dtype | None = None) -> None:
        """Writes one array as it is, or as a dtype that holds its numbers too."""
        dtype = array.dtype if dtype is None else dtype
        writer = self.writer(path, dtype, array.shape)
        for _, piece in chunks(array):
            self.advance(writer.write(piece.astype(dtype, copy=False)))
        self.close([writer])

    def writer(self, path: str, dtype: np.dtype, shape: tuple[int, ...], torch_dtype: str | None = None) -> NpyWriter:
        """Begins a file, to be handed to :meth:`close`."""
        return NpyWriter(self.root / path, dtype, shape, torch_dtype)

    def row_writers(self, path_of: Callable[[int], str], rows: Rows, counts: Sequence[int]) -> list[NpyWriter]:
        """Begins a table in each of ``parts``, given the number of rows of each partition."""
        return [
            self.writer(path_of(idx), rows.array.dtype, (counts[idx], *rows.row_shape), rows.torch_dtype)
            for idx in self.parts
        ]

    def close(self, writers: Sequence[NpyWriter]) -> None:
        """Notes files that are complete."""
        for writer in writers:
            self.files[writer.path.relative_to(self.root).as_posix()] = writer.close()

    def _pieces(self, table: np.ndarray) -> Iterator[np.ndarray]:
        """Yields the table in pieces that native code can read: whole, unless its rows have gaps inside."""
        if table.size == 0:  # rows without elements: any table of that length
            yield np.empty((len(table), 0), np.uint8)
        elif table[:1].flags.c_contiguous:
            yield table
        else:
            step = self._chunk_size * self.num_threads
            for begin in range(0, len(table), step):
                yield np.ascontiguousarray(table[begin : begin + step])

    def _scatter(
        self,
        files: Sequence[_core.RowFile],
        pieces: Iterator[np.ndarray],
        owner: np.ndarray,
        ids: np.ndarray | None,
        chunk_rows: int,
        owners: NpyWriter | None = None,
        places: NpyWriter | None = None,
    ) -> None:
        filled = np.zeros(len(files), np.int64)
        begin = 0
        for piece in pieces:
            end = begin + len(piece)
            _core.scatter_rows(
                piece,
                owner,
                None if ids is None else ids[begin:end],
                begin,
                files,
                filled,
                owner_file=None if owners is None else owners.rows,
                place_file=None if places is None else places.rows,
                chunk_rows=chunk_rows,
                num_threads=self.num_threads,
                progress=self.advance,
            )
            begin = end


def _rows(writers: Sequence[NpyWriter]) -> list[_core.RowFile]:
    return [writer.rows for writer in writers]


# Writes the rows of one edge type, of all partitions, by an external sort.


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
                edges.num_edges,
                edges.num_ids,
                weight_bytes,
                edges.has_time,
                indices.itemsize,
                edge_ids.itemsize,
                thread_bytes,
            )
        )


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
        edges.row_ids,
        edges.col_ids,
        position,
        book.owner,
        neighbor_book.owner,
        book.num_parts,
        indptr,
        num_threads=writer.num_threads,
        progress=writer.advance,
    )
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
            edges.row_ids,
            edges.col_ids,
            edges.weight,
            time,
            edges.time is None,
            num_neighbors,
            position,
            book.offset[[*writer.parts, -1]].tolist(),
            indptr,
            [[file.rows for file in array] for array in files],
            id_dtype(num_neighbors).itemsize,
            id_dtype(edges.num_ids).itemsize,
            scratch,
            thread_bytes,
            num_threads=writer.num_threads,
            progress=writer.advance,
            neighbor_id=neighbor_id,
            edge_id=edge_id,
            num_ids=edges.num_ids,
        )
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


CHUNK_EDGES = 1 << 18  # that each thread numbers at a time: 5 MiB at most, less than it has to sort them


def relabel_nodes(writer: PartitionWriter, node_type: NodeType, book: Book) -> None:
    """Writes the maps between the input's ids of a node type and the new ones, which are partition-major and in the
    order of the input inside a partition: rows of tables are the same with and without them.
    """
    dtype = id_dtype(book.owner.size)
    writer.owned(layout.node_map(node_type), dtype, book)
    writer.array(layout.node_map_inverse(node_type), book.position(), dtype)


def relabel_edges(writer: PartitionWriter, edges: EdgeInput, book: Book, counts: Sequence[int]) -> np.ndarray:
    """Writes the maps of an edge type, given the number of edges of each partition; returns the new id of each,
    mapped."""
    dtype = id_dtype(edges.num_edges)
    paths = layout.edge_map(edges.edge_type), layout.edge_map_inverse(edges.edge_type)
    original, new = (writer.writer(path, dtype, (edges.num_edges,)) for path in paths)
    offset = np.concatenate([[0], np.cumsum(counts)])
    _core.number_edges(
        edges.row_ids,
        book.owner,
        offset,
        original.rows,
        new.rows,
        dtype.itemsize,
        CHUNK_EDGES,
        num_threads=writer.num_threads,
        progress=writer.advance,
    )
    writer.close([original, new])
    return map_npy(new.path, mode="r")


# What the manifest says of the types of a graph.


def node_entry(
    nodes: NodeInput, book: Book, balanced_labels: tuple[LabelEntry, ...], reads: ReadForecast | None, relabelled: bool
) -> NodeTypeEntry:
    """Returns the manifest's entry of a node type."""
    return NodeTypeEntry(
        node_type=nodes.node_type,
        num_nodes=nodes.num_nodes,
        part_num_nodes=book.counts,
        balance_ratio=balance_ratio(book.counts),
        feat=_feature(nodes.feat),
        label=_feature(nodes.label),
        has_time=nodes.time is not None,
        attrs=_features(nodes.attrs),
        balanced_labels=balanced_labels,
        offsets=_offsets(book.counts) if relabelled else None,
        forecast=reads,
    )


def edge_entry(
    edges: EdgeInput, neighbors: NodeInput, part_num_edges: tuple[int, ...], num_cut_edges: int, relabelled: bool
) -> EdgeTypeEntry:
    """Returns the manifest's entry of an edge type; ``neighbors`` are the nodes at the ends that do not own the
    edges."""
    num_edges = sum(part_num_edges)
    edge_cut_ratio = num_cut_edges / max(num_edges, 1)
    feat = neighbors.feat
    row_bytes = 0 if feat is None else feat.array.itemsize * math.prod(feat.row_shape)
    return EdgeTypeEntry(
        edge_type=edges.edge_type,
        num_edges=num_edges,
        part_num_edges=part_num_edges,
        balance_ratio=balance_ratio(part_num_edges),
        num_cut_edges=num_cut_edges,
        edge_cut_ratio=edge_cut_ratio,
        remote_bytes_per_edge=edge_cut_ratio * row_bytes,
        feat=_feature(edges.feat),
        has_weight=edges.weight is not None,
        has_time=edges.has_time,
        attrs=_features(edges.attrs),
        offsets=_offsets(part_num_edges) if relabelled else None,
    )


def _feature(rows: Rows | None) -> FeatureEntry | None:
    return None if rows is None else FeatureEntry.of(rows)


def _features(attrs: Mapping[str, Rows]) -> dict[str, FeatureEntry]:
    return {name: FeatureEntry.of(rows) for name, rows in attrs.items()}


def _offsets(counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(counts, initial=0))
