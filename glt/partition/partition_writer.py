"""Writes the files of a partition directory, streaming: no table of rows is ever held whole."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from glt import _core
from glt.data.schema import NodeType
from glt.errors import PartitionError
from glt.partition import layout
from glt.partition.arguments import CHUNK_IDS, chunks
from glt.partition.book import Book, group_by_owner, id_dtype
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.npy_file import FileEntry, NpyWriter, scratch_array
from glt.partition.rows import Rows


def require_free(target: Path) -> None:
    """Raises PartitionError unless ``target`` does not exist or is an empty directory that a rename can replace."""
    if os.path.ismount(target):
        raise PartitionError(
            f"output_dir {target} is a mount point, which cannot be replaced by the finished directory: "
            f"choose one inside it, such as {target / 'partitions'}"
        )
    if target.is_dir():
        found = next(target.iterdir(), None)
        if found is not None:
            raise PartitionError(
                f"output_dir {target} is not empty (it holds {found.name!r}): expected a new or empty directory; "
                "delete it or choose another"
            )
    elif target.exists():
        raise PartitionError(f"output_dir {target} is a file: expected a new or empty directory; choose another")


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """Yields a temporary directory beside ``target`` that becomes ``target`` in one rename, or vanishes on an error."""
    require_free(target)
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        require_free(target)
        temporary.rename(target)  # atomic; fails if somebody has filled the target since
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)  # the first error is the one to report
        raise


class PartitionWriter:
    """Writes books, graphs and features under ``root`` and collects the manifest's entry of each file.

    Args:
        root: An empty directory.
        chunk_size: Feature rows copied at a time.
        advance: Called with the number of bytes after each piece written.
    """

    def __init__(self, root: Path, chunk_size: int, advance: Callable[[int], object]) -> None:
        self.root = root
        self.files: dict[str, FileEntry] = {}
        self._chunk_size = chunk_size
        self._advance = advance

    def nodes(self, node_type: NodeType, book: Book) -> None:
        """Writes the node book, the row of each node, and the ids of each partition."""
        self._whole(layout.node_book(node_type), book.owner)
        self._whole(layout.node_row(node_type), book.row())
        for idx in range(book.num_parts):
            self._whole(layout.node_ids(idx, node_type), book.ids(idx))

    def node_rows(self, path_of: Callable[[int], str], rows: Rows, book: Book) -> None:
        """Writes each partition's rows of a table that has one row per node."""
        writers = self._row_writers(path_of, rows, book.counts)
        for begin in range(0, book.owner.size, self._chunk_size):
            self._scatter(writers, rows.array, begin, book.owner[begin : begin + self._chunk_size])
        self._close(writers)

    def node_times(self, node_type: NodeType, time: np.ndarray, book: Book) -> None:
        """Writes the times of each partition's nodes."""
        for idx in range(book.num_parts):
            writer = self._writer(layout.node_time(idx, node_type), np.dtype(np.int64), (book.counts[idx],))
            for _, ids in chunks(book.ids(idx)):
                self._advance(writer.write(time[ids].astype(np.int64, copy=False)))
            self._close([writer])

    def cache(self, partition_idx: int, nodes: NodeInput, ids: np.ndarray) -> None:
        """Writes a partition's copies of rows of nodes that others own.

        Args:
            partition_idx: The partition.
            nodes: The nodes of one type, with features.
            ids: Which of them, ascending.
        """
        path_of = partial(layout.cache, partition_idx, nodes.node_type)
        self._whole(path_of("ids"), ids)
        for name, rows in (("feat", nodes.feat), ("label", nodes.label)):
            if rows is not None:
                shape = (ids.size, *rows.row_shape)
                writer = self._writer(path_of(name), rows.array.dtype, shape, rows.torch_dtype)
                for begin in range(0, ids.size, self._chunk_size):
                    self._advance(writer.write(rows.array[ids[begin : begin + self._chunk_size]]))
                self._close([writer])
        if nodes.time is not None:
            self._whole(path_of("time"), nodes.time[ids].astype(np.int64, copy=False))

    def graph(self, edges: EdgeInput, books: Sequence[Book]) -> tuple[int, ...]:
        """Writes each partition's rows, columns and edge ids, and with them weights and times; returns its number of
        edges.

        One counting sort puts the edges of all partitions, one partition after the other, into a scratch file.

        Args:
            edges: The edges of one type.
            books: Of all node types.
        """
        book, num_neighbors = books[edges.expanded], books[edges.neighbor].owner.size
        indptr = np.empty(book.owner.size + 1, np.int64)
        indices = scratch_array(self.root, edges.num_edges, id_dtype(num_neighbors))
        edge_ids = scratch_array(self.root, edges.num_edges, id_dtype(edges.num_edges))
        _core.build_csr(
            edges.row_ids, edges.col_ids, book.owner.size, num_neighbors, indptr, indices, edge_ids,
            row_of=book.position(),
        )  # fmt: skip
        counts = []
        for idx in range(book.num_parts):
            rows = indptr[book.offset[idx] : book.offset[idx + 1] + 1]
            part = _Rows(rows - rows[0], indices[rows[0] : rows[-1]], edge_ids[rows[0] : rows[-1]])
            path_of = partial(layout.graph, idx, edges.edge_type)
            self._whole(path_of("indptr"), part.indptr)
            self._whole(path_of("indices"), part.indices)
            self._whole(path_of("edge_ids"), part.edge_ids)
            if edges.weight is not None:
                self._weights(path_of, part, edges.weight)
            if edges.has_time:
                self._by_time(path_of, part, *edges.time_source(part.indices, part.edge_ids))
            counts.append(part.edge_ids.size)
        return tuple(counts)

    def _weights(self, path_of: Callable[[str], str], part: _Rows, weight: np.ndarray) -> None:
        num_rows, num_edges = part.indptr.size - 1, part.edge_ids.size
        in_rows = scratch_array(self.root, num_edges, weight.dtype)
        _gather(weight, part.edge_ids, in_rows)
        weight_sum = scratch_array(self.root, num_edges, np.dtype(np.uint64))
        weight_guide = scratch_array(self.root, _core.weight_guide_size(num_rows, num_edges), np.dtype(np.uint32))
        _core.build_weights(part.indptr, in_rows, weight_sum, weight_guide)
        self._whole(path_of("weight_sum"), weight_sum)
        self._whole(path_of("weight_guide"), weight_guide)

    def _by_time(self, path_of: Callable[[str], str], part: _Rows, table: np.ndarray, at: np.ndarray) -> None:
        time = scratch_array(self.root, at.size, np.dtype(np.int64))
        _gather(table, at, time)
        order = scratch_array(self.root, at.size, np.dtype(np.int64))
        _core.sort_rows_by_time(part.indptr, time, order)
        self._whole(path_of("by_time/indices"), part.indices, order)
        self._whole(path_of("by_time/edge_ids"), part.edge_ids, order)
        self._whole(path_of("by_time/time"), time, order)

    def edge_rows(self, edges: EdgeInput, rows: Rows, book: Book, counts: tuple[int, ...]) -> None:
        """Writes each partition's edge features by ascending edge id, with the edge book and the row of each edge.

        Args:
            edges: The edges of one type.
            rows: One row per edge.
            book: Owners of the nodes at the expanded ends.
            counts: Number of edges of each partition.
        """
        edge_type, num_edges = edges.edge_type, edges.num_edges
        if max(counts) > np.iinfo(np.uint32).max:
            raise ValueError(
                f"edge_feat: a partition owns {max(counts)} edges of type {edge_type}, but rows of edge features are "
                "numbered in 32 bits: use more partitions"
            )
        owners = self._writer(layout.edge_book(edge_type), book.owner.dtype, (num_edges,))
        places = self._writer(layout.edge_row(edge_type), np.dtype(np.uint32), (num_edges,))
        writers = self._row_writers(lambda idx: layout.edge_feat(idx, edge_type), rows, counts)
        filled = np.zeros(book.num_parts, np.int64)
        for begin in range(0, num_edges, self._chunk_size):
            owner = book.owner[edges.row_ids[begin : begin + self._chunk_size]]
            order, offset = self._scatter(writers, rows.array, begin, owner)
            place = np.empty(owner.size, np.uint32)
            place[order] = np.arange(owner.size) + (filled - offset[:-1])[owner[order]]
            filled += np.diff(offset)
            self._advance(owners.write(owner) + places.write(place))
        self._close([owners, places, *writers])

    def _scatter(
        self, writers: list[NpyWriter], table: np.ndarray, begin: int, owner: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        # One sequential read of the table serves all partitions, so that a mapped table is read from disk once.
        order, offset = group_by_owner(owner, len(writers))
        grouped = table[begin : begin + owner.size][order]
        for idx, writer in enumerate(writers):
            if offset[idx] < offset[idx + 1]:
                self._advance(writer.write(grouped[offset[idx] : offset[idx + 1]]))
        return order, offset

    def _whole(self, path: str, array: np.ndarray, order: np.ndarray | None = None) -> None:
        writer = self._writer(path, array.dtype, array.shape)
        for begin in range(0, array.size, CHUNK_IDS):
            at = slice(begin, begin + CHUNK_IDS)
            self._advance(writer.write(array[at] if order is None else array[order[at]]))
        self._close([writer])

    def _row_writers(self, path_of: Callable[[int], str], rows: Rows, counts: tuple[int, ...]) -> list[NpyWriter]:
        return [
            self._writer(path_of(idx), rows.array.dtype, (count, *rows.row_shape), rows.torch_dtype)
            for idx, count in enumerate(counts)
        ]

    def _writer(self, path: str, dtype: np.dtype, shape: tuple[int, ...], torch_dtype: str | None = None) -> NpyWriter:
        return NpyWriter(self.root / path, dtype, shape, torch_dtype)

    def _close(self, writers: list[NpyWriter]) -> None:
        for writer in writers:
            self.files[writer.path.relative_to(self.root).as_posix()] = writer.close()


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one partition: offsets from 0, and of each edge the neighbour and the id."""

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray


def _gather(table: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    for begin in range(0, at.size, CHUNK_IDS):
        out[begin : begin + CHUNK_IDS] = table[at[begin : begin + CHUNK_IDS]]


def count_cut_edges(edges: EdgeInput, books: Sequence[Book]) -> int:
    """Counts the edges whose ends have different owners."""
    row_owner, col_owner = books[edges.expanded].owner, books[edges.neighbor].owner
    num_cut_edges = 0
    for begin in range(0, edges.num_edges, CHUNK_IDS):
        at = slice(begin, begin + CHUNK_IDS)
        num_cut_edges += int(np.count_nonzero(row_owner[edges.row_ids[at]] != col_owner[edges.col_ids[at]]))
    return num_cut_edges
