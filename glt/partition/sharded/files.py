"""What a rank writes: the nodes, edges and caches of its partitions, and as a leader books and maps of ids."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from glt.data.keys import KeyMap
from glt.data.schema import NodeType
from glt.partition.format import layout
from glt.partition.format.book import Book, group_by_owner, id_dtype
from glt.partition.format.files import FileEntry, NpyWriter, locked_directory, remove_stale, require_free, scratch_array
from glt.partition.format.rows import PackedRows, chunks
from glt.partition.graph_input import EdgeInput, NodeInput
from glt.partition.methods.hotness import CachePlan
from glt.partition.methods.writer import PartitionWriter, Table, edge_tables, node_tables, write_graph
from glt.partition.sharded.exchange import Exchange, GraphSlice, Kind, columns_of, first_rows, scatter_rows


class RankWriter(PartitionWriter):
    """Writes the partitions of a rank, and as a leader what all partitions of its directory share; all ranks write
    together. ``slices`` are the slices of the graph, and ``leaders`` says by rank, who leads.
    """

    def __init__(
        self,
        exchange: Exchange,
        slices: GraphSlice,
        leaders: Sequence[int],
        root: Path,
        parts: range,
        advance: Callable[[int], object],
        **options: Any,
    ) -> None:
        super().__init__(root, parts, advance, **options)
        self.exchange = exchange
        self.leaders = leaders
        self._slices = slices
        self._times: list[np.ndarray | None] = []  # by node type, of all nodes: others own neighbours of edges

    @property
    def is_leader(self) -> bool:
        return self.exchange.rank in self.leaders

    def write_nodes(self, at: int, nodes: NodeInput, book: Book) -> None:
        exchange, num_rows, time = self.exchange, self._slices.node_rows[:, at], nodes.time
        exchange.stage = f"the nodes of type {nodes.node_type!r}"
        if time is not None:
            time = exchange.gather_rows(time.astype(np.int64), num_rows, self.root)
        self._times.append(time)
        if self.is_leader and self.relabel:
            self.nodes(nodes.node_type, book)
        elif self.is_leader:
            row = book.position()
            for begin, owner in chunks(book.owner):
                row[begin : begin + owner.size] -= book.offset[owner].astype(np.uint32)
            self.array(layout.shared("node_book", nodes.node_type), book.owner)
            self.array(layout.shared("node_row", nodes.node_type), row)
            del row
        if not self.relabel:
            paths = {idx: layout.in_part(idx, "node_ids", nodes.node_type) for idx in self.parts}
            ids = {idx: self.writer(path, np.dtype(np.int64), (book.counts[idx],)) for idx, path in paths.items()}
            for begin, owner in chunks(book.owner):
                order, offset = group_by_owner(owner, book.num_parts)
                for idx, file in ids.items():
                    self.advance(file.write(order[offset[idx] : offset[idx + 1]] + begin))
            self.close([*ids.values()])
        tables = node_tables(nodes)
        if not tables:
            return
        owners = [book.owner[begin:end] for begin, end in pairwise(first_rows(num_rows).tolist())]
        counts = np.array([Book.of(owner, book.num_parts).counts for owner in owners])
        files = PartTables(self, tables, counts)

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            return owners[exchange.rank][begin:end], [rows.array[begin:end] for _, rows in tables]

        kinds = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
        for batch in scatter_rows(exchange, book.num_parts, kinds, num_rows, slice_of):
            files.put(*batch)
        files.close()

    def packing_sums(self, packed: PackedRows) -> list[tuple[float, float, float]]:
        """Of all ranks, which call this together."""
        return [(each[0], each[1], each[2]) for each in self.exchange.gather(list(packed.packer.sums))]

    def write_keys(self, node_type: NodeType, keys: KeyMap, book: Book) -> None:
        if self.is_leader:
            super().write_keys(node_type, keys, book)

    def write_caches(self, at: int, nodes: NodeInput, book: Book, plan: CachePlan) -> None:
        self.exchange.stage = f"the caches of nodes of type {nodes.node_type!r}"
        tables = [rows.array for _, rows in node_tables(nodes)]
        step = self.exchange.round_rows([(np.dtype(np.int64), ()), *map(_kind, tables)])
        own_rounds = sum(-(-ids.size // step) for ids in plan.cached.values())
        num_rounds = self.exchange.gather_counts(np.array(own_rounds)).max()
        fetch = partial(_fetch, self.exchange, tables, first_rows(self._slices.node_rows[:, at]))
        self.caches(nodes, book, plan, fetch, step)
        for _ in range(own_rounds, num_rounds):  # others ask for more
            fetch(np.empty(0, np.int64))

    def write_edges(self, at: int, edges: EdgeInput, books: Sequence[Book]) -> tuple[tuple[int, ...], int]:
        self.exchange.stage = f"the edges of type {edges.edge_type}"
        timed = replace(edges, neighbor_time=self._times[edges.neighbor])
        return EdgeFiles(self, timed, self._slices.num_edges[:, at], books).write()

    def entries(self) -> dict[str, FileEntry]:
        self.exchange.stage = "the end"
        everyone = self.exchange.gather({path: vars(entry) for path, entry in self.files.items()})
        found = {path: entry for of_rank in everyone for path, entry in of_rank.items()}
        return {path: FileEntry(**entry | {"shape": tuple(entry["shape"])}) for path, entry in found.items()}


def _kind(table: np.ndarray | PackedRows) -> Kind:
    return table.dtype, table.shape[1:]


def _fetch(
    exchange: Exchange, tables: Sequence[np.ndarray | PackedRows], first: np.ndarray, ids: np.ndarray
) -> list[np.ndarray]:
    """Returns the rows of some nodes of each table, while other ranks get theirs: every rank has a slice of the tables,
    ``first[r]`` being the first row of rank r."""
    source = np.searchsorted(first, ids, side="right") - 1
    order, bounds = group_by_owner(source, exchange.world_size)
    asked = [order[begin:end] for begin, end in pairwise(bounds.tolist())]
    wanted = exchange.all_to_all([[ids[at].astype(np.int64, copy=False)] for at in asked])
    mine = [each.view(np.int64) - first[exchange.rank] for each in wanted]
    replies = exchange.all_to_all([[table[at] for table in tables] for at in mine])
    kinds = [_kind(table) for table in tables]
    columns = [np.empty((ids.size, *shape), dtype) for dtype, shape in kinds]
    for at, data in zip(asked, replies, strict=True):
        for column, found in zip(columns, columns_of(data, at.size, kinds), strict=True):
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


def numbered(owner: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Numbers the next edges, given their owners, in each partition from ``following [num_parts]`` on, and moves that
    on; returns int64."""
    order, offset = group_by_owner(owner, following.size)
    counts = np.diff(offset)
    numbers = np.empty(owner.size, np.int64)
    numbers[order] = np.arange(owner.size) + np.repeat(following - offset[:-1], counts)
    following += counts
    return numbers


@contextmanager
def shared_staging(target: Path, exchange: Exchange) -> Iterator[tuple[Path, list[int]]]:
    """Yields a staging directory that becomes ``target`` in one rename when all ranks are done, or vanishes; and by
    rank, who leads: writes what all partitions of its directory share, books and manifest.

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
            # The leader's is not to be taken for that of a dead run as long as this rank writes to it.
            joined = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(joined, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.close(lock)
            lock = joined
        yield root, leaders
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


class EdgeFiles:
    """Writes the edges of one type: rows, tables and, on leaders, the edge book or the maps of ids. ``edges`` are the
    slice of this rank, with ``neighbor_time`` of all nodes; ``num_edges [world_size]`` those in the slice of each rank.
    """

    def __init__(self, writer: RankWriter, edges: EdgeInput, num_edges: np.ndarray, books: Sequence[Book]) -> None:
        self._writer, self._exchange = writer, writer.exchange
        self._edges = edges
        self._num_edges = num_edges
        self._first = first_rows(num_edges)
        self._book, self._neighbor_book = books[edges.expanded], books[edges.neighbor]
        counts = np.zeros(self._book.num_parts, np.int64)
        for _, rows in chunks(edges.row_ids):
            counts += np.bincount(self._book.owner[rows], minlength=counts.size)
        self._counts = self._exchange.gather_counts(counts)  # [world_size, num_parts]
        self._num_owned = self._counts.sum(axis=0)

    def write(self) -> tuple[tuple[int, ...], int]:
        """Writes all; returns the number of edges of each partition, and how many edges have ends of different
        owners."""
        parts = list(self._writer.parts)
        if self._writer.relabel or edge_tables(self._edges):
            self._write_books()
        own_edges = self._own_edges()
        num_cut = 0
        if parts:
            # The book of the nodes of this rank's partitions alone, one partition after the other.
            owner = np.repeat(np.array(parts, self._book.owner.dtype), np.array(self._book.counts)[parts])
            books = [Book.of(owner, self._book.num_parts), self._neighbor_book]
            _, num_cut = write_graph(self._writer, own_edges, books)
        all_cut = self._exchange.gather_counts(np.array(num_cut))
        return tuple(self._num_owned.tolist()), int(all_cut.sum())

    def _following(self) -> np.ndarray:
        """The row of this rank's first edge in each partition; with relabelling, its new id. See :func:`numbered`."""
        of_part = np.cumsum(self._num_owned) - self._num_owned if self._writer.relabel else 0
        return begins(self._counts)[self._exchange.rank] + of_part

    def _write_books(self) -> None:
        """Writes, on leaders, the owner of each edge and its row there, or the maps of ids, from what all ranks say."""
        exchange, writer, relabel = self._exchange, self._writer, self._writer.relabel
        is_leader, edge_type, num_edges = writer.is_leader, self._edges.edge_type, int(self._first[-1])
        number_dtype = id_dtype(num_edges) if relabel else np.dtype(np.uint32)
        files: Sequence[NpyWriter] = ()
        if is_leader and relabel:
            paths = [layout.shared(kind, edge_type) for kind in ("edge_map_inverse", "edge_map")]
            files = [writer.writer(path, number_dtype, (num_edges,)) for path in paths]
        elif is_leader:
            files = writer.edge_books(edge_type, self._book.owner.dtype, self._num_owned.tolist())
        kinds: list[Kind] = [(number_dtype, ())] if relabel else [(self._book.owner.dtype, ()), (number_dtype, ())]
        step, following = exchange.round_rows(kinds), self._following()
        for begin in range(0, int(self._num_edges.max()), step):
            owner = self._owner(begin, begin + step)
            number = numbered(owner, following).astype(number_dtype)
            given = [number] if relabel else [owner, number]
            received = exchange.all_to_all([given if to in writer.leaders else [] for to in range(exchange.world_size)])
            sizes = np.clip(self._num_edges - begin, 0, step).tolist()
            for first, size, data in zip((self._first[:-1] + begin).tolist(), sizes, received, strict=True):
                if not (is_leader and size):
                    continue
                columns = columns_of(data, size, kinds)
                for file, column in zip(files, columns, strict=False):
                    file.put(first, column)
                if relabel:
                    order = np.argsort(
                        columns[0]
                    )  # the ids of a partition follow each other, since those of a slice do
                    for run in np.split(order, np.flatnonzero(np.diff(columns[0][order]) != 1) + 1):
                        files[1].put(int(columns[0][run[0]]), (run + first).astype(number_dtype))
        writer.close(files)

    def _owner(self, begin: int, end: int) -> np.ndarray:
        return self._book.owner[self._edges.row_ids[begin:end]]

    def _own_edges(self) -> EdgeInput:
        """Writes tables, and returns the edges of this rank's partitions, those of each by ascending id, in scratch
        files. The ids of their expanded ends are rows, counted over this rank's partitions, one after the other.
        """
        edges, book, exchange, own = self._edges, self._book, self._exchange, list(self._writer.parts)
        size, num_ids = int(self._num_owned[own].sum()), int(self._first[-1])
        node_dtype, edge_dtype = id_dtype(max(book.owner.size, self._neighbor_book.owner.size)), id_dtype(num_ids)
        columns = [node_dtype, node_dtype, edge_dtype]
        columns += [] if edges.weight is None else [edges.weight.dtype]
        columns += [] if edges.time is None else [np.dtype(np.int64)]
        ends = scratch_array(self._writer.root, 2 * size, node_dtype).reshape(2, size)
        scratch = [*ends, *(scratch_array(self._writer.root, size, dtype) for dtype in columns[2:])]
        tables = edge_tables(edges)
        files = PartTables(self._writer, tables, self._counts)
        position, following = book.position(), self._following()
        # What turns a row, counted over all partitions, into one counted over those of its writer.
        shift, counts = -book.offset[:-1], np.array(book.counts)
        for rank in range(exchange.world_size):
            of_rank = counts[rank :: exchange.world_size]
            shift[rank :: exchange.world_size] += np.cumsum(of_rank) - of_rank

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            owner, row_ids = self._owner(begin, end), edges.row_ids[begin:end]
            rows = (position[row_ids] + shift[owner]).astype(node_dtype)
            if self._writer.relabel:
                edge_ids = numbered(owner, following)
            else:
                edge_ids = np.arange(begin, end) + self._first[exchange.rank]
            given = [rows, edges.col_ids[begin:end].astype(node_dtype), edge_ids.astype(edge_dtype)]
            given += [] if edges.weight is None else [edges.weight[begin:end]]
            given += [] if edges.time is None else [edges.time[begin:end].astype(np.int64)]
            return owner, given + [rows.array[begin:end] for _, rows in tables]

        kinds: list[Kind] = [(dtype, ()) for dtype in columns]
        kinds += [(rows.array.dtype, rows.row_shape) for _, rows in tables]
        next_edge = begins(self._counts[:, own].sum(axis=1))
        for source, in_part, found in scatter_rows(exchange, book.num_parts, kinds, self._num_edges, slice_of):
            at, next_edge[source] = next_edge[source], next_edge[source] + len(found[0])
            for column, values in zip(scratch, found, strict=False):
                column[at : at + len(values)] = values
            files.put(source, in_part, found[len(scratch) :])
        files.close()
        weight = None if edges.weight is None else scratch[3]
        time = None if edges.time is None else scratch[-1]
        mine = replace(edges, expanded=0, neighbor=1, index=ends, edge_ids=scratch[2], id_bound=num_ids)
        return replace(mine, weight=weight, time=time, feat=None, attrs={})
