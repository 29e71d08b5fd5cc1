"""Connections: frames over a socket, on the asyncio loop of this process, with a beat every second."""

from __future__ import annotations

import array
import asyncio
import copy
import json
import logging
import os
import socket
import ssl
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.distributed.wire.beats import beats
from glt.distributed.wire.frames import BEAT_FRAME, MAX_JSON_BYTES, Frame, FrameReader, pack_greeting, pack_head
from glt.distributed.wire.threads import call_on_loop, process_loop
from glt.errors import ChannelTimeout, ConnectionLost, GltError, MessageError, PeerLost, RendezvousError

# Of Linux: retransmissions and probes that were not answered, milliseconds since something was acknowledged.
_TCP_INFO = struct.Struct("2xBB52xI")
_TURN_BYTES = 8 << 20  # that are read or sent of one connection before others have their turn
_TLS_BYTES = 256 << 10  # that are encrypted at a time
_MOST_PARTS = 64  # of one call of sendmsg
_MOST_FDS = 4
_MOST_KEPT = 4  # frames of another process that are kept before the connection is started: each waits for an answer
_UNIX_BYTES = 2 << 20  # of a Unix socket's buffer: with the kernel's default a batch takes ten times as many calls

logger = logging.getLogger(__name__)


class Connection(FrameReader):
    """One end of a connection. Any thread may send; what comes is read on the loop.

    It is made with a socket that is connected, and reads nothing until :meth:`receive` is awaited, as handshakes do, or
    until it is started: then ``on_frame`` is called with each frame and ``on_end`` once with the reason of its end,
    both on the loop. What ``on_frame`` raises of LookupError, TypeError, ValueError and GltError ends the connection.

    Attributes:
        peer: Who is at the other end, as errors name it; ``host`` where that is.
        may_write: Whether the peer has proven that it may write, or nothing has to be proven.
        silence_s: A peer that is silent for so long is given up; None: never.
        stall_s: One that takes nothing of what is sent for so long is given up; None: never, while it gives signs of
            life.
        unsent_bytes: Of what was sent, those that the kernel has had no room for yet.
    """

    def __init__(self, sock: socket.socket, peer: str) -> None:
        super().__init__(peer)
        self.socket, self.host, self.may_write = sock, "its host", True
        self.silence_s: float | None = None
        self.stall_s: float | None = deadlines.MESSAGE_S
        self.fds: list[int] = []  # descriptors that came over a Unix socket; who takes them closes them
        sock.setblocking(False)
        self._is_tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        if self._is_tcp:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNIX_BYTES)  # that of TCP grows by itself
        self._fd = sock.fileno()
        self._loop = process_loop.get()
        self._sending = threading.Lock()
        self._outbox: deque[memoryview] = deque()
        self.unsent_bytes = 0
        self._moved_s = time.monotonic()  # when the peer last took something
        self._drained: list[asyncio.Future[None]] = []
        self._ended = asyncio.Event()
        self._error: GltError | None = None  # why it ended
        self._is_finished = self._has_writer = self._has_reader = self._is_parting = False
        self._on_frame: Callable[[Frame], None] | None = None
        self._on_end: Callable[[GltError], None] | None = None
        self._frames: deque[Frame | bytes] = deque()  # that came before it was started
        self._waiter: asyncio.Future[None] | None = None
        self._heard_s = time.monotonic()
        _open[id(self)] = weakref.ref(self)

    def __repr__(self) -> str:
        return f"Connection({self.peer})"

    @property
    def is_closed(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._error is not None

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(
        self,
        value: Mapping[str, Any] | bytes | None = None,
        data: Sequence[Tensor] = (),
        *,
        what: int = 0,
        number: int = 0,
        fds: Sequence[int] = (),
    ) -> None:
        """Sends a frame; waits for nothing. The tensors, uint8 and contiguous, must not change until it has gone out.
        ``value`` may be JSON already: of a long one that goes to many, they share the bytes.

        Raises:
            glt.errors.ConnectionLost: If the connection has ended; MessageError, PeerLost and ChannelTimeout, if that
                is why.
            ValueError: If the JSON is longer than ``MAX_JSON_BYTES``; nothing is sent.
        """
        body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        if len(body) > MAX_JSON_BYTES:
            raise ValueError(
                f"{len(body)} bytes of JSON for {self.peer}: expected at most {MAX_JSON_BYTES}; send long lists as "
                "tensors"
            )
        views = [each.numpy().data.cast("B") for each in data if each.numel()]
        head = pack_head(len(body), sum(map(len, views)), what, number)
        first = [head, body] if body is value else [head + body]  # JSON that many share is not copied for each
        self._send([*(memoryview(each) for each in first), *views], fds)

    def greet(self, greeting: bytes) -> None:
        """Sends a frame of the handshake."""
        self._send([memoryview(pack_greeting(greeting))])

    def _send(self, parts: list[memoryview], fds: Sequence[int] = ()) -> None:
        with self._sending:
            if self._error is not None:
                raise self._why()
            if self._is_parting:
                raise ConnectionLost(f"this process has parted from {self.peer}")
            is_first = not self._outbox
            if is_first:
                self._moved_s = time.monotonic()
            assert is_first or not fds, "descriptors travel with the first frames of a connection"
            self._outbox.extend(parts)
            self.unsent_bytes += sum(map(len, parts))
            # OpenSSL's state is no affair of two threads: of TLS the loop alone sends.
            if is_first and (not self._is_tls or process_loop.is_here):
                self._write(fds)
            is_left = is_first and bool(self._outbox)
        if is_left:
            call_on_loop(self._flush)

    def _write(self, fds: Sequence[int] = ()) -> None:
        """Gives the kernel what it has room for, one turn of it. The lock is held."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        left = _TURN_BYTES
        while self._outbox and left > 0:
            try:
                if self._is_tls:  # OpenSSL sends all of what it was given, or says nothing of how far it came
                    sent = self.socket.send(self._outbox[0][:_TLS_BYTES])
                    is_full = False
                else:
                    parts = [self._outbox[i] for i in range(min(len(self._outbox), _MOST_PARTS))]
                    sent = self.socket.sendmsg(parts, ancillary)
                    ancillary, is_full = [], sent < sum(map(len, parts))
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._outbox.clear()
                self._loop.call_soon_threadsafe(self._end, self._lost(error))  # not now: the lock is held
                return
            self._moved_s = time.monotonic()
            left -= sent
            self.unsent_bytes -= sent
            while sent:
                if sent < len(self._outbox[0]):
                    self._outbox[0] = self._outbox[0][sent:]
                    break
                sent -= len(self._outbox.popleft())
            if is_full:
                return

    def _flush(self) -> None:
        """On the loop: sends what waits, and goes on when there is room."""
        if self._is_finished:
            return
        if self._sending.acquire(blocking=False):
            try:
                self._write()
                is_empty = not self._outbox
            finally:
                self._sending.release()
        else:
            is_empty = False  # another thread writes this moment
        if is_empty == self._has_writer:
            self._has_writer = not is_empty
            if is_empty:
                self._loop.remove_writer(self._fd)
            else:
                self._loop.add_writer(self._fd, self._flush)
        if is_empty:
            for waiting in self._drained:
                if not waiting.done():
                    waiting.set_result(None)
            self._drained.clear()
            if self._is_parting:
                self._shut_down(socket.SHUT_WR)

    async def drained(self) -> None:
        """Waits until all that was sent has been given to the kernel; raises why the connection ended, if it does."""
        while self._outbox:
            waiting = self._loop.create_future()
            self._drained.append(waiting)
            self._flush()  # another thread may be about to send the rest, and tells nobody
            await waiting
        if self._error is not None:
            raise self._why()

    def _why(self) -> GltError:
        """Why it ended, to be raised: an exception keeps the frames that it goes through, and the one here is kept for
        as long as the connection."""
        assert self._error is not None
        why = copy.copy(self._error)
        why.__cause__ = self._error.__cause__
        return why

    # -- receiving -------------------------------------------------------------------------------------------------

    async def receive(self, timeout_s: float) -> dict[str, Any]:
        """The JSON of the next frame, of a connection that is not started.

        Raises:
            glt.errors.ChannelTimeout: If none is complete within ``timeout_s``.
            glt.errors.ConnectionLost, glt.errors.MessageError: If the connection ended; if what came is no such frame.
        """
        frame = await self._next(timeout_s)
        if not isinstance(frame, Frame):
            raise MessageError(f"{self.peer} sent a greeting where a frame was due")
        return frame.value

    async def receive_greeting(self, timeout_s: float) -> bytes:
        """As :meth:`receive`, of a frame of the handshake. Raises RendezvousError if the peer refuses instead."""
        frame = await self._next(timeout_s)
        if isinstance(frame, Frame) and "refused" in frame.value:
            raise RendezvousError(f"{self.peer} refused: {frame.value['refused']}")
        if isinstance(frame, Frame):
            raise MessageError(f"{self.peer} sent {sorted(frame.value)} where a greeting was due")
        return frame

    async def _next(self, timeout_s: float) -> Frame | bytes:
        if not self._frames and self._error is None:
            self._waiter = self._loop.create_future()
            self._read_on()
            try:
                await asyncio.wait_for(self._waiter, timeout_s)
            except asyncio.TimeoutError:
                raise ChannelTimeout(f"nothing from {self.peer} within {timeout_s:g} s") from None
            finally:
                self._waiter = None
        if not self._frames:
            raise self._why()
        return self._frames.popleft()

    def start(
        self,
        on_frame: Callable[[Frame], None],
        on_end: Callable[[GltError], None],
        *,
        max_data_bytes: int,
        max_json_bytes: int = MAX_JSON_BYTES,
        silence_s: float | None = None,
    ) -> None:
        """Calls ``on_frame`` and ``on_end`` from now on, and sends beats. On the loop; may be called again."""
        self._on_frame, self._on_end, self._is_shaking_hands = on_frame, on_end, False
        self.max_json_bytes, self.max_data_bytes, self.silence_s = max_json_bytes, max_data_bytes, silence_s
        self._heard_s = time.monotonic()  # it may have waited
        if self._is_finished:
            assert self._error is not None
            self._loop.call_soon(on_end, self._error)
            return
        beats.add(self._tick)
        while self._frames and not self._is_finished:
            frame = self._frames.popleft()
            if isinstance(frame, Frame):
                self._hand_on(frame)
            else:
                self._end(MessageError(f"{self.peer} sent a greeting after the handshake"))
        self._read_on()

    def pause(self) -> None:
        """Reads nothing until :meth:`resume`: what has come waits to be dealt with. On the loop."""
        if self._has_reader:
            self._has_reader = False
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        """Reads on after :meth:`pause`. On the loop."""
        self._heard_s = time.monotonic()  # beats were not read meanwhile
        self._read_on()

    def _read_on(self) -> None:
        if not self._has_reader and not self._is_finished:
            self._has_reader = True
            self._loop.add_reader(self._fd, self._read)
            if self._is_tls:  # what the SSL object has read already wakes no selector
                self._loop.call_soon(self._read)

    def _read(self) -> None:
        left = _TURN_BYTES
        try:
            while self._has_reader and left > 0:
                room = self._room()
                count = self._receive_into(room)
                if count == 0:
                    self._end(self._lost(None))
                    return
                self._heard_s = time.monotonic()
                left -= count
                self._came(room, count)
                if count < len(room) and not self._is_tls:
                    break
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except GltError as error:
            self._end(error)
        except OSError as error:
            self._end(self._lost(error))
        else:
            if self._is_tls and self._has_reader:
                self._loop.call_soon(self._read)
        if self._is_tls and self._outbox:
            self._flush()

    def _receive_into(self, into: memoryview) -> int:
        if self._is_tcp or self._is_tls:
            return self.socket.recv_into(into)
        count, ancillary, _, _ = self.socket.recvmsg_into(
            [into], socket.CMSG_SPACE(_MOST_FDS * 4), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, body in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(body[: len(body) - len(body) % found.itemsize])
                self.fds += found
        if len(self.fds) > (_MOST_FDS if self.is_ours else 0):
            raise MessageError(f"{self.peer} sent {len(self.fds)} descriptors, which nothing here asked for")
        return count

    def _take(self, frame: Frame | bytes) -> bool:
        if self._on_frame is None:
            self._keep(frame)
        elif isinstance(frame, Frame) and not self._is_parting:
            self._hand_on(frame)
        return not self._is_finished

    def _keep(self, frame: Frame | bytes) -> None:
        if len(self._frames) == _MOST_KEPT and not self.is_ours:
            raise MessageError(f"{self.peer} sent more than {_MOST_KEPT} frames before it was answered")
        self._frames.append(frame)
        self.pause()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _hand_on(self, frame: Frame) -> None:
        assert self._on_frame is not None
        try:
            self._on_frame(frame)
        except GltError as error:
            self._end(error)
        except (LookupError, TypeError, ValueError) as error:
            self._end(MessageError(f"{self.peer} sent nonsense: {type(error).__name__}: {error}"))
        except Exception as error:  # the bytes behind it are lost: nothing more can be read
            logger.exception("a frame of %s could not be dealt with", self.peer)
            why = f"{type(error).__name__}: {error}"
            self._end(MessageError(f"{self.peer} sent a frame that could not be dealt with: {why}"))

    # -- signs of life ---------------------------------------------------------------------------------------------

    @property
    def heard_s(self) -> float:
        """When anything last arrived, of ``time.monotonic()``; or when this process went on, having been stopped."""
        return max(self._heard_s, beats.woke_s)

    def silent_s(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.heard_s

    def _tick(self) -> None:
        """Every second: looks whether the peer lives and listens, and says that this process does."""
        if self._error is not None or (self._is_tcp and not self._check_route()):
            return
        if self._outbox:
            moved_s = max(self._moved_s, beats.woke_s)
            if self.stall_s is not None and time.monotonic() - moved_s > self.stall_s:
                self._end(ChannelTimeout(f"{self.peer} took nothing for {self.stall_s:g} s"))
                return
        elif not self._is_parting:
            try:
                self._send([memoryview(BEAT_FRAME)])
            except GltError as error:  # another thread has closed it this moment
                logger.debug("%s", error)
        if self._has_reader and self.silence_s is not None and self.silent_s() > self.silence_s:
            self._end(
                PeerLost(
                    f"{self.peer} has given no sign of life for {self.silence_s:g} s: it is stopped or stuck (see its "
                    f"state in ps on {self.host}), or the network is cut"
                )
            )

    def _check_route(self) -> bool:
        """Ends the connection if the network is cut: what was sent, beats at least, has not been acknowledged for long.

        Not by TCP_USER_TIMEOUT, which also ends a connection whose peer lives and has no room for more.
        """
        try:
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError as error:
            self._end(self._lost(error))
            return False
        num_retransmits, num_probes, since_ms = _TCP_INFO.unpack(info)
        # A peer that has no room answers the probes of whether it has some; and where the way out of this host is down,
        # nothing is sent that could be acknowledged. What was just sent for the first time says nothing: a process that
        # was busy for long has sent nothing that could have been acknowledged meanwhile.
        if (num_retransmits or num_probes > 1) and since_ms > deadlines.CUT_S * 1000:
            since = f"{since_ms / 1000:.0f} s"
            why = f"its host has not answered for {since}: the network is cut, or the host is down"
            self._end(ConnectionLost(f"lost the connection to {self.peer}: {why}"))
            return False
        return True

    # -- ending ----------------------------------------------------------------------------------------------------

    def _lost(self, error: OSError | None) -> ConnectionLost:
        lost = ConnectionLost(f"lost the connection to {self.peer}: {error or 'it was closed there'}")
        # Without the frames in which it came, and those that called them: they have what was being sent.
        lost.__cause__ = None if error is None else error.with_traceback(None)
        return lost

    def part(self) -> None:
        """Ends it so that what was sent arrives: sends no more after that, and closes when the other end does, or after
        ``GOODBYE_S``. Nothing is heard of it any more. From any thread."""
        call_on_loop(self._part)

    async def parted(self) -> None:
        """As :meth:`part`, and waits until it has ended."""
        self._part()
        await self._ended.wait()

    def _part(self) -> None:
        if self._is_finished or self._is_parting:
            return
        self._is_parting = True
        self._on_end = None
        if self._on_frame is None:
            self._on_frame, self._is_shaking_hands = lambda frame: None, False
            beats.add(self._tick)
        self._flush()
        self._read_on()
        self._loop.call_later(deadlines.GOODBYE_S, self._end, ConnectionLost(f"parted from {self.peer}"))

    def close(self, error: GltError | None = None) -> None:
        """Ends it at once, because of ``error`` if that is given. From any thread; may be called again."""
        if self._error is None:
            self._error = error or ConnectionLost(f"the connection to {self.peer} was closed here")
            self._shut_down(socket.SHUT_RDWR)
        if not self._is_finished:
            call_on_loop(self._end, self._error)

    def _shut_down(self, how: int) -> None:
        try:
            socket.socket.shutdown(self.socket, how)  # of TLS too: frames say how long they are
        except OSError:
            pass  # it is not connected any more

    def _end(self, error: GltError) -> None:
        """On the loop: the end, whatever brought it about."""
        if self._is_finished:
            return
        self._is_finished = True
        self._ended.set()
        self._error = error = self._error or error
        self.pause()
        if self._has_writer:
            self._loop.remove_writer(self._fd)
        beats.discard(self._tick)
        _open.pop(id(self), None)
        self._shut_down(socket.SHUT_RDWR)
        self.socket.close()
        with self._sending:
            self._outbox.clear()
        for waiting in (*self._drained, *([self._waiter] if self._waiter else [])):
            if not waiting.done():
                waiting.set_result(None)
        while self.fds:
            os.close(self.fds.pop())
        if self._on_end is not None:
            on_end, self._on_end, self._on_frame = self._on_end, None, None
            on_end(error)


_open: dict[int, weakref.ref[Connection]] = {}  # that have not ended, of any thread's; a fork closes its copies


def _forget() -> None:
    """A fork does not beat or read; its copies of the sockets are closed, so that they do not outlive the parent."""
    for reference in list(_open.values()):
        if (connection := reference()) is not None:
            connection._error = connection._error or ConnectionLost(
                f"this process is a fork of the one that {connection.peer} knows"
            )
            connection._is_finished = True
            socket.socket.close(connection.socket)
    _open.clear()


os.register_at_fork(after_in_child=_forget)
