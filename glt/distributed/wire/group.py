"""How the trainers of a loader meet, hear of each other, and part.

Rank 0 is the hub: it listens, and every other rank connects to it once. What a member says goes to the hub, which tells
the others; a connection that ends without a word is the death of its process. The hub lives on the loop of its process:
rank 0's own words go there too. Frames are JSON objects::

    member -> hub   {"topic": t, "value": v}                    its value for an exchange
                    {"report": text, "is_over": bool,           what it has lost, or why it gives up
                     "is_cause": bool}                          unless that follows from another's loss
                    {"done": true}                              it needs the others no more
    hub -> member   {"members": [name, ...]}                    all have come
                    {"topic": t, "values": [v, ...]}            all have said theirs
                    {"topic": t, "late": [rank, ...],           these have not yet, or not in time
                     "left_s": seconds, "is_over": bool}
                    {"rank": r, "report": text, "is_over": bool, "is_cause": bool}
                    {"done": [rank, ...]}                       these need the others no more, as far as not told
                    {"refused": text}                           two processes come as one rank, for example
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from glt import _deadlines as deadlines
from glt.distributed.context import DistContext, check_place
from glt.distributed.wire.addresses import is_loopback, own_address
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.handshake import Hint, dial, introduce, refuse
from glt.distributed.wire.listener import Listener
from glt.distributed.wire.store import host_store, job_store, naming_the_job_store
from glt.distributed.wire.threads import NativePool, call_on_loop, process_loop, wait_for
from glt.errors import ConnectionLost, GltError, PeerLost, RendezvousError

_MOST_CHARACTERS = 2000  # of a report
_ENDED = "trainer 0 has ended its part of this loader"

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Group:
    """The trainers of a loader, or of another act of all of them. A group of one rank has neither thread nor port.

    Attributes:
        me: This process, as errors name it.
        addr: Where the others reach rank 0.
        name: Of this group, the same on all ranks.

    Raises:
        RendezvousError: If trainer 0 cannot listen or is not reached; says what to do.
    """

    def __init__(
        self, context: DistContext, master_addr: str | None, master_port: int | None, timeout_s: float
    ) -> None:
        self.rank, self.size, self.me = context.rank, context.world_size, context.worker_name
        self.addr = master_addr or os.environ.get("MASTER_ADDR") or "localhost"
        self.timeout_s = timeout_s
        self._pid, self._has_left = os.getpid(), False
        self._changed = threading.Condition()
        self._names: list[str] = []
        self._values: dict[str, list[Any]] = {}  # of topics that all have said theirs to
        self._late: dict[str, list[int]] = {}  # of topics whose deadline has passed
        self._reports: dict[int, str] = {}  # the first of each rank
        self._over: set[int] = set()  # ranks that died or gave up
        self._has_cause = False  # some report says more than that another process was lost
        self._done: set[int] = set()
        self._refused = ""
        self._is_cut = False  # nothing more comes from the hub
        self._hub: Hub | None = None
        self._connection: Connection | None = None
        number = next(_numbers)
        self.name = f"glt/{number}"
        if self.size > 1 and self.rank == 0:
            self._hub = Hub(number, self.size, timeout_s, self._hear)
            port = wait_for(open_port(self._hub, _interface(self.addr), master_port))
            if master_port is None:
                with naming_the_job_store(self.me):
                    job_store(timeout_s).set(f"{self.name}/port", str(port))
        elif self.size > 1:
            self._connection = self._join(number, master_port)
            call_on_loop(_listen_to, self._connection, lambda frame: self._hear(frame.value), self._lose_hub)

    def _join(self, number: int, master_port: int | None) -> Connection:
        deadline = time.monotonic() + self.timeout_s
        port: int | bytes | None = master_port
        if port is None:
            with naming_the_job_store(self.me):
                missing = f"{self.me}: the trainer of rank 0 has not come to this loader yet"
                port = job_store(self.timeout_s).wait_for(f"{self.name}/port", self.timeout_s, missing)
        if port is None:
            raise RendezvousError(
                f"{self.me}: the trainer of rank 0 opened no port within {self.timeout_s:g} s; did it create its "
                "loaders in the same order?"
            )
        hello = introduce("trainer", group=number, rank=self.rank, size=self.size)
        left = max(0.0, round(deadline - time.monotonic(), 1))
        try:
            connection, answer = dial(
                (self.addr, int(port)), "the trainer of rank 0", hello, left, answer_s=deadlines.HANDSHAKE_S
            )
        except RendezvousError as error:
            raise RendezvousError(f"{self.me}: {error}") from error
        connection.peer, connection.host = trainer_name(0, answer), str(answer["host"])
        return connection

    # -- meeting ---------------------------------------------------------------------------------------------------

    def exchange(self, topic: str, value: Any) -> list[Any]:
        """Returns the values (JSON) of all ranks, when the last has come; ``topic`` says in errors what they tell each
        other.

        Raises:
            RendezvousError: If some do not come in time, or two come as one rank; names them.
            PeerLost: If one died or gave up; names it.
        """
        value = json.loads(json.dumps(value))
        if self.size == 1:
            return [value]
        self._say({"topic": topic, "value": value})
        deadline = time.monotonic() + self.timeout_s + deadlines.STUCK_S  # that of the hub comes first
        with self._changed:
            while topic not in self._values:
                self._raise_if_over()
                if self._is_cut:
                    raise RendezvousError(f"{self.me}: trainer 0 has ended its part, and did not tell its {topic}")
                if topic in self._late or time.monotonic() > deadline:
                    raise RendezvousError(
                        f"{self.me}: trainers of rank {self._late.get(topic, [0])} did not tell their {topic} within "
                        f"{self.timeout_s:g} s: were world_size = {self.size} trainers started, each with a rank of "
                        "its own, and do all ranks create the same loaders in the same order?"
                    )
                self._changed.wait(deadlines.POLL_S)
            return self._values.pop(topic)

    def open_store(self) -> tuple[str, int, str]:
        """Opens a store of ``torch.distributed`` in the process of rank 0, for torch's rpc; all ranks call this."""
        return self.addr, self.exchange("store", host_store() if self.rank == 0 else None)[0], self.name

    def name_of(self, rank: int) -> str:
        """The trainer of a rank, with host and pid; known once all have met."""
        return self._names[rank] if self._names else f"trainer {rank}"

    # -- watching --------------------------------------------------------------------------------------------------

    def check_peers(self) -> None:
        """Raises if another trainer has died, was cut off or gave up."""
        with self._changed:
            self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._refused:
            raise RendezvousError(f"{self.me}: {self._refused}")
        if self._over:
            raise PeerLost(f"{self.me}: " + "; ".join(self._reports[rank] for rank in sorted(self._over)))

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call that waits for the others on a thread of its own; leaves it behind, and raises as
        :meth:`check_peers`, if one is lost meanwhile."""
        pool, hint = NativePool(1, "glt-start"), Hint(self.timeout_s)
        future = pool.submit(call)
        pool.end()
        while not wait([future], deadlines.POLL_S).done:
            self.check_peers()
            hint.give(f"{self.me}: not all trainers have opened torch's rpc yet")
        return future.result()

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Gives up if the work inside fails, and tells the others so; ``what`` it was: ``"it started the loader"``."""
        try:
            yield
        except BaseException as error:
            self.give_up(error, what)
            raise

    def tell(self, error: GltError) -> GltError:
        """Tells the others what this trainer lost, and returns the error with what they have told.

        The loss of one process makes its trainer end, which others then lose in turn: the first one may be the last
        that a trainer hears of. So where a process of another trainer is lost, this waits a little for reports.
        """
        self._report(error, is_over=False)
        if not isinstance(error, PeerLost):
            return error
        with self._changed:
            self._changed.wait_for(lambda: self._has_cause or self._is_cut, deadlines.CAUSE_S)
            told = [text for text in self._reports.values() if text not in str(error)]  # its own is empty
        return PeerLost("; ".join([str(error), *told]))

    # -- parting ---------------------------------------------------------------------------------------------------

    def give_up(self, error: BaseException, what: str = "") -> None:
        """Tells the others that this trainer failed, and parts from them; waits for ``GOODBYE_S`` at most until they
        have heard. May be called again."""
        self._report(error, is_over=True, what=what)
        self._part(is_waited_for=True)

    def leave(self) -> None:
        """Says that this trainer and the others do not need each other; waits for nothing. May be called again."""
        self._say({"done": True})
        self._part()

    def finish(self, timeout_s: float | None = None) -> list[int]:
        """Says that this trainer needs the others no more, and waits until they all say so or are gone; without
        ``timeout_s`` as long as those waited for live. Returns the ranks that did not finish: that died or failed, or
        are waited for in vain; where this trainer itself has failed, all others."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        if self._is_outside():
            return others
        self._say({"done": True})
        with self._changed:
            self._changed.wait_for(lambda: self._is_cut or self._done | self._over >= set(others), timeout_s)
            missing = [rank for rank in others if rank not in self._done or rank in self._reports]
            if self.rank in self._reports:
                missing = missing or others  # those who heard of a failure count this one among the missing too
        self._part(is_waited_for=True)
        return missing

    def _is_outside(self) -> bool:
        """Whether this process has left, or is a fork of a member."""
        return self._has_left or os.getpid() != self._pid

    def _part(self, is_waited_for: bool = False) -> None:
        if self._is_outside():
            return
        self._has_left = True
        if self._hub is not None:
            parting = self._hub.part()
        elif self._connection is not None:
            parting = self._connection.parted()
        else:
            return
        future = asyncio.run_coroutine_threadsafe(parting, process_loop.get())
        if is_waited_for:
            wait([future], deadlines.GOODBYE_S)

    # -- frames ----------------------------------------------------------------------------------------------------

    def _say(self, frame: dict[str, Any]) -> None:
        if self._is_outside():
            return
        if self._hub is not None:
            call_on_loop(self._hub.take, 0, frame)
        elif self._connection is not None:
            send(self._connection, frame)

    def _report(self, error: BaseException, is_over: bool, what: str = "") -> None:
        with self._changed:
            self._reports.setdefault(self.rank, "")
        text = f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS] + (f" (while {what})" if what else "")
        self._say({"report": text, "is_over": is_over, "is_cause": not isinstance(error, PeerLost)})

    def _hear(self, frame: dict[str, Any]) -> None:
        with self._changed:
            if "members" in frame:
                self._names = frame["members"]
            elif "values" in frame:
                self._values[frame["topic"]] = frame["values"]
            elif "late" in frame and frame["is_over"]:
                self._late[frame["topic"]] = frame["late"]
            elif "late" in frame:
                missing = f"{self.me}: trainers of rank {frame['late']} did not tell their {frame['topic']} yet"
                logger.warning("%s; waiting for up to %.0f s more", missing, frame["left_s"])
            elif "done" in frame:
                self._done.update(frame["done"])
            elif "report" in frame:
                self._reports.setdefault(frame["rank"], frame["report"])
                self._has_cause |= frame["is_cause"]
                if frame["is_over"]:
                    self._over.add(frame["rank"])
            else:
                self._refused = frame["refused"]
            self._changed.notify_all()

    def _lose_hub(self, error: GltError) -> None:
        with self._changed:
            self._is_cut = True
            if 0 not in self._done | self._over:
                self._reports.setdefault(0, _why(error))
                self._over.add(0)
            self._changed.notify_all()


def require_equal(group: Group, topic: str, mine: dict[str, Any], advice: str) -> None:
    """Raises RendezvousError on all trainers if they differ in a value of ``mine``; names it and two of them."""
    values = group.exchange(topic, mine)
    wanted = values[group.rank]
    for rank, theirs in enumerate(values):
        for name, value in wanted.items():
            if theirs.get(name) != value:
                two = f"{value!r} on rank {group.rank}, {theirs.get(name)!r} on rank {rank} ({group.name_of(rank)})"
                raise RendezvousError(
                    f"{group.me}: {name} differs between trainers: {two}; expected the same everywhere. {advice}"
                )


# Rank 0's part of a group: where the members arrive, and what passes on what they say.


def trainer_name(rank: int, hello: dict[str, Any]) -> str:
    """The trainer that introduced itself, as errors name it."""
    return f"trainer {rank} (host {hello['host']}, pid {hello['pid']})"


def send(connection: Connection, frame: dict[str, Any] | bytes) -> None:
    """Sends a frame, if the connection lasts."""
    try:
        connection.send(frame)
    except GltError as error:  # who is told of its end says so
        logger.info("not sent: %s", error)


def _listen_to(connection: Connection, on_frame: Callable[[Frame], None], on_end: Callable[[GltError], None]) -> None:
    connection.start(on_frame, on_end, max_data_bytes=0, silence_s=deadlines.STUCK_S)


def _why(error: GltError) -> str:
    return f"{error}; its output, or dmesg on its host, says why" if isinstance(error, ConnectionLost) else str(error)


@dataclass
class _Topic:
    """An exchange that is under way."""

    deadline: float
    hint_at: float
    values: dict[int, Any] = field(default_factory=dict)


class Hub:
    """Collects what the ranks of a group say, and tells them all. On the loop."""

    def __init__(self, number: int, size: int, timeout_s: float, hear: Callable[[dict[str, Any]], None]) -> None:
        self.number = number
        self._size, self._timeout_s, self._hear = size, timeout_s, hear
        self._names = {0: trainer_name(0, introduce("trainer"))}
        self._lines: dict[int, Connection] = {}
        self._over: set[int] = set()  # ranks whose end is known
        self._done: list[int] = []  # ranks whose end the others have not been told yet
        self._topics: dict[str, _Topic] = {}
        self._has_parted = False

    def admit(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Takes in a member that has introduced itself, or refuses it."""
        rank, size = hello["rank"], hello["size"]
        name = trainer_name(rank, hello)
        wrong = self._refusal(rank, size, name)
        if wrong is not None:
            _refuse(connection, wrong)
            if len(self._names) < self._size:  # the others wait for a rank that will not come
                self._tell({"refused": wrong})
            return
        connection.peer = self._names[rank] = name
        self._lines[rank] = connection
        if len(self._names) == self._size:
            self._tell({"members": [self._names[each] for each in range(self._size)]})
        _listen_to(connection, lambda frame: self.take(rank, frame.value), partial(self._lose, rank))

    def _refusal(self, rank: int, size: int, name: str) -> str | None:
        if self._has_parted:
            return _ENDED
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
        if "topic" in frame:
            self._collect(rank, frame["topic"], frame["value"])
        elif "done" in frame:
            self._over.add(rank)
            self._done.append(rank)
            self._tell_done(if_last=True)
        else:
            if frame["is_over"]:
                self._over.add(rank)
            text = f"{self._names[rank]} has reported {frame['report']}"
            self._tell({**frame, "rank": rank, "report": text}, but=rank)
            self._tell_done(if_last=True)

    def _collect(self, rank: int, name: str, value: Any) -> None:
        now = time.monotonic()
        topic = self._topics.setdefault(name, _Topic(now + self._timeout_s, now + deadlines.HINT_S))
        topic.values[rank] = value
        if len(topic.values) == self._size:
            del self._topics[name]
            self._tell({"topic": name, "values": [topic.values[each] for each in range(self._size)]})

    def tick(self) -> None:
        """Says who is done, and who is late."""
        self._tell_done()
        now = time.monotonic()
        for name, topic in list(self._topics.items()):
            is_over = now > topic.deadline
            if not is_over and now < topic.hint_at:
                continue
            topic.hint_at = now + deadlines.HINT_S
            late = [rank for rank in range(self._size) if rank not in topic.values]
            for rank in sorted(topic.values, reverse=True):  # rank 0 last, as in _tell
                self._say(rank, {"topic": name, "late": late, "left_s": topic.deadline - now, "is_over": is_over})
            if is_over:
                del self._topics[name]

    def _lose(self, rank: int, error: GltError) -> None:
        self._lines.pop(rank, None)
        if rank not in self._over:
            self._over.add(rank)
            self._tell({"rank": rank, "report": _why(error), "is_over": True, "is_cause": True}, but=rank)
            self._tell_done(if_last=True)

    def _tell_done(self, if_last: bool = False) -> None:
        """Tells all who is done, those of a beat together: a thousand ranks that hear of each one are a million frames.
        ``if_last``: once nothing more is awaited."""
        if self._done and not (if_last and len(self._over) < self._size):
            ranks, self._done = self._done, []
            self._tell({"done": ranks})

    def _tell(self, frame: dict[str, Any], but: int = -1) -> None:
        # Once for all: a thousand ranks tell each other a quarter of a megabyte.
        text = json.dumps(frame).encode()
        for rank, line in list(self._lines.items()):
            if rank != but:
                send(line, text)
        if but != 0:  # last: what it hears may end this process
            self._hear(frame)

    def _say(self, rank: int, frame: dict[str, Any]) -> None:
        if rank == 0:
            self._hear(frame)
        elif rank in self._lines:
            send(self._lines[rank], frame)

    async def part(self) -> None:
        """Ends it, closes its port if no other group uses that, and waits until all members have heard what was said to
        them: ``GOODBYE_S`` at most."""
        self._has_parted = True
        self._tell_done()
        lines, self._lines = list(self._lines.values()), {}
        discard_tick(self.tick)
        _hubs.pop(self.number, None)
        _ended.add(self.number)
        for where, (listener, users) in list(_ports.items()):
            users.discard(self.number)
            if not users:
                listener.close()
                del _ports[where]
        for line in lines:
            line.part()
        for line in lines:
            await line.parted()


def _refuse(connection: Connection, text: str) -> None:
    logger.warning("%s is refused: %s", connection.peer, text)
    refuse(connection, text)


# Where the members arrive, perhaps before rank 0 has made their group, or at a port that another group had opened. All
# of it is looked at on the loop only.

_numbers = itertools.count()  # of groups, the same on all ranks: they create their loaders in the same order
_hubs: dict[int, Hub] = {}  # by number of the group
_ended: set[int] = set()  # groups that were in _hubs
_waiting: dict[int, list[tuple[Connection, dict[str, Any]]]] = {}  # members of groups that are yet to be made
_ports: dict[tuple[str, int], tuple[Listener, set[int]]] = {}  # by interface and number, with the groups that use them


def _interface(addr: str) -> str:
    """Where rank 0 listens: at the loopback interface if its address is of that, else at all interfaces."""
    host = own_address((addr, 1))
    if is_loopback(addr):
        return host if addr == "localhost" else addr
    # A name may be of the loopback interface in rank 0's /etc/hosts, and of another one where the others look it up.
    return "::" if ":" in host else "0.0.0.0"


async def open_port(hub: Hub, host: str, master_port: int | None) -> int:
    """Lets the members of a group arrive at a port; returns it. Groups may share one."""
    number = master_port or next((port for interface, port in _ports if interface == host), 0)
    if (host, number) not in _ports:
        listener = _listen(host, number)
        number = listener.address[1]
        _ports[host, number] = listener, set()
    _ports[host, number][1].add(hub.number)
    _hubs[hub.number] = hub
    add_tick(hub.tick)
    for connection, hello in _waiting.pop(hub.number, []):
        hub.admit(connection, hello)
    return number


def _listen(host: str, port: int) -> Listener:
    try:
        listener = Listener((host, port), "the trainer of rank 0", (host, port or 1), _welcome, "master_port")
    except RendezvousError as error:
        if error.__cause__ is None:
            raise
        raise RendezvousError(
            f"master_port = {port}: cannot be opened on {socket.gethostname()}, another program has it, or another "
            f"trainer of rank 0; choose another, or leave it out to have one found ({error.__cause__})"
        ) from error
    listener.open()
    return listener


async def _welcome(connection: Connection, hello: dict[str, Any]) -> None:
    if not connection.may_write:
        _refuse(connection, f"{connection.peer} has the read token only: trainers meet with the write token")
        return
    number = int(hello["group"])
    check_place(hello["size"], hello["rank"], "trainers")
    connection.send(introduce("trainer"))
    hub = _hubs.get(number)
    if hub is not None:
        hub.admit(connection, hello)
    elif number in _ended:
        _refuse(connection, _ENDED)
    else:  # it beats, and is not read before there is somebody to hear it
        connection.start(_ignore, _ignore, max_data_bytes=0)
        connection.pause()
        _waiting.setdefault(number, []).append((connection, hello))


def _ignore(said: Any) -> None:
    """Of a member that waits for its group: it hears of it by :meth:`Hub.admit`."""


def _forget() -> None:
    """A fork has no groups; its copies of the sockets are closed where they are kept."""
    for known in (_hubs, _waiting, _ports):
        known.clear()


os.register_at_fork(after_in_child=_forget)
