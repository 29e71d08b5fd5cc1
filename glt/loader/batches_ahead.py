"""Batches made on a GPU ahead of whoever iterates, on a stream of their own."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import torch

from glt.data.accelerator import Accelerator
from glt.loader.made_batches import Begin, Item, MadeBatches, Make, outcome

_LOOK_S = 0.1  # how often a wait looks whether the other side is still there
_JOIN_S = 10.0


@dataclass(frozen=True)
class AheadOptions:
    """How far ahead batches are made.

    Attributes:
        accelerator: On what.
        stream: In what order: memory of the sampler goes from batch to batch on it, also of different epochs.
        num_batches: Batches that wait for the trainer.
        window: Batches whose rows are fetched together.
    """

    accelerator: Accelerator
    stream: torch.cuda.Stream | None
    num_batches: int
    window: int


class BatchesAhead(MadeBatches):
    """Iterates over batches that a thread makes, at most so many ahead.

    The thread asks for the kernels of a batch on a stream of its own, and it alone waits for its counts; before that it
    asks for those of the next, so that the GPU is not idle while the host sees to a batch. (Negatives, induced and
    bidirectional edges and windows take waits more, which then are for the next batch as well.)

    Args:
        indices: What the batches are, in order; the thread asks for them, and must not have to wait for the trainer.
        num_batches, finish: As of :class:`~glt.loader.made_batches.MadeBatches`.
        begin: Begins the sample of an index and returns what ends it; in the thread and on its stream, as ``make``.
        make: Makes the batches of some samples; in the place of those that failed are exceptions, and remain.
        options: How far ahead.
    """

    def __init__(
        self,
        indices: Iterator[Any],
        num_batches: int | None,
        begin: Begin,
        make: Make,
        finish: Callable[[Any], Any],
        options: AheadOptions,
    ) -> None:
        super().__init__(num_batches, finish, options.accelerator)
        self._made: queue.Queue[Item | None] = queue.Queue(options.num_batches)
        self._stop = threading.Event()
        # The thread knows nothing of this object, which ends it when it is dropped half-way.
        work = _samples(indices, begin), make, options, self._made, self._stop
        self._thread = threading.Thread(target=_work, args=work, name="glt-ahead", daemon=True)
        self._finalizer = weakref.finalize(self, _end, self._stop, self._thread)
        self._thread.start()

    def _take(self) -> Item | None:
        while not self._stop.is_set():
            try:
                item = self._made.get(timeout=_LOOK_S)
                self.num_taken += item is not None
                return item
            except queue.Empty:
                gone = not self._thread.is_alive() and self._made.empty()
                if gone and not self._stop.is_set():  # set meanwhile: closed, by another thread
                    raise RuntimeError("the thread that makes batches stayed behind when this process forked") from None
        return None

    def close(self) -> None:
        """Ends the thread, after the batch that it is making. May be called again."""
        self._finalizer()


def _samples(indices: Iterator[Any], begin: Begin) -> Iterator[Any]:
    """The sample of each index, or the exception that there is in its place; the next is begun before one is ended."""
    for begun, _ in pairwise(chain(_begun(indices, begin), (None,))):
        yield begun if isinstance(begun, BaseException) else outcome(begun)


def _begun(indices: Iterator[Any], begin: Begin) -> Iterator[Any]:
    while True:
        try:
            index = next(indices)
        except StopIteration:
            return
        except BaseException as error:  # of the indices: nothing can follow
            yield error
            return
        yield outcome(partial(begin, index))


def _work(
    samples: Iterator[Any], make: Make, options: AheadOptions, made: queue.Queue[Item | None], stop: threading.Event
) -> None:
    accelerator = options.accelerator

    def put(item: Item | None) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=_LOOK_S)
                return True
            except queue.Full:
                continue
        return False

    with accelerator.on(options.stream):
        try:
            while not stop.is_set():
                window = list(islice(samples, options.window))
                if not window:
                    break
                for batch in make(window):
                    if not put(batch if isinstance(batch, BaseException) else (batch, accelerator.record())):
                        return
                del window, batch  # not to be in memory while the next are sampled
        except BaseException as error:  # of all batches of a window
            put(error)
        put(None)


def _end(stop: threading.Event, thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(_JOIN_S)
