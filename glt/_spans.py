"""When the stages of a batch began and ended, where its loader is traced."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextvars import ContextVar

import torch
from torch import Tensor

# What a stage of a batch is called, by its number. The first is none: a row that was not needed.
STAGES = ("", "batch", "sample", "wait for partitions", "gather", "wait for room", "send", "transform")

Span = tuple[int, int, int, int]  # stage, hop (-1: of no hop), begin and end in ns since 1970
Made = tuple[str, list[Span]]  # the process that made a batch, as this_process() calls it, and the stages

# What a time in the account of a batch is called in a trace.
_STAGE_OF = {
    "sampling_s": STAGES.index("sample"),
    "remote_s": STAGES.index("wait for partitions"),
    "gathering_s": STAGES.index("gather"),
    "blocked_s": STAGES.index("wait for room"),
}
_BATCH, _SEND = STAGES.index("batch"), STAGES.index("send")
_MORE = 6  # stages that come once the message is laid out, beside answers: filling it, waiting for room, sending

TIMES, PROCESS = "trace", "trace_process"  # tensors of a message


def this_process(name: str, pid: int | None = None) -> str:
    """How a process of this host is called in a trace: text that others take as it is."""
    return json.dumps([name, socket.gethostname(), os.getpid() if pid is None else pid])


def clock_offset_ns() -> int:
    """What ``time.time_ns()`` is ahead of ``time.perf_counter_ns()``: both go at the same rate."""
    reads = [(time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()) for _ in range(3)]
    before, unix, after = min(reads, key=lambda each: each[2] - each[0])  # others may have run between two of them
    return unix - (before + after) // 2


class BatchSpans:
    """Those of one batch, which ``process`` makes; the context variable ``SPANS`` of its task has them."""

    def __init__(self, process: str) -> None:
        self.process, self.hop = process.encode(), -1
        self._spans: list[tuple[int, int, float, float]] = []
        self._began_s = time.perf_counter()

    def add(self, name: str, began_s: float, ended_s: float) -> None:
        self._spans.append((_STAGE_OF[name], self.hop, began_s, ended_s))

    def specs(self, num_answers: int) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Of the tensors that :meth:`write` fills; so many answers of partitions are still awaited."""
        num_spans = len(self._spans) + num_answers + _MORE
        return {TIMES: (torch.int64, (num_spans, 4)), PROCESS: (torch.uint8, (len(self.process),))}

    def write(self, out: Mapping[str, Tensor]) -> None:
        now_s, offset_ns = time.perf_counter(), clock_offset_ns()
        rows = [(_BATCH, -1, self._began_s, now_s), *self._spans]
        times = out[TIMES].numpy()
        times[...] = 0
        for row, (stage, hop, *of) in zip(times[:-1], rows, strict=False):
            row[:] = stage, hop, *(int(each_s * 1e9) + offset_ns for each_s in of)
        out[PROCESS].numpy()[:] = list(self.process)


SPANS: ContextVar[BatchSpans | None] = ContextVar("glt_spans", default=None)


def book(stats: dict[str, float], name: str, began_s: float, ended_s: float) -> None:
    """Adds a time to the account of a batch."""
    stats[name] = stats.get(name, 0.0) + ended_s - began_s
    if (spans := SPANS.get()) is not None:
        spans.add(name, began_s, ended_s)


def at_hop(hop: int) -> None:
    """Says which hop the times of this batch are of from now on; -1: of none."""
    if (spans := SPANS.get()) is not None:
        spans.hop = hop


def mark_sent(tensors: Mapping[str, Tensor]) -> None:
    """Writes into a message that it is sent now; it waited since it was made."""
    if TIMES in tensors:
        times = tensors[TIMES].numpy()
        times[-1] = _SEND, -1, times[0, 3], max(int(times[0, 3]), time.time_ns())


def take_spans(tensors: dict[str, Tensor]) -> Made | None:
    """Takes out of a message which process made it, and when; None: it does not say."""
    times, process = tensors.pop(TIMES, None), tensors.pop(PROCESS, None)
    if times is None or process is None:
        return None
    return bytes(process.tolist()).decode(), [(s, h, b, e) for s, h, b, e in times.tolist()]
