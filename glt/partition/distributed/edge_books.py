"""What leaders write of the edges of all ranks: where each is, or what it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from glt.data.schema import EdgeType
from glt.partition import layout
from glt.partition.book import group_by_owner, id_dtype
from glt.partition.distributed.deal import Kind, columns_of, round_rows
from glt.partition.distributed.dealt_tables import begins
from glt.partition.distributed.exchange import Exchange
from glt.partition.distributed.slices import first_rows
from glt.partition.partition_writer import PartitionWriter


class Numbering:
    """Numbers the edges of a slice inside their partitions: those of lower ranks come first.

    Args:
        counts: ``[world_size, num_parts]`` int64, edges that each partition gets from each rank.
        rank: This rank.
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
    """Sends what leaders need of each edge, and writes it there.

    Args:
        exchange: Connects the ranks.
        writer: Of this rank's files.
        edge_type: Of the edges.
        owner: Called with a range of the edges of this rank, returns their owners.
        num_edges: ``[world_size]``, edges in the slice of each rank.
        counts: ``[world_size, num_parts]`` int64, edges that each partition gets from each rank.
        leaders: Ranks that write.
        round_bytes: See :func:`deal`.
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
        round_bytes: int,
    ) -> None:
        self._exchange = exchange
        self._writer = writer
        self._edge_type = edge_type
        self._owner = owner
        self._num_edges = num_edges
        self._counts = counts
        self._leaders = leaders
        self._is_leader = exchange.rank in leaders
        self._round_bytes = round_bytes

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
        step = round_rows(kinds, exchange.world_size, self._round_bytes)
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
