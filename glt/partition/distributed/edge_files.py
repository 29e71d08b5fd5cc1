"""Writes the edges of this rank's partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glt.partition.arguments import CHUNK_IDS
from glt.partition.book import Book, group_by_owner, id_dtype
from glt.partition.distributed.deal import Kind, Parts, deal, round_rows
from glt.partition.distributed.dealt_tables import DealtTables, begins
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.slices import first_rows
from glt.partition.graph_input import EdgeInput
from glt.partition.graph_writer import write_graph
from glt.partition.npy_file import scratch_array
from glt.partition.partition_writer import PartitionWriter, edge_tables


class EdgeFiles:
    """Writes the edges of one type: rows, tables and, on a leader, the edge book.

    Args:
        exchange: Connects the ranks.
        writer: Of this rank's partitions.
        parts: Who writes which partition.
        edges: The slice of this rank; ``neighbor_time`` of all nodes.
        num_edges: ``[world_size]``, edges in the slice of each rank.
        books: Of all node types.
        round_bytes: See :func:`deal`.
    """

    def __init__(
        self,
        exchange: Exchange,
        writer: PartitionWriter,
        parts: Parts,
        edges: EdgeInput,
        num_edges: np.ndarray,
        books: Sequence[Book],
        round_bytes: int,
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._parts = parts
        self._edges = edges
        self._num_edges = num_edges
        self._first = first_rows(num_edges)
        self._book, self._neighbor_book = books[edges.expanded], books[edges.neighbor]
        self._round_bytes = round_bytes
        counts = np.zeros(parts.num_parts, np.int64)
        for begin in range(0, edges.num_edges, CHUNK_IDS):
            counts += np.bincount(self._owner(begin, begin + CHUNK_IDS), minlength=parts.num_parts)
        self._counts = exchange.gather_counts(counts)  # [world_size, num_parts]

    def write(self, leaders: Sequence[int], thread_bytes: int) -> tuple[tuple[int, ...], int]:
        """Writes all; returns the number of edges of each partition, and how many edges have ends of different owners.

        Args:
            leaders: Ranks that write an edge book, ascending.
            thread_bytes: Memory of each thread for sorting.
        """
        if edge_tables(self._edges):
            self._write_books(leaders)
        own_edges = self._collect()
        num_cut = 0
        if self._writer.parts:
            _, num_cut = write_graph(self._writer, own_edges, [self._own_book(), self._neighbor_book], thread_bytes)
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
        """Writes tables, and returns the edges of this rank's partitions by ascending id, in scratch files.

        The ids of their expanded ends are those of :meth:`_own_book`.
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
        files = DealtTables(self._writer, tables, self._counts)
        position, shift = book.position(), self._shift()

        def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
            owner, row_ids = self._owner(begin, end), edges.row_ids[begin:end]
            rows = (position[row_ids] + shift[owner]).astype(node_dtype)
            first = self._first[self._exchange.rank]
            given = [rows, edges.col_ids[begin:end].astype(node_dtype), np.arange(first + begin, first + end)]
            given[2] = given[2].astype(edge_dtype)
            given += [column[begin:end] for column in (edges.weight,) if column is not None]
            given += [column[begin:end].astype(np.int64) for column in (edges.time,) if column is not None]
            return owner, given + [rows.array[begin:end] for _, rows in tables]

        kinds: list[Kind] = [(dtype, ()) for dtype in columns]
        kinds += [(rows.array.dtype, rows.row_shape) for _, rows in tables]
        next_edge = begins(self._counts[:, own].sum(axis=1))
        for dealt in deal(self._exchange, self._parts, kinds, self._num_edges, self._round_bytes, slice_of):
            at = next_edge[dealt.source]
            next_edge[dealt.source] += len(dealt.columns[0])
            for column, values in zip(scratch, dealt.columns[: len(scratch)], strict=True):
                column[at : at + len(values)] = values
            files.put(dealt.source, dealt.counts, dealt.columns[len(scratch) :])
        files.close()
        of_node, weight = scratch[2], scratch[3] if edges.weight is not None else None
        return replace(
            edges, expanded=0, neighbor=1, edge_index=ends, row_ids=ends[0], col_ids=ends[1], edge_ids=of_node,
            id_bound=num_ids, weight=weight, time=scratch[-1] if edges.time is not None else None, feat=None, attrs={},
        )  # fmt: skip

    def _shift(self) -> np.ndarray:
        """What turns a row, counted over all partitions, into one counted over those of its writer."""
        shift = np.empty(self._parts.num_parts, np.int64)
        for rank in range(self._exchange.world_size):
            at = 0
            for idx in self._parts.of(rank):
                shift[idx] = at - self._book.offset[idx]
                at += self._book.counts[idx]
        return shift

    def _write_books(self, leaders: Sequence[int]) -> None:
        """Sends owner and row of each edge to the leaders, and writes them there."""
        exchange, rank = self._exchange, self._exchange.rank
        owner_dtype, row_dtype = self._book.owner.dtype, np.dtype(np.uint32)
        is_leader = rank in leaders
        in_part = self._counts.sum(axis=0).tolist()
        files = self._writer.edge_books(self._edges.edge_type, owner_dtype, in_part) if is_leader else ()
        next_row = begins(self._counts)[rank]
        step = round_rows([(owner_dtype, ()), (row_dtype, ())], exchange.world_size, self._round_bytes)
        for begin in range(0, int(self._num_edges.max()), step):
            owner = self._owner(begin, begin + step)
            order, offset = group_by_owner(owner, self._parts.num_parts)
            counts = np.diff(offset)
            row = np.empty(owner.size, row_dtype)
            row[order] = np.arange(owner.size) + np.repeat(next_row - offset[:-1], counts)
            next_row += counts
            received = exchange.all_to_all([[owner, row] if to in leaders else [] for to in range(exchange.world_size)])
            if not is_leader:
                continue
            for first, data in zip((self._first + begin).tolist(), received, strict=False):
                size = data.size // (owner_dtype.itemsize + row_dtype.itemsize)
                bounds = size * owner_dtype.itemsize
                files[0].put(first, data[:bounds].view(owner_dtype))
                files[1].put(first, data[bounds:].view(row_dtype))
        if is_leader:
            self._writer.close(files)
