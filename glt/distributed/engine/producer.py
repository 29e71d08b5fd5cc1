"""Turns the batches of an epoch into messages in a channel, several at a time, in index order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt._spans import SPANS, BatchSpans, book, this_process
from glt.channel.channel import Channel, Slot
from glt.channel.message import MessageKind, error_message
from glt.distributed.engine.row_lookup import RowWindow
from glt.distributed.engine.sampler import DistNeighborSampler, SampledBatch
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.engine.seeds import BatchStart
from glt.errors import ChannelClosed, ChannelTimeout, GltError
from glt.sampler.order import BatchIndex

# What a trainer asks its samplers for: the batches of an epoch, or those of it that are still missing.


@dataclass(frozen=True)
class EpochStart:
    """The command that begins an iteration of a loader.

    The random seed travels with it: a loader that resumes takes over the seed of the run before when its samplers are
    already there.

    Attributes:
        iteration: Counts the iterations of the loader from 1; messages carry it. Several may be of the same epoch.
        epoch: In [0, 2^31): with ``random_seed``, decides the order of the seeds and all draws.
        first: Index of the first batch to make; those before it were delivered earlier.
        random_seed: In [0, 2^63).
        num_samplers: So many of the loader's samplers make the batches, the first of them; 0: all.
        trace: 1: batches tell when they were made, see :mod:`glt._spans`.
    """

    iteration: int
    epoch: int
    first: int
    random_seed: int
    num_samplers: int = 0
    trace: int = 0

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, command: dict[str, Any]) -> EpochStart:
        return cls(**command)


_SMALLEST_SLOT = 16 << 10  # so that a failure while writing a small batch still fits into its slot


class EpochAbandoned(GltError):
    """The consumer wants no more batches of this epoch."""


@dataclass(eq=False)
class _Making:
    """A batch that is being made. ``previous`` is done when the batch before it has room in the channel, ``reserved``
    when this one has: ``slot``. ``window`` is left when it is made, or is not. ``is_traced``: it tells when."""

    iteration: int
    batch: BatchIndex
    previous: concurrent.futures.Future[None]
    window: RowWindow | None = None
    is_traced: bool = False
    reserved: concurrent.futures.Future[None] = field(default_factory=concurrent.futures.Future)
    slot: Slot | None = None
    is_committed: bool = False

    def __post_init__(self) -> None:
        self.reserved.set_running_or_notify_cancel()  # a cancelled task that waits for it does not cancel it
        if self.window is not None:
            self.window.join()

    def end(self) -> None:
        if not self.reserved.done():
            self.reserved.set_result(None)
        if self.window is not None:
            self.window.leave()


class _Windows:
    """Cuts batches that come in index order into windows of ``size`` indices, from 0; 0: they have none."""

    def __init__(self, size: int) -> None:
        self._size, self._number = size, -1
        self._window: RowWindow | None = None

    def of(self, batch: BatchIndex) -> RowWindow | None:
        if self._size and batch.index // self._size != self._number:
            self.end()
            self._window, self._number = RowWindow(), batch.index // self._size
        return self._window

    def end(self) -> None:
        """No further batch comes into the last window."""
        if self._window is not None:
            self._window.leave()
            self._window = None


class Producer:
    """Makes the batches of one epoch after the other, on a thread of its own and those of a sampler's event loop.

    Room in the channel is reserved in index order, and batches are written while others are sampled. ``share`` is
    ``(first, step)``: this producer makes batches ``first, first + step, ...`` of those that are asked for, unless the
    epoch's start says another step. ``role`` and ``rank`` name it in errors.
    """

    def __init__(
        self,
        sampler: DistNeighborSampler,
        channel: Channel,
        job: SamplingJob,
        share: tuple[int, int],
        role: str,
        rank: int,
    ) -> None:
        self.sampler, self.channel, self.job = sampler, channel, job
        (self.first, self.step), self.role, self.rank = share, role, rank
        self._can_share = job.gather_window > 1 and job.collect_features and bool(sampler.partitions.elsewhere)
        self._process = this_process(f"{role} {rank}")
        self._wanted = -1  # the iteration that the consumer is in; -1: none
        self._failed = -1  # the iteration in which a batch could not be made
        self._epochs: queue.SimpleQueue[EpochStart | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._pump, name="glt-producer", daemon=True)

    def open(self) -> None:
        """Starts the thread that makes what :meth:`start_epoch` asks for."""
        self._thread.start()

    def start_epoch(self, start: EpochStart) -> None:
        """Asks for the batches of an epoch; those of earlier iterations are given up. From any thread."""
        self.want(start.iteration)
        self._epochs.put(start)

    def close(self, timeout_s: float = 0.0) -> None:
        """Closes the channel and ends the thread, for which it waits ``timeout_s`` seconds. From any thread."""
        self.want(-1)
        self._epochs.put(None)
        self.channel.close()
        if timeout_s > 0:
            self._thread.join(timeout_s)

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that makes batches."""
        return self._thread.is_alive()

    def _pump(self) -> None:
        # No deadline: the consumer may train for hours. If it dies, this process ends.
        while (start := self._epochs.get()) is not None:
            try:
                self.run(start)
            except Exception as error:  # not of a batch, those are reported in their place
                message = self._encoded(error, start.iteration, start.epoch)
                try:
                    with self.channel.reserve(len(message)) as slot:
                        slot.buffer[: len(message)] = message
                except ChannelClosed:
                    return

    def want(self, iteration: int) -> None:
        """Says which iteration the consumer is in: what is made for others is given up. -1: none. From any thread.

        Iterations are numbered by the consumer, since it may go through the same epoch twice.
        """
        self._wanted = iteration

    def _encoded(self, error: Exception, iteration: int, epoch: int, index: int = 0) -> Tensor:
        return error_message(error, role=self.role, rank=self.rank, loader=iteration, epoch=epoch, index=index)

    def run(self, start: EpochStart) -> None:
        """Makes the batches that are asked for until all are made, one fails or the iteration is unwanted."""
        loop, iteration, job = self.sampler.loop, start.iteration, self.job
        order = replace(job.order, random_seed=start.random_seed)
        step = start.num_samplers or self.step
        if self.first >= step:
            return
        # Batch i is made by the same producer wherever the epoch begins, so that the consumer knows whom to listen to.
        first = start.first + (self.first - start.first) % step
        previous: concurrent.futures.Future[None] = concurrent.futures.Future()
        previous.set_result(None)
        tasks: list[concurrent.futures.Future[None]] = []
        # Of so many of its own, one behind the other, wherever the epoch begins.
        windows = _Windows(job.gather_window * step if self._can_share else 0)
        for batch in order.batches(start.epoch, first, step):
            making = _Making(iteration, batch, previous, windows.of(batch), bool(start.trace))
            task = loop.submit(
                partial(self._produce, making), lambda: self._wanted != iteration or self._failed == iteration
            )
            if task is None:
                making.end()
                break
            tasks.append(task)
            previous = making.reserved
            if len(tasks) > 4 * loop.concurrency:
                done = [each for each in tasks if each.done()]
                _raise_unexpected(done)
                tasks = [each for each in tasks if each not in done]
        windows.end()
        # Each ends by itself: requests have deadlines, and waits for room end with the wish for the iteration.
        _raise_unexpected(concurrent.futures.wait(tasks).done)

    async def _produce(self, making: _Making) -> None:
        batch = making.batch
        if making.is_traced:
            SPANS.set(BatchSpans(self._process))  # of this task, and of its calls on other threads
        try:
            rows = self.job.table.rows(batch.input_id)
            start = await self.job.seeds.start(self.sampler, rows, batch.input_id, batch.key)
            start.shared_key = batch.shared_key(self.job.config.batch_dependency)
            if self.sampler.is_local:
                sampled = await self.sampler.loop.run_native(self._make_here, making, start)
                if making.is_committed:
                    return
            else:
                sampled = await self.sampler.sample(start, batch.key, making.window)
            slot = await self._reserve(making, sampled.layout.nbytes, sampled)
            slot.ready = await self.sampler.fill(sampled, self._tensors(making, slot, sampled))
            slot.commit()
        except (EpochAbandoned, ChannelClosed):
            if making.slot is not None:
                making.slot.abandon()
            raise
        except Exception as error:
            self._failed = making.iteration
            await self._report(making, error)
        finally:
            making.end()

    def _make_here(self, making: _Making, start: BatchStart) -> SampledBatch:
        """Samples a batch and, if the one before has its room and there is room for this one, writes it: in one trip to
        the native threads. Waits for neither, which might hold up what is waited for."""
        sampled = self.sampler.sample_here(start, making.batch.key)
        if making.previous.done():
            try:
                slot = making.slot = self.channel.reserve(max(sampled.layout.nbytes, _SMALLEST_SLOT), 0.0)
            except ChannelTimeout:
                return sampled
            making.reserved.set_result(None)
            self.sampler.fill_here(sampled, self._tensors(making, slot, sampled))
            slot.commit()
            making.is_committed = True
        return sampled

    @staticmethod
    def _tensors(making: _Making, slot: Slot, sampled: SampledBatch) -> dict[str, Tensor]:
        batch = making.batch
        return slot.tensors(sampled.layout, MessageKind.BATCH, making.iteration, batch.epoch, batch.index)

    async def _reserve(self, making: _Making, nbytes: int, sampled: SampledBatch | None = None) -> Slot:
        if not making.previous.done():
            await asyncio.wrap_future(making.previous)
        began_s = time.perf_counter()
        nbytes = max(nbytes, _SMALLEST_SLOT)
        try:
            slot = self.channel.reserve(nbytes, 0.0)
        except ChannelTimeout:
            slot = await self.sampler.loop.run_native(self._wait_for_room, nbytes, making.iteration)
        making.slot = slot
        making.reserved.set_result(None)
        if sampled is not None:
            book(sampled.stats, "blocked_s", began_s, time.perf_counter())
        return slot

    def _wait_for_room(self, nbytes: int, iteration: int) -> Slot:
        """Waits as long as the consumer wants the iteration: a trainer may well take an hour over one batch. If it
        dies, the owner of this producer notices and ends it."""
        while True:
            try:
                return self.channel.reserve(nbytes, deadlines.FAST_POLL_S)
            except ChannelTimeout:
                if self._wanted != iteration:
                    raise EpochAbandoned(f"iteration {iteration} is no longer wanted") from None

    async def _report(self, making: _Making, error: Exception) -> None:
        """Sends the error in the place of the batch."""
        batch, slot = making.batch, making.slot
        message = self._encoded(error, making.iteration, batch.epoch, batch.index)
        if slot is None:
            slot = await self._reserve(making, len(message))
        elif len(message) > len(slot.buffer):
            short = GltError(f"{type(error).__name__}: {str(error)[:2000]}")
            message = self._encoded(short, making.iteration, batch.epoch, batch.index)
        slot.buffer[: len(message)] = message
        slot.commit()


def _raise_unexpected(tasks: Iterable[concurrent.futures.Future[None]]) -> None:
    """Raises what a task ended with, other than that its batch was no longer wanted."""
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, EpochAbandoned | ChannelClosed):
            raise error
