"""What the ranks of a process group tell each other over gloo: every call is bounded, and an error says who is
missing."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from typing_extensions import Self  # which torch needs too

from glt import _deadlines as deadlines
from glt.errors import PeerLost, RemoteError

logger = logging.getLogger(__name__)


class Collective:
    """Bytes and JSON among the ranks of a process group, whose calls all ranks make in the same order.

    A context manager: all ranks meet when it is entered. In each call every rank hears of every other: a rank that
    raises tells the others in place of its next call, and they raise RemoteError; one that is killed is missed by all
    at once, since gloo's connections to it break. ``rank`` and ``world_size`` are attributes.

    Args:
        group: Its collectives on host memory are gloo's. None: this process is alone.
        timeout_s: How long a call waits for the other ranks.
        role: What a rank is called in errors.
        remedy: What to do after a loss, the end of the error's sentence.
        stage: What is going on, for errors; may be set.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, timeout_s: float, role: str, remedy: str, stage: str = "the beginning"
    ) -> None:
        self._group, self._timeout_s, self._role, self._remedy = group, timeout_s, role, remedy
        self.rank = 0 if group is None else dist.get_rank(group)
        self.world_size = 1 if group is None else dist.get_world_size(group)
        self.stage = stage
        self._is_over = False
        self._peers: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._meet()
        self._peers = self.gather({"host": socket.gethostname(), "pid": os.getpid()})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)

    def all_to_all(self, pieces: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        """Sends ``pieces[r]``, arrays one after the other, to each rank r, and returns the bytes from each. Raises
        PeerLost if a rank is gone, or silent until the deadline; RemoteError, with its error, if one has failed."""
        received, failed = self._all_to_all(pieces, False)
        for rank, data in enumerate(received):
            if failed[rank]:
                self._is_over = True
                raise RemoteError(**json.loads(data.tobytes()), role=self._role, rank=rank)
        return received

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, which JSON can hold; errors as of :meth:`all_to_all`."""
        data = np.frombuffer(json.dumps(value).encode(), np.uint8)
        return [json.loads(each.tobytes()) for each in self.all_to_all([[data]] * self.world_size)]

    def fail(self, error: BaseException) -> None:
        """Tells the others of an error of this rank, unless it comes from them; returns when all have heard it."""
        if self._is_over or not isinstance(error, Exception):  # an interrupt does not wait for other ranks
            return
        self._is_over = True
        what = {
            "type_name": f"{type(error).__module__}.{type(error).__qualname__}",
            "message": str(error),
            "traceback": "".join(traceback.format_exception(error)),
            "pid": os.getpid(),
            "host": socket.gethostname(),
        }
        data = np.frombuffer(json.dumps(what).encode(), np.uint8)
        try:
            self._all_to_all([[data]] * self.world_size, True)
        except PeerLost as lost:
            logger.warning("the other ranks could not be told of %r: %s", error, lost)

    def _meet(self) -> None:
        """Waits for all ranks. Of those that are missing, rank 0 learns who they are."""
        if self._group is None:
            return
        begin = time.monotonic()
        try:
            dist.monitored_barrier(self._group, timedelta(seconds=self._timeout_s), wait_all_ranks=True)
        except RuntimeError as error:
            noun = self._role.split()[-1]
            named = re.search(r"Ranks? ([0-9, ]+?) failed to pass", str(error))
            who = f"{noun}s {named[1]}" if named and self.rank == 0 else f"{noun} 0, which says who is missing,"
            raise self._lost(who, begin) from error

    def _all_to_all(self, pieces: Sequence[Sequence[np.ndarray]], failed: bool) -> tuple[list[np.ndarray], list[bool]]:
        flat = [array.reshape(-1).view(np.uint8) for of_rank in pieces for array in of_rank]
        given = torch.from_numpy(np.concatenate([*flat, np.empty(0, np.uint8)]))
        if self._group is None:
            return [given.numpy()], [failed]
        sent = [sum(array.nbytes for array in of_rank) for of_rank in pieces]
        ours = torch.tensor([[num_bytes, failed] for num_bytes in sent])
        theirs = torch.empty_like(ours)
        self._exchange(theirs, ours, None, None)
        sizes = theirs[:, 0].tolist()
        data = torch.empty(sum(sizes), dtype=torch.uint8)
        self._exchange(data, given, sizes, sent)
        return [each.numpy() for each in data.split(sizes)], theirs[:, 1].bool().tolist()

    def _exchange(
        self, output: torch.Tensor, given: torch.Tensor, sizes: list[int] | None, sent: list[int] | None
    ) -> None:
        begin = time.monotonic()
        try:
            work = dist.all_to_all_single(output, given, sizes, sent, group=self._group, async_op=True)
            work.wait(timedelta(seconds=self._timeout_s))
        except RuntimeError as error:
            raise self._lost(f"other {self._role.split()[-1]}s", begin) from error

    def _lost(self, who: str, begin: float) -> PeerLost:
        self._is_over = True
        if time.monotonic() - begin >= 0.9 * self._timeout_s:
            why = f"not all of them came within timeout_s = {self._timeout_s:g} s"
        else:
            why = f"the connection to one of them broke{self._gone()}"
        return PeerLost(
            f"{self._role} {self.rank} of {self.world_size} lost {who} at {self.stage}: {why}; see their output for "
            f"the cause, {self._remedy}"
        )

    def _gone(self) -> str:
        here = socket.gethostname()
        neighbors = [
            (rank, peer["pid"]) for rank, peer in enumerate(self._peers) if peer["host"] == here and rank != self.rank
        ]
        deadline = time.monotonic() + (deadlines.DYING_S if neighbors else 0)
        while not (gone := [f"rank {rank} (pid {pid})" for rank, pid in neighbors if not _is_running(pid)]):
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.01)
        return f", and of this host {', '.join(gone)} ended"


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
