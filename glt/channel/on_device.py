"""A channel inside one process whose messages stay on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from glt.channel.base import DEFAULT_TIMEOUT_S
from glt.channel.local import LocalChannel, LocalSlot
from glt.channel.message import Message, MessageKind, MessageLayout, read_message
from glt.data.accelerator import Accelerator

ON_HOST = ("stats", "num_sampled_nodes", "num_sampled_edges")
"""Tensors of a batch that the trainer reads as numbers, and that stay where they can be."""


class DeviceSlot(LocalSlot):
    """Room for one message: its tensors on the device, or bytes on the host, where an error is reported."""

    __slots__ = ("_buffer", "_message", "ready")

    def __init__(self, channel: DeviceChannel, nbytes: int) -> None:
        self._channel, self.nbytes, self.state, self.pinned_bytes = channel, nbytes, "filling", 0
        self._buffer: Tensor | None = None
        self._message: Message | None = None
        self.ready = None

    @property
    def buffer(self) -> Tensor:  # type: ignore[override]
        """Bytes on the host; whoever asks for them reports an error in place of a batch."""
        if self._buffer is None:
            self._buffer = torch.empty(self.nbytes, dtype=torch.uint8)
        return self._buffer

    def tensors(
        self, layout: MessageLayout, kind: MessageKind, loader: int = 0, epoch: int = 0, index: int = 0
    ) -> dict[str, Tensor]:
        channel = self._channel
        assert isinstance(channel, DeviceChannel)
        with channel.accelerator.on(channel.stream):
            buffer = torch.empty(layout.nbytes, dtype=torch.uint8, device=channel.accelerator.device)
        tensors = layout.tensors(buffer)
        for name in ON_HOST:
            if name in tensors:
                tensors[name] = torch.empty(tensors[name].shape, dtype=tensors[name].dtype)
        self._message = Message(kind, loader, epoch, index, dict(tensors), buffer)
        return tensors

    def message(self) -> Message:
        """What was committed."""
        if self._message is None or self._buffer is not None:
            return read_message(self.buffer)
        self._message.ready = self.ready
        return self._message


class DeviceChannel(LocalChannel):
    """Passes messages between threads, with tensors of one buffer of device memory each.

    Args:
        capacity: Messages that may be reserved or waiting to be received.
        accelerator: The GPU.
        stream: Where they are filled; memory is taken in its order.
    """

    def __init__(self, capacity: int, accelerator: Accelerator, stream: torch.cuda.Stream | None) -> None:
        super().__init__(capacity)
        self.accelerator, self.stream = accelerator, stream

    def _make_slot(self, nbytes: int) -> LocalSlot:
        return DeviceSlot(self, nbytes)

    def receive(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Message:
        slot = self._take(timeout_s)
        assert isinstance(slot, DeviceSlot)
        return slot.message()
