"""Writes the files of a partition directory, streaming: no table of rows is ever held whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from glt import _core
from glt.data.arrays import map_npy
from glt.data.keys import KeyMap
from glt.data.packing import PackingError
from glt.data.schema import EdgeType, NodeType
from glt.partition.format import layout
from glt.partition.format.book import Book, id_dtype
from glt.partition.format.files import FileEntry, NpyWriter, scratch_file
from glt.partition.format.manifest import (
    EdgeLabelEntry,
    EdgeTypeEntry,
    FeatureEntry,
    LabelEntry,
    NodeTypeEntry,
    ReadForecast,
    balance_ratio,
)
from glt.partition.format.rows import CHUNK_IDS, PackedRows, Rows, chunks
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.methods.hotness import CachePlan

Table = tuple[Callable[[int], str], Rows]  # and the path of each partition's rows of it


def node_tables(nodes: NodeInput, cached: bool = False) -> list[Table]:
    """Returns the tables of the nodes of one type, and where they go, or where caches have their rows."""
    tables: list[Table] = []
    time = None if nodes.time is None else Rows(nodes.time.astype(np.int64, copy=False), "int64")
    for name, rows in (("feat", nodes.feat), ("label", nodes.label), ("time", time)):
        if rows is not None:
            kind, array = ("cache", name) if cached else (f"node_{name}", "")
            tables.append((partial(layout.in_part, kind=kind, type_=nodes.node_type, array=array), rows))
    attr = partial(layout.attr, kind="cache" if cached else "node_attr", type_=nodes.node_type)
    return tables + [(partial(attr, name=name), rows) for name, rows in nodes.attrs.items()]


def edge_tables(edges: EdgeInput) -> list[Table]:
    """Returns the tables of the edges of one type and where they go."""
    feat = partial(layout.in_part, kind="edge_feat", type_=edges.edge_type)
    attr = partial(layout.attr, kind="edge_attr", type_=edges.edge_type)
    tables: list[Table] = [] if edges.feat is None else [(feat, edges.feat)]
    return tables + [(partial(attr, name=name), rows) for name, rows in edges.attrs.items()]


class PartitionWriter:
    """Writes books and rows of ``parts`` under ``root``, an empty directory, and collects the manifest's entry of each
    file.

    Rows are read front to back, whatever partition they go to, so that a mapped table is read from disk once. Each
    thread copies ``chunk_size`` feature rows at a time, and sorts edges in ``thread_bytes``. With ``relabel``, maps of
    ids stand in for the books. ``advance`` is called with the number of bytes after each piece of work.
    """

    def __init__(
        self,
        root: Path,
        parts: Sequence[int],
        advance: Callable[[int], object],
        *,
        chunk_size: int,
        num_threads: int,
        thread_bytes: int,
        relabel: bool,
    ) -> None:
        self.root = root
        self.parts = parts
        self.relabel = relabel
        self.thread_bytes = thread_bytes
        self.files: dict[str, FileEntry] = {}
        self.advance = advance
        self.threads: dict[str, Any] = {"num_threads": num_threads, "progress": advance}
        self.chunk_size = chunk_size
        for idx in parts:  # one that owns nothing has a directory too
            (root / layout.part(idx)).mkdir()

    def nodes(self, node_type: NodeType, book: Book) -> None:
        """Writes the node book, the row of each node, and the ids of each partition; to relabel, the maps between the
        input's ids and the new ones, which are partition-major and in the order of the input inside a partition: rows
        of tables are the same with and without them.
        """
        pieces = (np.arange(begin, begin + owner.size) for begin, owner in chunks(book.owner))
        if self.relabel:
            dtype = id_dtype(book.owner.size)
            original = self.writer(layout.shared("node_map", node_type), dtype, book.owner.shape)
            block, header_bytes = original.rows
            files = [(block, header_bytes + dtype.itemsize * begin) for begin in book.offset[:-1].tolist()]
            self._scatter(files, (ids.astype(dtype) for ids in pieces), book.owner, None, CHUNK_IDS)
            self.close([original])
            self.array(layout.shared("node_map_inverse", node_type), book.position(), dtype)
            return
        self.array(layout.shared("node_book", node_type), book.owner)
        place = self.writer(layout.shared("node_row", node_type), np.dtype(np.uint32), book.owner.shape)
        rows = Rows(np.empty(0, np.int64), "int64")
        ids = self.row_writers(partial(layout.in_part, kind="node_ids", type_=node_type), rows, book.counts)
        self._scatter(_rows(ids), pieces, book.owner, None, CHUNK_IDS, places=place)
        self.close([place, *ids])

    def write_nodes(self, at: int, nodes: NodeInput, book: Book) -> None:
        """Writes all nodes of a type, the one at position ``at``."""
        self.nodes(nodes.node_type, book)
        for path_of, rows in node_tables(nodes):
            writers = self.row_writers(path_of, rows, book.counts)
            self._scatter(_rows(writers), self._pieces(rows.array), book.owner, None, self.chunk_size)
            self.close(writers)

    def table_entry(self, rows: Rows) -> FeatureEntry:
        """Returns the manifest's entry of a table that is written."""
        if isinstance(rows.array, PackedRows):
            return FeatureEntry.of(rows, PackingError.of_sums(*self.packing_sums(rows.array)))
        return FeatureEntry.of(rows, None)

    def packing_sums(self, packed: PackedRows) -> list[tuple[float, float, float]]:
        """Returns what is known of the errors of a table, by who has packed some of it."""
        return [packed.packer.sums]

    def write_keys(self, node_type: NodeType, keys: KeyMap, book: Book) -> None:
        """Writes the keys of all nodes of a type; where nodes have new ids, by these."""
        if not self.relabel:
            self._copy_keys(node_type, keys)
            return
        original = np.argsort(book.position(), kind="stable")

        def batches() -> Iterator[list[Any]]:
            for begin in range(0, len(original), CHUNK_IDS):
                found = keys.raw(original[begin : begin + CHUNK_IDS])
                yield list(found) if isinstance(found, tuple) else [found]

        with TemporaryDirectory(dir=self.root, prefix=".keys-") as folder:
            self._copy_keys(node_type, KeyMap.write(folder, keys.columns, batches))

    def _copy_keys(self, node_type: NodeType, keys: KeyMap) -> None:
        for name, array in keys.arrays().items():
            self.array(f"{layout.keys(node_type)}/{name}.npy", array)

    def write_caches(self, at: int, nodes: NodeInput, book: Book, plan: CachePlan) -> None:
        """Writes the caches of nodes of a type, and how often partitions read the nodes that they own."""
        tables = [rows.array for _, rows in node_tables(nodes)]
        self.caches(nodes, book, plan, lambda ids: [table[ids] for table in tables], self.chunk_size)

    def caches(
        self,
        nodes: NodeInput,
        book: Book,
        plan: CachePlan,
        fetch: Callable[[np.ndarray], Sequence[np.ndarray]],
        step: int,
    ) -> None:
        """As :meth:`write_caches`; ``fetch``, called with the ids of ``step`` nodes at a time, returns their rows of
        each of :func:`node_tables`."""
        for idx, numbers in plan.own.items():
            self.array(layout.in_part(idx, "node_hotness", nodes.node_type), numbers)
        tables = node_tables(nodes, cached=True)
        new_id = book.position() if self.relabel and plan.cached else None
        for idx, ids in plan.cached.items():
            new_ids = ids if new_id is None else new_id[ids].astype(np.int64)
            order = np.argsort(new_ids)
            self.array(layout.in_part(idx, "cache", nodes.node_type, "ids"), new_ids[order])
            writers = [self._row_writer(path_of(idx), rows, ids.size) for path_of, rows in tables]
            for begin in range(0, ids.size, step):
                for writer, found in zip(writers, fetch(ids[order[begin : begin + step]]), strict=True):
                    self.advance(writer.write(found))
            self.close(writers)

    def write_edges(self, at: int, edges: EdgeInput, books: Sequence[Book]) -> tuple[tuple[int, ...], int]:
        """Writes all edges of a type, the one at position ``at``: rows by ascending edge id, with the edge book and the
        row of each edge, unless edges are relabelled. Returns what :func:`write_graph` does.
        """
        counts, num_cut_edges = write_graph(self, edges, books)
        owner, tables = books[edges.expanded].owner, edge_tables(edges)
        files = where = self.edge_books(edges.edge_type, owner.dtype, counts) if tables and not self.relabel else ()
        for path_of, rows in tables:
            writers = self.row_writers(path_of, rows, counts)
            self._scatter(_rows(writers), self._pieces(rows.array), owner, edges.row_ids, self.chunk_size, *where)
            self.close(writers)
            where = ()  # all tables have the same
        self.close(files)
        return counts, num_cut_edges

    def edge_books(self, edge_type: EdgeType, owner_dtype: np.dtype, counts: Sequence[int]) -> tuple[NpyWriter, ...]:
        """Begins the edge book and the file of the row of each edge, given the number of edges of each partition."""
        if max(counts) > np.iinfo(np.uint32).max:
            raise ValueError(
                f"edge_feat: a partition owns {max(counts)} edges of type {edge_type}, but their rows are "
                "numbered in 32 bits: use more partitions, or relabel=True"
            )
        shape = (sum(counts),)
        return (
            self.writer(layout.shared("edge_book", edge_type), owner_dtype, shape),
            self.writer(layout.shared("edge_row", edge_type), np.dtype(np.uint32), shape),
        )

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
        return [self._row_writer(path_of(idx), rows, counts[idx]) for idx in self.parts]

    def _row_writer(self, path: str, rows: Rows, num_rows: int) -> NpyWriter:
        return self.writer(path, rows.array.dtype, (num_rows, *rows.row_shape), rows.torch_dtype)

    def entries(self) -> dict[str, FileEntry]:
        """Returns the entries of all files of the directory."""
        return self.files

    def close(self, writers: Sequence[NpyWriter]) -> None:
        """Notes files that are complete."""
        for writer in writers:
            self.files[writer.path.relative_to(self.root).as_posix()] = writer.close()

    def _pieces(self, table: np.ndarray | PackedRows) -> Iterator[np.ndarray]:
        """Yields the table in pieces that native code can read: whole, unless its rows are packed now or have gaps
        inside."""
        if isinstance(table, PackedRows):
            num_threads = self.threads["num_threads"]
            step = self.chunk_size * num_threads
            for begin in range(0, len(table), step):
                yield table.packed(begin, min(begin + step, len(table)), num_threads)
        elif table.size == 0:  # rows without elements: any table of that length
            yield np.empty((len(table), 0), np.uint8)
        elif table[:1].flags.c_contiguous:
            yield table
        else:
            step = self.chunk_size * self.threads["num_threads"]
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
        filled, begin = np.zeros(len(files), np.int64), 0
        options: dict[str, Any] = {"chunk_rows": chunk_rows, **self.threads}
        options["owner_file"] = None if owners is None else owners.rows
        options["place_file"] = None if places is None else places.rows
        for piece in pieces:
            end = begin + len(piece)
            _core.scatter_rows(piece, owner, None if ids is None else ids[begin:end], begin, files, filled, **options)
            begin = end


def _rows(writers: Sequence[NpyWriter]) -> list[_core.RowFile]:
    return [writer.rows for writer in writers]


# Writes the rows of one edge type, of all partitions, by an external sort.


CHUNK_ROWS = 1 << 20  # of indptr, looked at together


@dataclass(frozen=True)
class SortMemory:
    """What sorting the edges of one type takes, see ``csrc/core/edge_sort.h``: memory of each thread (more than asked
    for where scratch files exceed 275 GB), the scratch file (0 where all edges fit into memory), and the edges that are
    sorted in memory together.
    """

    thread_bytes: int
    scratch_bytes: int
    bucket_edges: int

    @classmethod
    def of(cls, edges: EdgeInput, num_neighbors: int, thread_bytes: int) -> SortMemory:
        weight_bytes = 0 if edges.weight is None else edges.weight.itemsize
        ids = (id_dtype(num_neighbors).itemsize, id_dtype(edges.num_ids).itemsize)
        counts = (edges.num_edges, edges.num_ids)
        return cls(*_core.edge_sort_plan(*counts, weight_bytes, edges.has_time, *ids, thread_bytes))


def write_graph(writer: PartitionWriter, edges: EdgeInput, books: Sequence[Book]) -> tuple[tuple[int, ...], int]:
    """Writes the rows, columns and edge ids of ``writer.parts``, which own all edges, with weights and times; returns
    the number of edges of each partition, and how many edges have ends of different owners.

    Edges are read twice, front to back: once to count those of each row, once to sort them; to relabel, once more.
    Memory is 12 bytes per node at the expanded end, and ``thread_bytes`` for each thread. The book of the expanded end
    may have the nodes of ``writer.parts`` alone. To relabel, ``edges`` have their new ids already, or get them here;
    neighbours then have theirs too, which takes 4 bytes for each node at the other end.
    """
    book, neighbor_book = books[edges.expanded], books[edges.neighbor]
    num_neighbors = neighbor_book.owner.size
    ends, owners = (edges.row_ids, edges.col_ids), (book.owner, neighbor_book.owner)
    position = book.position()
    indptr = np.empty(book.owner.size + 1, np.int64)
    num_cut_edges = _core.count_rows(*ends, position, *owners, book.num_parts, indptr, **writer.threads)
    counts = tuple(np.diff(indptr[book.offset]).tolist())
    _write_indptr(writer, edges, book, indptr)
    files = _files(writer, edges, book, num_neighbors, counts)
    memory = SortMemory.of(edges, num_neighbors, writer.thread_bytes)
    edge_id, neighbor_id = edges.edge_ids, None
    if writer.relabel:
        edge_id = _relabel_edges(writer, edges, book, counts) if edge_id is None else edge_id
        neighbor_id = position if neighbor_book is book else neighbor_book.position()
    options = {"edge_id": edge_id, "neighbor_id": neighbor_id, "num_ids": edges.num_ids, **writer.threads}
    time = edges.time if edges.time is not None else edges.neighbor_time
    given = (*ends, edges.weight, time, edges.time is None, num_neighbors)
    rows = (position, book.offset[[*writer.parts, -1]].tolist(), indptr)
    into = [[file.rows for file in array] for array in files]
    id_bytes = (id_dtype(num_neighbors).itemsize, id_dtype(edges.num_ids).itemsize)
    with scratch_file(writer.root, memory.scratch_bytes) as scratch:
        _core.sort_edges(*given, *rows, into, *id_bytes, scratch, writer.thread_bytes, **options)
    for array in files:
        writer.close(array)
    return counts, num_cut_edges


def _write_indptr(writer: PartitionWriter, edges: EdgeInput, book: Book, indptr: np.ndarray) -> None:
    for idx in writer.parts:
        file = writer.writer(
            layout.in_part(idx, "graph", edges.edge_type, "indptr"), indptr.dtype, (book.counts[idx] + 1,)
        )
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
            writer.writer(layout.in_part(idx, "graph", edges.edge_type, name), dtype, (size(name, idx),))
            for idx in (writer.parts if wanted else ())
        ]
        for name, dtype, wanted in arrays
    ]


CHUNK_EDGES = 1 << 18  # that each thread numbers at a time: 5 MiB at most, less than it has to sort them


def _relabel_edges(writer: PartitionWriter, edges: EdgeInput, book: Book, counts: Sequence[int]) -> np.ndarray:
    """Writes the maps of an edge type, given the number of edges of each partition; returns the new id of each,
    mapped."""
    dtype = id_dtype(edges.num_edges)
    paths = (layout.shared(kind, edges.edge_type) for kind in ("edge_map", "edge_map_inverse"))
    original, new = (writer.writer(path, dtype, (edges.num_edges,)) for path in paths)
    offset = np.concatenate([[0], np.cumsum(counts)])
    files = (original.rows, new.rows)
    _core.number_edges(edges.row_ids, book.owner, offset, *files, dtype.itemsize, CHUNK_EDGES, **writer.threads)
    writer.close([original, new])
    return map_npy(new.path, mode="r")


# What the manifest says of the types of a graph.


def node_entry(
    nodes: NodeInput,
    book: Book,
    balanced_labels: tuple[LabelEntry, ...],
    reads: ReadForecast | None,
    relabelled: bool,
    keys: dict[str, str] | None,
    entry_of: Callable[[Rows], FeatureEntry],
) -> NodeTypeEntry:
    """Returns the manifest's entry of a node type, given what makes those of its tables."""
    return NodeTypeEntry(
        node_type=nodes.node_type,
        num_nodes=nodes.num_nodes,
        part_num_nodes=book.counts,
        label=None if nodes.label is None else entry_of(nodes.label),
        has_time=nodes.time is not None,
        balanced_labels=balanced_labels,
        forecast=reads,
        keys=keys,
        **_shared(nodes, book.counts, relabelled, entry_of),
    )


def edge_entry(
    edges: EdgeInput,
    neighbors: NodeInput,
    part_num_edges: tuple[int, ...],
    num_cut_edges: int,
    balanced_labels: tuple[EdgeLabelEntry, ...],
    relabelled: bool,
    entry_of: Callable[[Rows], FeatureEntry],
) -> EdgeTypeEntry:
    """As :func:`node_entry`; ``neighbors`` are the nodes at the ends that do not own the edges."""
    num_edges = sum(part_num_edges)
    edge_cut_ratio = num_cut_edges / max(num_edges, 1)
    return EdgeTypeEntry(
        edge_type=edges.edge_type,
        num_edges=num_edges,
        part_num_edges=part_num_edges,
        num_cut_edges=num_cut_edges,
        edge_cut_ratio=edge_cut_ratio,
        remote_bytes_per_edge=edge_cut_ratio * (0 if neighbors.feat is None else neighbors.feat.row_bytes),
        has_weight=edges.weight is not None,
        has_time=edges.has_time,
        balanced_labels=balanced_labels,
        **_shared(edges, part_num_edges, relabelled, entry_of),
    )


def _shared(
    of: NodeInput | EdgeInput,
    counts: tuple[int, ...],
    relabelled: bool,
    entry_of: Callable[[Rows], FeatureEntry],
) -> dict[str, Any]:
    """What the entries of nodes and of edges both say."""
    return {
        "balance_ratio": balance_ratio(counts),
        "feat": None if of.feat is None else entry_of(of.feat),
        "attrs": {name: entry_of(rows) for name, rows in of.attrs.items()},
        "offsets": tuple(accumulate(counts, initial=0)) if relabelled else None,
    }
