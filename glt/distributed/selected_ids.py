"""Nodes or edges of one type that a mask or a list of ids selects, counted by owner without holding the mask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import require_data
from glt.data.partition_book import PartitionBook
from glt.distributed.split_counts import Interval

PIECE: Final = 1 << 20  # rows of a mask that are in memory at a time


class SelectedIds:
    """The selected ids of each partition, ascending.

    A mask is read front to back in pieces, once to count; and once more, where it is needed, to tell the ids of an
    interval. It may be anything with a length, a ``dtype`` and slices: a tensor, a (mapped) array, a
    :class:`glt.distributed.DistTensor`.

    Args:
        name: What ``given`` is called, for errors.
        given: A mask ``[num_ids]`` of bools, or of zeros and ones in uint8 as DGL stores them; or ids, in any order.
        num_ids: How many there are.
        book: Owners of all ids; None: nobody knows, all are of partition 0.

    Attributes:
        counts: Selected ids of each partition, ``[num_partitions]`` int64.

    Raises:
        TypeError: If it is neither.
        ValueError: If a mask has another length or other values, or an id comes twice; names the first.
        IndexError: If there is no such id; names the first.
    """

    def __init__(self, name: str, given: Any, num_ids: int, book: PartitionBook | None, piece: int = PIECE) -> None:
        self._name, self._num_ids, self._book, self._piece = name, num_ids, book, piece
        require_data(given, name)
        if isinstance(given, list | tuple | range):
            given = np.asarray(given, np.int64 if len(given) == 0 else None)
        dtype = str(getattr(given, "dtype", type(given).__name__)).removeprefix("torch.")
        shape = tuple(getattr(given, "shape", ()))
        if dtype not in ("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"):
            raise TypeError(f"{name} is {dtype}: expected a mask of bools, or integer ids")
        if len(shape) != 1:
            raise ValueError(f"{name} has shape {list(shape)}: expected one dimension, a mask or ids")
        self._is_mask = dtype in ("bool", "uint8")
        if self._is_mask and shape[0] != num_ids:
            raise ValueError(f"{name} is a mask of {shape[0]}: expected one value for each of {num_ids}")
        self._given = given if self._is_mask else _ascending(name, given, num_ids)
        num_partitions = 1 if book is None else book.num_parts
        counted = [np.bincount(owner, minlength=num_partitions) for _, owner in self._pieces()]
        # Where the ids of each partition begin among those of all pieces before.
        self._before = np.cumsum(np.array([np.zeros(num_partitions, np.int64), *counted]), axis=0)
        self.counts: np.ndarray = self._before[-1]

    def ids(self, intervals: Sequence[Interval], order_by: Any = None) -> Tensor:
        """Returns the ids of some intervals, one interval after the other, ``[n]`` int64.

        Args:
            intervals: Of positions among the selected ids of a partition.
            order_by: Anything that is read by ids, with a number for each: positions are then those in the order of
                these numbers, ids with the same one ascending. All selected ids of the partitions are in memory.
        """
        if order_by is None:
            return torch.from_numpy(_joined(self._intervals(intervals)))
        ordered: dict[int, np.ndarray] = {}
        for part in sorted({part for part, _, _ in intervals}):
            whole = _joined(self._intervals([Interval(part, 0, int(self.counts[part]))]))
            ordered[part] = whole[np.argsort(_as_array(order_by[torch.from_numpy(whole)]), kind="stable")]
        return torch.from_numpy(_joined([ordered[part][begin:end] for part, begin, end in intervals]))

    def _intervals(self, intervals: Sequence[Interval]) -> list[np.ndarray]:
        """The ids of each interval; pieces that have none of them are not read."""
        found: list[list[np.ndarray]] = [[] for _ in intervals]
        for piece, (before, after) in enumerate(pairwise(self._before)):
            if not any(before[part] < end and begin < after[part] for part, begin, end in intervals):
                continue
            ids, owner = self._read(piece)
            for at, (part, begin, end) in enumerate(intervals):
                low, high = max(begin - before[part], 0), min(end, after[part]) - before[part]
                if low < high:
                    found[at].append(ids[owner == part][low:high])
        return [_joined(each) for each in found]

    def _pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for piece in range(-(-len(self._given) // self._piece)):
            yield self._read(piece)

    def _read(self, piece: int) -> tuple[np.ndarray, np.ndarray]:
        """The selected ids of a piece, ascending, and their owners."""
        begin = piece * self._piece
        rows = _as_array(self._given[begin : min(begin + self._piece, len(self._given))])
        if self._is_mask:
            if rows.dtype != np.bool_ and rows.max(initial=0) > 1:
                at = begin + int(np.flatnonzero(rows > 1)[0])
                raise ValueError(
                    f"{self._name}[{at}] = {rows[at - begin]}: expected a mask of zeros and ones, being uint8; ids "
                    "are wider integers"
                )
            rows = np.flatnonzero(rows) + begin
        owner = np.zeros(len(rows), np.int64) if self._book is None else self._book.owners(rows)
        return rows, owner


def _ascending(name: str, given: Any, num_ids: int) -> np.ndarray:
    ids = _as_array(given)
    if ids.dtype == np.uint64 and ids.max(initial=0) >= 1 << 63:
        raise IndexError(f"{name} holds {ids.max()}: expected ids in [0, {num_ids})")
    ids = ids.astype(np.int64)
    bad = np.flatnonzero((ids < 0) | (ids >= num_ids))
    if bad.size:
        raise IndexError(
            f"{name}[{bad[0]}] = {ids[bad[0]]} is outside [0, {num_ids}); a mask has the dtype bool or uint8"
        )
    ids.sort()
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if twice.size:
        raise ValueError(f"{name} holds {ids[twice[0]]} twice: expected each id once")
    return ids


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def _as_array(rows: Any) -> np.ndarray:
    return rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
