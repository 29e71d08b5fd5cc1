"""Batches made on a GPU, on a stream of their own, for whoever iterates on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from glt.data.accelerator import Accelerator, Event

Item = tuple[Any, Event] | BaseException
Begin = Callable[[Any], Callable[[], Any]]
Make = Callable[[Sequence[Any]], Iterable[Any]]


def outcome(call: Callable[[], Any]) -> Any:
    """Returns what a call returns, or what it raises: an exception in the place of a batch."""
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
    """Iterates over batches. Their trainer waits for nothing: its stream is told to wait for the event after a batch.

    Args:
        num_batches: How many these are, for ``len``; None: unknown.
        finish: Called with a batch by the one who iterates, on that one's stream.
        accelerator: What makes them.

    Attributes:
        num_taken: Batches, and exceptions in their place, that came so far. What a signal raises while this waits took
            none.
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
        """The next batch and the event after it, or the exception in its place, which are counted; None after the
        last."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what makes the batches. May be called again."""


class BatchesOnRequest(MadeBatches):
    """Makes each batch when it is asked for: its index may depend on what the trainer did with the one before.

    Args:
        indices: What the batches are, in order; asked by the one who iterates, and for nothing ahead.
        num_batches, finish, accelerator: As of :class:`MadeBatches`.
        begin: Begins the sample of an index and returns what ends it; on the stream, as ``make``.
        make: Makes the batches of samples; an exception in the place of one that fails.
        stream: In what order.
    """

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
