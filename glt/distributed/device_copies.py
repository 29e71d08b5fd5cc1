"""Batches on their way from host memory to a GPU, while the trainer works on the one before."""

from __future__ import annotations

import torch
from torch import Tensor

from glt.channel.local import ON_HOST
from glt.channel.message import Message, device_view
from glt.data.device import Accelerator, Event


class DeviceCopies:
    """Copies messages to a GPU: one copy each, on a stream of its own, which nobody waits for.

    A message's memory is kept until its copy is done; it is a slot of a channel, which samplers fill again after that.
    From pageable memory the call itself does the copy.

    Args:
        accelerator: The GPU.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._under_way: list[tuple[Event, Tensor]] = []
        self.accelerator = accelerator
        self._stream = accelerator.new_stream()

    def start(self, message: Message) -> Message:
        """Returns the message with its tensors on the GPU, but for those that the trainer reads as numbers.

        They are there once ``ready`` has happened. Messages that are there already, and errors, stay as they are.
        """
        source = message.buffer
        if source is None or message.ready is not None or not message.tensors:
            return message
        self.sweep()
        with self.accelerator.on(self._stream):
            buffer = torch.empty(source.numel(), dtype=torch.uint8, device=self.accelerator.device)
            buffer.copy_(source, non_blocking=True)
            ready = self.accelerator.record()
        self._under_way.append((ready, source))
        tensors = {
            name: tensor.clone()
            if name in ON_HOST
            else device_view(buffer, tensor.data_ptr() - source.data_ptr(), tensor.dtype, tensor.shape)
            for name, tensor in message.tensors.items()
        }
        return Message(message.kind, message.loader, message.epoch, message.index, tensors, buffer, ready)

    def sweep(self) -> None:
        """Lets go of the memory of copies that are done."""
        self._under_way = [(event, source) for event, source in self._under_way if not event.query()]

    def __del__(self) -> None:
        self.close()  # the channel's memory must not be filled again, or go, under a copy

    def close(self) -> None:
        """Waits for the copies, and lets go of all memory."""
        under_way, self._under_way = self._under_way, []
        for event, _ in under_way:
            event.synchronize()


def take_over(message: Message) -> None:
    """Makes the current stream wait for a message's tensors, and keeps their memory until it has used them."""
    if message.ready is None:
        return
    if message.buffer is None or not message.buffer.is_cuda:
        message.ready.wait()
        return
    place = Accelerator(message.buffer.device)
    place.wait_for(message.ready)
    place.keep_for_current(message.buffer)
