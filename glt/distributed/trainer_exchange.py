"""What trainers tell each other beside their gradients: bounded in time, and an error names who is missing."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from glt.errors import PeerLost

# A gloo group for each group of another backend, whose collectives have no deadline that names who is late.
_gloo: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


class TrainerExchange:
    """Words and tensors among the ranks of a process group, whose calls all ranks make in the same order.

    Nothing is unpickled, and no call waits longer than for the rest of ``timeout_s``.

    Args:
        group: The process group. Default: that of ``torch.distributed``; without any, this process is alone.
        timeout_s: For all calls together.

    Attributes:
        rank, size: Of this process in the group, and of the group.
    """

    def __init__(self, group: Any, timeout_s: float) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ValueError(f"timeout_s = {timeout_s!r}: expected a number of seconds above 0")
        self.timeout_s, self._deadline = float(timeout_s), monotonic() + timeout_s
        self.rank, self.size = 0, 1
        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
            self._group = _gloo_group(group) if self.size > 1 else None

    def all_told(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """What each trainer says, by rank."""
        if self.size == 1:
            return [json.loads(json.dumps(mine))]
        text = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
        self._meet()
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.size)]
        self._wait(dist.all_gather(sizes, torch.tensor([len(text)]), group=self._group, async_op=True))
        longest = max(int(each) for each in sizes)
        padded = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.size)]
        whole = torch.zeros(longest, dtype=torch.uint8)
        whole[: len(text)] = text
        self._wait(dist.all_gather(padded, whole, group=self._group, async_op=True))
        return [json.loads(each[: int(num)].numpy().tobytes()) for each, num in zip(padded, sizes, strict=True)]

    def send(self, tensors: Sequence[Tensor]) -> None:
        """Sends tensors to trainer 0."""
        for tensor in tensors:
            if tensor.numel():
                self._wait(dist.isend(_bytes_of(tensor), self._global(0), self._group))

    def receive(self, rank: int, outlines: Sequence[tuple[str, list[int]]]) -> list[Tensor]:
        """Receives what a trainer sends, of these dtypes and shapes."""
        tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in outlines]
        for tensor in tensors:
            if tensor.numel():
                self._wait(dist.irecv(_bytes_of(tensor), self._global(rank), self._group))
        return tensors

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank)

    def _left(self) -> timedelta:
        return timedelta(seconds=max(self._deadline - monotonic(), 0.001))

    def _meet(self) -> None:
        start = monotonic()
        try:
            dist.monitored_barrier(self._group, self._left(), wait_all_ranks=True)
        except RuntimeError as error:
            # Rank 0 learns who is missing; it then fails, which is what the others learn.
            named = re.search(r"Ranks? ([0-9, ]+?) failed to pass", str(error))
            who = f"trainers {named[1]}" if named and self.rank == 0 else "trainer 0, which says who is missing,"
            raise PeerLost(
                f"trainer {self.rank} lost or gave up waiting for {who} after {monotonic() - start:.1f} s (timeout_s = "
                f"{self.timeout_s:g}) when all {self.size} trainers were to meet, for example in gather_metrics: those "
                "missing have died, see their output, or are still at their batches; then raise timeout_s"
            ) from error

    def _wait(self, work: Any) -> None:
        try:
            work.wait(self._left())
        except RuntimeError as error:
            raise PeerLost(
                f"trainer {self.rank} lost another in the middle of gather_metrics: {error}; see the output of the "
                "others"
            ) from error


def _gloo_group(group: Any) -> Any:
    group = dist.group.WORLD if group is None else group
    if dist.get_backend(group) == "gloo":
        return group
    if group not in _gloo:
        ranks = dist.get_process_group_ranks(group)
        _gloo[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _gloo[group]


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
