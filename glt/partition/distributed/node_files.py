"""Writes the nodes of this rank's partitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from glt.data.schema import NodeType
from glt.partition import layout
from glt.partition.arguments import chunks
from glt.partition.book import Book, group_by_owner
from glt.partition.distributed.deal import Parts, deal
from glt.partition.distributed.dealt_tables import DealtTables
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.slices import first_rows
from glt.partition.graph_input import NodeInput
from glt.partition.npy_file import NpyWriter
from glt.partition.partition_writer import PartitionWriter, node_tables


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
    round_bytes: int,
) -> None:
    """Writes ids, times and tables of the nodes of one type.

    Args:
        exchange: Connects the ranks.
        writer: Of this rank's partitions.
        parts: Who writes which partition.
        nodes: Tables of the slice of this rank; ``time`` of all nodes.
        num_rows: ``[world_size]``, rows in the slice of each rank.
        book: Owners of all nodes.
        relabel: Whether nodes get new ids: no ids are written then, since each partition has a range of them.
        round_bytes: See :func:`deal`.
    """
    if not relabel or nodes.time is not None:
        _write_ids(writer, nodes, book, not relabel)
    tables = node_tables(nodes)
    if not tables:
        return
    first = first_rows(num_rows)
    owners = [book.owner[begin:end] for begin, end in pairwise(first.tolist())]
    files = DealtTables(writer, tables, np.array([Book.of(owner, parts.num_parts).counts for owner in owners]))

    def slice_of(begin: int, end: int) -> tuple[np.ndarray, list[np.ndarray]]:
        return owners[exchange.rank][begin:end], [rows.array[begin:end] for _, rows in tables]

    kinds = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
    for dealt in deal(exchange, parts, kinds, num_rows, round_bytes, slice_of):
        files.put(dealt.source, dealt.counts, dealt.columns)
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
