"""Channels carry sampled batches from samplers to trainers: one message format, one small interface."""

from typing import TYPE_CHECKING

from glt._faces import lazy_names

if TYPE_CHECKING:
    from glt._checks import format_size, parse_size
    from glt.channel.channel import Channel, LocalChannel, Slot
    from glt.channel.message import Message, MessageKind, MessageLayout, encode_message, error_message, read_message
    from glt.channel.shm import SharedMemory, SharedTensor, ShmChannel, share_tensor

__all__ = [
    "Channel",
    "LocalChannel",
    "Message",
    "MessageKind",
    "MessageLayout",
    "SharedMemory",
    "SharedTensor",
    "ShmChannel",
    "Slot",
    "encode_message",
    "error_message",
    "format_size",
    "parse_size",
    "read_message",
    "share_tensor",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "glt._checks": ["format_size", "parse_size"],
        "channel": ["Channel", "LocalChannel", "Slot"],
        "message": ["Message", "MessageKind", "MessageLayout", "encode_message", "error_message", "read_message"],
        "shm": ["SharedMemory", "SharedTensor", "ShmChannel", "share_tensor"],
    },
)
