"""The sampler's end of a stream: batches of one loader to one client, as fast as the client takes them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt._checks import check_count
from glt.channel.local import LocalChannel
from glt.channel.message import MessageKind, read_message
from glt.distributed.engine.producer import EpochStart, Producer
from glt.distributed.engine.sampler import STATS
from glt.distributed.wire.connection import Connection
from glt.errors import ChannelClosed, ChannelTimeout, ConnectionLost, MessageError

# Who may begin a batch next, among the loaders that share a sampling process.


_SLACK = 4.0  # batches


class Lane:
    """One loader among those that share. See :class:`Turns`.

    Attributes:
        most: Batches of it in flight at most.
        num_running: Batches of it in flight.
        num_begun: Batches begun so far.
    """

    def __init__(self, most: int, may_begin: Callable[[], bool], lock: threading.Lock) -> None:
        self.most, self.may_begin = most, may_begin
        self.turn = threading.Condition(lock)  # where whoever wants to begin a batch of it waits
        self.num_running = self.num_begun = 0
        self.is_waiting = False
        self.passed = 0.0  # virtual time at which its next batch begins


class Turns:
    """Places for batches in flight, given to lanes in turn.

    A place goes to the waiting lane that was served least, counted in batches since it came or came back: start-time
    fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with batches of cost 1. So lanes that always want to go on begin
    equally many batches, however many of them there are and however long each is made to wait for its client in
    between; and one whose client takes nothing holds no place, since it does not begin.

    Whenever something changed only the lane that is next is woken: waking all, each of which looks at all, made a batch
    cost 57 ms of CPU where 200 loaders waited.

    Args:
        num_places: Batches in flight at most, over all lanes.
    """

    def __init__(self, num_places: int) -> None:
        if num_places < 1:
            raise ValueError(f"num_places = {num_places}: expected at least 1")
        self.num_places = num_places
        self._free = num_places
        self._now = 0.0  # virtual time: where the lane is that was served last
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []

    def add(self, most: int, may_begin: Callable[[], bool]) -> Lane:
        """Adds a lane.

        Args:
            most: Batches of it in flight at most.
            may_begin: Whether it may begin a batch now; must not block, and is called under a lock.
        """
        lane = Lane(most, may_begin, self._lock)
        with self._lock:
            lane.passed = self._now
            self._lanes.append(lane)
        return lane

    def remove(self, lane: Lane) -> None:
        """Removes a lane; batches that it has in flight still give back their places."""
        with self._lock:
            if lane in self._lanes:
                self._lanes.remove(lane)
            lane.turn.notify_all()  # it may be stopped
            self._wake_next()

    def acquire(self, lane: Lane, is_stopped: Callable[[], bool], poll_s: float = 0.1) -> bool:
        """Waits until ``lane`` may begin a batch; false if ``is_stopped`` said so before, which is looked at every
        ``poll_s`` seconds, and after :meth:`interrupt`."""
        with self._lock:
            lane.is_waiting = True
            try:
                while not is_stopped():
                    if self._may(lane) and self._next() is lane:
                        self._free -= 1
                        lane.num_running += 1
                        lane.num_begun += 1
                        start = self._start(lane)
                        self._now, lane.passed = max(self._now, start), start + 1
                        return True
                    lane.turn.wait(poll_s)
                return False
            finally:
                lane.is_waiting = False
                self._wake_next()  # it may be another's turn now

    def release(self, lane: Lane) -> None:
        """Gives back the place of a batch of ``lane``."""
        with self._lock:
            self._free += 1
            lane.num_running -= 1
            self._wake_next()

    def look_again(self) -> None:
        """Says that a lane may begin now that could not before."""
        with self._lock:
            self._wake_next()

    def interrupt(self, lane: Lane) -> None:
        """Says that whoever waits for ``lane`` is stopped."""
        with self._lock:
            lane.turn.notify_all()

    def _wake_next(self) -> None:
        following = self._next()
        if following is not None:
            following.turn.notify_all()

    def _may(self, lane: Lane) -> bool:
        return lane.is_waiting and lane.num_running < lane.most and lane.may_begin()

    def _next(self) -> Lane | None:
        if not self._free:
            return None
        found, earliest = None, math.inf
        for lane in self._lanes:
            # In this order: whether it may is the dearest question, and asked of few.
            if lane.is_waiting and (start := self._start(lane)) < earliest and self._may(lane):
                found, earliest = lane, start
        return found

    def _start(self, lane: Lane) -> float:
        """When its next batch begins, in virtual time. What a lane left unused while it could not begin is not saved
        up, or it would hold up all others when it can: only what it may have missed on its way back here."""
        return max(lane.passed, self._now - _SLACK)


logger = logging.getLogger(__name__)

_ANY_NUMBER = 1 << 30


class Window:
    """What may be begun and what may be sent, given what the client has taken.

    Args:
        prefetch_size: Messages that may be on their way to the client, or wait for its trainer there.
        buffer_bytes: No batch is begun while so much waits here to be sent.
    """

    def __init__(self, prefetch_size: int, buffer_bytes: int) -> None:
        self.prefetch_size, self.buffer_bytes = prefetch_size, buffer_bytes
        self.changed = threading.Condition()
        self.num_sent = self.num_taken = 0  # messages
        self.largest_bytes = 0  # of the messages sent so far

    def taken(self, number: int) -> None:
        with self.changed:
            self.num_taken = number
            self.changed.notify_all()

    def wait_to_send(self, timeout_s: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.num_sent - self.num_taken < self.prefetch_size, timeout_s)


class Stream:
    """Runs the producer of one loader, sends what it makes, and listens to the client.

    Args:
        connection: To the client.
        name: Of the loader, for logs.
        window: How far ahead of the client to work.
        end: Called once, on some thread, when the stream has ended.
    """

    def __init__(self, connection: Connection, name: str, window: Window, end: Callable[[Stream], None]) -> None:
        self.connection, self.name, self.window = connection, name, window
        self.channel = LocalChannel(_ANY_NUMBER)  # bounded by the window
        self.producer: Producer | None = None
        self.lane: Lane | None = None
        self.num_running: Callable[[], int] = lambda: 0
        self.made_room: Callable[[], None] = lambda: None
        self._end = end
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self._totals = dict.fromkeys((*STATS, "num_batches", "num_errors", "sent_bytes"), 0.0)
        self.why = ""

    def pin(self) -> None:
        """Has batches wait in pinned memory, for a sampler on a GPU: copies to it hold up no thread. Called before
        :meth:`start`.

        Of a client that is slow, whose batches wait, some are in pageable memory: torch rounds pinned blocks up to
        powers of two and keeps them for good, so that no more of them are taken than the client may have waiting.
        """
        self.channel = LocalChannel(_ANY_NUMBER, pinned=True, most_pinned_bytes=self.window.buffer_bytes)

    def start(self, producer: Producer) -> None:
        self.producer = producer
        producer.open()
        for run in (self._send, self._listen):
            threading.Thread(target=run, name=f"glt-stream-{run.__name__[1:]}", daemon=True).start()

    def may_begin(self) -> bool:
        """Whether there is room for one more batch, as far as the size of earlier ones tells."""
        if self._ended.is_set():
            return False
        queued = self.channel.stats()
        waiting = queued["sent_bytes"] - queued["received_bytes"]
        return waiting + self.num_running() * self.window.largest_bytes < self.window.buffer_bytes

    def _send(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._has_room():
                    continue
                try:
                    message = self.channel.receive_bytes(deadlines.POLL_S)
                except ChannelTimeout:
                    continue
                self.made_room()
                # It is counted first: a client that has it may end this stream before sending returns.
                self.window.num_sent += 1
                self.window.largest_bytes = max(self.window.largest_bytes, message.numel())
                self._count(message)
                # A client that takes nothing beats all the same, and is waited for; if it falls silent, listening ends.
                self.connection.send_data(message, timeout_s=deadlines.DAY_S)
        except (ChannelClosed, ConnectionLost, ChannelTimeout) as error:
            self.close(str(error))
        except Exception as error:
            logger.exception("stream of %s", self.name)
            self.close(f"{type(error).__name__}: {error}")  # or its client would wait for ever

    def _has_room(self) -> bool:
        """Waits a little until the client has; counts that as blocked if something waits to be sent."""
        is_blocked = self.channel.stats()["num_queued"] > 0
        start = time.perf_counter()
        has_room = self.window.wait_to_send(deadlines.POLL_S)
        if is_blocked:
            self._totals["blocked_s"] += time.perf_counter() - start
        return has_room

    def _count(self, message: Tensor) -> None:
        self._totals["sent_bytes"] += message.numel()
        read = read_message(message)
        if read.kind is MessageKind.ERROR:
            self._totals["num_errors"] += 1
        elif read.kind is MessageKind.BATCH:
            self._totals["num_batches"] += 1
            for name, value in zip(STATS, read.tensors["stats"].tolist(), strict=True):
                self._totals[name] += value

    def _listen(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._obey(self.connection.receive_json(deadlines.POLL_S))
                except ChannelTimeout:
                    if self.connection.silent_s() > deadlines.LEASE_S:
                        self.close(f"{self.connection.peer} has given no sign of life for {deadlines.LEASE_S:g} s")
        except ConnectionLost as error:
            self.close(str(error))
        except (MessageError, KeyError, TypeError, ValueError) as error:
            self.close(f"{self.connection.peer} asked for nonsense: {type(error).__name__}: {error}")

    def _obey(self, command: dict[str, Any]) -> None:
        assert self.producer is not None
        if "taken" in command:
            self.window.taken(int(command["taken"]))
        elif "start" in command:
            start = EpochStart.from_json(command["start"])
            for name, value in start.to_json().items():
                check_count(name, value, 0, 2**63 - 1 if name == "random_seed" else 2**31 - 1)
            self.producer.start_epoch(start)
        elif "drain" in command:
            self.producer.want(-1)
        elif "close" in command:
            self.close("the client closed the loader")
        else:
            raise ValueError(f"unknown command {sorted(command)}")

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
        self.connection.close()
        self._end(self)

    def stats(self) -> dict[str, float]:
        """Counters since the start, for the operator."""
        queued = self.channel.stats()
        return {
            **self._totals,
            "num_queued": queued["num_queued"],
            "queued_bytes": queued["sent_bytes"] - queued["received_bytes"],
            "num_running": self.num_running(),
            "num_unread": self.window.num_sent - self.window.num_taken,
        }
