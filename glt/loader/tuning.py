"""``num_workers="auto"``: how many DataLoader workers make epochs shorter, measured on the first batches.

An epoch goes on with another number of workers in its middle: the batch of an index is the same wherever it is made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, Final

from glt.loader.counts import Counts

logger = logging.getLogger(__name__)

AUTO: Final = "auto"
_MOST_WORKERS: Final = 8
_MEASURED: Final = 12  # intervals between batches of a trial, and four more for each worker: they come in bursts
_GAIN: Final = 0.9  # of the time with fewer workers
_LITTLE: Final = 0.05  # of the time; if a trainer waits less than that, more workers gain nothing


class WorkerTuner:
    """What is known of a loader: the number of workers that is tried, or was chosen, and seconds per batch of those
    that were tried: none, one, two, and twice as many as long as that gains a tenth. Of those that are as good as the
    best to a tenth, the fewest are chosen."""

    def __init__(self) -> None:
        self.most = min(_MOST_WORKERS, len(os.sched_getaffinity(0)))
        self.num_workers, self.is_chosen = 0, False
        self.batch_s: dict[int, float] = {}

    @property
    def num_skipped(self) -> int:
        """Batches until a trial is in its stride: those that workers make ahead come faster."""
        return 2 + 3 * self.num_workers

    @property
    def num_measured(self) -> int:
        return _MEASURED + 4 * self.num_workers

    def take(self, batch_s: float, waited_s: float) -> None:
        """Takes note of a trial: seconds per batch, and those of them in which the trainer waited for it."""
        best_s = min(self.batch_s.values(), default=float("inf"))
        self.batch_s[self.num_workers] = batch_s
        more = max(1, 2 * self.num_workers)
        goes_on = self.num_workers < 2 or batch_s < _GAIN * best_s
        if goes_on and waited_s > _LITTLE * batch_s and more <= self.most:
            self.num_workers = more
            return
        best_s = min(self.batch_s.values())
        self.num_workers = min(num for num, each_s in self.batch_s.items() if _GAIN * each_s <= best_s)
        self.is_chosen = True
        tried = ", ".join(f"{1e3 * each_s:.3g} ms with {num}" for num, each_s in self.batch_s.items())
        logger.info("num_workers = 'auto': %d; a batch took %s", self.num_workers, tried)


class TunedBatches:
    """The batches of an epoch from index ``first`` on. ``start(num_workers, index)`` returns those from an index on,
    made by so many workers; ``counts`` has the trainer's time."""

    def __init__(
        self, tuner: WorkerTuner, counts: Counts, start: Callable[[int, int], Iterator[Any]], first: int
    ) -> None:
        self._tuner, self._counts, self._start, self._index = tuner, counts, start, first
        self._begin()

    def _begin(self) -> None:
        self._batches = self._start(self._tuner.num_workers, self._index)
        self._num_taken, self._before = 0, (0.0, 0.0)

    def __iter__(self) -> TunedBatches:
        return self

    def __next__(self) -> Any:
        if not self._tuner.is_chosen:
            self._measure()
        self._index += 1  # also of a batch that fails: asked again, torch's iterators go on behind it
        self._num_taken += 1
        return next(self._batches)

    def _measure(self) -> None:
        tuner, num_measured = self._tuner, self._num_taken - self._tuner.num_skipped
        if num_measured == 0:
            self._before = self._counts.times()
        elif num_measured == tuner.num_measured:
            tried = tuner.num_workers
            times = zip(self._counts.times(), self._before, strict=True)
            tuner.take(*((now_s - before_s) / num_measured for now_s, before_s in times))
            if tuner.num_workers != tried:
                self._begin()
