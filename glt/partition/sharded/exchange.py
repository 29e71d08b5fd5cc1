"""How the ranks of a partitioning run agree, and how rows go to the ranks that write them, in bounded rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch.distributed as dist

from glt._collective import Collective
from glt.errors import PeerLost
from glt.partition.format.files import scratch_array

Kind = tuple[np.dtype, tuple[int, ...]]  # dtype of a column, and shape of a row of it


class Exchange(Collective):
    """The ranks of a run.

    Args:
        group: The ranks that take part; None: all of them.
        timeout_s: How long to wait for another rank at a time.
        round_bytes: Memory for rows that arrive at a time; the same on all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float, round_bytes: int) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialized: call torch.distributed.init_process_group('gloo') first, in "
                "each process that torchrun has started"
            )
        self._is_mine = group is None
        # A group of one's own has this deadline, and gloo, whatever the default group is for.
        super().__init__(_new_group(timeout_s) if group is None else group, timeout_s, "partitioning rank", _REMEDY)
        self.round_bytes = round_bytes
        if self.rank < 0:
            raise ValueError("group: this process is no member of it; call partition_distributed in its members only")
        backends = dist.get_backend_config(self._group)
        if "cpu:gloo" not in backends:
            raise ValueError(f"group has the backends {backends!r}: expected gloo for host memory, 'cpu:gloo'")

    def __enter__(self) -> Exchange:
        try:
            return super().__enter__()
        except BaseException:
            self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._leave()

    def agree(self, given: dict[str, object]) -> None:
        """Raises ValueError on all ranks if values of an argument differ between ranks; names them and the ranks."""
        everyone: list[dict[str, Any]] = self.gather({name: repr(value) for name, value in given.items()})
        first = everyone[0]
        for rank, other in enumerate(everyone):
            for name in (*first, *(name for name in other if name not in first)):
                if first.get(name) != other.get(name):
                    raise ValueError(
                        f"{name} differs between ranks: rank 0 has {first.get(name, 'none')}, rank {rank} has "
                        f"{other.get(name, 'none')}; expected the same on all of them"
                    )

    def gather_counts(self, counts: np.ndarray) -> np.ndarray:
        """Returns the int64 ``counts`` of all ranks, one rank after the other along a new first axis."""
        received = self.all_to_all([[counts]] * self.world_size)
        return np.stack([each.view(np.int64).reshape(counts.shape) for each in received])

    def gather_rows(self, rows: np.ndarray, num_rows: np.ndarray, scratch: Path | None = None) -> np.ndarray:
        """Returns the slices of all ranks as one array; in a file in ``scratch``, if given.

        Args:
            rows: The slice of this rank; of the same dtype and shape of a row on all of them.
            num_rows: ``[world_size]``, of all ranks.
            scratch: A directory, for an array of one dimension.
        """
        first = first_rows(num_rows)
        shape = (int(first[-1]), *rows.shape[1:])
        whole = np.empty(shape, rows.dtype) if scratch is None else scratch_array(scratch, shape[0], rows.dtype)
        step = self.round_rows([(rows.dtype, rows.shape[1:])])
        for begin in range(0, int(num_rows.max()), step):
            piece = np.ascontiguousarray(rows[begin : begin + step])
            received = self.all_to_all([[piece]] * self.world_size)
            for at, end, data in zip(first[:-1] + begin, first[1:], received, strict=True):
                to = whole[at : min(at + step, end)] if at < end else whole[:0]
                to[:] = data.view(rows.dtype).reshape(to.shape)
        return whole

    def round_rows(self, kinds: Sequence[Kind]) -> int:
        """Returns how many rows a rank sends in a round so that one that gets all of all ranks gets ``round_bytes``."""
        row_bytes = sum(dtype.itemsize * math.prod(shape) for dtype, shape in kinds)
        return max(1, self.round_bytes // (self.world_size * max(1, row_bytes)))

    def _leave(self) -> None:
        if self._is_mine:
            dist.destroy_process_group(self._group)


_REMEDY = "and run all of them again"


def _new_group(timeout_s: float) -> dist.ProcessGroup:
    try:
        return dist.new_group(timeout=timedelta(seconds=timeout_s), backend="gloo")
    except RuntimeError as error:
        raise PeerLost(
            f"rank {dist.get_rank()} of {dist.get_world_size()} did not find all others within timeout_s = "
            f"{timeout_s:g} s: expected all ranks to call partition_distributed; see the output of those that did not"
        ) from error


def first_rows(num_rows: np.ndarray) -> np.ndarray:
    """Returns where the slice of each rank begins, given how many rows each has, and the number of all, at the end."""
    return np.concatenate([[0], np.cumsum(num_rows)])


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
    def place(self) -> np.ndarray:
        """Place of each partition when those of the first rank come first: ``[num_parts]``, smallest unsigned dtype."""
        order = np.concatenate([np.array(self.of(rank), np.int64) for rank in range(self.world_size)])
        place = np.empty(self.num_parts, np.min_scalar_type(self.num_parts - 1))
        place[order] = np.arange(self.num_parts)
        return place


@dataclass(frozen=True)
class Batch:
    """Rows that came from one rank in one round.

    Attributes:
        source: The rank.
        counts: Rows of each of the own partitions, which follow each other.
        columns: Their columns, each ``[sum(counts), ...]``, in the order of the source.
    """

    source: int
    counts: np.ndarray
    columns: list[np.ndarray]


def scatter_rows(
    exchange: Exchange,
    parts: Parts,
    kinds: Sequence[Kind],
    num_rows: np.ndarray,
    rows: Callable[[int, int], tuple[np.ndarray, Sequence[np.ndarray]]],
) -> Iterator[Batch]:
    """Sends rows of all ranks to the writers of their partitions.

    Memory: what a rank sends in a round, three times, and ``exchange.round_bytes`` for what arrives.

    Args:
        exchange: Connects the ranks.
        parts: Who writes which partition.
        kinds: Of each column.
        num_rows: ``[world_size]``, rows of each rank.
        rows: Called with the range of rows of a round, returns the partition of each and its columns.

    Yields:
        What came, round by round, from the ranks in order. Rows of a partition keep their order.
    """
    step = exchange.round_rows(kinds)
    own_rows = int(num_rows[exchange.rank])
    first_place = np.cumsum([0, *(len(parts.of(rank)) for rank in range(exchange.world_size))])
    for begin in range(0, int(num_rows.max()), step):
        owner, columns = rows(min(begin, own_rows), min(begin + step, own_rows))
        place = parts.place[owner]
        order = np.argsort(place, kind="stable")
        counts = np.bincount(place, minlength=parts.num_parts)
        first = np.concatenate([[0], np.cumsum(counts)])[first_place]
        grouped = [np.asarray(column)[order] for column in columns]
        pieces = [
            [counts[first_place[r] : first_place[r + 1]], *(column[first[r] : first[r + 1]] for column in grouped)]
            for r in range(exchange.world_size)
        ]
        for source, data in enumerate(exchange.all_to_all(pieces)):
            in_part = data[: 8 * len(parts.own)].view(np.int64)
            yield Batch(source, in_part, columns_of(data[in_part.nbytes :], int(in_part.sum()), kinds))


def columns_of(data: np.ndarray, num_rows: int, kinds: Sequence[Kind]) -> list[np.ndarray]:
    """Returns the columns of so many rows, given the bytes of one after the other."""
    at, columns = 0, []
    for dtype, shape in kinds:
        num_bytes = num_rows * math.prod(shape) * dtype.itemsize
        columns.append(data[at : at + num_bytes].view(dtype).reshape(num_rows, *shape))
        at += num_bytes
    return columns
