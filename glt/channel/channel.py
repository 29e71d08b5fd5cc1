"""The interface of channels, and those inside one process, between the threads that sample and train."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt._reprs import says
from glt.channel.message import Message, MessageKind, MessageLayout, read_message
from glt.data.arrays import pooled_empty
from glt.data.device import Accelerator, Event
from glt.errors import ChannelClosed, ChannelTimeout

DEFAULT_TIMEOUT_S = deadlines.DEFAULT_CHANNEL_S


class Slot(ABC):
    """Room for one message that is being made. As a context manager it commits when the block ends, and abandons when
    the block raises.

    Example:
        >>> layout = glt.channel.MessageLayout({"x": (torch.float32, [2])})
        >>> with glt.channel.LocalChannel(4) as channel:
        ...     with channel.reserve(layout.nbytes) as slot:  # commits at the end
        ...         rows = slot.tensors(layout, glt.channel.MessageKind.BATCH)["x"].fill_(7)
        ...     channel.receive().tensors
        ...
        {'x': tensor([7., 7.])}
    """

    buffer: Tensor
    """The message's bytes, uint8 [nbytes], 64-byte aligned, undefined at first. Not to be written afterwards."""

    ready: Event | None = None
    """What the consumer's stream waits for, where the message's tensors are on a device."""

    def tensors(
        self, layout: MessageLayout, kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0
    ) -> dict[str, Tensor]:
        """Writes the head of a message; returns its tensors, to be filled in place. ``layout`` has at most as many
        bytes as were reserved."""
        layout.write_header(self.buffer, kind, loader, epoch, index)
        return layout.tensors(self.buffer)

    @abstractmethod
    def commit(self) -> None:
        """Makes the message visible to the consumer, after those that were reserved before it. Never waits."""

    @abstractmethod
    def abandon(self) -> None:
        """Gives up the message: the consumer will not see it. Does nothing after a commit."""

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.commit()
        else:
            self.abandon()


class Channel(ABC):
    """Carries messages from a producer (any of its threads) to a consumer, in the order of reservation. Several slots
    may be filled at the same time. What the consumer keeps never blocks the producer for good.

    Example:
        >>> with glt.channel.LocalChannel(capacity=4) as channel:
        ...     channel.send({"x": torch.ones(2)}, epoch=3)
        ...     message = channel.receive()
        ...
        >>> message.epoch, message.tensors
        (3, {'x': tensor([1., 1.])})
    """

    @abstractmethod
    def reserve(self, nbytes: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> Slot:
        """Waits for room for a message of ``nbytes``, at least 1. A thread that has slots to commit must not wait here
        for the room that they occupy: ``timeout_s = 0`` asks without waiting.

        Raises:
            ChannelTimeout: There was no room in time.
            ChannelClosed: The consumer has closed the channel.
        """

    @abstractmethod
    def receive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Message:
        """Waits for the next message. Its tensors may alias the memory of the channel, which is reused once the last of
        them, and of their views, is gone. They stay valid after the channel is closed.

        Raises:
            ChannelTimeout: None came in time.
            ChannelClosed: None will come.
            MessageError: The bytes that came are no message.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends the channel, at once also for those that wait on the other side, with ``ChannelClosed``; what was
        committed before can still be received. May be called more than once."""

    @abstractmethod
    def stats(self) -> dict[str, int | float]:
        """Counts since the start: ``num_sent, num_received, num_queued`` messages, ``sent_bytes, received_bytes``,
        ``num_copied`` (out of the channel because the consumer kept too much of it), ``num_oversize`` (sent in pieces),
        ``num_producer_waits, producer_wait_s, num_consumer_waits, consumer_wait_s`` (calls that had to sleep)."""

    def send(
        self,
        tensors: Mapping[str, Tensor],
        kind: MessageKind = MessageKind.BATCH,
        *,
        loader: int = 0,
        epoch: int = 0,
        index: int = 0,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Copies ``tensors`` into a message and commits it; errors as of :meth:`reserve`."""
        layout = MessageLayout.like(tensors)
        with self.reserve(layout.nbytes, timeout_s) as slot:
            layout.write(slot.buffer, tensors, kind, loader, epoch, index)

    def send_message(self, message: Tensor, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Copies a message that is ready, uint8 [total bytes], into the channel and commits it."""
        with self.reserve(message.numel(), timeout_s) as slot:
            slot.buffer.copy_(message)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()


def named_counts(sent: dict[str, Any], received: dict[str, Any]) -> dict[str, int | float]:
    """The counts of :meth:`Channel.stats`, of what each side counts."""
    counts = {f"num_{side}": each["messages"] for side, each in (("sent", sent), ("received", received))}
    counts["num_queued"] = sent["messages"] - received["messages"]
    counts |= {"sent_bytes": sent["bytes"], "received_bytes": received["bytes"]}
    counts |= {"num_copied": received["copied"], "num_oversize": sent["oversize"]}
    for side, each in (("producer", sent), ("consumer", received)):
        counts |= {f"num_{side}_waits": each["waits"], f"{side}_wait_s": each["wait_s"]}
    return counts


class LocalSlot(Slot):
    def __init__(self, channel: LocalChannel, nbytes: int, pinned: bool = False) -> None:
        self._channel = channel
        self.buffer = (
            torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) if pinned else pooled_empty((nbytes,), torch.uint8)
        )
        self.nbytes = nbytes
        self.pinned_bytes = _block_bytes(nbytes) if pinned else 0
        self.state = "filling"

    def commit(self) -> None:
        if self.state != "filling":
            raise ValueError(f"channel slot: it was {self.state} before")
        self._settle("committed")

    def abandon(self) -> None:
        if self.state == "filling":
            self._settle("abandoned")

    def _settle(self, state: str) -> None:
        channel = self._channel
        del self._channel  # it has the slot: what is not received would keep both until Python's collection
        channel._settle(self, state)

    def message(self) -> Message:
        return read_message(self.buffer)


class LocalChannel(Channel):
    """Passes messages between threads; their tensors are private memory, so keeping them costs only memory.

    Args:
        capacity: Messages that may be reserved or waiting to be received.
        pinned: Memory of torch's that a GPU copies from and to by itself. torch keeps it for later messages.
        most_pinned_bytes: Of messages that are reserved or wait; further ones are in pageable memory. Default: any
            number.

    Example:
        >>> with glt.channel.LocalChannel(capacity=4) as channel:
        ...     channel.send({"x": torch.ones(2)}, epoch=3)
        ...     message = channel.receive()
        ...
        >>> message
        Message(BATCH, loader 0, epoch 3, index 0, x: float32 [2])
    """

    capacity: int

    def __init__(self, capacity: int, pinned: bool = False, most_pinned_bytes: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: expected at least 1 message")
        self.capacity, self._pinned = capacity, pinned
        self._most_pinned_bytes = math.inf if most_pinned_bytes is None else most_pinned_bytes
        self._pinned_bytes = 0
        self._changed = threading.Condition()
        self._slots: deque[LocalSlot] = deque()  # in the order of reservation
        self._num_unread = 0  # reserved or committed, not abandoned
        self._closed = False
        self._on_ready: Callable[[], None] = lambda: None
        counts: dict[str, Any] = {"messages": 0, "bytes": 0, "waits": 0, "wait_s": 0.0}
        self._sent, self._received = counts | {"oversize": 0}, counts | {"copied": 0}

    def reserve(self, nbytes: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> Slot:
        if nbytes < 1:
            raise ValueError(f"message of {nbytes} bytes: expected at least 1")
        with self._changed:
            self._wait(self._sent, timeout_s, lambda: self._closed or self._num_unread < self.capacity)
            if self._closed:
                raise ChannelClosed("the channel was closed")
            if self._num_unread >= self.capacity:
                raise ChannelTimeout(f"no room for a message after {timeout_s:g} s: {self._num_unread} wait to be read")
            slot = self._make_slot(nbytes)
            self._slots.append(slot)
            self._num_unread += 1
            self._pinned_bytes += slot.pinned_bytes
            return slot

    def _make_slot(self, nbytes: int) -> LocalSlot:
        has_room = self._pinned_bytes + _block_bytes(nbytes) <= self._most_pinned_bytes
        return LocalSlot(self, nbytes, self._pinned and has_room)

    def receive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Message:
        return self.take(timeout_s).message()

    def notify(self, on_ready: Callable[[], None]) -> None:
        """Has ``on_ready`` called, on the thread of the producer, when there may be one more message to receive."""
        self._on_ready = on_ready

    def take(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> LocalSlot:
        """As :meth:`receive`, but returns the slot with the message, unread."""
        with self._changed:
            self._wait(self._received, timeout_s, lambda: self._closed or self._is_ready())
            if not self._is_ready():
                if self._closed:
                    raise ChannelClosed("the channel was closed")
                raise ChannelTimeout(f"no message after {timeout_s:g} s: {len(self._slots)} are being made")
            slot = self._slots.popleft()
            self._leave(slot)
            self._received["messages"] += 1
            self._received["bytes"] += slot.nbytes
            self._changed.notify_all()
        return slot

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stats(self) -> dict[str, int | float]:
        with self._changed:
            return named_counts(self._sent, self._received)

    def _settle(self, slot: LocalSlot, state: str) -> None:
        with self._changed:
            slot.state = state
            if state == "abandoned":
                self._leave(slot)
            else:
                self._sent["messages"] += 1
                self._sent["bytes"] += slot.nbytes
            self._changed.notify_all()
        self._on_ready()

    def _is_ready(self) -> bool:
        return bool(self._slots) and self._slots[0].state == "committed"

    def _leave(self, slot: LocalSlot) -> None:
        self._num_unread -= 1
        self._pinned_bytes -= slot.pinned_bytes
        while self._slots and self._slots[0].state == "abandoned":
            self._slots.popleft()

    def _wait(self, counts: dict[str, Any], timeout_s: float, ready: Callable[[], bool]) -> None:
        if timeout_s < 0:
            raise ValueError(f"timeout_s = {timeout_s}: expected seconds, 0 or more")
        if ready() or timeout_s == 0:
            return
        start = time.perf_counter()
        self._changed.wait_for(ready, timeout_s)
        counts["waits"] += 1
        counts["wait_s"] += time.perf_counter() - start

    @says
    def __repr__(self) -> str:
        return f"{self._num_unread} of {self.capacity} messages{', closed' if self._closed else ''}"


def _block_bytes(nbytes: int) -> int:
    """What torch's allocator of pinned memory takes: the next power of two."""
    return 1 << (nbytes - 1).bit_length()


# Tensors of a batch that the trainer reads as numbers.
ON_HOST = ("stats", "num_sampled_nodes", "num_sampled_edges", "trace", "trace_process")


class DeviceSlot(LocalSlot):
    _channel: DeviceChannel

    def __init__(self, channel: DeviceChannel, nbytes: int) -> None:
        self._channel, self.nbytes, self.state, self.pinned_bytes = channel, nbytes, "filling", 0
        self._buffer: Tensor | None = None
        self._message: Message | None = None

    @property
    def buffer(self) -> Tensor:  # type: ignore[override]
        """Bytes on the host, taken only to report an error in place of a batch."""
        if self._buffer is None:
            self._buffer = torch.empty(self.nbytes, dtype=torch.uint8)
        return self._buffer

    def tensors(
        self, layout: MessageLayout, kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0
    ) -> dict[str, Tensor]:
        place = self._channel.accelerator
        with place.on(self._channel.stream):
            buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=place.device)
        tensors = layout.tensors(buffer)
        for name in ON_HOST:
            if name in tensors:
                tensors[name] = torch.empty(tensors[name].shape, dtype=tensors[name].dtype)
        self._message = Message(kind, loader, epoch, index, dict(tensors), buffer)
        return tensors

    def message(self) -> Message:
        if self._message is None or self._buffer is not None:
            return super().message()
        self._message.ready = self.ready
        return self._message


class DeviceChannel(LocalChannel):
    """Passes messages between threads, with tensors of one buffer of device memory each, taken in the order of
    ``stream``."""

    def __init__(self, capacity: int, accelerator: Accelerator, stream: torch.cuda.Stream | None) -> None:
        super().__init__(capacity)
        self.accelerator, self.stream = accelerator, stream

    def _make_slot(self, nbytes: int) -> LocalSlot:
        return DeviceSlot(self, nbytes)
