"""The sampler's end of one-shot sampling: the questions of one client, each answered with the batch of its seeds.

::

    client -> sampler   {"within_s": seconds}, data: a :class:`Question`, number: the client's
                        {"close": true}
    sampler -> client   number: that of its question; what = IN_FRAME: data are a message, the batch or an error in its
                        place; IN_RING: it lies in the ring, and is the next there

Answers come in any order. To a client on this host, long ones go through a ring of shared memory: a socket takes them
in many turns. They are copied there when they are done, since messages of a ring come in the order in which they took
room. A client may have as many questions unanswered as it was told (``concurrency``); while ``buffer_bytes`` of answers
wait to be sent, none of its further ones is begun.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import MessageKind, encode_message, error_message
from glt.data.arrays import pooled_empty
from glt.distributed.engine.requests import RequestFields
from glt.distributed.engine.sampler import STATS, DistNeighborSampler, SampledBatch
from glt.distributed.engine.sampling_job import SamplingJob
from glt.distributed.engine.seeds import BatchStart, NodeSeeds
from glt.distributed.server.scheduler import FairScheduler
from glt.distributed.server.stats import COUNTERS
from glt.distributed.server.stream import IN_FRAME, IN_RING, RingChannel, channel_to
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import MAX_HELLO_BYTES, Frame
from glt.distributed.wire.threads import process_loop
from glt.errors import ChannelTimeout, GltError
from glt.sampler.order import BatchIndex

logger = logging.getLogger(__name__)

MOST_SEEDS = 1 << 16  # of one question
_RING_FROM_BYTES = 128 << 10  # below, frames cost no more: measured, one request at a time
_MOST_BYTES = 4096 + 3 * 8 * MOST_SEEDS  # of a question: its columns, and their table


@dataclass(frozen=True)
class Question:
    """Asks for the batch of seed nodes ``[n]``, ids of the type at position ``node_type``; ``time [n]`` and ``input_id
    [n]`` as the columns of :class:`NodeSeeds`; all int64."""

    node_type: int
    nodes: Tensor
    time: Tensor | None = None
    input_id: Tensor | None = None

    def encode(self) -> Tensor:
        return encode_message({"spec": torch.tensor([self.node_type]), **self.rows()}, MessageKind.REQUEST)

    def rows(self) -> dict[str, Tensor]:
        columns = {"node": self.nodes, "time": self.time, "input_id": self.input_id}
        return {name: column for name, column in columns.items() if column is not None}

    @classmethod
    def decode(cls, message: Tensor, num_node_types: int) -> Question:
        read = RequestFields("request for a batch", message)
        (node_type,) = read.numbers("spec", 1)
        read.require("node_type", node_type, 0, num_node_types - 1)
        nodes = read.vector("node")
        read.require("number of seeds", len(nodes), 1, MOST_SEEDS)
        time, input_id = (
            read.vector(name, length=len(nodes)) if name in read else None for name in ("time", "input_id")
        )
        return cls(node_type, nodes, time, input_id)


class Answers:
    """Answers the questions of one client, in turn with the loaders of this process: a question costs a batch.

    ``on_end`` is called once, on any thread. ``job`` and ``sampler`` are set before :meth:`start`; ``role`` and
    ``rank`` name the sampler in errors.
    """

    def __init__(
        self,
        request: dict[str, Any],
        share: tuple[int, int],
        scheduler: FairScheduler,
        on_end: Callable[[Answers], None],
        role: str,
        rank: int,
        is_here: bool,
    ) -> None:
        self.name, self.share = request["id"], share
        self.concurrency, self.buffer_bytes = request["concurrency"], request["buffer_bytes"]
        self.job: SamplingJob | None = None
        self.sampler: DistNeighborSampler | None = None
        self.connection: Connection | None = None
        self.why = ""
        channel = channel_to(is_here, self.buffer_bytes, False)
        self._ring = channel.ring if isinstance(channel, RingChannel) else None
        self._scheduler, self._on_end = scheduler, on_end
        self._error_message = partial(error_message, role=role, rank=rank)
        self._totals = dict.fromkeys(COUNTERS, 0.0)
        self._waiting: deque[tuple[float, Frame]] = deque()  # with their deadlines
        self._num_unanswered = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_woken = False
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self.flow = scheduler.add(self.concurrency, self._may_begin, self._wake)

    def start(self, connection: Connection, answer: dict[str, Any]) -> None:
        """Answers the client's hello and begins to serve it. On the loop."""
        assert self.job is not None
        # That of the first batch of a loader: see glt.distributed.SamplingClient.
        self._key = BatchIndex(torch.empty(0, dtype=torch.int64), 0, 0, self.job.order.random_seed).key
        self.connection = connection
        if self._ring is None:
            connection.send(answer)
        else:
            ring = self._ring.descriptor()
            connection.send({**answer, "ring": ring}, fds=[ring["fd"]])
        connection.stall_s = None  # a client that takes nothing beats all the same, and is waited for
        connection.start(
            self._take, lambda error: self.close(str(error)), max_data_bytes=_MOST_BYTES, silence_s=deadlines.LEASE_S
        )
        connection.max_json_bytes = MAX_HELLO_BYTES

    # -- turns -----------------------------------------------------------------------------------------------------

    def _may_begin(self) -> bool:
        waiting = 0 if self.connection is None else self.connection.unsent_bytes
        return not self._ended.is_set() and waiting < self.buffer_bytes

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            process_loop.get().call_soon_threadsafe(self._wake_up)

    def _wake_up(self) -> None:
        self._is_woken = False
        self._begin()

    def _take(self, frame: Frame) -> None:
        if "close" in frame.value:
            self.close("the client closed it")
            return
        until_s = time.monotonic() + float(frame.value["within_s"])
        if frame.data is None or self._num_unanswered >= self.concurrency:
            raise ValueError(f"an empty question, or more than {self.concurrency} before an answer")
        self._num_unanswered += 1
        self._waiting.append((until_s, frame))
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._scheduler.try_acquire(self.flow):
            task = process_loop.get().create_task(self._answer(*self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    # -- batches ---------------------------------------------------------------------------------------------------

    async def _answer(self, until_s: float, frame: Frame) -> None:
        assert frame.data is not None and self.connection is not None
        try:
            if time.monotonic() > until_s:
                raise ChannelTimeout("the deadline of this request was over before it was its turn")
            message = await self._batch(frame.data)
        except Exception as error:
            self._totals["num_errors"] += 1
            message = self._error_message(error)
        finally:
            self._scheduler.release(self.flow)
        self._num_unanswered -= 1
        self._totals["sent_bytes"] += message.numel()
        try:
            self._send(self.connection, message, frame.number)
            if self.connection.unsent_bytes:
                await self.connection.drained()
                self._scheduler.look_again()
        except GltError as error:
            logger.debug("%s", error)  # its end is heard of by itself

    def _send(self, connection: Connection, message: Tensor, number: int) -> None:
        ring, nbytes = self._ring, message.numel()
        if ring is not None and _RING_FROM_BYTES <= nbytes <= ring.channel_bytes // 2:
            try:
                slot = ring.reserve(nbytes, 0.0)
            except ChannelTimeout:
                pass  # the client keeps too much
            else:
                slot.buffer[:nbytes] = message
                slot.commit()
                connection.send(what=IN_RING, number=number)
                return
        connection.send(data=[message], what=IN_FRAME, number=number)

    async def _batch(self, asked: Tensor) -> Tensor:
        assert self.sampler is not None
        sampler = self.sampler
        question = Question.decode(asked, len(sampler.dataset.schema.node_types))
        input_id = torch.arange(len(question.nodes))
        start = await NodeSeeds(question.node_type).start(sampler, question.rows(), input_id, self._key)
        if sampler.is_local:
            sampled, message = await sampler.loop.run_native(self._make_here, sampler, start)
        else:
            sampled = await sampler.sample(start, self._key)
            message = _room_for(sampled)
            await sampler.fill(sampled, sampled.layout.tensors(message))
        self._totals["num_batches"] += 1
        for name in STATS:
            self._totals[name] += sampled.stats[name]
        return message

    def _make_here(self, sampler: DistNeighborSampler, start: BatchStart) -> tuple[SampledBatch, Tensor]:
        sampled = sampler.sample_here(start, self._key)
        message = _room_for(sampled)
        sampler.fill_here(sampled, sampled.layout.tensors(message))
        return sampled, message

    # -- the end ---------------------------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Ends it; what is being made is not sent any more. From any thread; may be called again."""
        with self._ending:
            if self._ended.is_set():
                return
            self._ended.set()
            self.why = why
        if self.connection is not None:
            self.connection.close()
        if self._ring is not None:
            self._ring.close(0.0)
        self._scheduler.remove(self.flow)
        self._on_end(self)

    def stats(self) -> dict[str, float]:
        """As of a stream; ``num_queued`` questions wait for their turn, ``queued_bytes`` of answers to be sent."""
        unsent_bytes = 0 if self.connection is None else self.connection.unsent_bytes
        return {
            **self._totals,
            "num_queued": len(self._waiting),
            "queued_bytes": unsent_bytes,
            "num_running": self.flow.num_running,
            "num_unread": 0,
        }


def _room_for(sampled: SampledBatch) -> Tensor:
    layout = sampled.layout
    message = pooled_empty((layout.nbytes,), torch.uint8)
    layout.write_header(message, MessageKind.BATCH)
    return message
