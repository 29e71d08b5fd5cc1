"""Writes the caches of this rank's partitions, whose rows other ranks have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from glt.partition.distributed.deal import Kind, columns_of, round_rows
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.slices import first_rows
from glt.partition.graph_input import NodeInput
from glt.partition.partition_writer import PartitionWriter, cache_tables


def write_caches(
    exchange: Exchange,
    writer: PartitionWriter,
    nodes: NodeInput,
    num_rows: np.ndarray,
    cached: Mapping[int, np.ndarray],
    new_id: np.ndarray | None,
    round_bytes: int,
) -> None:
    """Writes copies of the rows of nodes of one type; a collective of all ranks.

    Args:
        exchange: Connects the ranks.
        writer: Of this rank's partitions.
        nodes: Tables of the slice of this rank, features among them; ``time`` of all nodes.
        num_rows: ``[world_size]``, rows in the slice of each rank.
        cached: The nodes in the cache of each of this rank's partitions that has one, ascending.
        new_id: What each node is called where nodes are relabelled, else None.
        round_bytes: Memory for rows that arrive at a time.
    """
    tables = cache_tables(nodes)
    kinds: list[Kind] = [(rows.array.dtype, rows.row_shape) for _, rows in tables]
    step = round_rows([(np.dtype(np.int64), ()), *kinds], exchange.world_size, round_bytes)
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
