"""The sampler's end of a stream: batches of one loader to one client, as fast as the client takes them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from glt.channel.local import LocalChannel
from glt.channel.message import MessageKind, error_message, read_message
from glt.distributed.dist_neighbor_sampler import STATS
from glt.distributed.epoch_start import EpochStart
from glt.distributed.options import check_count
from glt.distributed.producer import Producer
from glt.distributed.service.connection import Connection
from glt.distributed.service.turns import Lane
from glt.errors import ChannelClosed, ChannelTimeout, ConnectionLost, MessageError

logger = logging.getLogger(__name__)

LEASE_S = 60.0  # a client that is silent for so long is stopped, or stuck, and gives up its loaders
_POLL_S = 0.5
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
        self._epochs: queue.SimpleQueue[EpochStart | None] = queue.SimpleQueue()
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
        for run in (self._produce, self._send, self._listen):
            threading.Thread(target=run, name=f"glt-stream-{run.__name__[1:]}", daemon=True).start()

    def may_begin(self) -> bool:
        """Whether there is room for one more batch, as far as the size of earlier ones tells."""
        if self._ended.is_set():
            return False
        queued = self.channel.stats()
        waiting = queued["sent_bytes"] - queued["received_bytes"]
        return waiting + self.num_running() * self.window.largest_bytes < self.window.buffer_bytes

    def _produce(self) -> None:
        assert self.producer is not None
        while (start := self._epochs.get()) is not None:
            try:
                self.producer.run(start)
            except Exception as error:  # not of a batch, those are reported in their place
                message = error_message(
                    error, role=self.producer.role, rank=self.producer.rank, loader=start.iteration, epoch=start.epoch
                )
                try:
                    with self.channel.reserve(len(message)) as slot:
                        slot.buffer.copy_(message)
                except ChannelClosed:
                    return

    def _send(self) -> None:
        try:
            while not self._ended.is_set():
                if not self._has_room():
                    continue
                try:
                    message = self.channel.receive_bytes(_POLL_S)
                except ChannelTimeout:
                    continue
                self.made_room()
                # It is counted first: a client that has it may end this stream before sending returns.
                self.window.num_sent += 1
                self.window.largest_bytes = max(self.window.largest_bytes, message.numel())
                self._count(message)
                # A client that takes nothing beats all the same, and is waited for; if it falls silent, listening ends.
                self.connection.send_data(message, timeout_s=86400.0)
        except (ChannelClosed, ConnectionLost, ChannelTimeout) as error:
            self.close(str(error))
        except Exception as error:
            logger.exception("stream of %s", self.name)
            self.close(f"{type(error).__name__}: {error}")  # or its client would wait for ever

    def _has_room(self) -> bool:
        """Waits a little until the client has; counts that as blocked if something waits to be sent."""
        is_blocked = self.channel.stats()["num_queued"] > 0
        start = time.perf_counter()
        has_room = self.window.wait_to_send(_POLL_S)
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
                    self._obey(self.connection.receive_json(_POLL_S))
                except ChannelTimeout:
                    if self.connection.silent_s() > LEASE_S:
                        self.close(f"{self.connection.peer} has given no sign of life for {LEASE_S:g} s")
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
            self.producer.want(start.iteration)
            self._epochs.put(start)
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
            self.producer.want(-1)
        self._epochs.put(None)
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
