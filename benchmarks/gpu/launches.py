"""Timing of what runs on a GPU, and tables at raw addresses for what no Feature would hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt.data.pinned import PinnedMemory

SLEEP_CYCLES = 2_000_000
"""About a millisecond: the device sleeps so long before the work, so that the time to launch it does not count."""


def seconds_of(
    launch: Callable[[int], object],
    device: torch.device,
    rounds: int,
    *,
    before: Callable[[], object] = lambda: None,
    with_host: bool = False,
) -> list[float]:
    """Seconds of each round on the device.

    On the CPU (the host executor, to show that a benchmark runs) those of the call.

    Args:
        launch: ``launch(round)`` puts work on the current stream and does not wait.
        device: Where it runs.
        rounds: Measured ones; two more are run before.
        before: Called before each round, not measured.
        with_host: Whether the time of the call counts too, as where it does part of the work.
    """
    taken, warmup = [], 2
    for number in range(warmup + rounds):
        before()
        if device.type == "cpu":
            start = time.perf_counter()
            launch(number)
            taken.append(time.perf_counter() - start)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        if not with_host:
            torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        launch(number)
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return taken[warmup:]


def median_ms(seconds: list[float]) -> float:
    return float(np.median(seconds) * 1e3)


@contextmanager
def pinned_memory(memory: Tensor, device: torch.device) -> Iterator[Tensor]:
    """The same in pinned memory, where there is a GPU; free again once it has done all work."""
    if device.type == "cpu":
        yield memory
        return
    pin = PinnedMemory(memory, device)
    yield pin.tensor
    torch.cuda.synchronize(device)
    pin.close()


class RawTable:
    """Rows of bytes ``[num_rows, row_bytes]``, on the device or in pinned memory, read by the gather kernel."""

    def __init__(self, rows: Tensor, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self._table = _core.TieredTable(rows.shape[1], [(rows.data_ptr(), len(rows), rows.stride(0))])
        self._error = torch.full((1,), -1, dtype=torch.int64, device=device)

    def gather(self, ids: Tensor, out: Tensor, max_blocks: int = 0) -> None:
        call = _core.GatherCall(
            ids.data_ptr(), ids.element_size(), len(ids), out.data_ptr(), len(out), self._error.data_ptr()
        )
        if self.device.type == "cpu":
            _core.host_gather(self._table, call, 64)
        else:
            stream = torch.cuda.current_stream(self.device).cuda_stream
            _core.cuda_gather(self._table, call, self.device.index, stream, max_blocks)

    def check(self, ids: Tensor) -> None:
        """Raises unless ``ids`` give the right rows: the figures of a wrong gather would mean nothing."""
        out = torch.zeros(len(ids), self.rows.shape[1], dtype=torch.uint8, device=self.device)
        self.gather(ids, out)
        if not torch.equal(out.cpu(), self.rows[ids.to(self.rows.device).long()].cpu()):
            raise ValueError("the gather gives wrong rows")
        if self._error.item() != -1:
            raise ValueError(f"the gather reports ids[{self._error.item()}] out of range")
