"""What the ranks of a partitioning run say to each other: every exchange has a deadline and tells of failures."""

from __future__ import annotations

import json
import math
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist

from glt.errors import PeerLost, RemoteError

_ROLE: Final = "partitioning rank"
_DYING_S: Final = 2.0  # a process that is killed closes its connections first


class Exchange:
    """Lets all ranks exchange bytes, again and again, in the same order; a context manager.

    All is built on one collective in which every rank hears of every other. So a rank that has raised tells the others
    in the place of its next exchange, and they raise too, at their next one; and one that was killed is missed by all
    at once, since gloo's connections to it break.

    Attributes:
        rank, world_size: This rank, and how many there are.
        stage: What is going on, for messages.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialized: call torch.distributed.init_process_group('gloo') first, in "
                "each process that torchrun has started"
            )
        self._timeout = timedelta(seconds=timeout_s)
        self._is_mine = group is None
        self._group = self._new_group() if group is None else group
        self.rank, self.world_size = dist.get_rank(self._group), dist.get_world_size(self._group)
        if self.rank < 0:
            raise ValueError("group: this process is no member of it; call partition_distributed in its members only")
        backends = dist.get_backend_config(self._group)
        if "cpu:gloo" not in backends:
            raise ValueError(f"group has the backends {backends!r}: expected gloo for host memory, 'cpu:gloo'")
        self.stage = "the beginning"
        self._is_over = False
        self._peers: list[dict[str, Any]] = []

    def __enter__(self) -> Exchange:
        try:
            self._peers = self.gather({"host": socket.gethostname(), "pid": os.getpid()})
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        self._leave()

    def all_to_all(self, pieces: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Sends ``pieces[r]``, arrays one after the other, to each rank r, and returns the bytes from each.

        Raises:
            PeerLost: If a rank is gone, or silent until the deadline.
            RemoteError: If one has failed; it is its error.
        """
        received, failed = self._all_to_all(pieces, False)
        for rank, data in enumerate(received):
            if failed[rank]:
                self._is_over = True
                raise self._remote_error(rank, json.loads(data.tobytes()))
        return received

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, which JSON can hold."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        return [json.loads(each.tobytes()) for each in self.all_to_all([[data]] * self.world_size)]

    def gather_counts(self, counts: np.ndarray) -> np.ndarray:
        """Returns the int64 ``counts`` of all ranks, one rank after the other along a new first axis."""
        received = self.all_to_all([[counts]] * self.world_size)
        return np.stack([each.view(np.int64).reshape(counts.shape) for each in received])

    def fail(self, error: BaseException) -> None:
        """Tells the others of an error of this rank, unless it comes from them; returns when all have heard it."""
        if self._is_over or not isinstance(error, Exception):  # an interrupt should not wait for anybody
            return
        self._is_over = True
        kind = type(error)
        what = {
            "type_name": f"{kind.__module__}.{kind.__qualname__}",
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        data = np.frombuffer(json.dumps(what).encode(), np.uint8)
        try:
            self._all_to_all([[data]] * self.world_size, True)
        except PeerLost as lost:
            error.add_note(f"the other ranks could not be told: {lost}")

    def _all_to_all(self, pieces: Sequence[Sequence[np.ndarray]], failed: bool) -> tuple[list[np.ndarray], list[bool]]:
        flat = [array.reshape(-1).view(np.uint8) for of_rank in pieces for array in of_rank]
        sent = [sum(array.nbytes for array in of_rank) for of_rank in pieces]
        ours = torch.tensor([[num_bytes, failed] for num_bytes in sent])
        theirs = torch.empty_like(ours)
        self._collective(theirs, ours, None, None)
        sizes = theirs[:, 0].tolist()
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        self._collective(data, torch.from_numpy(np.concatenate([*flat, np.empty(0, np.uint8)])), sizes, sent)
        return [each.numpy() for each in data.split(sizes)], theirs[:, 1].bool().tolist()

    def _new_group(self) -> dist.ProcessGroup:
        # A group of one's own has this deadline, and gloo, whatever the default group is for.
        try:
            return dist.new_group(timeout=self._timeout, backend="gloo")
        except RuntimeError as error:
            raise PeerLost(
                f"rank {dist.get_rank()} of {dist.get_world_size()} did not find all others within timeout_s = "
                f"{self._timeout.total_seconds():g} s: expected all ranks to call partition_distributed; see the "
                "output of those that did not"
            ) from error

    def _collective(
        self, output: torch.Tensor, given: torch.Tensor, sizes: list[int] | None, sent: list[int] | None
    ) -> None:
        begin = time.monotonic()
        try:
            work = dist.all_to_all_single(output, given, sizes, sent, group=self._group, async_op=True)
            work.wait(self._timeout)
        except RuntimeError as error:
            self._is_over = True
            if time.monotonic() - begin >= 0.9 * self._timeout.total_seconds():
                why = f"not all of them came within timeout_s = {self._timeout.total_seconds():g} s"
            else:
                why = f"the connection to one of them broke{self._gone()}"
            raise PeerLost(
                f"rank {self.rank} of {self.world_size} lost other ranks at {self.stage}: {why}; see their output for "
                "the cause, and run all of them again"
            ) from error

    def _gone(self) -> str:
        """Names the other ranks of this host whose processes have ended."""
        here = socket.gethostname()
        neighbors = [
            (rank, peer["pid"]) for rank, peer in enumerate(self._peers) if peer["host"] == here and rank != self.rank
        ]
        deadline = time.monotonic() + (_DYING_S if neighbors else 0)
        while not (gone := [f"rank {rank} (pid {pid})" for rank, pid in neighbors if not _is_running(pid)]):
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.01)
        return f", and of this host {', '.join(gone)} ended"

    def _remote_error(self, rank: int, what: dict[str, str]) -> RemoteError:
        peer: dict[str, Any] = self._peers[rank] if self._peers else {"host": "an unknown host", "pid": -1}
        return RemoteError(
            what["type_name"],
            what["message"],
            what["traceback"],
            role=_ROLE,
            rank=rank,
            pid=peer["pid"],
            host=peer["host"],
        )

    def _leave(self) -> None:
        if self._is_mine:
            dist.destroy_process_group(self._group)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# What all ranks must have been given alike.


def agree(exchange: Exchange, given: dict[str, object]) -> None:
    """Raises ValueError, on all ranks, if the values of an argument differ between ranks; names them and the ranks."""
    shown = {name: repr(value) for name, value in given.items()}
    everyone: list[dict[str, Any]] = exchange.gather(shown)
    first = everyone[0]
    for rank, other in enumerate(everyone):
        for name in (*first, *(name for name in other if name not in first)):
            if first.get(name) != other.get(name):
                raise ValueError(
                    f"{name} differs between ranks: rank 0 has {first.get(name, 'none')}, rank {rank} has "
                    f"{other.get(name, 'none')}; expected the same on all of them"
                )


# Rows on their way from the ranks that have them to the ranks that write them, in bounded rounds.


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
