"""What loaders count, in the trainer's process and in its DataLoader workers."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from glt._spans import STAGES, Made, Span, clock_offset_ns, this_process
from glt._trace import Trace

_NAMES = (
    *("num_batches", "num_seeds", "epoch_s", "wait_s"),
    *("sampling_s", "gathering_s", "transform_s", "num_nodes", "num_edges"),
)
_BATCHES, _SEEDS, _EPOCH, _WAIT, _SAMPLING, _GATHERING, _TRANSFORM, _NODES, _EDGES = range(len(_NAMES))


class Counts:
    """Sums of the trainer, and a row of them for each worker, which alone adds to it."""

    def __init__(self) -> None:
        self._own = [0.0] * len(_NAMES)
        self._of_workers: Tensor = torch.zeros((0, len(_NAMES)), dtype=torch.float64)
        self.trace: Trace | None = None
        self.spans: WorkerSpans | None = None
        self.batch = -1  # index of the one that this process makes
        self.taker = 0  # the thread that takes the batches

    def share(self, num_workers: int) -> None:
        """Makes room for workers, before they start."""
        if num_workers and not (self._of_workers.is_shared() and len(self._of_workers) >= num_workers):
            missing = max(0, num_workers - len(self._of_workers))  # none if this is a copy of what was shared
            rows = [self._of_workers, self._of_workers.new_zeros((missing, len(_NAMES)))]
            self._of_workers = torch.cat(rows).share_memory_()

    def trace_workers(self, num_workers: int, prefetch: int) -> None:
        """Makes room for what workers that will start tell a trace; ``prefetch`` batches each are made ahead."""
        self.spans = WorkerSpans(num_workers, prefetch) if num_workers and self.open_trace is not None else None

    def _row(self) -> Any:
        worker = get_worker_info()
        if worker is None or worker.id >= len(self._of_workers):  # the latter: a worker of another loader
            return self._own
        return self._of_workers.numpy()[worker.id]

    def take_batch(self, wait_s: float, epoch_s: float, num_batches: int) -> None:
        """Counts what the trainer was handed, if anything, and its time."""
        own = self._own
        own[_BATCHES] += num_batches
        own[_EPOCH] += epoch_s
        own[_WAIT] += wait_s

    def times(self) -> tuple[float, float]:
        """The trainer's time up to the batch that it was handed last, and how much of it the trainer waited."""
        return self._own[_EPOCH], self._own[_WAIT]

    @property
    def open_trace(self) -> Trace | None:
        return self.trace if self.trace is not None and self.trace.is_open else None

    def _take(self, column: int, stage: str, began_s: float) -> None:
        """Counts the time since then."""
        now_s = time.perf_counter()
        self._row()[column] += now_s - began_s
        if self.trace is None and self.spans is None:
            return
        worker = get_worker_info()
        if worker is None:
            if (trace := self.open_trace) is not None:
                trace.span(stage, began_s, now_s, self.batch, is_ahead=threading.get_ident() != self.taker)
        elif self.spans is not None:
            self.spans.add(worker.id, STAGES.index(stage), self.batch, began_s, now_s)

    def take_sample(self, num_seeds: int, began_s: float, out: Any) -> None:
        """Counts a sampler's output, which was begun then."""
        self.take_walks(num_seeds, began_s)
        row = self._row()
        row[_NODES] += _size(out.node)
        row[_EDGES] += _size(out.row)

    def take_walks(self, num_seeds: int, began_s: float) -> None:
        self._take(_SAMPLING, "sample", began_s)
        self._row()[_SEEDS] += num_seeds

    def take_gathering(self, began_s: float) -> None:
        self._take(_GATHERING, "gather", began_s)

    def transformed(self, transform: Any, batch: Any) -> Any:
        """What the user's function makes of a batch; None: the batch."""
        if transform is None:
            return batch
        began_s = time.perf_counter()
        batch = transform(batch)
        self._take(_TRANSFORM, "transform", began_s)
        return batch

    def read(self) -> dict[str, float]:
        sums = [own + of_workers for own, of_workers in zip(self._own, self._of_workers.sum(0).tolist(), strict=True)]
        numbers = zip(_NAMES, sums, strict=True)
        return {name: value if name.endswith("_s") else int(value) for name, value in numbers}


class WorkerSpans:
    """When DataLoader workers made batches: rows ``[worker, number % room]`` of batch, stage, begin and end in ns since
    1970, which worker alone adds and the trainer reads before they are overwritten."""

    def __init__(self, num_workers: int, prefetch: int) -> None:
        self.room = 16 * (prefetch + 1)  # a batch has three, or nine of RelBench's loader
        self._rows = torch.zeros((num_workers, self.room, 4), dtype=torch.int64).share_memory_()
        self._added = torch.zeros((num_workers, 2), dtype=torch.int64).share_memory_()  # and its process
        self._num_read = [0] * num_workers
        self._found: dict[int, tuple[int, list[Span]]] = {}  # of batches not taken yet: worker, and spans

    def forget(self) -> None:
        """Passes over what is there, of an iteration that was left or not traced."""
        self._num_read = self._added[:, 0].tolist()
        self._found.clear()

    def add(self, worker: int, stage: int, batch: int, began_s: float, ended_s: float) -> None:
        if worker >= len(self._rows):  # of another loader
            return
        offset_ns, added = clock_offset_ns(), self._added.numpy()[worker]
        times = int(began_s * 1e9) + offset_ns, int(ended_s * 1e9) + offset_ns
        self._rows.numpy()[worker, added[0] % self.room] = batch, stage, *times
        added[1] = os.getpid()
        added[0] += 1

    def take(self, batch: int) -> Made | None:
        """Process and stages of a batch that came from a worker."""
        for worker, num_added in enumerate(self._added[:, 0].tolist()):
            for number in range(max(self._num_read[worker], num_added - self.room), num_added):
                of, stage, *times = self._rows[worker, number % self.room].tolist()
                self._found.setdefault(of, (worker, []))[1].append((stage, -1, *times))
            self._num_read[worker] = num_added
        worker, spans = self._found.pop(batch, (-1, []))
        if worker < 0:
            return None
        return this_process(f"worker {worker} of the loader", int(self._added[worker, 1])), spans


class TimedBatches:
    """An iterator over batches that counts the trainer's time: an epoch began when its workers were started, and ends
    with the last batch."""

    def __init__(self, batches: Any, counts: Counts, began_s: float) -> None:
        self._batches, self._counts = batches, counts
        counts.take_batch(time.perf_counter() - began_s, 0.0, 0)
        self._counted_s: float | None = began_s  # until when the epoch's time is counted; None: it has ended

    def __iter__(self) -> TimedBatches:
        return self

    def __next__(self) -> Any:
        asked_s, num_batches, has_ended = time.perf_counter(), 0, False
        self._counts.taker = threading.get_ident()
        try:
            batch = self._next()
            num_batches = 1
            return batch
        except StopIteration:
            has_ended = True
            raise
        finally:
            now_s = time.perf_counter()
            since_s = asked_s if self._counted_s is None else self._counted_s
            self._counts.take_batch(now_s - asked_s, now_s - since_s, num_batches)
            self._counted_s = None if has_ended else now_s
            if (trace := self._counts.open_trace) is not None:
                self._write(trace, asked_s, now_s, num_batches)

    def _write(self, trace: Trace, asked_s: float, now_s: float, num_batches: int) -> None:
        """Adds the trainer's waiting to a trace."""

    def _next(self) -> Any:
        return next(self._batches)


def _size(of: Any) -> int:
    """Nodes or edges of all types."""
    if isinstance(of, dict):
        return sum(len(each) for each in of.values() if each is not None)
    return 0 if of is None else len(of)
