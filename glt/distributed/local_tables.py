"""The tables of the partitions that are read here, together: what a GPU looks rows up in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import from_array
from glt.data.device import Accelerator
from glt.data.feature import Feature
from glt.data.partition_book import PartitionBook
from glt.data.tiered_rows import NO_ROW, TieredRows
from glt.distributed.local_partition import LocalPartition

_MOST_TABLES = 8  # of tiers of a kernel, two each

Place = tuple[Accelerator, str, int, str]


class LocalTables:
    """Looks up rows of the nodes and edges of some partitions on a GPU.

    The share ``split_ratio`` of each partition's rows is in device memory, the hottest of the nodes
    (:func:`glt.distributed.row_hotness.row_hotness`) and the first of the edges; all rows but these first ones stay in
    the partitions' own mapped files, pinned. That takes 4 bytes of device memory per node or edge of the graph more,
    but where nothing is hot and the partitions own ranges of ids that follow each other.

    Args:
        partitions: Those that are read here, by index.
        books: Owners, by kind (``'node'``, ``'edge'``) and type.
    """

    def __init__(
        self, partitions: Mapping[int, LocalPartition], books: Mapping[str, tuple[PartitionBook | None, ...]]
    ) -> None:
        self._parts = sorted(partitions)
        self._partitions = [partitions[p] for p in self._parts]
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
        with self._lock:
            key = (place, kind, type_, name)
            if key not in self._placed:
                self._placed[key] = self._place(place, kind, type_, name)
        self._placed[key].gather(ids, out, positions=positions, trusted=True, explain=_explain)

    def _place(self, place: Accelerator, kind: str, type_: int, name: str) -> TieredRows:
        features = [each.tables(kind, type_)[name] for each in self._partitions]
        book = self._books[kind][type_]
        assert book is not None, "tables of a partition come with a book"
        tables: list[Tensor] = [feature.tensor for feature in features]
        hotness: list[Tensor | None] = [feature.hotness for feature in features]
        num_hot = [round(feature.split_ratio * len(feature)) for feature in features]
        first = np.cumsum([0, *map(len, tables)])[:-1]
        if len(tables) > _MOST_TABLES:
            split_ratio = features[0].split_ratio
            tables, num_hot = [torch.cat(tables)], [round(split_ratio * sum(map(len, tables)))]
            known = [each for each in hotness if each is not None]
            hotness = [torch.cat(known) if len(known) == len(hotness) else None]
        first_id, row_of = book.first_id(self._parts[0]), None
        if not (book.has_ranges and self._parts == list(range(self._parts[0], self._parts[-1] + 1))):
            first_id, row_of = 0, from_array(self._rows(book, first))
        return TieredRows(
            tables, place.device, num_hot=num_hot, hotness=hotness, row_of=row_of, first_id=first_id,
            name=f"{name!r} of partitions {self._parts}",
        )  # fmt: skip

    def _rows(self, book: PartitionBook, first: np.ndarray) -> np.ndarray:
        """The row of each id among those of these partitions, ``first`` being the first of each; uint32."""
        of_part = np.full(book.num_parts, -1, np.int64)
        of_part[self._parts] = first
        begin = of_part[book.owners()]
        return np.where(begin < 0, NO_ROW, begin + book.rows()).astype(np.uint32)

    def check(self) -> None:
        """Waits for all gathers; raises the error of those that had one."""
        for each in list(self._placed.values()):
            each.check()

    def close(self) -> None:
        """Gives back device memory and unpins the rows; they are placed again when they are asked for again."""
        with self._lock:
            placed, self._placed = self._placed, {}
        for each in placed.values():
            each.close()


def _explain(ids: Tensor, positions: Tensor | None, num_out: int) -> NoReturn:
    raise IndexError(
        f"a sampled node or edge, of {len(ids)}, has no row: the book or a table of a partition is damaged"
    )
