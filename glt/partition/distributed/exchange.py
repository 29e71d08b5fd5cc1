"""What the ranks of a partitioning run say to each other: every exchange has a deadline and tells of failures."""

from __future__ import annotations

import json
import os
import socket
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
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
            what["type_name"], what["message"], what["traceback"], role=_ROLE, rank=rank, pid=peer["pid"],
            host=peer["host"],
        )  # fmt: skip

    def _leave(self) -> None:
        if self._is_mine:
            dist.destroy_process_group(self._group)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
