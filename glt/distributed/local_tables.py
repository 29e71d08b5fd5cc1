"""The tables of all partitions together, where they are all on this host: what a GPU looks rows up in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from glt.data.accelerator import Accelerator
from glt.data.arrays import from_array
from glt.data.feature import Feature
from glt.data.partition_book import PartitionBook
from glt.data.tiered_rows import TieredRows
from glt.distributed.local_partition import LocalPartition

_MOST_TABLES = 8  # of tiers of a kernel, two each

Place = tuple[Accelerator, str, int, str]


class LocalTables:
    """Looks up rows of any node or edge of the graph on a GPU.

    The share ``split_ratio`` of each partition's rows is in device memory, all others in the partitions' own mapped
    files, pinned. Several partitions need 4 bytes per node or edge of device memory more, unless each owns a range.

    Args:
        partitions: All of them, by index.
        books: Owners, by kind (``'node'``, ``'edge'``) and type.
    """

    def __init__(
        self, partitions: Mapping[int, LocalPartition], books: Mapping[str, tuple[PartitionBook | None, ...]]
    ) -> None:
        self._partitions = [partitions[p] for p in sorted(partitions)]
        self._books = books
        self._placed: dict[Place, TieredRows] = {}
        self._lock = threading.Lock()

    def feature(self, kind: str, type_: int, name: str) -> Feature:
        """A table of the first partition: they are alike but for their rows."""
        return self._partitions[0].tables(kind, type_)[name]

    def gather(
        self, place: Accelerator, kind: str, type_: int, name: str, ids: Tensor, out: Tensor,
        positions: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Looks up rows on the current stream, and waits for nothing.

        Args:
            place: The GPU.
            kind, type_, name: Of which table.
            ids: ``[n]``, int64, on it; nodes or edges of these partitions.
            out: ``[at least n, ...]``, on it.
            positions: Row of ``out`` for each id ``[n]``, uint32, on it. Default: 0, 1, 2, ...
        """
        if len(self._partitions) == 1:
            self.feature(kind, type_, name).gather_on(place, ids, out, positions=positions, trusted=True)
            return
        with self._lock:
            key = (place, kind, type_, name)
            if key not in self._placed:
                self._placed[key] = self._place(place, kind, type_, name)
        self._placed[key].gather(ids, out, positions=positions, trusted=True, explain=_explain)

    def _place(self, place: Accelerator, kind: str, type_: int, name: str) -> TieredRows:
        features = [each.tables(kind, type_)[name] for each in self._partitions]
        book = self._books[kind][type_]
        assert book is not None, "tables of a partition come with a book"
        row_of = None
        if not book.has_ranges:  # of which the rows, one partition after the other, are the ids
            first = np.cumsum([0, *(len(feature) for feature in features)])[:-1]
            row_of = from_array((first[book.owners()] + book.rows()).astype(np.uint32))
        tables: list[Tensor] = [feature.tensor for feature in features]
        num_hot = [round(feature.split_ratio * len(feature)) for feature in features]
        if len(tables) > _MOST_TABLES:
            num_rows = sum(len(table) for table in tables)
            tables, num_hot = [torch.cat(tables)], [round(features[0].split_ratio * num_rows)]
        return TieredRows(tables, place.device, num_hot=num_hot, row_of=row_of, name=f"{name!r} of all partitions")

    def check(self) -> None:
        """Waits for all gathers; raises the error of those that had one."""
        for each in self._everything():
            each.check()

    def close(self) -> None:
        """Gives back device memory and unpins the rows; they are placed again when they are asked for again."""
        for each in self._everything():
            each.close()
        with self._lock:
            self._placed = {}

    def _everything(self) -> list[Any]:
        found: list[Any] = list(self._placed.values())
        for tables in (*self._partitions[0].node_tables, *self._partitions[0].edge_tables):
            found += tables.values() if len(self._partitions) == 1 else ()
        return found


def _explain(ids: Tensor, positions: Tensor | None, num_out: int) -> NoReturn:
    raise IndexError(
        f"a sampled node or edge, of {len(ids)}, has no row: the book or a table of a partition is damaged"
    )
