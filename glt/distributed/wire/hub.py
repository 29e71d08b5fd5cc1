"""Rank 0's part of a group: where the members arrive, and what passes on what they say; and the thread that reads."""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glt import _deadlines as deadlines
from glt.distributed.wire.connection import MAX_JSON_BYTES, Connection, own_address, pulse
from glt.distributed.wire.listener import Listener, introduce
from glt.errors import ChannelTimeout, GltError, RendezvousError

logger = logging.getLogger(__name__)


def trainer_name(rank: int, hello: dict[str, Any]) -> str:
    """The trainer that introduced itself, as errors name it."""
    return f"trainer {rank} (host {hello['host']}, pid {hello['pid']})"


def send(connection: Connection, frame: dict[str, Any]) -> None:
    """Sends a frame, if the connection lasts."""
    try:
        connection.send(frame, deadlines.SEND_S)
    except GltError as error:  # the reader finds out too
        logger.info("not sent: %s", error)


@dataclass
class _Topic:
    """An exchange that is under way."""

    deadline: float
    hint_at: float
    values: dict[int, Any] = field(default_factory=dict)


class Hub:
    """Collects what the ranks of a group say, and tells them all."""

    def __init__(self, number: int, size: int, timeout_s: float, hear: Callable[[dict[str, Any]], None]) -> None:
        self.number = number
        self._size, self._timeout_s, self._hear = size, timeout_s, hear
        # Held while frames go out, so that all members get them in one order.
        self._lock = threading.RLock()
        self._names = {0: trainer_name(0, introduce("trainer"))}
        self._lines: dict[int, Connection] = {}
        self._over: set[int] = set()  # ranks whose end is known
        self._topics: dict[str, _Topic] = {}
        self._has_parted = False

    def admit(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Takes in a member that has introduced itself, or refuses it."""
        rank, size = int(hello["rank"]), int(hello["size"])
        name = trainer_name(rank, hello)
        with self._lock:
            wrong = self._refusal(rank, size, name)
            is_complete = len(self._names) == self._size
            if wrong is None:
                connection.peer = self._names[rank] = name
                self._lines[rank] = connection
                if len(self._names) == self._size:
                    self._tell({"members": [self._names[each] for each in range(self._size)]})
                reader.add(connection, partial(self.take, rank), partial(self._lose, rank))
            else:
                _refuse(connection, wrong)
                if not is_complete:  # the others wait for a rank that will not come; a complete group goes on
                    self._tell({"refused": wrong})

    def _refusal(self, rank: int, size: int, name: str) -> str | None:
        if self._has_parted:
            return "trainer 0 has ended its part of this loader"
        if size != self._size:
            return f"world_size differs between trainers: {self._size} on rank 0, {size} on rank {rank} ({name})"
        if rank in self._names:
            first, second = (each.partition("(")[2].rstrip(")") for each in (self._names[rank], name))
            return (
                f"two processes came as rank {rank}: first that of {first}, then that of {second}; expected a rank of "
                "its own for each. If they are of different jobs, give each job a master_port of its own"
            )
        return None

    def take(self, rank: int, frame: dict[str, Any]) -> None:
        """Takes a frame of a member."""
        with self._lock:
            if "topic" in frame:
                self._collect(rank, frame["topic"], frame["value"])
            elif "done" in frame:
                self._over.add(rank)
                self._tell({"rank": rank, "done": True}, but=rank)
            else:
                if frame["is_over"]:
                    self._over.add(rank)
                text = f"{self._names[rank]} has reported {frame['report']}"
                self._tell({**frame, "rank": rank, "report": text}, but=rank)

    def _collect(self, rank: int, name: str, value: Any) -> None:
        now = time.monotonic()
        topic = self._topics.setdefault(name, _Topic(now + self._timeout_s, now + deadlines.HINT_S))
        topic.values[rank] = value
        if len(topic.values) == self._size:
            del self._topics[name]
            self._tell({"topic": name, "values": [topic.values[each] for each in range(self._size)]})

    def tick(self) -> None:
        """Says who is late."""
        now = time.monotonic()
        with self._lock:
            for name, topic in list(self._topics.items()):
                is_over = now > topic.deadline
                if not is_over and now < topic.hint_at:
                    continue
                topic.hint_at = math.inf
                late = [rank for rank in range(self._size) if rank not in topic.values]
                for rank in topic.values:
                    self._say(rank, {"topic": name, "late": late, "is_over": is_over})
                if is_over:
                    del self._topics[name]

    def _lose(self, rank: int, why: str) -> None:
        with self._lock:
            self._lines.pop(rank, None)
            if rank not in self._over:
                self._over.add(rank)
                self._tell({"rank": rank, "report": why, "is_over": True, "is_cause": True}, but=rank)

    def _tell(self, frame: dict[str, Any], but: int = -1) -> None:
        # Rank 0 last: what it hears may end this process.
        for rank in [*self._lines, 0]:
            if rank != but:
                self._say(rank, frame)

    def _say(self, rank: int, frame: dict[str, Any]) -> None:
        if rank == 0:
            self._hear(frame)
        elif rank in self._lines:
            send(self._lines[rank], frame)

    def part(self, wait_s: float) -> None:
        """Ends it; see :meth:`_Reader.part`."""
        with self._lock:
            self._has_parted = True
            lines, self._lines = list(self._lines.values()), {}
        _close_port(self)
        reader.part(lines, wait_s)


def _refuse(connection: Connection, text: str) -> None:
    logger.warning("%s is refused: %s", connection.peer, text)
    send(connection, {"refused": text})
    reader.part([connection], 0.0)


# Where the members arrive, perhaps before rank 0 has made their group, or at a port that another group had opened.

_lock = threading.Lock()
_num_groups = 0  # of this process so far: all trainers create their loaders in the same order
_hubs: dict[int, Hub] = {}  # by number of the group
_ended: set[int] = set()  # groups that were in _hubs
_waiting: dict[int, list[tuple[Connection, dict[str, Any]]]] = {}  # members of groups that are yet to be made
_ports: dict[int, tuple[Listener, set[int]]] = {}  # with the groups that use them


def next_number() -> int:
    """The number of a new group, the same on all ranks."""
    global _num_groups
    with _lock:
        _num_groups += 1
        return _num_groups - 1


def open_port(hub: Hub, addr: str, master_port: int | None) -> int:
    """Lets the members of a group arrive at a port; returns it. Groups may share one."""
    with _lock:
        number = master_port or next(iter(_ports), 0)
        if number not in _ports:
            listener = _listen(addr, number)
            number = listener.address[1]
            _ports[number] = listener, set()
        _ports[number][1].add(hub.number)
        _hubs[hub.number] = hub
        early = _waiting.pop(hub.number, [])
    reader.add_hub(hub)
    for connection, hello in early:
        hub.admit(connection, hello)
    return number


def _listen(addr: str, port: int) -> Listener:
    host = "::" if ":" in own_address((addr, port or 1)) else "0.0.0.0"
    try:
        listener = Listener((host, port), 0, (addr, port or 1), _welcome, deadlines.HANDSHAKE_S)
    except RendezvousError as error:
        raise RendezvousError(
            f"master_port = {port}: cannot be opened on {socket.gethostname()}, probably another program has it; "
            f"choose another, or leave it out to have one found ({error.__cause__ or error})"
        ) from error
    listener.open()
    return listener


def _welcome(connection: Connection, hello: dict[str, Any]) -> None:
    number = int(hello["group"])
    connection.max_json_bytes = MAX_JSON_BYTES
    connection.send(introduce("trainer"), deadlines.SEND_S)
    pulse.add(connection)
    with _lock:
        hub = _hubs.get(number)
        if hub is None and number not in _ended:
            _waiting.setdefault(number, []).append((connection, hello))
            return
    if hub is None:
        _refuse(connection, "trainer 0 has ended its part of this loader")
    else:
        hub.admit(connection, hello)


def _close_port(hub: Hub) -> None:
    """Takes a group from its port, and closes that if no other uses it."""
    reader.discard_hub(hub)
    with _lock:
        _hubs.pop(hub.number, None)
        _ended.add(hub.number)
        for number, (listener, users) in list(_ports.items()):
            users.discard(hub.number)
            if not users:
                listener.close()
                del _ports[number]


# The thread that reads.


@dataclass
class _Line:
    """A connection that is read: what takes its frames, and what is told why it ended."""

    connection: Connection
    hear: Callable[[dict[str, Any]], None]
    lose: Callable[[str], None]
    fd: int
    until: float = math.inf  # it is closed then


class _Reader:
    """Reads the connections of all groups of this process, on one thread that is there while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: dict[Connection, _Line] = {}
        self._by_fd: dict[int, _Line] = {}
        self._hubs: set[Hub] = set()
        self._poll: select.epoll | None = None

    def add(
        self,
        connection: Connection,
        hear: Callable[[dict[str, Any]], None],
        lose: Callable[[str], None],
        until: float = math.inf,
    ) -> None:
        """Reads a connection from now on."""
        connection.heard_s = time.monotonic()  # it may have waited
        with self._changed:
            known = self._lines.get(connection)
            line = _Line(connection, hear, lose, connection.socket.fileno() if known is None else known.fd, until)
            self._lines[connection] = self._by_fd[line.fd] = line
            poll = self._started()
            if known is None and line.fd >= 0:
                try:
                    poll.register(line.fd, select.EPOLLIN)
                except OSError as error:  # it was closed this moment, as the next tick finds out
                    logger.debug("%s: %s", connection, error)

    def add_hub(self, hub: Hub) -> None:
        with self._changed:
            self._hubs.add(hub)
            self._started()

    def discard_hub(self, hub: Hub) -> None:
        with self._changed:
            self._hubs.discard(hub)

    def part(self, connections: Sequence[Connection], wait_s: float) -> None:
        """Ends connections so that what was sent over them arrives: sends no more, reads until the other end closes,
        for ``GOODBYE_S`` at most, and closes. Waits for all that part ``wait_s`` at most."""
        for connection in connections:
            connection.end_sending()
            self.add(connection, lambda frame: None, lambda why: None, time.monotonic() + deadlines.GOODBYE_S)
        with self._changed:
            self._changed.wait_for(lambda: all(line.until == math.inf for line in self._lines.values()), wait_s)

    def _started(self) -> select.epoll:
        if self._poll is None:
            self._poll = select.epoll()
            threading.Thread(target=self._run, args=(self._poll,), name="glt-group", daemon=True).start()
        return self._poll

    def _run(self, poll: select.epoll) -> None:
        ticked = time.monotonic()
        while True:
            for fd, _ in poll.poll(deadlines.POLL_S):
                line = self._by_fd.get(fd)
                if line is not None:
                    self._read(line)
            if time.monotonic() - ticked < deadlines.POLL_S:
                continue
            was_stopped = time.monotonic() - ticked > deadlines.STUCK_S / 2
            ticked = time.monotonic()
            with self._changed:
                hubs, lines = list(self._hubs), list(self._lines.values())
                if not hubs and not lines:
                    self._poll = None
                    poll.close()
                    return
            for line in lines if was_stopped else ():
                line.connection.heard_s = ticked  # the others may have been stopped too, and go on a moment later
            for hub in hubs:
                hub.tick()
            self._look(lines, ticked)
            del hubs, lines

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
            if self._lines.get(line.connection) is not line:
                return  # it parts
            del self._lines[line.connection]
            if self._by_fd.get(line.fd) is line:
                del self._by_fd[line.fd]
            line.connection.close()  # which takes it from the poll too
            self._changed.notify_all()
        line.lose(why)


reader = _Reader()


def _forget() -> None:
    """A fork reads nothing; its copies of the sockets are closed where they are kept."""
    global _lock
    _lock = threading.Lock()
    for known in (_hubs, _waiting, _ports):
        known.clear()
    reader.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget)
