"""What all channels have in common: messages from one producer to one consumer, in the order of reservation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import Message, MessageKind, MessageLayout
from glt.data.device import Event

DEFAULT_TIMEOUT_S = deadlines.DEFAULT_CHANNEL_S


class Slot(ABC):
    """Room for one message that is being made.

    As a context manager it commits when the block ends, and abandons when the block raises.
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

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.commit()
        else:
            self.abandon()


class Channel(ABC):
    """Carries messages from a producer (any of its threads) to a consumer.

    Several slots may be filled at the same time and committed in any order. What the consumer keeps never blocks the
    producer for good.
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
        """Waits for the next message.

        Its tensors may alias the memory of the channel, which is reused once the last of them, and of their views, is
        gone. They stay valid after the channel is closed.

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
        ``num_copied`` (taken out of the channel because the consumer kept too much of it), ``num_oversize`` (sent in
        pieces), ``num_producer_waits, producer_wait_s, num_consumer_waits, consumer_wait_s`` (calls that had to sleep).
        """

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

    def __enter__(self) -> "Channel":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()
