"""Writes the edges of this rank's partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from glt.partition.arguments import CHUNK_IDS
from glt.partition.book import Book, id_dtype
from glt.partition.distributed.deal import Kind, Parts, deal
from glt.partition.distributed.dealt_tables import DealtTables, begins
from glt.partition.distributed.edge_books import EdgeBooks, Numbering, new_offset
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
        relabel: Whether edges and nodes get new ids.
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
        relabel: bool,
        round_bytes: int,
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._parts = parts
        self._edges = edges
        self._num_edges = num_edges
        self._first = first_rows(num_edges)
        self._book, self._neighbor_book = books[edges.expanded], books[edges.neighbor]
        self._relabel = relabel
        self._round_bytes = round_bytes
        counts = np.zeros(parts.num_parts, np.int64)
        for begin in range(0, edges.num_edges, CHUNK_IDS):
            counts += np.bincount(self._owner(begin, begin + CHUNK_IDS), minlength=parts.num_parts)
        self._counts = exchange.gather_counts(counts)  # [world_size, num_parts]

    def write(self, leaders: Sequence[int], thread_bytes: int) -> tuple[tuple[int, ...], int]:
        """Writes all; returns the number of edges of each partition, and how many edges have ends of different owners.

        Args:
            leaders: Ranks that write an edge book or the maps of ids, ascending.
            thread_bytes: Memory of each thread for sorting.
        """
        books = EdgeBooks(
            self._exchange, self._writer, self._edges.edge_type, self._owner, self._num_edges, self._counts, leaders,
            self._round_bytes,
        )  # fmt: skip
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
        files = DealtTables(self._writer, tables, self._counts)
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
