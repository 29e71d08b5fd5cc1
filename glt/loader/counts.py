"""What loaders count, in the trainer's process and in its DataLoader workers."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

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

    def share(self, num_workers: int) -> None:
        """Makes room for workers, before they start."""
        if num_workers and not (self._of_workers.is_shared() and len(self._of_workers) >= num_workers):
            missing = max(0, num_workers - len(self._of_workers))  # none if this is a copy of what was shared
            rows = [self._of_workers, self._of_workers.new_zeros((missing, len(_NAMES)))]
            self._of_workers = torch.cat(rows).share_memory_()

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

    def take_sample(self, num_seeds: int, sampling_s: float, out: Any) -> None:
        """Counts a sampler's output, which took so long."""
        row = self._row()
        row[_SEEDS] += num_seeds
        row[_SAMPLING] += sampling_s
        row[_NODES] += _size(out.node)
        row[_EDGES] += _size(out.row)

    def take_walks(self, num_seeds: int, sampling_s: float) -> None:
        row = self._row()
        row[_SEEDS] += num_seeds
        row[_SAMPLING] += sampling_s

    def take_gathering(self, gathering_s: float) -> None:
        self._row()[_GATHERING] += gathering_s

    def transformed(self, transform: Any, batch: Any) -> Any:
        """What the user's function makes of a batch; None: the batch."""
        if transform is None:
            return batch
        began_s = time.perf_counter()
        batch = transform(batch)
        self._row()[_TRANSFORM] += time.perf_counter() - began_s
        return batch

    def read(self) -> dict[str, float]:
        sums = [own + of_workers for own, of_workers in zip(self._own, self._of_workers.sum(0).tolist(), strict=True)]
        numbers = zip(_NAMES, sums, strict=True)
        return {name: value if name.endswith("_s") else int(value) for name, value in numbers}


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

    def _next(self) -> Any:
        return next(self._batches)


def _size(of: Any) -> int:
    """Nodes or edges of all types."""
    if isinstance(of, dict):
        return sum(len(each) for each in of.values() if each is not None)
    return 0 if of is None else len(of)
