"""Rows on their way from the ranks that have them to the ranks that write them, in bounded rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from glt.partition.distributed.exchange import Exchange


@dataclass(frozen=True)
class Parts:
    """Which rank writes which partition: partition p is rank p % world_size's.

    Attributes:
        num_parts: Number of partitions.
        rank, world_size: This rank, and how many there are.
    """

    num_parts: int
    rank: int
    world_size: int

    def of(self, rank: int) -> range:
        return range(rank, self.num_parts, self.world_size)

    @property
    def own(self) -> range:
        return self.of(self.rank)

    @cached_property
    def turn(self) -> np.ndarray:
        """Place of each partition when those of the first rank come first: ``[num_parts]``, smallest unsigned dtype."""
        order = np.concatenate([np.array(self.of(rank), np.int64) for rank in range(self.world_size)])
        turn = np.empty(self.num_parts, np.min_scalar_type(self.num_parts - 1))
        turn[order] = np.arange(self.num_parts)
        return turn


@dataclass(frozen=True)
class Dealt:
    """Rows that came from one rank in one round.

    Attributes:
        source: The rank.
        counts: Rows of each of the own partitions, which follow each other.
        columns: Their columns, each ``[sum(counts), ...]``, in the order of the source.
    """

    source: int
    counts: np.ndarray
    columns: list[np.ndarray]


Kind = tuple[np.dtype, tuple[int, ...]]  # dtype of a column, and shape of a row of it


def round_rows(kinds: Sequence[Kind], world_size: int, round_bytes: int) -> int:
    """Returns how many rows a rank deals in a round so that one that gets all of all ranks gets ``round_bytes``."""
    row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
    return max(1, round_bytes // (world_size * max(1, row_bytes)))


def deal(
    exchange: Exchange,
    parts: Parts,
    kinds: Sequence[Kind],
    num_rows: np.ndarray,
    round_bytes: int,
    rows: Callable[[int, int], tuple[np.ndarray, Sequence[np.ndarray]]],
) -> Iterator[Dealt]:
    """Deals rows of all ranks to the writers of their partitions.

    Memory: what a rank deals in a round, three times, and ``round_bytes`` for what it is dealt.

    Args:
        exchange: Connects the ranks.
        parts: Who writes which partition.
        kinds: Of each column.
        num_rows: ``[world_size]``, rows of each rank.
        round_bytes: See :func:`round_rows`; the same on all ranks.
        rows: Called with the range of rows of a round, returns the partition of each and its columns.

    Yields:
        What came, round by round, from the ranks in order. Rows of a partition keep their order.
    """
    step = round_rows(kinds, exchange.world_size, round_bytes)
    own_rows = int(num_rows[exchange.rank])
    first_turn = np.cumsum([0, *(len(parts.of(rank)) for rank in range(exchange.world_size))])
    for begin in range(0, int(num_rows.max()), step):
        owner, columns = rows(min(begin, own_rows), min(begin + step, own_rows))
        turn = parts.turn[owner]
        order = np.argsort(turn, kind="stable")
        counts = np.bincount(turn, minlength=parts.num_parts)
        first = np.concatenate([[0], np.cumsum(counts)])[first_turn]
        grouped = [np.asarray(column)[order] for column in columns]
        pieces = [
            [counts[first_turn[r] : first_turn[r + 1]], *(column[first[r] : first[r + 1]] for column in grouped)]
            for r in range(exchange.world_size)
        ]
        for source, data in enumerate(exchange.all_to_all(pieces)):
            yield _parsed(source, data, len(parts.own), kinds)


def columns_of(data: np.ndarray, num_rows: int, kinds: Sequence[Kind]) -> list[np.ndarray]:
    """Returns the columns of so many rows, given the bytes of one after the other."""
    at, columns = 0, []
    for dtype, shape in kinds:
        num_bytes = num_rows * math.prod(shape) * dtype.itemsize
        columns.append(data[at : at + num_bytes].view(dtype).reshape(num_rows, *shape))
        at += num_bytes
    return columns


def _parsed(source: int, data: np.ndarray, num_parts: int, kinds: Sequence[Kind]) -> Dealt:
    counts = data[: 8 * num_parts].view(np.int64)
    return Dealt(source, counts, columns_of(data[counts.nbytes :], int(counts.sum()), kinds))
