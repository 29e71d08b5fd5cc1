"""Batches made on a GPU, on a stream of their own, while the trainer iterates on another."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import torch

from glt import _deadlines as deadlines
from glt.data.device import Accelerator, Event

Item = tuple[Any, Event] | BaseException
Begin = Callable[[Any], Callable[[], Any]]
Make = Callable[[Sequence[Any]], Iterable[Any]]


def outcome(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, or the exception that it raises, in the place of a batch."""
    try:
        return call()
    except StopIteration as error:  # of the user's code; iterators that raise it have ended
        wrong = _ended_early()
        wrong.__cause__ = error
        return wrong
    except BaseException as error:
        return error


def _ended_early() -> RuntimeError:
    return RuntimeError("making a batch raised StopIteration, which would end the epoch as if it had no more batches")


class MadeBatches:
    """Iterates over batches. The trainer waits for nothing: its stream is told to wait for the event after a batch.

    Args:
        num_batches: For ``len``; None: unknown.
        finish: Called with a batch when it is handed out, on the trainer's stream.
        accelerator: What makes them.

    Attributes:
        num_taken: Batches, and exceptions in their place, that came so far; what a signal raises meanwhile is not one.
    """

    def __init__(self, num_batches: int | None, finish: Callable[[Any], Any], accelerator: Accelerator) -> None:
        self._num_batches, self._finish, self._accelerator = num_batches, finish, accelerator
        self.num_taken = 0

    def __iter__(self) -> MadeBatches:
        return self

    def __len__(self) -> int:
        if self._num_batches is None:
            raise TypeError("the sampler of this loader has no length")
        return self._num_batches

    def __next__(self) -> Any:
        item = self._take()
        if item is None:
            self.close()
            raise StopIteration
        if isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # its traceback holds this frame, and what it holds would wait for the cyclic collector
        batch, ready = item
        self._accelerator.wait_for(ready)
        if not self._accelerator.is_host:
            batch.record_stream(torch.cuda.current_stream(self._accelerator.device))
        try:
            return self._finish(batch)
        except StopIteration as error:
            raise _ended_early() from error

    def _take(self) -> Item | None:
        """The next batch and the event after it, or the exception in its place, counted; None after the last."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what makes the batches. May be called again."""


class BatchesOnRequest(MadeBatches):
    """Makes each batch when the trainer asks for it: its index may depend on what the trainer did with the one before.
    On ``stream``, ``begin`` begins the sample of an index and returns what ends it, and ``make`` makes the batches of
    samples, an exception in the place of one that fails."""

    def __init__(
        self,
        indices: Iterator[Any],
        num_batches: int | None,
        begin: Begin,
        make: Make,
        finish: Callable[[Any], Any],
        accelerator: Accelerator,
        stream: torch.cuda.Stream | None,
    ) -> None:
        super().__init__(num_batches, finish, accelerator)
        self._indices, self._begin, self._make, self._stream = indices, begin, make, stream

    def _take(self) -> Item | None:
        for index in self._indices:
            self.num_taken += 1
            with self._accelerator.on(self._stream):
                [batch] = self._make([outcome(partial(self._sample, index))])
                try:
                    return batch if isinstance(batch, BaseException) else (batch, self._accelerator.record())
                finally:
                    del batch  # as in __next__: the traceback's frames lead back to this one
        return None

    def _sample(self, index: Any) -> Any:
        return self._begin(index)()

    def close(self) -> None:
        self._indices = iter(())


@dataclass(frozen=True)
class AheadOptions:
    """How far ahead batches are made: ``num_batches`` wait for the trainer, the rows of ``window`` are fetched
    together. The sampler's memory goes from batch to batch in the order of ``stream``, also of different epochs."""

    accelerator: Accelerator
    stream: torch.cuda.Stream | None
    num_batches: int
    window: int


class BatchesAhead(MadeBatches):
    """Iterates over batches that a thread makes ahead; the thread also asks for the indices, and must not have to wait
    there for the trainer.

    The thread asks for the kernels of a batch on a stream of its own, and for those of the next before it waits for the
    counts of the first, so that the GPU is not idle while the host sees to a batch. (Negatives, induced and
    bidirectional edges and windows wait more often, then for the next batch as well.)
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
                item = self._made.get(timeout=deadlines.FAST_POLL_S)
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
    """The sample of each index, or the exception in its place; the next is begun before one is ended."""
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
                made.put(item, timeout=deadlines.FAST_POLL_S)
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
        thread.join(deadlines.JOIN_S)
