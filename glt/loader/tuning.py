"""``num_workers="auto"``: how many workers make epochs shorter, measured on the first batches.

An epoch goes on with another number of workers in its middle: the batch of an index is the same wherever it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from glt.loader.counts import Counts

logger = logging.getLogger(__name__)

MOST_WORKERS: Final = 8
_MEASURED: Final = 12  # intervals between batches of a trial, and four more for each worker: they come in bursts
_GAIN: Final = 0.9  # of the time with fewer workers
_LITTLE: Final = 0.05  # of the time; if a trainer waits less than that, more workers gain nothing
_MOST_BEGUN: Final = 3  # times that a trial begins: epochs that are shorter than it never end it


class WorkerTuner:
    """What is known of a loader: the number of workers that is tried, or was chosen, and seconds per batch of those
    that were tried: the ``least``, one, two, and twice as many as long as that gains a tenth. Of those that are as good
    as the best to a tenth, the fewest are chosen. A number that epochs are too short to try is not."""

    def __init__(self, least: int, most: int) -> None:
        self.num_workers, self.most, self.is_chosen = least, most, False
        self.batch_s: dict[int, float] = {}
        self._num_begun = self._num_taken = 0
        self._before = 0.0, 0.0

    def told(self) -> dict[str, Any]:
        """For ``stats()``; ``is_tuned`` if more workers than were chosen have been tried, in vain."""
        is_tuned = self.is_chosen and max(self.batch_s) > self.num_workers
        return {"num_workers": self.num_workers} | ({"is_tuned": True} if is_tuned else {})

    @property
    def num_skipped(self) -> int:
        """Batches until a trial is in its stride: those that workers make ahead come faster."""
        return 2 + 4 * self.num_workers

    @property
    def num_measured(self) -> int:
        return _MEASURED + 4 * self.num_workers

    def begin(self) -> None:
        """A trial begins, or begins anew: to be called before batches are asked for. One that has begun too often
        without an end is given up."""
        self._num_taken, self._num_begun = 0, self._num_begun + 1
        if self._num_begun > _MOST_BEGUN and self.batch_s and not self.is_chosen:
            self._choose(f"; epochs are too short to try {self.num_workers}")

    def measure(self, times: tuple[float, float]) -> bool:
        """To be called before each batch with seconds of the trainer until now, and those of them in which it waited.
        Whether the batches from this one on are to be made by another number of workers."""
        if self.is_chosen:
            return False
        num_measured = self._num_taken - self.num_skipped
        self._num_taken += 1
        if num_measured == 0:
            self._before = times
        if num_measured != self.num_measured:
            return False
        tried = self.num_workers
        self.take(*((now_s - before_s) / num_measured for now_s, before_s in zip(times, self._before, strict=True)))
        return self.num_workers != tried

    def take(self, batch_s: float, waited_s: float) -> None:
        """Takes note of a trial: seconds per batch, and those of them in which the trainer waited for it."""
        best_s = min(self.batch_s.values(), default=float("inf"))
        self.batch_s[self.num_workers] = batch_s
        more = max(1, 2 * self.num_workers)
        goes_on = self.num_workers < 2 or batch_s < _GAIN * best_s
        if goes_on and waited_s > _LITTLE * batch_s and more <= self.most:
            self.num_workers, self._num_begun = more, 0
            return
        self._choose()

    def _choose(self, note: str = "") -> None:
        best_s = min(self.batch_s.values())
        self.num_workers = min(num for num, each_s in self.batch_s.items() if _GAIN * each_s <= best_s)
        self.is_chosen = True
        tried = ", ".join(f"{1e3 * each_s:.3g} ms with {num}" for num, each_s in self.batch_s.items())
        logger.info("num_workers = 'auto': %d; a batch took %s%s", self.num_workers, tried, note)


class TunedBatches:
    """The batches of an epoch from index ``first`` on. ``start(num_workers, index)`` returns those from an index on,
    made by so many workers; ``counts`` has the trainer's time."""

    def __init__(
        self, tuner: WorkerTuner, counts: Counts, start: Callable[[int, int], Iterator[Any]], first: int
    ) -> None:
        self._tuner, self._counts, self._start, self._index = tuner, counts, start, first
        self._begin()

    def _begin(self) -> None:
        self._tuner.begin()
        self._batches = self._start(self._tuner.num_workers, self._index)

    def __iter__(self) -> TunedBatches:
        return self

    def __next__(self) -> Any:
        if self._tuner.measure(self._counts.times()):
            self._begin()
        self._index += 1  # also of a batch that fails: asked again, torch's iterators go on behind it
        return next(self._batches)
