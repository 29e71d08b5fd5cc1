"""The clients of a server: the session of each, and which are there, lost or done."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.distributed.context import check_place
from glt.distributed.wire.calls import decode_value, encode_value
from glt.distributed.wire.old_connection import Connection
from glt.distributed.wire.threads import NativePool
from glt.errors import ChannelTimeout, GltError, RendezvousError

logger = logging.getLogger(__name__)

# Calls of one client:
_MOST_CALLS = 4  # that run or whose answers are being sent
_MOST_DEFERRED = 1024  # whose answers wait for what other clients do
_MOST_WAITING, _MOST_WAITING_BYTES = 4096, 1 << 28  # that wait to run, and their arguments

Call = Callable[["ClientSession", tuple[Any, ...], dict[str, Any]], Any]


class ClientSession:
    """Answers the calls of one client, on the threads of ``pool``; ``find`` gives what to call for a name, or raises
    LookupError. ``id`` is a secret, which the client shows when it opens streams.

    A call whose answer depends on other clients returns a :class:`concurrent.futures.Future`: it then holds no thread.
    """

    def __init__(
        self, connection: Connection, hello: dict[str, Any], find: Callable[[str], Call], pool: NativePool
    ) -> None:
        check_place(hello["num_clients"], hello["rank"], hello["group"], ("num_clients", "client_rank", "group"))
        self.connection = connection
        self.id = secrets.token_hex(16)
        self.group, self.rank = hello["group"], hello["rank"]
        host, pid = str(hello["host"])[:64], str(hello["pid"])[:16]
        self._name = f"client {self.rank} of {self.group!r} (host {host}, pid {pid})"
        self.has_left, self.left_why = False, ""
        self._find, self._pool = find, pool
        self._changed = threading.Condition()
        self._waiting: deque[tuple[dict[str, Any], Tensor | None]] = deque()
        self._waiting_bytes = self._num_running = self._num_deferred = 0

    def __str__(self) -> str:
        return self._name

    @property
    def place(self) -> tuple[str, int]:
        return self.group, self.rank

    def run(self) -> str:
        """Answers until the client leaves or is lost; returns how it ended."""
        try:
            while not self.has_left:
                try:
                    request = self.connection.receive_json(deadlines.POLL_S)
                except ChannelTimeout:
                    if self.connection.silent_s() > deadlines.LEASE_S:
                        return f"it has given no sign of life for {deadlines.LEASE_S:g} s"
                    continue
                self._take(request, self.connection.receive_rest(deadlines.LEASE_S) if request["has_data"] else None)
        except GltError as error:
            if not self.has_left:
                return str(error)
        except (KeyError, TypeError, ValueError) as error:
            return f"it sent nonsense: {type(error).__name__}: {error}"
        finally:
            with self._changed:  # the client takes no more answers
                self._waiting.clear()
                self._waiting_bytes = 0
        return f"it left, having failed: {self.left_why}" if self.left_why else "it left"

    def _take(self, request: dict[str, Any], message: Tensor | None) -> None:
        """Runs a call, or keeps it until others are answered: one client must not hold all threads. While many bytes
        wait, nothing further is read."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                raise ValueError(f"{_MOST_WAITING} calls wait for answers, the most that one client may have")
            self._waiting.append((request, message))
            self._waiting_bytes += 0 if message is None else message.numel()
        self._run_next()
        with self._changed:
            while self._waiting_bytes > _MOST_WAITING_BYTES and not self.connection.is_closed:
                self._changed.wait(deadlines.POLL_S)

    def _run_next(self) -> None:
        with self._changed:
            if not self._waiting or self._num_running >= _MOST_CALLS:
                return
            self._num_running += 1
            request, message = self._waiting.popleft()
            self._waiting_bytes -= 0 if message is None else message.numel()
            self._changed.notify_all()
        self._pool.submit(self._run_call, request, message)

    def _run_call(self, request: dict[str, Any], message: Tensor | None) -> None:
        def call() -> Any:
            args, kwargs = decode_value(request["arguments"], message)
            return self._find(str(request.get("name")))(self, tuple(args), dict(kwargs))

        self._answer(request, call)
        with self._changed:
            self._num_running -= 1
        self._run_next()

    def _answer(self, request: dict[str, Any], compute: Callable[[], Any]) -> None:
        try:
            result = compute()
            if isinstance(result, Future):
                self._defer(request, result)
                return
            tree, data = encode_value(result, f"the result of {request.get('name')}")
            self.send({"number": request["number"], "result": tree, "has_data": data is not None}, data or ())
        except BaseException as error:  # of the call, whatever it is, or because its result is too long to be sent
            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            self.send({"number": request.get("number"), "has_data": False, "error": kind, **_texts(error)})

    def _defer(self, request: dict[str, Any], result: Future[Any]) -> None:
        with self._changed:
            if self._num_deferred >= _MOST_DEFERRED:
                raise ValueError(
                    f"{_MOST_DEFERRED} calls of {self} wait for what others do, the most that one client may have: "
                    f"take their answers before calling {request.get('name')} again"
                )
            self._num_deferred += 1
        # On the pool: the thread that completes it has others to tell, and must not wait for this client to listen.
        result.add_done_callback(lambda done: self._pool.submit(self._answer_deferred, request, done))

    def _answer_deferred(self, request: dict[str, Any], result: Future[Any]) -> None:
        self._answer(request, lambda: result.result(0))
        with self._changed:
            self._num_deferred -= 1

    def send(self, value: dict[str, Any], data: Sequence[Tensor] = (), timeout_s: float = deadlines.MESSAGE_S) -> None:
        try:
            self.connection.send_all(value, data, timeout_s)
        except GltError as error:
            logger.info("%s", error)  # the session ends with it


def _texts(error: BaseException) -> dict[str, str]:
    try:
        return {"text": str(error)[:20000], "traceback": "".join(traceback.format_exception(error))[-20000:]}
    except Exception as second:  # an exception that cannot be printed
        return {"text": f"its text cannot be made: {type(second).__name__}", "traceback": ""}


class ClientRegistry:
    """Which clients of a server are there, lost, or done. ``num_clients`` come of each group; None: any number."""

    def __init__(self, num_clients: int | None) -> None:
        self.num_clients = num_clients
        self._changed = threading.Condition()
        self._sessions: dict[str, ClientSession] = {}
        self._gone: dict[tuple[str, int], float | None] = {}  # by place, when a client was lost; None: it is done
        self._is_closed = False

    def sessions(self) -> list[ClientSession]:
        with self._changed:
            return list(self._sessions.values())

    def __contains__(self, session: ClientSession) -> bool:
        with self._changed:
            return session.id in self._sessions

    def admit(self, session: ClientSession) -> bool:
        """Takes a client in; false once the server is ending. Raises RendezvousError if its place is taken."""
        with self._changed:
            self._end_predecessors(session)
            if self._is_closed:
                return False
            self._sessions[session.id] = session
            self._gone.pop(session.place, None)
            self._changed.notify_all()
            return True

    def _end_predecessors(self, session: ClientSession) -> None:
        """Makes sure that no living client has this place. One is alive if it gave a sign of life after its successor
        came: the kernel may still be taking memory from one that was killed."""
        came = time.monotonic()
        while not self._is_closed:
            same = [each for each in self._sessions.values() if each.place == session.place]
            for other in same:
                if other.connection.heard_s > came:
                    raise RendezvousError(f"client_rank = {session.rank} of {session.group!r} is taken by {other}")
            if not same:
                return
            if time.monotonic() - came > deadlines.TAKEN_S:
                for other in same:
                    other.connection.close()
                return
            self._changed.wait(deadlines.FAST_POLL_S)

    def remove(self, session: ClientSession) -> None:
        with self._changed:
            self._sessions.pop(session.id, None)
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
        return {each.place for each in self._sessions.values()}

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
        if self.num_clients is None or self._sessions or not self._gone or not self._are_whole_groups(self._gone):
            return False
        now = time.monotonic()
        return all(lost_s is None or now - lost_s > deadlines.GRACE_S for lost_s in self._gone.values())

    def _are_whole_groups(self, places: Iterable[tuple[str, int]]) -> bool:
        by_group = Counter(group for group, _ in places)
        return self.num_clients is None or min(by_group.values(), default=0) >= self.num_clients
