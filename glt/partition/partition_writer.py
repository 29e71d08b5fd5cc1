"""Writes the files of a partition directory, streaming: no table of rows is ever held whole."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from glt import _core
from glt.errors import PartitionError
from glt.partition import layout
from glt.partition.arguments import CHUNK_IDS
from glt.partition.book import Book, group_by_owner, id_dtype
from glt.partition.layout import EdgeType, NodeType
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

    def graph(self, edge_type: EdgeType, row_ids: np.ndarray, col_ids: np.ndarray, book: Book) -> tuple[int, ...]:
        """Writes each partition's rows, columns and edge ids; returns its number of edges.

        One counting sort puts the edges of all partitions, one partition after the other, into a scratch file.

        Args:
            edge_type: Where to write.
            row_ids: ``[num_edges]`` node ids that own their edges.
            col_ids: ``[num_edges]`` ids of the other ends.
            book: Owners of the nodes.
        """
        num_nodes, num_edges = book.owner.size, row_ids.size
        indptr = np.empty(num_nodes + 1, np.int64)
        indices = scratch_array(self.root, num_edges, id_dtype(num_nodes))
        edge_ids = scratch_array(self.root, num_edges, id_dtype(num_edges))
        _core.build_csr(row_ids, col_ids, num_nodes, num_nodes, indptr, indices, edge_ids, row_of=book.position())
        counts = []
        for idx in range(book.num_parts):
            rows = indptr[book.offset[idx] : book.offset[idx + 1] + 1]
            begin, end = rows[0], rows[-1]
            self._whole(layout.graph(idx, edge_type, "indptr"), rows - begin)
            self._whole(layout.graph(idx, edge_type, "indices"), indices[begin:end])
            self._whole(layout.graph(idx, edge_type, "edge_ids"), edge_ids[begin:end])
            counts.append(int(end - begin))
        return tuple(counts)

    def edge_rows(
        self, edge_type: EdgeType, row_ids: np.ndarray, rows: Rows, book: Book, counts: tuple[int, ...]
    ) -> None:
        """Writes each partition's edge features by ascending edge id, with the edge book and the row of each edge.

        Args:
            edge_type: Where to write.
            row_ids: ``[num_edges]`` node ids that own their edges.
            rows: One row per edge.
            book: Owners of the nodes.
            counts: Number of edges of each partition.
        """
        num_edges = row_ids.size
        if max(counts) > np.iinfo(np.uint32).max:
            raise ValueError(
                f"edge_feat: a partition owns {max(counts)} edges, but rows of edge features are numbered in 32 bits: "
                "use more partitions"
            )
        owners = self._writer(layout.edge_book(edge_type), book.owner.dtype, (num_edges,))
        places = self._writer(layout.edge_row(edge_type), np.dtype(np.uint32), (num_edges,))
        writers = self._row_writers(lambda idx: layout.edge_feat(idx, edge_type), rows, counts)
        filled = np.zeros(book.num_parts, np.int64)
        for begin in range(0, num_edges, self._chunk_size):
            owner = book.owner[row_ids[begin : begin + self._chunk_size]]
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

    def _whole(self, path: str, array: np.ndarray) -> None:
        writer = self._writer(path, array.dtype, array.shape)
        for begin in range(0, array.size, CHUNK_IDS):
            self._advance(writer.write(array[begin : begin + CHUNK_IDS]))
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


def count_cut_edges(edge_index: np.ndarray, owner: np.ndarray) -> int:
    """Counts the edges of ``edge_index [2, num_edges]`` whose ends have different owners."""
    num_cut_edges = 0
    for begin in range(0, edge_index.shape[1], CHUNK_IDS):
        src, dst = edge_index[:, begin : begin + CHUNK_IDS]
        num_cut_edges += int(np.count_nonzero(owner[src] != owner[dst]))
    return num_cut_edges
