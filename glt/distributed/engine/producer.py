"""Turns the batches of an epoch into messages in a channel, several at a time, in index order."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from glt.channel.base import Channel, Slot
from glt.channel.message import MessageKind, error_message
from glt.distributed.engine.sampler import DistNeighborSampler, SampledBatch, Seeds, layout_of
from glt.distributed.engine.seeds import SeedTable
from glt.errors import ChannelClosed, ChannelTimeout, GltError
from glt.sampler.order import BatchIndex, SeedOrder

# What a trainer asks its samplers for: the batches of an epoch, or those of it that are still missing.


@dataclass(frozen=True)
class EpochStart:
    """The command that begins an iteration, the same for samplers in every place.

    The random seed travels with it, and not only with the options that a sampler starts with: a loader that resumes
    takes over the seed of the run before when its samplers are already there.

    Attributes:
        iteration: Counts the iterations of the loader from 1; messages carry it. It tells two passes through the same
            epoch apart.
        epoch: In [0, 2^31): with ``random_seed``, decides the order of the seeds and all draws.
        first: Index of the first batch to make; those before it were delivered earlier.
        random_seed: In [0, 2^63).
    """

    iteration: int
    epoch: int
    first: int
    random_seed: int

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, command: dict[str, Any]) -> EpochStart:
        """Rebuilds what :meth:`to_json` described.

        Raises:
            TypeError: If a field is missing or unknown.
        """
        return cls(**command)


_ROOM_POLL_S = 0.05  # how often a wait for room looks whether the epoch is still wanted
_SMALLEST_SLOT = 16 << 10  # so that a failure while writing a small batch still fits into its slot


class EpochAbandoned(GltError):
    """The consumer wants no more batches of this epoch."""


class Producer:
    """Works through epochs on the threads of a sampler's event loop.

    Args:
        sampler: Makes the batches.
        channel: Takes the messages. Room is reserved in index order, and batches are written while others are sampled.
        seeds: What the rows of the input are.
        table: The loader's input.
        order: Which seeds form which batch, but for the random seed, which comes with each epoch.
        first, step: This producer makes batches ``first, first + step, ...``, as far as they are asked for.
        role, rank: Who this is, in errors.
    """

    def __init__(
        self,
        sampler: DistNeighborSampler,
        channel: Channel,
        seeds: Seeds,
        table: SeedTable,
        order: SeedOrder,
        first: int,
        step: int,
        role: str,
        rank: int,
    ) -> None:
        self.sampler, self.channel, self.seeds, self.table = sampler, channel, seeds, table
        self.order = order
        self.first, self.step, self.role, self.rank = first, step, role, rank
        self._wanted = -1  # the iteration that the consumer is in; -1: none
        self._failed = -1  # the iteration in which a batch could not be made

    def want(self, iteration: int) -> None:
        """Says which iteration the consumer is in: what is made for others is given up. -1: none. From any thread.

        Iterations are numbered by the consumer, since it may go through the same epoch twice.
        """
        self._wanted = iteration

    def run(self, start: EpochStart) -> None:
        """Makes the batches that are asked for until all are made, one fails or the iteration is unwanted."""
        loop, iteration = self.sampler.loop, start.iteration
        order = replace(self.order, random_seed=start.random_seed)
        # Batch i is made by the same producer wherever the epoch begins, so that the consumer knows whom to listen to.
        first = start.first + (self.first - start.first) % self.step
        previous: asyncio.Future[None] | None = None
        tasks: list[concurrent.futures.Future[None]] = []
        for batch in order.batches(start.epoch, first, self.step):
            reserved: asyncio.Future[None] = loop.create_future()
            task = loop.submit(
                partial(self._produce, iteration, batch, previous, reserved),
                lambda: self._wanted != iteration or self._failed == iteration,
            )
            if task is None:
                break
            tasks.append(task)
            previous = reserved
            if len(tasks) > 4 * loop.concurrency:
                done = [each for each in tasks if each.done()]
                _raise_unexpected(done)
                tasks = [each for each in tasks if each not in done]
        # Each ends by itself: requests have deadlines, and waits for room end with the wish for the iteration.
        _raise_unexpected(concurrent.futures.wait(tasks).done)

    async def _produce(
        self, iteration: int, batch: BatchIndex, previous: asyncio.Future[None] | None, reserved: asyncio.Future[None]
    ) -> None:
        slot: Slot | None = None
        try:
            key = batch.key
            start = await self.seeds.start(self.sampler, self.table.rows(batch.input_id), batch.input_id, key)
            sampled = await self.sampler.sample(start, key)
            layout = layout_of(sampled)
            slot = await self._reserve(layout.nbytes, iteration, previous, sampled)
            reserved.set_result(None)
            out = slot.tensors(layout, MessageKind.BATCH, iteration, batch.epoch, batch.index)
            slot.ready = await self.sampler.fill(sampled, out)
            slot.commit()
        except (EpochAbandoned, ChannelClosed):
            if slot is not None:
                slot.abandon()
            raise
        except Exception as error:
            self._failed = iteration
            await self._report(error, iteration, batch, previous, slot)
        finally:
            if not reserved.done():
                reserved.set_result(None)

    async def _reserve(
        self, nbytes: int, iteration: int, previous: asyncio.Future[None] | None, sampled: SampledBatch | None
    ) -> Slot:
        if previous is not None:
            await previous
        start = time.perf_counter()
        slot = await self.sampler.loop.run_native(self._wait_for_room, max(nbytes, _SMALLEST_SLOT), iteration)
        if sampled is not None:
            sampled.stats["blocked_s"] += time.perf_counter() - start
        return slot

    def _wait_for_room(self, nbytes: int, iteration: int) -> Slot:
        """Waits as long as the consumer wants the iteration: a trainer may well take an hour over one batch. If it
        dies, whoever runs this producer notices and ends it."""
        while True:
            try:
                return self.channel.reserve(nbytes, _ROOM_POLL_S)
            except ChannelTimeout:
                if self._wanted != iteration:
                    raise EpochAbandoned(f"iteration {iteration} is no longer wanted") from None

    async def _report(
        self,
        error: Exception,
        iteration: int,
        batch: BatchIndex,
        previous: asyncio.Future[None] | None,
        slot: Slot | None,
    ) -> None:
        """Sends the error in the place of the batch."""

        def encode(error: Exception) -> Tensor:
            return error_message(
                error, role=self.role, rank=self.rank, loader=iteration, epoch=batch.epoch, index=batch.index
            )

        message = encode(error)
        if slot is None:
            slot = await self._reserve(len(message), iteration, previous, None)
        elif len(message) > len(slot.buffer):
            message = encode(GltError(f"{type(error).__name__}: {str(error)[:2000]}"))
        slot.buffer[: len(message)] = message
        slot.commit()


def _raise_unexpected(tasks: Iterable[concurrent.futures.Future[None]]) -> None:
    """Raises what a task ended with, other than that its batch was no longer wanted."""
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, EpochAbandoned | ChannelClosed):
            raise error
