"""The sampler's end of a stream: the batches of one loader on their way to its client.

Each sampling process listens itself, on a port of its own, rather than take over connections that its server has
accepted: the state of a TLS connection cannot be handed to another process, and each client is spoken to by one process
only. That costs a port per sampling process, and a second handshake of the client.

A client on another host gets batches as frames. One on this host gets them through a ring of shared memory, which is
made for the stream, and a frame without data for each: it says that one more lies there. What has no room in the ring
goes as a frame with data, in its turn. So both ways have the same windows and counts, and the order of the frames is
that of the batches::

    client -> sampler   {"start": EpochStart}, {"drain": true}, {"close": true}, {"taken": messages so far}, with
                        "waited": true where the last of them was waited for
    sampler -> client   what = IN_FRAME: data are a message; IN_RING: it lies in the ring, of ``number`` bytes
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt._checks import check_count
from glt._spans import mark_sent
from glt.channel.channel import LocalChannel, LocalSlot, Slot
from glt.channel.message import MessageKind, read_message
from glt.channel.shm import ShmChannel
from glt.distributed.engine.client_rows import ClientRows
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.sampler import STATS
from glt.distributed.server.scheduler import FairScheduler
from glt.distributed.server.stats import COUNTERS
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import MAX_HELLO_BYTES, Frame
from glt.distributed.wire.threads import call_on_loop
from glt.errors import ChannelTimeout, GltError

logger = logging.getLogger(__name__)

IN_FRAME, IN_RING = range(2)

_ANY_NUMBER = 1 << 30
_LEAST_AHEAD, _MOST_AHEAD = 4, 64  # messages, where their number is found here
_RING_BYTES = 64 << 10, 4 << 30  # a smaller ring is of no use; a larger one is not needed


class RingSlot(LocalSlot):
    """Room in a ring. The consumer sees the message when it is shown, not when it is committed."""

    def __init__(self, channel: RingChannel, slot: Slot, nbytes: int) -> None:
        self._channel, self._slot, self.nbytes = channel, slot, nbytes
        self.buffer, self.state, self.pinned_bytes = slot.buffer, "filling", 0

    def show(self) -> None:
        self._slot.commit()

    def abandon(self) -> None:
        super().abandon()
        self._slot.abandon()  # unless it was shown


class RingChannel(LocalChannel):
    """A channel whose messages lie in a ring of shared memory, where that has room, and else in memory of their own. It
    passes them on inside of this process; who takes one shows it to the consumer of the ring, in the same order."""

    def __init__(self, ring: ShmChannel) -> None:
        super().__init__(_ANY_NUMBER)
        self.ring = ring

    def _make_slot(self, nbytes: int) -> LocalSlot:
        if nbytes <= self.ring.channel_bytes // 2:  # a longer one would go in pieces, and be copied twice all the same
            try:
                return RingSlot(self, self.ring.reserve(nbytes, 0.0), nbytes)
            except ChannelTimeout:
                pass  # the consumer keeps too much, or it is in fragments
        return LocalSlot(self, nbytes)

    def close(self) -> None:
        super().close()
        self.ring.close(0.0)


def channel_to(is_here: bool, buffer_bytes: int, is_pinned: bool) -> LocalChannel:
    """The channel of a stream to a client, ``is_here``: on this host. Twice ``buffer_bytes``: as much as may wait, and
    as much for what the client keeps."""
    if is_pinned:
        return LocalChannel(_ANY_NUMBER, True, buffer_bytes)
    least, most = _RING_BYTES
    if is_here and 2 * buffer_bytes >= least:
        try:
            return RingChannel(ShmChannel(min(2 * buffer_bytes, most)))
        except (MemoryError, OSError) as error:
            logger.warning("batches for a client of this host go through its socket: %s", error)
    return LocalChannel(_ANY_NUMBER)


class Stream:
    """Runs the producer of one loader, sends what it makes, and listens to the client.

    ``prefetch_size`` messages may be on their way to the client or wait for its trainer there; where 0 was asked for,
    twice as many each time that its trainer waits and messages had to wait for it before. No batch is begun while
    ``buffer_bytes`` wait here to be sent, or lie in the ring and are not yet taken by the trainer; at most
    ``concurrency`` batches are in flight, and so many may wait for the client to have room: more would take memory and
    bring nothing. ``on_end`` is called once, on any thread. ``producer`` makes batches into ``channel`` and is set
    before :meth:`start`; ``clients`` are the rows that it counts on the client to keep. With ``is_pinned`` (a sampler
    on a GPU) batches wait in pinned memory, ``buffer_bytes`` at most, since torch keeps pinned blocks for good, and go
    as frames to clients of this host, too.
    """

    def __init__(
        self,
        request: dict[str, Any],
        share: tuple[int, int],
        scheduler: FairScheduler,
        on_end: Callable[[Stream], None],
        is_here: bool,
        is_pinned: bool,
    ) -> None:
        self.name, self.share = request["id"], share
        self._is_tuned, self._had_no_room = request["prefetch_size"] == 0, False
        self.prefetch_size, self.buffer_bytes = request["prefetch_size"] or _LEAST_AHEAD, request["buffer_bytes"]
        self.channel = channel_to(is_here, self.buffer_bytes, is_pinned)
        self.clients: list[ClientRows | None] = []
        self.producer: Producer | None = None
        self.connection: Connection | None = None
        self.why = ""
        self._scheduler, self._on_end = scheduler, on_end
        self._totals = dict.fromkeys(COUNTERS, 0.0)
        self._news = asyncio.Event()  # of the loop: a message is there, or was taken, or the stream has ended
        self._num_sent = self._num_taken = 0  # messages
        self._unread: deque[int] = deque()  # bytes in the ring of those sent and not taken
        self._unread_bytes = 0
        # How long messages have waited for the client to have room, and since when one does, of time.perf_counter().
        self._blocked: tuple[float, float | None] = 0.0, None
        self._largest_bytes = 0  # of those sent
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self._task: asyncio.Task[None] | None = None
        self.flow = scheduler.add(request["concurrency"], self._may_begin)

    @property
    def ring(self) -> ShmChannel | None:
        return self.channel.ring if isinstance(self.channel, RingChannel) else None

    def start(self, connection: Connection, answer: dict[str, Any]) -> None:
        """Answers the client and begins to serve it. On the loop."""
        assert self.producer is not None
        self.connection = connection
        if self.ring is None:
            kept = [each.to_json() for each in self.clients if each is not None]
            connection.send({**answer, "kept": kept})
        else:
            ring = self.ring.descriptor()
            connection.send({**answer, "ring": ring}, fds=[ring["fd"]])
        self.producer.open()
        self.channel.notify(partial(call_on_loop, self._news.set))  # not of self: that would be a circle
        connection.stall_s = None  # a client that takes nothing beats all the same, and is waited for
        connection.start(
            self._obey, lambda error: self.close(str(error)), max_data_bytes=0, silence_s=deadlines.LEASE_S
        )
        connection.max_json_bytes = MAX_HELLO_BYTES
        self._task = asyncio.get_running_loop().create_task(self._send_all(connection))

    def _may_begin(self) -> bool:
        channel, coming = self.channel.stats(), self.flow.num_running
        waiting = channel["num_queued"] + self._num_sent - self._num_taken
        nbytes = channel["sent_bytes"] - channel["received_bytes"] + self._unread_bytes + coming * self._largest_bytes
        is_wanted = waiting + coming < self.prefetch_size + self.flow.most and nbytes < self.buffer_bytes
        return is_wanted and not self._ended.is_set()

    async def _send_all(self, connection: Connection) -> None:
        try:
            while not self._ended.is_set():
                self._news.clear()
                slot = self._next()
                if slot is None:
                    await self._news.wait()
                    continue
                self._count(slot.buffer)
                if isinstance(slot, RingSlot):
                    self._unread.append(slot.nbytes)
                    self._unread_bytes += slot.nbytes
                    slot.show()
                    connection.send(what=IN_RING, number=slot.nbytes)
                else:
                    self._unread.append(0)
                    self._scheduler.look_again()  # there is room for another batch
                    connection.send(data=[slot.buffer], what=IN_FRAME)
                del slot
                await connection.drained()
        except GltError as error:
            self.close(str(error))
        except Exception as error:
            logger.exception("stream of %s", self.name)
            self.close(f"{type(error).__name__}: {error}")  # or its client would wait for ever

    def _next(self) -> LocalSlot | None:
        """The next message, if there is one and the client has room; keeps the time in which it had none."""
        has_room = self._num_sent - self._num_taken < self.prefetch_size
        if not has_room:
            if self._blocked[1] is None and self.channel.stats()["num_queued"]:
                self._blocked, self._had_no_room = (self._blocked[0], time.perf_counter()), True
            return None
        if self._blocked[1] is not None:
            self._blocked = self._blocked_s(), None
        try:
            return self.channel.take(0.0)
        except ChannelTimeout:
            return None

    def _blocked_s(self) -> float:
        before, since = self._blocked
        return before + (0.0 if since is None else time.perf_counter() - since)

    def _count(self, message: Tensor) -> None:
        self._num_sent += 1
        self._largest_bytes = max(self._largest_bytes, message.numel())
        self._totals["sent_bytes"] += message.numel()
        read = read_message(message)
        if read.kind is MessageKind.ERROR:
            self._totals["num_errors"] += 1
        elif read.kind is MessageKind.BATCH:
            self._totals["num_batches"] += 1
            for name, value in zip(STATS, read.tensors["stats"].tolist(), strict=True):
                self._totals[name] += value
            mark_sent(read.tensors)

    def _obey(self, frame: Frame) -> None:
        assert self.producer is not None
        command = frame.value
        if "taken" in command:
            self._take_note(int(command["taken"]), "waited" in command)
        elif "start" in command:
            start = EpochStart.from_json(command["start"])
            most = {"random_seed": 2**63 - 1, "trace": 1}
            for name, value in start.to_json().items():
                check_count(name, value, 0, most.get(name, 2**31 - 1))
            self.producer.start_epoch(start)
        elif "drain" in command:
            self.producer.want(-1)
        elif "close" in command:
            self.close("the client closed the loader")
        else:
            raise ValueError(f"unknown command {sorted(command)}")

    def _take_note(self, num_taken: int, has_waited: bool) -> None:
        """The trainer has taken so many messages in all."""
        if not self._num_taken <= num_taken <= self._num_sent:
            raise ValueError(f"taken = {num_taken}: expected {self._num_taken} to {self._num_sent}")
        self._unread_bytes -= sum(self._unread.popleft() for _ in range(num_taken - self._num_taken))
        self._num_taken = num_taken
        if self._is_tuned and has_waited and self._had_no_room and self.prefetch_size < _MOST_AHEAD:
            self.prefetch_size, self._had_no_room = 2 * self.prefetch_size, False
            text = "prefetch_size = 'auto' of %s: %d; its trainer waited though batches were ready"
            logger.info(text, self.name, self.prefetch_size)
        self._news.set()
        self._scheduler.look_again()  # there is room for another batch

    def close(self, why: str) -> None:
        """Ends it, and gives up what is being made. From any thread; may be called again."""
        with self._ending:
            if self._ended.is_set():
                return
            self._ended.set()
            self.why = why
        if self.producer is not None:
            self.producer.close()
        self.channel.close()
        if self.connection is not None:
            self.connection.close()
        call_on_loop(self._news.set)
        self._scheduler.remove(self.flow)
        self._on_end(self)

    def stats(self) -> dict[str, float]:
        """Counters, and what waits now: ``num_unread`` messages are sent, over the network or in the ring, and not
        taken by the trainer; ``num_queued``, ``queued_bytes`` are made and not sent."""
        channel = self.channel.stats()
        return {
            **self._totals,
            "blocked_s": self._totals["blocked_s"] + self._blocked_s(),
            "num_queued": channel["num_queued"],
            "queued_bytes": channel["sent_bytes"] - channel["received_bytes"],
            "num_running": self.flow.num_running,
            "num_unread": self._num_sent - self._num_taken,
        }
