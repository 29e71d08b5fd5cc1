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

from glt.partition.format import layout
from glt.partition.format.book import Book, group_by_owner, id_dtype
from glt.partition.format.files import chunks, locked_directory, remove_stale, require_free, scratch_array
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.methods.writer import PartitionWriter, Table, edge_tables, node_tables, relabel_nodes, write_graph
from glt.partition.sharded.exchange import Exchange, Kind, Parts, columns_of, first_rows, scatter_rows


@dataclass(frozen=True, eq=False)
class RankWriter:
    """What a rank writes with; its functions and those of :class:`EdgeFiles` are collectives of all ranks. ``leaders``
    are the ranks that write what all partitions of their directory share.
    """

    exchange: Exchange
    writer: PartitionWriter
    parts: Parts
    leaders: Sequence[int]
    relabel: bool

    @property
    def is_leader(self) -> bool:
        return self.exchange.rank in self.leaders

    def write_nodes(self, nodes: NodeInput, num_rows: np.ndarray, book: Book) -> None:
        """Writes the nodes of a type: times, tables, and ids, unless relabelling gives partitions ranges of them.

        ``nodes`` has the tables of the slice of this rank and the times of all nodes; ``num_rows [world_size]`` are the
        rows in the slice of each rank; ``book`` has the owners of all nodes.
        """
        if self.is_leader:
            self._write_book(nodes, book)
        if not self.relabel or nodes.time is not None:
            self._write_ids(nodes, book)
        tables = node_tables(nodes)
        if not tables:
            return
        owners = [book.owner[begin:end] for begin, end in pairwise(first_rows(num_rows).tolist())]
        counts = np.array([Book.of(owner, book.num_parts).counts for owner in owners])
        files = PartTables(self.writer, tables, counts)

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            return owners[self.exchange.rank][begin:end], [rows.array[begin:end] for _, rows in tables]

        kinds = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
        for batch in scatter_rows(self.exchange, self.parts, kinds, num_rows, slice_of):
            files.put(batch.source, batch.counts, batch.columns)
        files.close()

    def write_caches(
        self, nodes: NodeInput, num_rows: np.ndarray, book: Book, cached: Mapping[int, np.ndarray]
    ) -> None:
        """Writes copies of rows of nodes of one type: of ``cached``, the nodes in the cache of each of this rank's
        partitions that has one, ascending. Other arguments as of :meth:`write_nodes`; there are features."""
        exchange, writer = self.exchange, self.writer
        new_id = book.position() if self.relabel else None
        tables = [rows.array for _, rows in node_tables(nodes)]
        kinds = [(table.dtype, table.shape[1:]) for table in tables]
        step = exchange.round_rows([(np.dtype(np.int64), ()), *kinds])
        num_rounds = exchange.gather_counts(np.array([sum(-(-ids.size // step) for ids in cached.values())])).max()
        rows = _Rows(exchange, tables, kinds, first_rows(num_rows))
        done = 0
        for idx, ids in cached.items():
            ordered = writer.cache_ids(idx, nodes, ids, new_id)
            files = writer.cache_writers(idx, nodes, ids.size)
            for begin in range(0, ids.size, step):
                for file, column in zip(files, rows.fetch(ordered[begin : begin + step]), strict=True):
                    writer.advance(file.write(column))
                done += 1
            writer.close(files)
        for _ in range(done, int(num_rounds)):  # others ask for more
            rows.fetch(np.empty(0, np.int64))

    def _write_book(self, nodes: NodeInput, book: Book) -> None:
        """Writes the node book and the row of each node, or the maps of ids."""
        writer = self.writer
        if self.relabel:
            relabel_nodes(writer, nodes.node_type, book)
            return
        writer.array(layout.shared("node_book", nodes.node_type), book.owner)
        row = writer.writer(layout.shared("node_row", nodes.node_type), np.dtype(np.uint32), book.owner.shape)
        position = book.position()
        for begin, owner in chunks(book.owner):
            row.write(position[begin : begin + owner.size] - book.offset[owner].astype(np.uint32))
        writer.close([row])

    def _write_ids(self, nodes: NodeInput, book: Book) -> None:
        writer, time = self.writer, nodes.time
        ids = [] if self.relabel else writer.numbers("node_ids", nodes.node_type, book.counts)
        times = [] if time is None else writer.numbers("node_time", nodes.node_type, book.counts)
        for begin, owner in chunks(book.owner):
            order, offset = group_by_owner(owner, book.num_parts)
            mine = [order[offset[idx] : offset[idx + 1]] + begin for idx in writer.parts]
            for file, of_part in zip(ids, mine, strict=False):
                writer.advance(file.write(of_part))
            for file, of_part in zip(times, mine, strict=False):
                assert time is not None
                writer.advance(file.write(time[of_part].astype(np.int64)))
        writer.close([*ids, *times])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of tables of which every rank has a slice, ``first[r]`` being the first of rank r."""

    exchange: Exchange
    tables: Sequence[np.ndarray]
    kinds: Sequence[Kind]
    first: np.ndarray

    def fetch(self, ids: np.ndarray) -> list[np.ndarray]:
        """Returns the rows of these nodes of each table, while others get theirs."""
        source = np.searchsorted(self.first, ids, side="right") - 1
        order = np.argsort(source, kind="stable")
        bounds = np.searchsorted(source[order], np.arange(self.exchange.world_size + 1))
        asked = [order[begin:end] for begin, end in pairwise(bounds.tolist())]
        wanted = self.exchange.all_to_all([[ids[at].astype(np.int64, copy=False)] for at in asked])
        mine = [each.view(np.int64) - self.first[self.exchange.rank] for each in wanted]
        replies = self.exchange.all_to_all([[table[at] for table in self.tables] for at in mine])
        columns = [np.empty((ids.size, *shape), dtype) for dtype, shape in self.kinds]
        for at, data in zip(asked, replies, strict=True):
            for column, found in zip(columns, columns_of(data, at.size, self.kinds), strict=True):
                column[at] = found
        return columns


class PartTables:
    """Tables of this rank's partitions, whose rows come from all ranks at a time: those of lower ranks come first.
    ``counts [world_size, num_parts]`` are the rows that each partition gets from each rank.
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


class EdgeFiles:
    """Writes the edges of one type: rows, tables and, on leaders, the edge book or the maps of ids. ``edges`` are the
    slice of this rank, with ``neighbor_time`` of all nodes; ``num_edges [world_size]`` those in the slice of each rank.
    """

    def __init__(self, rank: RankWriter, edges: EdgeInput, num_edges: np.ndarray, books: Sequence[Book]) -> None:
        self._rank, self._exchange, self._writer, self._parts = rank, rank.exchange, rank.writer, rank.parts
        self._edges = edges
        self._num_edges = num_edges
        self._first = first_rows(num_edges)
        self._book, self._neighbor_book = books[edges.expanded], books[edges.neighbor]
        counts = np.zeros(self._parts.num_parts, np.int64)
        for _, rows in chunks(edges.row_ids):
            counts += np.bincount(self._book.owner[rows], minlength=counts.size)
        self._counts = self._exchange.gather_counts(counts)  # [world_size, num_parts]
        self._num_owned = self._counts.sum(axis=0)
        self._offset = np.cumsum(self._num_owned) - self._num_owned  # where the new ids of each partition begin

    def write(self, thread_bytes: int) -> tuple[tuple[int, ...], int]:
        """Writes all, sorting in ``thread_bytes``; returns the number of edges of each partition, and how many edges
        have ends of different owners.
        """
        relabel = self._rank.relabel
        if relabel:
            self._write_maps()
        elif edge_tables(self._edges):
            self._write_books()
        own_edges = self._own_edges()
        num_cut = 0
        if self._writer.parts:
            ids = own_edges.edge_ids
            new_ids = None if ids is None or not relabel else lambda _: ids  # they are the new ones already
            books = [self._own_book(), self._neighbor_book]
            _, num_cut = write_graph(self._writer, own_edges, books, thread_bytes, new_ids)
        all_cut = self._exchange.gather_counts(np.array([num_cut]))
        return tuple(self._num_owned.tolist()), int(all_cut.sum())

    def _numbering(self) -> Numbering:
        return Numbering(self._counts, self._exchange.rank)

    def _write_books(self) -> None:
        """Writes the owner of each edge, and its row there."""
        owner_dtype, row_dtype = self._owner(0, 0).dtype, np.dtype(np.uint32)
        in_part = self._num_owned.tolist()
        files = self._writer.edge_books(self._edges.edge_type, owner_dtype, in_part) if self._rank.is_leader else ()
        numbering = self._numbering()

        def of_slice(begin: int, end: int) -> list[np.ndarray]:
            owner = self._owner(begin, end)
            return [owner, numbering.rows(owner).astype(row_dtype)]

        for first, columns in self._collect([(owner_dtype, ()), (row_dtype, ())], of_slice):
            for file, column in zip(files, columns, strict=True):
                file.put(first, column)
        self._writer.close(files)

    def _write_maps(self) -> None:
        """Writes the maps between the ids of the input and the new ones."""
        num_edges = int(self._first[-1])
        dtype = id_dtype(num_edges)
        kinds = ("edge_map", "edge_map_inverse") if self._rank.is_leader else ()
        paths = [layout.shared(kind, self._edges.edge_type) for kind in kinds]
        files = [self._writer.writer(path, dtype, (num_edges,)) for path in paths]
        numbering = self._numbering()

        def of_slice(begin: int, end: int) -> list[np.ndarray]:
            owner = self._owner(begin, end)
            return [(numbering.rows(owner) + self._offset[owner]).astype(dtype)]

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
        step, leaders = self._exchange.round_rows(kinds), self._rank.leaders
        for begin in range(0, int(self._num_edges.max()), step):
            given = of_slice(begin, begin + step)
            ranks = range(self._exchange.world_size)
            received = self._exchange.all_to_all([given if to in leaders else [] for to in ranks])
            if not self._rank.is_leader:
                continue
            sizes = np.clip(self._num_edges - begin, 0, step).tolist()
            for at, size, data in zip((self._first[:-1] + begin).tolist(), sizes, received, strict=True):
                if size:
                    yield at, columns_of(data, size, kinds)

    def _owner(self, begin: int, end: int) -> np.ndarray:
        return self._book.owner[self._edges.row_ids[begin:end]]

    def _own_book(self) -> Book:
        """The book of the nodes of this rank's partitions alone, one partition after the other."""
        parts, counts = list(self._parts.own), self._book.counts
        owner = np.repeat(np.array(parts, self._book.owner.dtype), [counts[idx] for idx in parts])
        return Book.of(owner, self._parts.num_parts)

    def _own_edges(self) -> EdgeInput:
        """Writes tables, and returns the edges of this rank's partitions, those of each by ascending id, in scratch
        files. The ids of their expanded ends are those of :meth:`_own_book`.
        """
        edges, book, root, own = self._edges, self._book, self._writer.root, list(self._parts.own)
        size, num_ids = int(self._num_owned[own].sum()), int(self._first[-1])
        node_dtype, edge_dtype = id_dtype(max(book.owner.size, self._neighbor_book.owner.size)), id_dtype(num_ids)
        columns = [node_dtype, node_dtype, edge_dtype]
        columns += [] if edges.weight is None else [edges.weight.dtype]
        columns += [] if edges.time is None else [np.dtype(np.int64)]
        ends = scratch_array(root, 2 * size, node_dtype).reshape(2, size)
        scratch = [*ends, *(scratch_array(root, size, dtype) for dtype in columns[2:])]
        tables = edge_tables(edges)
        files = PartTables(self._writer, tables, self._counts)
        position, shift, numbering = book.position(), self._shift(), self._numbering()

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            owner, row_ids = self._owner(begin, end), edges.row_ids[begin:end]
            rows = (position[row_ids] + shift[owner]).astype(node_dtype)
            if self._rank.relabel:
                edge_ids = numbering.rows(owner) + self._offset[owner]
            else:
                edge_ids = np.arange(begin, end) + self._first[self._exchange.rank]
            given = [rows, edges.col_ids[begin:end].astype(node_dtype), edge_ids.astype(edge_dtype)]
            given += [] if edges.weight is None else [edges.weight[begin:end]]
            given += [] if edges.time is None else [edges.time[begin:end].astype(np.int64)]
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
        ids = {"edge_index": ends, "row_ids": ends[0], "col_ids": ends[1], "edge_ids": scratch[2]}
        weight = None if edges.weight is None else scratch[3]
        time = None if edges.time is None else scratch[-1]
        mine = replace(edges, expanded=0, neighbor=1, id_bound=num_ids, **ids)
        return replace(mine, weight=weight, time=time, feat=None, attrs={})

    def _shift(self) -> np.ndarray:
        """What turns a row, counted over all partitions, into one counted over those of its writer."""
        shift = np.empty(self._parts.num_parts, np.int64)
        for rank in range(self._exchange.world_size):
            at = 0
            for idx in self._parts.of(rank):
                shift[idx] = at - self._book.offset[idx]
                at += self._book.counts[idx]
        return shift
