"""Frames: what goes over a connection, and how they are put together from the bytes that come.

::

    offset 0   magic "GLT2" · kind u8 · what u8 · 2 bytes unused · length of the JSON u32 · number u64 · length of the
               data u64                                                                28 bytes, little-endian
          28   JSON object, UTF-8; then data, a message of :mod:`glt.channel.message` as a rule

Kinds are 1, a frame; 2, a greeting of the handshake (data alone, of :mod:`glt.distributed.wire.handshake`); 3, a beat
(nothing). Nothing that is read is executed. What does not begin like a frame, or claims to be longer than allowed, ends
the connection; memory grows with the bytes that come, unless this process has asked for them.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from glt.data.arrays import pooled_empty
from glt.distributed.wire.calls import Landing
from glt.errors import MessageError

MAX_JSON_BYTES: Final = 64 << 20
MAX_HELLO_BYTES: Final = 64 << 10  # of those who have not said, and where that is asked proven, who they are
_MAX_GREETING_BYTES = 128
_AT_ONCE = 1 << 20  # memory that is taken for data of other processes before they have come
# So many times what has come is taken at most: it is copied then. Pages that nothing is written to take no memory.
_GROWTH = 8

_HEADER = struct.Struct("<4sBB2xIQQ")
_MAGIC = b"GLT2"
_FRAME, _GREETING, _BEAT = 1, 2, 3
BEAT_FRAME: Final = _HEADER.pack(_MAGIC, _BEAT, 0, 0, 0, 0)

_scratch = memoryview(bytearray(64 << 10))  # what is read goes through it, but for long data; the loop's thread has it


@dataclass(slots=True)
class Frame:
    """What came: two numbers that mean what both ends agree on, JSON, and data, uint8 ``[n]``, 64-byte aligned.

    ``is_landed``: the data are in the landing that :attr:`FrameReader.find_landing` gave; ``data`` is its front.
    """

    what: int
    number: int
    value: dict[str, Any]
    data: Tensor | None
    is_landed: bool = False


def pack_head(num_json: int, num_data: int, what: int, number: int) -> bytes:
    """What goes before the JSON and the data of a frame, of so many bytes."""
    return _HEADER.pack(_MAGIC, _FRAME, what, num_json, number, num_data)


def pack_greeting(greeting: bytes) -> bytes:
    """A whole frame of the handshake."""
    return _HEADER.pack(_MAGIC, _GREETING, 0, 0, 0, len(greeting)) + greeting


class FrameReader(ABC):
    """Puts frames together, of what one other process sends, ``peer`` in errors: it says where the next bytes go, and
    is told how many came.

    Attributes:
        max_json_bytes, max_data_bytes: Of the frames that are taken.
        is_ours: Whether this process asked for what comes: memory is then taken for what is announced.
        find_landing: Asked, with number and length, where data that come are to be received; None: in memory of their
            own.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.max_json_bytes, self.max_data_bytes = MAX_HELLO_BYTES, 0
        self.is_ours = False
        self.find_landing: Callable[[int, int], Landing | None] | None = None
        self._is_shaking_hands = True
        self._head = b""
        self._begin_frame()

    @abstractmethod
    def _take(self, frame: Frame | bytes) -> bool:
        """Takes a frame, or a greeting; returns whether others are taken after it."""

    def _begin_frame(self) -> None:
        self._kind = self._what = self._number = 0  # of the header, if that has come
        self._json = bytearray()
        self._json_left = self._data_left = 0  # bytes that have not come; of data: for which there is no room yet
        self._data: Tensor | None = None
        self._landing: Landing | None = None
        self._targets: deque[memoryview] = deque()  # where data go that come next
        self._filled = 0  # bytes of the first

    def _room(self) -> memoryview:
        """Where the next bytes go."""
        if self._targets and len(self._targets[0]) - self._filled >= len(_scratch):
            return self._targets[0][self._filled :]
        return _scratch

    def _came(self, room: memoryview, count: int) -> None:
        """Takes what came, at the front of the room. Raises MessageError if it is no frame."""
        if room is not _scratch:
            self._fill(count)
            self._complete_if_whole()
            return
        at = 0
        is_taking = True
        while at < count and is_taking:
            if not self._kind:
                piece = room[at : min(at + _HEADER.size - len(self._head), count)]
                self._head += piece
                if len(self._head) < _HEADER.size and _MAGIC.startswith(self._head[: len(_MAGIC)]):
                    return
                self._read_header()
            elif self._json_left:
                piece = room[at : min(at + self._json_left, count)]
                self._json += piece
                self._json_left -= len(piece)
            else:
                target = self._targets[0]
                piece = room[at : min(at + len(target) - self._filled, count)]
                target[self._filled : self._filled + len(piece)] = piece
                self._fill(len(piece))
            at += len(piece)
            is_taking = self._complete_if_whole()

    def _read_header(self) -> None:
        head, self._head = self._head, b""
        magic, kind, what, num_json, number, num_data = _HEADER.unpack(head.ljust(_HEADER.size, b"\0"))
        most_json = self.max_json_bytes if kind == _FRAME else 0
        most_data = {_FRAME: self.max_data_bytes, _GREETING: _MAX_GREETING_BYTES}.get(kind, 0)
        is_known = kind in (_FRAME, _BEAT) or (kind == _GREETING and self._is_shaking_hands)
        if magic != _MAGIC or not is_known:
            is_tls = head[:2] in (b"\x15\x03", b"\x16\x03")
            advice = ", but one of TLS: give this process tls=, too" if is_tls else ""
            raise MessageError(f"{self.peer} sent {head!r}, which begins no frame of glt{advice}")
        if num_json > most_json or num_data > most_data:
            raise MessageError(
                f"{self.peer} sent {head!r}, which begins no frame of glt that is taken here, of at most {most_json} "
                f"bytes of JSON and {most_data} of data"
            )
        self._kind, self._what, self._number, self._json_left = kind, what, number, num_json
        if num_data:
            self._find_room(num_data)

    def _find_room(self, length: int) -> None:
        self._landing = None if self.find_landing is None else self.find_landing(self._number, length)
        if self._landing is not None:
            self._data = self._landing.front
            self._targets.extend(each.numpy().data for each in (self._data, self._landing.data) if each.numel())
            return
        first = length if self.is_ours else min(length, _AT_ONCE)
        self._data = self._memory(first)
        self._targets.append(self._data.numpy().data)
        self._data_left = length - first

    def _fill(self, count: int) -> None:
        """Takes note of data that have come."""
        self._filled += count
        if self._filled == len(self._targets[0]):
            self._targets.popleft()
            if self._data_left:
                self._grow()
            else:
                self._filled = 0

    def _grow(self) -> None:
        """A peer cannot take memory by announcing what it does not send."""
        assert self._data is not None
        more = min(self._data_left, (_GROWTH - 1) * self._filled)
        data = self._memory(self._filled + more)
        data[: self._filled] = self._data
        self._data, self._data_left = data, self._data_left - more
        self._targets.append(data.numpy().data)

    def _memory(self, length: int) -> Tensor:
        try:
            return pooled_empty((length,), torch.uint8)
        except (RuntimeError, MemoryError) as error:
            raise MessageError(f"{self.peer} sent {length} bytes, for which is no memory: {error}") from error

    def _complete_if_whole(self) -> bool:
        """Hands on the frame, if all of it has come; returns whether more is taken."""
        if self._json_left or self._targets:
            return True
        kind, text, data = self._kind, self._json, self._data
        frame = Frame(self._what, self._number, {}, data, self._landing is not None)
        self._begin_frame()
        if kind == _BEAT:
            return True
        if kind == _GREETING:
            return self._take(b"" if data is None else bytes(data.numpy()))
        if text:
            frame.value = self._parsed(text)
        return self._take(frame)

    def _parsed(self, text: bytearray) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"{self.peer} sent a frame that is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise MessageError(f"{self.peer} sent a frame that is no object: {type(value).__name__}")
        return value
