"""Channels carry sampled batches from whoever samples to whoever trains: one message format, one small interface."""

from glt.channel.base import Channel, Slot
from glt.channel.error_message import error_message
from glt.channel.local import LocalChannel
from glt.channel.message import Message, MessageKind, MessageLayout, encode_message, read_message
from glt.channel.shared_memory import SharedMemory, SharedTensor, share_tensor
from glt.channel.shm import ShmChannel
from glt.channel.size import format_size, parse_size

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
