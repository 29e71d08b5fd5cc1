"""Frames over a socket: JSON for what is agreed, flat messages for data, and a beat every second; and what reads them.

::

    offset 0   magic "GLTF" · kind u8 · what u8 · 2 bytes unused · number u64 · length u64     24 bytes, little-endian
          24   JSON object (kind 1), message of :mod:`glt.channel.message` (kind 2), nothing (kind 3, a beat)

Nothing that is read is executed. What does not begin like a frame, or claims to be longer than allowed, ends the
connection before memory is taken for it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import resource
import select
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt.data.arrays import pooled_empty
from glt.distributed.wire.calls import Landing
from glt.errors import ChannelTimeout, ConnectionLost, GltError, MessageError, PeerLost, RendezvousError

# Of Linux: retransmissions and probes that were not answered, milliseconds since something was acknowledged.
_TCP_INFO = struct.Struct("2xBB52xI")
_HEADER = struct.Struct("<4sBB2xQQ")
_MAGIC = b"GLTF"
_JSON, _DATA, _BEAT = 1, 2, 3
_BEAT_FRAME = _HEADER.pack(_MAGIC, _BEAT, 0, 0, 0)
MAX_JSON_BYTES = 64 << 20

logger = logging.getLogger(__name__)


class Connection:
    """One end of a connection. Any thread may send; one at a time may receive.

    Attributes:
        max_bytes, max_json_bytes: Longest data and control frame that are taken.
        heard_s: When anything last arrived, of ``time.monotonic()``.
        is_closed: Whether it was closed here.
        what, number: The two numbers of the data frame that was received last.
    """

    def __init__(self, sock: socket.socket, peer: str, max_bytes: int = 1 << 20) -> None:
        self.socket, self.peer, self.max_bytes, self.max_json_bytes = sock, peer, max_bytes, MAX_JSON_BYTES
        sock.setblocking(False)
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard_s = time.monotonic()
        self._sending = threading.Lock()
        self.is_closed = False
        self._why_cut = ""
        self._header = bytearray(_HEADER.size)
        self._body: Any = None  # of the frame that is arriving
        self._rest: memoryview | None = None  # where it goes on, behind the view
        self._landing: Landing | None = None
        self._view = memoryview(self._header)
        self._num_read = 0
        self._kind = self.what = self.number = 0

    def __repr__(self) -> str:
        return f"Connection({self.peer})"

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, value: Mapping[str, Any], timeout_s: float = deadlines.MESSAGE_S) -> None:
        """Sends a JSON object; errors as of :meth:`send_data`."""
        self._send([self._control_frame(value)], timeout_s)

    def send_data(
        self, message: Tensor, timeout_s: float = deadlines.MESSAGE_S, what: int = 0, number: int = 0
    ) -> None:
        """Sends a message, uint8 [n], contiguous, and two numbers that mean what the two ends agree on.

        Raises:
            glt.errors.ConnectionLost: If the connection broke or was closed.
            glt.errors.ChannelTimeout: If the other end takes nothing for ``timeout_s``; the connection is closed, since
                part of the frame may have gone out.
        """
        body = _bytes_of(message)
        self._send([_HEADER.pack(_MAGIC, _DATA, what, number, len(body)), body], timeout_s)

    def send_all(
        self, value: Mapping[str, Any], message: Sequence[Tensor], timeout_s: float = deadlines.MESSAGE_S
    ) -> None:
        """Sends a JSON object and, with nothing in between, the message that belongs to it, if there is one: the parts
        that it consists of, uint8, contiguous."""
        parts: list[Any] = [self._control_frame(value)]
        if message:
            parts.append(_HEADER.pack(_MAGIC, _DATA, 0, 0, sum(part.numel() for part in message)))
            parts += map(_bytes_of, message)
        self._send(parts, timeout_s)

    def _control_frame(self, value: Mapping[str, Any]) -> bytes:
        body = json.dumps(value).encode()
        if len(body) > MAX_JSON_BYTES:
            raise ValueError(
                f"a control frame of {len(body)} bytes for {self.peer}: expected at most {MAX_JSON_BYTES}; send long "
                "lists as tensors"
            )
        return _HEADER.pack(_MAGIC, _JSON, 0, 0, len(body)) + body

    def _send(self, parts: list[Any], timeout_s: float) -> None:
        if not self._sending.acquire(timeout=timeout_s):
            raise ChannelTimeout(f"{self.peer} takes nothing since {timeout_s:g} s")
        try:
            views = [memoryview(part).cast("B") for part in parts if len(part)]
            while views:
                sent = self._send_some(views, timeout_s)
                while views and sent >= len(views[0]):
                    sent -= len(views.pop(0))
                if sent:
                    views[0] = views[0][sent:]
        finally:
            self._sending.release()

    def _send_some(self, views: list[memoryview], timeout_s: float) -> int:
        try:
            return self.socket.sendmsg(views[:64])
        except BlockingIOError:
            if not self._wait(select.POLLOUT, timeout_s):
                self.close()
                raise ChannelTimeout(f"{self.peer} took nothing for {timeout_s:g} s") from None
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def beat(self) -> None:
        """Sends a beat, unless something else is being sent: that is a sign of life too. Never waits."""
        if not self._sending.acquire(blocking=False):
            return
        try:
            if self._wait(select.POLLOUT, 0) and self.socket.send(_BEAT_FRAME) != len(_BEAT_FRAME):
                self.close()  # half a frame is out; there was room for it, so this does not happen
        except (OSError, ConnectionLost):
            pass  # the thread that receives here hears of it
        finally:
            self._sending.release()

    def check_route(self) -> None:
        """Ends the connection if the network is cut: what was sent, beats at least, has not been acknowledged for long.

        Not by TCP_USER_TIMEOUT, which also ends a connection whose peer lives and has no room for more.
        """
        if self.socket.family not in (socket.AF_INET, socket.AF_INET6):
            return
        try:
            info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return  # it was closed meanwhile
        num_retransmits, num_probes, since_ms = _TCP_INFO.unpack(info)
        # A peer that has no room answers the probes of whether it has some; and where the way out of this host is down,
        # nothing is sent that could be acknowledged. What was just sent for the first time says nothing: a process that
        # was busy for long has sent nothing that could have been acknowledged meanwhile.
        if (num_retransmits or num_probes > 1) and since_ms > deadlines.CUT_S * 1000:
            since = f"{since_ms / 1000:.0f} s"
            self._why_cut = f"its host has not answered for {since}: the network is cut, or the host is down"
            self.close()

    # -- receiving -------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> dict[str, Any] | Tensor:
        """Waits for the next frame: a JSON object, or a message, uint8 [n], 64-byte aligned, in recycled memory.

        Raises:
            glt.errors.ChannelTimeout: If none is complete within ``timeout_s``; a later call goes on with it.
            glt.errors.ConnectionLost: If the connection ended.
            glt.errors.MessageError: If what came is no frame.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                count = self.socket.recv_into(self._view[self._num_read :])
            except BlockingIOError:
                if not self._wait(select.POLLIN, deadline - time.monotonic()):
                    raise ChannelTimeout(f"nothing from {self.peer} within {timeout_s:g} s") from None
                continue
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise self._lost(None)
            self._num_read += count
            self.heard_s = time.monotonic()
            if self._num_read == len(self._view) and self._rest:
                self._view, self._rest, self._num_read = self._rest, None, 0
            elif self._num_read == len(self._view):
                frame = self._next()
                if frame is not None:
                    return frame

    def _next(self) -> dict[str, Any] | Tensor | None:
        """What is complete: after a header, room is made for the body; after a body, the frame."""
        if self._body is None:
            magic, kind, what, number, length = _HEADER.unpack(self._header)
            limit = {_JSON: self.max_json_bytes, _DATA: self.max_bytes, _BEAT: 0}.get(kind, -1)
            if magic != _MAGIC or length > limit:
                self.close()
                raise MessageError(
                    f"{self.peer} sent {bytes(self._header)!r}, which begins no frame of glt, or one of {length} bytes "
                    f"where at most {max(limit, 0)} are taken"
                )
            self._num_read = 0
            if kind == _BEAT:
                return None
            self._kind, self.what, self.number = kind, what, number
            if kind == _JSON:
                self._body = bytearray(length)
                self._view = memoryview(self._body)
            elif self._landing is not None and length == self._landing.nbytes:
                self._body = self._landing.front
                self._view, self._rest = _bytes_of(self._body), _bytes_of(self._landing.data)
            else:
                self._body = self._room(length)
                self._view = memoryview(self._body.numpy())
            if length:
                return None
        body, kind = self._body, self._kind
        self._body, self._view, self._num_read = None, memoryview(self._header), 0
        if kind == _DATA:
            return body
        try:
            value = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise MessageError(f"{self.peer} sent a control frame that is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise MessageError(f"{self.peer} sent a control frame that is no object: {type(value).__name__}")
        return value

    def _room(self, length: int) -> Tensor:
        try:
            return pooled_empty((length,), torch.uint8)
        except (RuntimeError, MemoryError) as error:
            self.close()
            raise MessageError(
                f"{self.peer} sent a message of {length} bytes, for which is no memory: {error}"
            ) from error

    def receive_json(self, timeout_s: float) -> dict[str, Any]:
        """As :meth:`receive`, where an object is due."""
        frame = self.receive(timeout_s)
        if not isinstance(frame, dict):
            raise MessageError(f"{self.peer} sent data where a control frame was due")
        return frame

    def receive_data(self, timeout_s: float) -> Tensor:
        """As :meth:`receive`, where a message is due."""
        frame = self.receive(timeout_s)
        if isinstance(frame, dict):
            raise MessageError(f"{self.peer} sent a control frame where data were due")
        return frame

    def receive_rest(self, silence_s: float, landing: Landing | None = None) -> Tensor:
        """Waits for a message that was announced, however long it is on its way, while it comes; ChannelTimeout if
        nothing comes for ``silence_s``. If it has the length of ``landing``, it goes there, and the landing's ``front``
        is returned."""
        self._landing = landing
        while True:
            try:
                message = self.receive_data(min(deadlines.POLL_S, silence_s))
                self._landing = None
                return message
            except ChannelTimeout:
                if self.silent_s() >= silence_s:
                    raise ChannelTimeout(f"{self.peer} sent nothing more for {silence_s:g} s") from None

    def silent_s(self) -> float:
        """Seconds since anything arrived."""
        return time.monotonic() - self.heard_s

    def check_beats(self, host: str) -> None:
        """Raises PeerLost if the peer, a process on ``host``, has been silent for ``STUCK_S`` seconds.

        Called by the one who receives, when all has been read that came: this process may have been stopped itself.
        """
        if self.silent_s() > deadlines.STUCK_S:
            raise PeerLost(
                f"{self.peer} has given no sign of life for {deadlines.STUCK_S:g} s: it is stopped or stuck (see its "
                f"state in ps on {host}), or the network is cut"
            )

    # -- both ------------------------------------------------------------------------------------------------------

    def _wait(self, event: int, timeout_s: float) -> bool:
        fd = self.socket.fileno()
        if fd < 0:
            raise self._lost(None)
        poller = select.poll()
        poller.register(fd, event)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))

    def _lost(self, error: OSError | None) -> ConnectionLost:
        if self._why_cut:
            return ConnectionLost(f"lost the connection to {self.peer}: {self._why_cut}")
        if self.is_closed:
            return ConnectionLost(f"the connection to {self.peer} was closed here")
        return ConnectionLost(f"lost the connection to {self.peer}: {error or 'it was closed there'}")

    def detach(self) -> socket.socket:
        """Gives the socket away, to be handed to another process; nothing may have been read ahead, and nothing is."""
        self.is_closed = True
        pulse.discard(self)
        return self.socket

    def end_sending(self) -> None:
        """Says that nothing more comes from here; what the other end sends can still be received."""
        pulse.discard(self)
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is not connected any more

    def close(self) -> None:
        """Ends it; threads that wait on it are woken. May be called again."""
        self.is_closed = True
        pulse.discard(self)
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is not connected any more
        self.socket.close()


def _bytes_of(message: Tensor) -> memoryview:
    return message.numpy().data


class Pulse:
    """A thread that beats on all connections of this process that were added."""

    def __init__(self) -> None:
        # By id. Not a WeakSet: that may not be changed by one thread while another goes through it.
        self._connections: dict[int, weakref.ref[Connection]] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, connection: Connection) -> None:
        with self._lock:
            self._connections[id(connection)] = weakref.ref(connection)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="glt-pulse", daemon=True)
                self._thread.start()

    def discard(self, connection: Connection) -> None:
        # Not under the lock: a collection may close a connection on a thread that holds it.
        self._connections.pop(id(connection), None)

    def _current(self) -> list[Connection]:
        found = {key: reference() for key, reference in list(self._connections.items())}
        for key in [key for key, connection in found.items() if connection is None]:
            self._connections.pop(key, None)  # collected without a close; no other has this id while the lock is held
        return [connection for connection in found.values() if connection is not None]

    def _run(self) -> None:
        while True:
            time.sleep(deadlines.BEAT_S)
            with self._lock:
                current = self._current()
                if not current:
                    self._thread = None
                    return
            for connection in current:
                connection.check_route()
                connection.beat()
            del current


pulse = Pulse()


@dataclass
class _Line:
    """A connection that is read: what takes its frames, and what is told why it ended."""

    connection: Connection
    hear: Callable[[dict[str, Any]], None]
    lose: Callable[[str], None]
    fd: int
    until: float = math.inf  # it is closed then


def _ignore(said: Any) -> None:
    """Of a connection that parts: the end of it is known."""


class Reader:
    """Reads the connections of all groups of this process, on one thread that is there while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[Connection, _Line] = {}
        self._by_fd: dict[int, _Line] = {}
        self._ticks: set[Callable[[], None]] = set()
        self._poll: select.epoll | None = None

    def add(
        self,
        connection: Connection,
        hear: Callable[[dict[str, Any]], None],
        lose: Callable[[str], None],
    ) -> None:
        """Reads a connection from now on."""
        connection.heard_s = time.monotonic()  # it may have waited
        with self._changed:
            line = _Line(connection, hear, lose, connection.socket.fileno())
            self._lines[connection] = self._by_fd[line.fd] = line
            poll = self._started()
            try:
                poll.register(line.fd, select.EPOLLIN)
            except (OSError, ValueError) as error:  # it was closed this moment, as the next tick finds out
                logger.debug("%s: %s", connection, error)

    def add_tick(self, tick: Callable[[], None]) -> None:
        """Calls ``tick`` every ``POLL_S`` from now on."""
        with self._changed:
            self._ticks.add(tick)
            self._started()

    def discard_tick(self, tick: Callable[[], None]) -> None:
        with self._changed:
            self._ticks.discard(tick)

    def part(self, connections: Sequence[Connection], wait_s: float) -> None:
        """Ends connections so that what was sent over them arrives: sends no more, reads until the other end closes,
        for ``GOODBYE_S`` at most, and closes. Waits for all that part ``wait_s`` at most."""
        for connection in connections:
            connection.end_sending()
            if connection not in self._lines:
                self.add(connection, _ignore, _ignore)
        with self._changed:
            for connection in connections:
                line = self._lines.get(connection)
                if line is not None:
                    line.hear = line.lose = _ignore
                    line.until = time.monotonic() + deadlines.GOODBYE_S
            self._changed.wait_for(lambda: all(line.until == math.inf for line in self._lines.values()), wait_s)

    def _started(self) -> select.epoll:
        if self._poll is None:
            self._poll = select.epoll()
            threading.Thread(target=self._run, args=(self._poll,), name="glt-reader", daemon=True).start()
        return self._poll

    def _run(self, poll: select.epoll) -> None:
        ticked = time.monotonic()
        while True:
            for fd, _ in poll.poll(max(0.0, ticked + deadlines.POLL_S - time.monotonic())):
                line = self._by_fd.get(fd)
                if line is not None:
                    self._read(line)
            if time.monotonic() - ticked < deadlines.POLL_S:
                continue
            was_stopped = time.monotonic() - ticked > deadlines.STUCK_S / 2
            ticked = time.monotonic()
            with self._changed:
                ticks, lines = list(self._ticks), list(self._lines.values())
                if not ticks and not lines:
                    self._poll = None
                    poll.close()
                    return
            for line in lines if was_stopped else ():
                line.connection.heard_s = ticked  # the others may have been stopped too, and go on a moment later
            for tick in ticks:
                tick()
            self._look(lines, ticked)
            del ticks, lines

    def _look(self, lines: Iterable[_Line], now: float) -> None:
        for line in lines:
            if line.connection.is_closed:
                self._read(line)  # which says why
            elif now > line.until:
                self._drop(line, "it has parted")
            elif line.connection.silent_s() > deadlines.STUCK_S:
                silent = f"{line.connection.peer} has given no sign of life for {deadlines.STUCK_S:g} s"
                self._drop(line, f"{silent}: it is stopped or stuck, or the network is cut")

    def _read(self, line: _Line) -> None:
        try:
            while True:
                line.hear(line.connection.receive_json(0.0))
        except ChannelTimeout:
            return
        except GltError as error:
            self._drop(line, f"{error}; its output, or dmesg on its host, says why")
        except (LookupError, TypeError, ValueError) as error:
            self._drop(line, f"{line.connection.peer} sent nonsense: {type(error).__name__}: {error}")

    def _drop(self, line: _Line, why: str) -> None:
        with self._changed:
            self._lines.pop(line.connection, None)
            if self._by_fd.get(line.fd) is line:
                del self._by_fd[line.fd]
            line.connection.close()  # which takes it from the poll too
            self._changed.notify_all()
        line.lose(why)


reader = Reader()


def _forget() -> None:
    """A fork does not beat or read; its copies of the sockets are closed, so that they do not outlive the parent."""
    for connection in pulse._current():
        connection.socket.close()
    pulse.__init__()  # type: ignore[misc]
    reader.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)


# Addresses of this host, as others reach them and as they are printed.


def printed(host: str, port: int) -> str:
    """``host:port``, or ``[host]:port`` of an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable_address(host: str, master: tuple[str, int]) -> str:
    """The address under which others reach a server that listens at ``host``: that one; if it listens everywhere, this
    host's address on the way to server 0."""
    if host not in ("", "0.0.0.0", "::"):
        return host if ":" in host else socket.gethostbyname(host)
    return own_address(master)


def own_address(master: tuple[str, int]) -> str:
    """The address of this host on the way to another, which need not be there: nothing is sent."""
    try:
        found = socket.getaddrinfo(*master, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        raise RendezvousError(f"master_addr = {master[0]!r}: no such host ({error})") from error
    # IPv4 first, as servers listen: localhost, for example, has addresses of both families.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RendezvousError(
            f"there is no way from {socket.gethostname()} to master_addr = {master[0]!r}: {error}; give host=, the "
            "address of the interface to listen on"
        ) from error


# How many files and connections a process may have open.


def allow_descriptors() -> int:
    """Raises the limit of this process as far as it may itself; returns it.

    Each stream of a client takes two descriptors on a server, and what shells allow by default is soon used up.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def host_id() -> str:
    """Tells hosts apart, and containers with names of their own."""
    return f"{socket.gethostname()}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
