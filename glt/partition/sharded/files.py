"""What a rank writes: the nodes, edges and caches of its partitions, and as a leader books and maps of ids."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from glt.data.schema import EdgeType, NodeType
from glt.partition.format import layout
from glt.partition.format.book import Book, group_by_owner, id_dtype
from glt.partition.format.files import NpyWriter, chunks, locked_directory, remove_stale, require_free, scratch_array
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.methods.writer import PartitionWriter, Table, cache_tables, edge_tables, node_tables, write_graph
from glt.partition.sharded.exchange import Exchange, Kind, Parts, columns_of, first_rows, scatter_rows


def write_caches(
    exchange: Exchange,
    writer: PartitionWriter,
    nodes: NodeInput,
    num_rows: np.ndarray,
    cached: Mapping[int, np.ndarray],
    new_id: np.ndarray | None,
) -> None:
    """Writes copies of the rows of nodes of one type; a collective of all ranks.

    Args:
        exchange, writer: Of this rank.
        nodes: Tables of the slice of this rank, features among them; ``time`` of all nodes.
        num_rows: ``[world_size]``, rows in the slice of each rank.
        cached: The nodes in the cache of each of this rank's partitions that has one, ascending.
        new_id: What each node is called where nodes are relabelled, else None.
    """
    tables = cache_tables(nodes)
    kinds: list[Kind] = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
    step = exchange.round_rows([(np.dtype(np.int64), ()), *kinds])
    num_rounds = exchange.gather_counts(np.array([sum(-(-ids.size // step) for ids in cached.values())])).max()
    rows = _Rows(exchange, [rows.array for _, rows in tables], kinds, first_rows(num_rows))
    done = 0
    for idx, ids in cached.items():
        ordered = writer.cache_ids(idx, nodes, ids, new_id)
        files = [writer.cache_writer(idx, path_of, table, ids.size) for path_of, table in tables]
        for begin in range(0, ids.size, step):
            for file, column in zip(files, rows.fetch(ordered[begin : begin + step]), strict=True):
                writer.advance(file.write(column))
            done += 1
        writer.close(files)
    for _ in range(done, int(num_rounds)):  # others ask for more
        rows.fetch(np.empty(0, np.int64))


class _Rows:
    """Rows of tables of which every rank has a slice, ``first[r]`` being the first of rank r."""

    def __init__(
        self, exchange: Exchange, tables: Sequence[np.ndarray], kinds: Sequence[Kind], first: np.ndarray
    ) -> None:
        self._exchange = exchange
        self._tables = tables
        self._kinds = kinds
        self._first = first

    def fetch(self, ids: np.ndarray) -> list[np.ndarray]:
        """Returns the rows of these nodes of each table, while others get theirs."""
        source = np.searchsorted(self._first, ids, side="right") - 1
        order = np.argsort(source, kind="stable")
        bounds = np.searchsorted(source[order], np.arange(self._exchange.world_size + 1))
        asked = [order[begin:end] for begin, end in pairwise(bounds.tolist())]
        wanted = self._exchange.all_to_all([[ids[at].astype(np.int64, copy=False)] for at in asked])
        replies = self._exchange.all_to_all([list(self._own(each.view(np.int64))) for each in wanted])
        columns = [np.empty((ids.size, *shape), dtype) for dtype, shape in self._kinds]
        for at, data in zip(asked, replies, strict=True):
            for column, found in zip(columns, columns_of(data, at.size, self._kinds), strict=True):
                column[at] = found
        return columns

    def _own(self, ids: np.ndarray) -> Iterator[np.ndarray]:
        at = ids - self._first[self._exchange.rank]
        return (table[at] for table in self._tables)


class PartTables:
    """Tables of this rank's partitions, whose rows come from all ranks at a time: those of lower ranks come first.

    Args:
        writer: Of this rank's partitions.
        tables: The tables, of which this rank has a slice.
        counts: ``[world_size, num_parts]`` int64, rows that each partition gets from each rank.
    """

    def __init__(self, writer: PartitionWriter, tables: Sequence[Table], counts: np.ndarray) -> None:
        self._writer = writer
        in_part = counts.sum(axis=0).tolist()
        self._files = [writer.row_writers(path_of, rows, in_part) for path_of, rows in tables]
        self._next = begins(counts)[:, list(writer.parts)]

    def put(self, source: int, counts: np.ndarray, columns: Sequence[np.ndarray]) -> None:
        """Writes the next rows of rank ``source``; ``counts`` says how many of each of this rank's partitions."""
        end = np.cumsum(counts)
        for at in np.flatnonzero(counts).tolist():
            mine = slice(end[at] - counts[at], end[at])
            for files, column in zip(self._files, columns, strict=True):
                files[at].put(self._next[source, at], column[mine])
        self._next[source] += counts

    def close(self) -> None:
        """Notes the files, which must be complete."""
        for files in self._files:
            self._writer.close(files)


def begins(counts: np.ndarray) -> np.ndarray:
    """Returns where the rows from each rank begin, ``[world_size, ...]``, given how many there are."""
    return np.cumsum(counts, axis=0) - counts


@dataclass(frozen=True)
class SharedDirectory:
    """The staging directory of a rank; and by rank, who leads: writes what all partitions of its directory share, books
    and manifest.
    """

    root: Path
    leaders: tuple[int, ...]


@contextmanager
def shared_staging(target: Path, exchange: Exchange) -> Iterator[SharedDirectory]:
    """Yields a staging directory that becomes ``target`` in one rename when all ranks are done, or vanishes.

    The leader of a rank is the lowest one whose staging directory lies beside the target of both: no need to know which
    file systems are shared.
    """
    require_free(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    exchange.gather(None)  # before this, a rank might take for stale what another is about to lock
    own, lock = locked_directory(target)
    try:
        names = exchange.gather([target.name, own.name])
        leader = next(
            rank
            for rank, (name, staging) in enumerate(names)
            if rank == exchange.rank or (name == target.name and (target.parent / staging).is_dir())
        )
        leaders = exchange.gather(leader)  # before this, a rank might remove a directory that others look for
        root = target.parent / names[leader][1]
        if leader != exchange.rank:
            own.rmdir()
            joined = _join(root)
            os.close(lock)
            lock = joined
        yield SharedDirectory(root, tuple(leaders))
        exchange.gather(None)
        if leader == exchange.rank:
            require_free(target)
            root.rename(target)
        exchange.gather(None)
    except BaseException as error:
        exchange.fail(error)  # first: the others shall raise this, not that their directory is gone
        shutil.rmtree(own, ignore_errors=True)  # the first error is the one to report
        raise
    finally:
        os.close(lock)


def _join(root: Path) -> int:
    """Keeps the leader's directory from being taken for that of a dead run as long as this rank writes to it."""
    lock = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return lock


class Numbering:
    """Numbers the edges of a slice inside their partitions, those of lower ranks first; ``counts [world_size,
    num_parts]`` are the edges that each partition gets from each rank.
    """

    def __init__(self, counts: np.ndarray, rank: int) -> None:
        self._next = begins(counts)[rank]

    def rows(self, owner: np.ndarray) -> np.ndarray:
        """Returns the rows (int64) of the next edges, given their owners."""
        order, offset = group_by_owner(owner, self._next.size)
        counts = np.diff(offset)
        rows = np.empty(owner.size, np.int64)
        rows[order] = np.arange(owner.size) + np.repeat(self._next - offset[:-1], counts)
        self._next += counts
        return rows


class EdgeBooks:
    """Sends leaders where each edge is, or what it is called, and writes it there.

    Args:
        exchange, writer: Of this rank.
        edge_type: Of the edges.
        owner: Called with a range of the edges of this rank, returns their owners.
        num_edges: ``[world_size]``, edges in the slice of each rank.
        counts: ``[world_size, num_parts]`` int64, edges that each partition gets from each rank.
        leaders: Ranks that write.
    """

    def __init__(
        self,
        exchange: Exchange,
        writer: PartitionWriter,
        edge_type: EdgeType,
        owner: Callable[[int, int], np.ndarray],
        num_edges: np.ndarray,
        counts: np.ndarray,
        leaders: Sequence[int],
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._edge_type = edge_type
        self._owner = owner
        self._num_edges = num_edges
        self._counts = counts
        self._leaders = leaders
        self._is_leader = exchange.rank in leaders

    def write_books(self) -> None:
        """Writes the owner of each edge, and its row there."""
        in_part = self._counts.sum(axis=0).tolist()
        owner_dtype, row_dtype = self._owner(0, 0).dtype, np.dtype(np.uint32)
        files = self._writer.edge_books(self._edge_type, owner_dtype, in_part) if self._is_leader else ()
        numbering = Numbering(self._counts, self._exchange.rank)

        def of_slice(begin: int, end: int) -> list[np.ndarray]:
            owner = self._owner(begin, end)
            return [owner, numbering.rows(owner).astype(row_dtype)]

        for first, columns in self._collect([(owner_dtype, ()), (row_dtype, ())], of_slice):
            for file, column in zip(files, columns, strict=True):
                file.put(first, column)
        self._writer.close(files)

    def write_maps(self) -> None:
        """Writes the maps between the ids of the input and the new ones."""
        num_edges = int(self._num_edges.sum())
        dtype = id_dtype(num_edges)
        paths = (layout.edge_map(self._edge_type), layout.edge_map_inverse(self._edge_type))
        files = [self._writer.writer(path, dtype, (num_edges,)) for path in paths if self._is_leader]
        numbering = Numbering(self._counts, self._exchange.rank)
        offset = new_offset(self._counts)

        def of_slice(begin: int, end: int) -> list[np.ndarray]:
            owner = self._owner(begin, end)
            return [(numbering.rows(owner) + offset[owner]).astype(dtype)]

        for first, (new,) in self._collect([(dtype, ())], of_slice):
            files[1].put(first, new)
            order = np.argsort(new)  # the ids of a partition follow each other, since those of a slice do
            for run in np.split(order, np.flatnonzero(np.diff(new[order]) != 1) + 1):
                files[0].put(int(new[run[0]]), (run + first).astype(dtype))
        self._writer.close(files)

    def _collect(
        self, kinds: Sequence[Kind], of_slice: Callable[[int, int], list[np.ndarray]]
    ) -> Iterator[tuple[int, list[np.ndarray]]]:
        """Yields, on leaders, ids of first edges and columns of them and of those that follow, of all edges."""
        exchange = self._exchange
        first = first_rows(self._num_edges)[:-1]
        step = exchange.round_rows(kinds)
        for begin in range(0, int(self._num_edges.max()), step):
            given = of_slice(begin, begin + step)
            received = exchange.all_to_all([given if to in self._leaders else [] for to in range(exchange.world_size)])
            if not self._is_leader:
                continue
            sizes = np.clip(self._num_edges - begin, 0, step).tolist()
            for at, size, data in zip((first + begin).tolist(), sizes, received, strict=True):
                if size:
                    yield at, columns_of(data, size, kinds)


def new_offset(counts: np.ndarray) -> np.ndarray:
    """Returns where the new ids of each partition begin, ``[num_parts]``, given edges by rank and partition."""
    in_part = counts.sum(axis=0)
    return np.cumsum(in_part) - in_part


class EdgeFiles:
    """Writes the edges of one type: rows, tables and, on a leader, the edge book.

    Args:
        exchange, writer: Of this rank.
        parts: Who writes which partition.
        edges: The slice of this rank; ``neighbor_time`` of all nodes.
        num_edges: ``[world_size]``, edges in the slice of each rank.
        books: Of all node types.
        relabel: Whether edges and nodes get new ids.
    """

    def __init__(
        self,
        exchange: Exchange,
        writer: PartitionWriter,
        parts: Parts,
        edges: EdgeInput,
        num_edges: np.ndarray,
        books: Sequence[Book],
        relabel: bool,
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._parts = parts
        self._edges = edges
        self._num_edges = num_edges
        self._first = first_rows(num_edges)
        self._book, self._neighbor_book = books[edges.expanded], books[edges.neighbor]
        self._relabel = relabel
        counts = np.zeros(parts.num_parts, np.int64)
        for _, rows in chunks(edges.row_ids):
            counts += np.bincount(self._book.owner[rows], minlength=parts.num_parts)
        self._counts = exchange.gather_counts(counts)  # [world_size, num_parts]

    def write(self, leaders: Sequence[int], thread_bytes: int) -> tuple[tuple[int, ...], int]:
        """Writes all, sorting in ``thread_bytes``; returns the number of edges of each partition, and how many edges
        have ends of different owners. ``leaders`` write an edge book or the maps of ids.
        """
        edge_type = self._edges.edge_type
        books = EdgeBooks(self._exchange, self._writer, edge_type, self._owner, self._num_edges, self._counts, leaders)
        if self._relabel:
            books.write_maps()
        elif edge_tables(self._edges):
            books.write_books()
        own_edges = self._collect()
        num_cut = 0
        if self._writer.parts:
            books_of_ends = [self._own_book(), self._neighbor_book]
            ids = own_edges.edge_ids
            new_ids = None if ids is None or not self._relabel else lambda _: ids  # they are the new ones already
            _, num_cut = write_graph(self._writer, own_edges, books_of_ends, thread_bytes, new_ids)
        all_cut = self._exchange.gather_counts(np.array([num_cut]))
        return tuple(self._counts.sum(axis=0).tolist()), int(all_cut.sum())

    def _owner(self, begin: int, end: int) -> np.ndarray:
        return self._book.owner[self._edges.row_ids[begin:end]]

    def _own_book(self) -> Book:
        """The book of the nodes of this rank's partitions alone, one partition after the other."""
        parts, counts = list(self._parts.own), self._book.counts
        owner = np.repeat(np.array(parts, self._book.owner.dtype), [counts[idx] for idx in parts])
        return Book.of(owner, self._parts.num_parts)

    def _collect(self) -> EdgeInput:
        """Writes tables, and returns the edges of this rank's partitions, those of each by ascending id, in scratch
        files. The ids of their expanded ends are those of :meth:`_own_book`.
        """
        edges, book, root = self._edges, self._book, self._writer.root
        own = list(self._parts.own)
        size = int(self._counts[:, own].sum())
        num_ids, num_neighbors = int(self._first[-1]), self._neighbor_book.owner.size
        node_dtype, edge_dtype = id_dtype(max(book.owner.size, num_neighbors)), id_dtype(num_ids)
        columns = [np.dtype(node_dtype), np.dtype(node_dtype), np.dtype(edge_dtype)]
        columns += [] if edges.weight is None else [edges.weight.dtype]
        columns += [] if edges.time is None else [np.dtype(np.int64)]
        ends = scratch_array(root, 2 * size, columns[0]).reshape(2, size)
        scratch = [*ends, *(scratch_array(root, size, dtype) for dtype in columns[2:])]
        tables = edge_tables(edges)
        files = PartTables(self._writer, tables, self._counts)
        position, shift = book.position(), self._shift()
        numbering, offset = Numbering(self._counts, self._exchange.rank), new_offset(self._counts)

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            owner, row_ids = self._owner(begin, end), edges.row_ids[begin:end]
            rows = (position[row_ids] + shift[owner]).astype(node_dtype)
            if self._relabel:
                edge_ids = numbering.rows(owner) + offset[owner]
            else:
                edge_ids = np.arange(begin, end) + self._first[self._exchange.rank]
            given = [rows, edges.col_ids[begin:end].astype(node_dtype), edge_ids.astype(edge_dtype)]
            given += [column[begin:end] for column in (edges.weight,) if column is not None]
            given += [column[begin:end].astype(np.int64) for column in (edges.time,) if column is not None]
            return owner, given + [rows.array[begin:end] for _, rows in tables]

        kinds: list[Kind] = [(dtype, ()) for dtype in columns]
        kinds += [(rows.array.dtype, rows.row_shape) for _, rows in tables]
        next_edge = begins(self._counts[:, own].sum(axis=1))
        for batch in scatter_rows(self._exchange, self._parts, kinds, self._num_edges, slice_of):
            at = next_edge[batch.source]
            next_edge[batch.source] += len(batch.columns[0])
            for column, values in zip(scratch, batch.columns[: len(scratch)], strict=True):
                column[at : at + len(values)] = values
            files.put(batch.source, batch.counts, batch.columns[len(scratch) :])
        files.close()
        of_node, weight = scratch[2], scratch[3] if edges.weight is not None else None
        return replace(
            edges,
            expanded=0,
            neighbor=1,
            edge_index=ends,
            row_ids=ends[0],
            col_ids=ends[1],
            edge_ids=of_node,
            id_bound=num_ids,
            weight=weight,
            time=scratch[-1] if edges.time is not None else None,
            feat=None,
            attrs={},
        )

    def _shift(self) -> np.ndarray:
        """What turns a row, counted over all partitions, into one counted over those of its writer."""
        shift = np.empty(self._parts.num_parts, np.int64)
        for rank in range(self._exchange.world_size):
            at = 0
            for idx in self._parts.of(rank):
                shift[idx] = at - self._book.offset[idx]
                at += self._book.counts[idx]
        return shift


def write_book(writer: PartitionWriter, nodes: NodeInput, book: Book) -> None:
    """Writes the node book and the row of each node."""
    writer.array(layout.node_book(nodes.node_type), book.owner)
    row = writer.writer(layout.node_row(nodes.node_type), np.dtype(np.uint32), book.owner.shape)
    position = book.position()
    for begin, owner in chunks(book.owner):
        row.write(position[begin : begin + owner.size] - book.offset[owner].astype(np.uint32))
    writer.close([row])


def write_nodes(
    exchange: Exchange,
    writer: PartitionWriter,
    parts: Parts,
    nodes: NodeInput,
    num_rows: np.ndarray,
    book: Book,
    relabel: bool,
) -> None:
    """Writes ids, times and tables of the nodes of one type; with ``relabel`` no ids, since each partition has a range.

    Args:
        exchange, writer: Of this rank.
        parts: Who writes which partition.
        nodes: Tables of the slice of this rank; ``time`` of all nodes.
        num_rows: ``[world_size]``, rows in the slice of each rank.
        book: Owners of all nodes.
        relabel: Whether nodes get new ids.
    """
    if not relabel or nodes.time is not None:
        _write_ids(writer, nodes, book, not relabel)
    tables = node_tables(nodes)
    if not tables:
        return
    first = first_rows(num_rows)
    owners = [book.owner[begin:end] for begin, end in pairwise(first.tolist())]
    files = PartTables(writer, tables, np.array([Book.of(owner, parts.num_parts).counts for owner in owners]))

    def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
        return owners[exchange.rank][begin:end], [rows.array[begin:end] for _, rows in tables]

    kinds = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
    for batch in scatter_rows(exchange, parts, kinds, num_rows, slice_of):
        files.put(batch.source, batch.counts, batch.columns)
    files.close()


def _write_ids(writer: PartitionWriter, nodes: NodeInput, book: Book, with_ids: bool) -> None:
    time = nodes.time

    def files(path_of: Callable[[int, NodeType], str], wanted: bool) -> dict[int, NpyWriter]:
        return {
            idx: writer.writer(path_of(idx, nodes.node_type), np.dtype(np.int64), (book.counts[idx],))
            for idx in (writer.parts if wanted else ())
        }

    ids, times = files(layout.node_ids, with_ids), files(layout.node_time, time is not None)
    for begin, owner in chunks(book.owner):
        order, offset = group_by_owner(owner, book.num_parts)
        for idx in writer.parts:
            mine = order[offset[idx] : offset[idx + 1]] + begin
            if with_ids:
                writer.advance(ids[idx].write(mine))
            if time is not None:
                writer.advance(times[idx].write(time[mine].astype(np.int64)))
    writer.close([*ids.values(), *times.values()])
