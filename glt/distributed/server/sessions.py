"""The clients of a server: the session of each, and which are there, lost or done."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.distributed.context import check_place
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.calls import decode_value, encode_value
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import MAX_JSON_BYTES, Frame
from glt.distributed.wire.threads import NativePool, call_on_loop, process_loop
from glt.errors import GltError, RendezvousError

logger = logging.getLogger(__name__)

# Calls of one client:
_MOST_CALLS = 4  # that run or whose answers are being sent
_MOST_DEFERRED = 1024  # whose answers wait for what other clients do
_LEAVE = "glt.leave"
_MOST_WAITING, _MOST_WAITING_BYTES = 4096, 1 << 28  # that wait to run, and their arguments

# The longest arguments of one call. Those who only read send ids: at most the seeds of a loader, 268 million, and in
# JSON nothing but names and options. Those who write also send what functions of the user take, and the gradients of a
# step; rows themselves go in pieces of a few MiB. Memory is taken as they arrive.
_MOST_READ_BYTES, _MOST_READ_JSON_BYTES = 2 << 30, 1 << 20
_MOST_WRITE_BYTES = 16 << 30

Call = Callable[["ClientSession", tuple[Any, ...], dict[str, Any]], Any]


def place_of(connection: Connection, hello: Mapping[str, Any]) -> tuple[str, int]:
    """Group and rank of a client. Those who only read are in groups of their own: they take no trainer's place."""
    check_place(hello["num_clients"], hello["rank"], hello["group"], ("num_clients", "client_rank", "group"))
    group = hello["group"]
    return group if connection.may_write else f"{group} (read token)", hello["rank"]


class ClientSession:
    """Answers the calls of one client, on the threads of ``pool``; ``find`` gives what to call for a name, or raises
    LookupError or PermissionError. ``id`` is a secret, which the client shows when it opens streams. ``is_guest``: it
    may only read, and the server neither waits for it nor goes on for its sake.

    A call whose answer depends on other clients returns a :class:`concurrent.futures.Future`: it then holds no thread.
    """

    def __init__(
        self, connection: Connection, hello: dict[str, Any], find: Callable[[str], Call], pool: NativePool
    ) -> None:
        self.place = self.group, self.rank = place_of(connection, hello)
        self.connection = connection
        self.id = secrets.token_hex(16)
        host, pid = str(hello["host"])[:64], str(hello["pid"])[:16]
        self._name = f"client {self.rank} of {self.group!r} (host {host}, pid {pid})"
        self.is_guest = not connection.may_write
        self.most_bytes = _MOST_READ_BYTES if self.is_guest else _MOST_WRITE_BYTES
        self.has_left, self.left_why = False, ""
        self._goodbye: Frame | None = None  # the call by which it says so
        self._find, self._pool = find, pool
        self._on_end: Callable[[str], None] | None = None
        self._lock = threading.Lock()
        self._waiting: deque[Frame] = deque()
        self._waiting_bytes = self._num_running = self._num_deferred = 0
        self._is_paused = False

    def __str__(self) -> str:
        return self._name

    # -- on the loop -----------------------------------------------------------------------------------------------

    def start(self, on_end: Callable[[str], None]) -> None:
        """Answers from now on; ``on_end`` is called once, on the loop, with how it ended: the client left, was lost or
        sent nonsense."""
        self._on_end = on_end
        self.connection.start(self._take, lambda error: self.end(str(error)), max_data_bytes=self.most_bytes)
        self.connection.max_json_bytes = _MOST_READ_JSON_BYTES if self.is_guest else MAX_JSON_BYTES
        add_tick(self._look)

    def end(self, why: str) -> None:
        """What has not begun is not answered any more. Does nothing when called again."""
        if self._on_end is None:
            return
        on_end, self._on_end = self._on_end, None
        discard_tick(self._look)
        if self._goodbye is not None and not self.has_left:
            # Its turn has not come: a client that said that it leaves is none that was lost, for which others wait.
            try:
                self._compute(self._goodbye)
            except Exception as error:
                logger.warning("%s leaves with nonsense: %s", self, error)
        with self._lock:
            self._waiting.clear()
            self._waiting_bytes = 0
        if self.has_left:
            why = f"it left, having failed: {self.left_why}" if self.left_why else "it left"
        on_end(why)

    def _look(self) -> None:
        # Not by the connection, which would end without a word: a client that goes on is to hear why.
        if not self._is_paused and self.connection.silent_s() > deadlines.LEASE_S:
            self.end(f"it has given no sign of life for {deadlines.LEASE_S:g} s")

    def gave_sign_since(self, when_s: float) -> bool:
        """Whether the client has shown that it lives; one that is not read now has something to be read."""
        return self._is_paused or self.connection.heard_s > when_s

    def _take(self, frame: Frame) -> None:
        """Runs a call, or keeps it until others are answered: one client must not hold all threads."""
        if self._on_end is None:
            return
        if frame.value.get("name") == _LEAVE:
            self._goodbye = frame
        missing = {"name", "arguments"} - frame.value.keys()
        if missing or len(self._waiting) >= _MOST_WAITING:
            what = f"a call without {min(missing)}" if missing else f"more than {_MOST_WAITING} calls before an answer"
            self.end(f"it sent nonsense: {what}")
            return
        with self._lock:
            self._waiting.append(frame)
            self._waiting_bytes += _num_bytes(frame)
        self._run_next()
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        """While many bytes wait, nothing further is read."""
        with self._lock:
            is_much = self._waiting_bytes > _MOST_WAITING_BYTES
            if is_much == self._is_paused:
                return
            self._is_paused = is_much
        if is_much:
            self.connection.pause()
        else:
            self.connection.resume()

    # -- on any thread ---------------------------------------------------------------------------------------------

    def _run_next(self) -> None:
        with self._lock:
            if not self._waiting or self._num_running >= _MOST_CALLS:
                return
            self._num_running += 1
            frame = self._waiting.popleft()
            self._waiting_bytes -= _num_bytes(frame)
            may_resume = self._is_paused and self._waiting_bytes <= _MOST_WAITING_BYTES
        if may_resume:
            call_on_loop(self._pause_or_resume)
        self._pool.submit(self._run_call, frame)

    def _run_call(self, frame: Frame) -> None:
        self._answer(frame, lambda: self._compute(frame))
        if self.has_left:
            call_on_loop(self.end, "")
        self._when_sent(self._done)

    def _compute(self, frame: Frame) -> Any:
        found = self._find(str(frame.value["name"]))
        args, kwargs = decode_value(frame.value["arguments"], frame.data)
        return found(self, tuple(args), dict(kwargs))

    def _done(self) -> None:
        with self._lock:
            self._num_running -= 1
        self._run_next()

    def _when_sent(self, then: Callable[[], None]) -> None:
        """Goes on when the client has taken its answers: those of one that does not listen must not pile up."""

        async def wait() -> None:
            try:
                await self.connection.drained()
            except GltError as error:
                logger.debug("%s", error)  # the session ends with it
            then()

        if self.connection.unsent_bytes:
            asyncio.run_coroutine_threadsafe(wait(), process_loop.get())
        else:
            then()

    def _answer(self, frame: Frame, compute: Callable[[], Any]) -> None:
        name = frame.value["name"]
        try:
            result = compute()
            if isinstance(result, Future):
                self._defer(frame, result)
                return
            tree, data = encode_value(result, f"the result of {name}")
            self.send({"result": tree}, data or (), frame.number)
        except BaseException as error:  # of the call, whatever it is, or because its result is too long to be sent
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            self.send({"error": kind, **_texts(error)}, number=frame.number)

    def _defer(self, frame: Frame, result: Future[Any]) -> None:
        with self._lock:
            if self._num_deferred >= _MOST_DEFERRED:
                raise ValueError(
                    f"{_MOST_DEFERRED} calls of {self} wait for what others do, the most that one client may have: "
                    f"take their answers before calling {frame.value['name']} again"
                )
            self._num_deferred += 1
        # On the pool: the thread that completes it has others to tell, and answers may be long.
        result.add_done_callback(lambda done: self._pool.submit(self._answer_deferred, frame, done))

    def _answer_deferred(self, frame: Frame, result: Future[Any]) -> None:
        self._answer(frame, lambda: result.result(0))
        self._when_sent(self._deferred_done)

    def _deferred_done(self) -> None:
        with self._lock:
            self._num_deferred -= 1

    def send(self, value: dict[str, Any], data: Sequence[Tensor] = (), number: int = 0) -> None:
        """Tells the client something. Waits for nothing."""
        try:
            self.connection.send(value, data, number=number)
        except GltError as error:
            logger.info("%s", error)  # the session ends with it


def _num_bytes(frame: Frame) -> int:
    return 0 if frame.data is None else frame.data.numel()


def _texts(error: BaseException) -> dict[str, str]:
    try:
        return {"text": str(error)[:20000], "traceback": "".join(traceback.format_exception(error))[-20000:]}
    except Exception as second:  # an exception that cannot be printed
        return {"text": f"its text cannot be made: {type(second).__name__}", "traceback": ""}


class ClientRegistry:
    """Which clients of a server are there, lost, or done. ``num_clients`` come of each group; None: any number. Guests
    are not counted: who may only read cannot end a server, nor keep it from its end."""

    def __init__(self, num_clients: int | None) -> None:
        self.num_clients = num_clients
        self._changed = threading.Condition()
        self._sessions: dict[str, ClientSession] = {}
        self._gone: dict[tuple[str, int], float | None] = {}  # by place, when a client was lost; None: it is done
        self._is_closed = False

    def sessions(self) -> list[ClientSession]:
        with self._changed:
            return list(self._sessions.values())

    def awaited(self) -> list[ClientSession]:
        """The sessions of those that the server waits for."""
        return [session for session in self.sessions() if not session.is_guest]

    def __contains__(self, session: ClientSession) -> bool:
        with self._changed:
            return session.id in self._sessions

    async def admit(self, session: ClientSession) -> bool:
        """Takes a client in; false once the server is ending. Raises RendezvousError if its place is taken by a client
        that is alive: by one that gave a sign of life after this one came, for the kernel may still be taking memory
        from one that was killed."""
        came = time.monotonic()
        while True:
            with self._changed:
                if self._is_closed:
                    return False
                same = [each for each in self._sessions.values() if each.place == session.place]
                for other in same:
                    if other.gave_sign_since(came):
                        raise RendezvousError(f"client_rank = {session.rank} of {session.group!r} is taken by {other}")
                is_late = time.monotonic() - came > deadlines.TAKEN_S
                if not same or is_late:
                    self._sessions[session.id] = session
                    self._gone.pop(session.place, None)
                    self._changed.notify_all()
                    break
            await asyncio.sleep(deadlines.FAST_POLL_S)
        for other in same:
            other.connection.close()
        return True

    def remove(self, session: ClientSession) -> None:
        with self._changed:
            self._sessions.pop(session.id, None)
            if session.is_guest:
                return
            if session.has_left:
                self._note(session.place, None)
            elif not self._is_done(session.place):  # a successor may have come and left before this one was missed
                self._note(session.place, time.monotonic())

    def add_done(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Notes clients that told other servers that they are done, and returns those that are new here. A restarted
        server would otherwise wait for them in vain."""
        with self._changed:
            here = self._here()
            new = [place for place in places if place not in here and not self._is_done(place)]
            for place in new:
                self._note(place, None)
            return new if self.num_clients is not None else []

    def add_refused(self, place: tuple[str, int]) -> None:
        with self._changed:
            self._note(place, None)

    def _note(self, place: tuple[str, int], lost_s: float | None) -> None:
        if self.num_clients is not None:  # else the server does not end by itself
            self._gone[place] = lost_s
        self._changed.notify_all()

    def _here(self) -> set[tuple[str, int]]:
        return {each.place for each in self._sessions.values() if not each.is_guest}

    def _is_done(self, place: tuple[str, int]) -> bool:
        return self._gone.get(place, 0.0) is None

    def done(self) -> list[tuple[str, int]]:
        """Clients that have said that they are done, by group and rank; none, without a number of clients."""
        with self._changed:
            return [place for place in self._gone if self._is_done(place)]

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_until_all_came(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._are_whole_groups({*self._here(), *self._gone}), timeout_s)

    def wait_until_done(self, timeout_s: float | None) -> bool:
        """Waits until all clients have left, or were lost for a minute; forever without a number of clients. Admits
        none after that. False if ``timeout_s`` seconds were not enough."""
        deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        with self._changed:
            while not self._have_all_gone():
                if time.monotonic() > deadline:
                    return False
                self._changed.wait(deadlines.POLL_S)
            self._is_closed = True  # a client that comes now finds the server's successor, if there is one
        return True

    def _have_all_gone(self) -> bool:
        if self._is_closed:
            return True
        if self.num_clients is None or self._here() or not self._gone or not self._are_whole_groups(self._gone):
            return False
        now = time.monotonic()
        return all(lost_s is None or now - lost_s > deadlines.GRACE_S for lost_s in self._gone.values())

    def _are_whole_groups(self, places: Iterable[tuple[str, int]]) -> bool:
        by_group = Counter(group for group, _ in places)
        return self.num_clients is None or min(by_group.values(), default=0) >= self.num_clients
