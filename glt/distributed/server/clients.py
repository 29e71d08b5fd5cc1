"""Which clients are there, which were lost, and which are done."""

from __future__ import annotations

import logging
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
from glt.distributed.wire.calls import decode_value, encode_value
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.threads import NativePool
from glt.errors import ChannelTimeout, GltError, RendezvousError

# A client as its server sees it: what it asks, one answer each, until it leaves or is lost.


logger = logging.getLogger(__name__)

_MOST_CALLS = 4  # of one client, that run or whose answers are being sent
_MOST_WAITING = 4096  # of one client, besides
_MOST_DEFERRED = 1024  # of one client, that are answered when something else has happened
_MOST_WAITING_BYTES = 1 << 28  # of their arguments: while there is more, nothing further is read

Call = Callable[["Session", tuple[Any, ...], dict[str, Any]], Any]


class Session:
    """Answers the calls of one client.

    A call may return a :class:`concurrent.futures.Future`, where the answer depends on what others do: it is sent when
    that is done, and until then the call holds no thread and does not count among those that run.

    Args:
        connection: To it.
        hello: How it introduced itself.
        find: Gives what to call for a name; raises LookupError if there is nothing of that name.
        pool: Where calls run.

    Attributes:
        id: Known to the client and nobody else: it shows it when it opens streams.
        has_left: Whether the client said that it was done.
        left_why: What it said of that, if it had failed.
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
        self.has_left = False
        self.left_why = ""
        self._find, self._pool = find, pool
        self.num_calls = 0
        self._changed = threading.Condition()
        self._waiting: deque[tuple[dict[str, Any], Tensor | None]] = deque()
        self._waiting_bytes = 0
        self._num_running = 0
        self._num_deferred = 0

    def __str__(self) -> str:
        return self._name

    def run(self) -> str:
        """Answers until the client leaves or is lost; returns how it ended."""
        try:
            while not self.has_left:
                try:
                    asked = self.connection.receive_json(deadlines.POLL_S)
                except ChannelTimeout:
                    if self.connection.silent_s() > deadlines.LEASE_S:
                        return f"it has given no sign of life for {deadlines.LEASE_S:g} s"
                    continue
                message = self.connection.receive_rest(deadlines.LEASE_S) if asked["has_data"] else None
                self.num_calls += 1
                self._take(asked, message)
        except GltError as error:
            return self._left() if self.has_left else str(error)
        except (KeyError, TypeError, ValueError) as error:
            return f"it sent nonsense: {type(error).__name__}: {error}"
        finally:
            with self._changed:  # nobody waits for their answers any more
                self._waiting.clear()
                self._waiting_bytes = 0
        return self._left()

    def _left(self) -> str:
        return f"it left, having failed: {self.left_why}" if self.left_why else "it left"

    def _take(self, asked: dict[str, Any], message: Tensor | None) -> None:
        """Runs a call, or keeps it until others are answered: a client that takes no answers must not hold all threads,
        and whether it lives is heard meanwhile."""
        with self._changed:
            if len(self._waiting) >= _MOST_WAITING:
                raise ValueError(f"{_MOST_WAITING} calls wait for answers, the most that one client may have")
            self._waiting.append((asked, message))
            self._waiting_bytes += _num_bytes(message)
        self._run_next()
        with self._changed:
            while self._waiting_bytes > _MOST_WAITING_BYTES and not self.connection.is_closed:
                self._changed.wait(deadlines.POLL_S)

    def _run_next(self) -> None:
        with self._changed:
            if not self._waiting or self._num_running >= _MOST_CALLS:
                return
            self._num_running += 1
            asked, message = self._waiting.popleft()
            self._waiting_bytes -= _num_bytes(message)
            self._changed.notify_all()
        self._pool.submit(self._answer, asked, message)

    def _answer(self, asked: dict[str, Any], message: Tensor | None) -> None:
        name = str(asked.get("name"))
        try:
            args, kwargs = decode_value(asked["arguments"], message)
            result = self._find(name)(self, tuple(args), dict(kwargs))
            if isinstance(result, Future):
                self._defer(asked, name, result)
            else:
                self._say_result(asked, name, result)
        except BaseException as error:  # of the call, whatever it is, or because its result is too long to be sent
            self._say_error(asked, error)
        finally:
            with self._changed:
                self._num_running -= 1
            self._run_next()

    def _defer(self, asked: dict[str, Any], name: str, result: Future[Any]) -> None:
        with self._changed:
            if self._num_deferred >= _MOST_DEFERRED:
                raise ValueError(
                    f"{_MOST_DEFERRED} calls of {self} wait for what others do, the most that one client may have: "
                    f"take their answers before calling {name} again"
                )
            self._num_deferred += 1
        # Whoever completes it has others to tell too, and must not wait for this client to listen.
        result.add_done_callback(lambda done: self._pool.submit(self._answer_deferred, asked, name, done))

    def _answer_deferred(self, asked: dict[str, Any], name: str, result: Future[Any]) -> None:
        try:
            self._say_result(asked, name, result.result(0))
        except BaseException as error:  # as above
            self._say_error(asked, error)
        finally:
            with self._changed:
                self._num_deferred -= 1

    def _say_result(self, asked: dict[str, Any], name: str, result: Any) -> None:
        tree, data = encode_value(result, f"the result of {name}")
        self.say({"number": asked["number"], "result": tree, "has_data": data is not None}, data or ())

    def _say_error(self, asked: dict[str, Any], error: BaseException) -> None:
        self.say(
            {
                "number": asked.get("number"),
                "has_data": False,
                "error": f"{type(error).__module__}.{type(error).__qualname__}",
                **_texts(error),
            }
        )

    def say(self, value: dict[str, Any], data: Sequence[Tensor] = (), timeout_s: float = deadlines.MESSAGE_S) -> None:
        """Sends an answer, or something that the client was not asking for."""
        try:
            self.connection.send_all(value, data, timeout_s)
        except GltError as error:
            logger.info("%s", error)  # the session ends with it


def _num_bytes(message: Tensor | None) -> int:
    return 0 if message is None else message.numel()


def _texts(error: BaseException) -> dict[str, str]:
    try:
        return {"text": str(error)[:20000], "traceback": "".join(traceback.format_exception(error))[-20000:]}
    except Exception as second:  # an exception that cannot be printed
        return {"text": f"its text cannot be made: {type(second).__name__}", "traceback": ""}


class Attendance:
    """The clients of a server.

    Args:
        num_clients: How many there will be, of each group that comes; None: any number.
    """

    def __init__(self, num_clients: int | None) -> None:
        self.num_clients = num_clients
        self._changed = threading.Condition()
        self._sessions: dict[str, Session] = {}
        self._left: dict[tuple[str, int], float | None] = {}  # clients that are done, or when they were lost
        self._is_ending = False

    def sessions(self) -> list[Session]:
        with self._changed:
            return list(self._sessions.values())

    def __contains__(self, session: Session) -> bool:
        with self._changed:
            return session.id in self._sessions

    def admit(self, session: Session) -> bool:
        """Takes a client in; false once the server is ending.

        Raises:
            glt.errors.RendezvousError: If a living client has its place.
        """
        with self._changed:
            self._end_predecessors(session)
            if self._is_ending:
                return False
            self._sessions[session.id] = session
            self._left.pop((session.group, session.rank), None)
            self._changed.notify_all()
            return True

    def _end_predecessors(self, session: Session) -> None:
        """Makes sure that no living client has the place of this one.

        One that was killed may have been followed at once, while the kernel still took its memory from it: a client is
        taken for living when it gave a sign of life after its follower had come.
        """
        came = time.monotonic()
        while not self._is_ending:
            same = [
                each for each in self._sessions.values() if (each.group, each.rank) == (session.group, session.rank)
            ]
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

    def dismiss(self, session: Session) -> None:
        """Takes note that a client is gone."""
        with self._changed:
            self._sessions.pop(session.id, None)
            place = session.group, session.rank
            if self.num_clients is None:
                return  # what nobody asks is not kept
            # Its successor may have come and left before this one was missed.
            if session.has_left or self._left.get(place, 0.0) is not None:
                self._left[place] = None if session.has_left else time.monotonic()
            self._changed.notify_all()

    def done(self) -> list[tuple[str, int]]:
        """Clients that have said that they are done, by group and rank; none, without a number of clients."""
        with self._changed:
            return [place for place, lost_s in self._left.items() if lost_s is None]

    def learn(self, places: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Takes note of clients that told other servers that they are done; returns those not known of. Without that a
        server that was restarted, or lost its connection to a client, would wait for clients that do not come."""
        with self._changed:
            here = {(each.group, each.rank) for each in self._sessions.values()}
            new = [
                place
                for place in places
                if self.num_clients is not None and place not in here and self._left.get(place, 0.0) is not None
            ]
            self._left |= dict.fromkeys(new)
            self._changed.notify_all()
            return new

    def turn_away(self, hello: Mapping[str, Any]) -> None:
        """Takes note of a client that came too late, and was told so."""
        with self._changed:
            self._left[hello["group"], hello["rank"]] = None
            self._changed.notify_all()

    def wait_for_latecomers(self, timeout_s: float) -> None:
        """Waits until every client has come once, or been turned away, but no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(self._have_all_come, timeout_s)

    def _have_all_come(self) -> bool:
        if self.num_clients is None:
            return True
        places = {(each.group, each.rank) for each in self._sessions.values()} | self._left.keys()
        return min(Counter(group for group, _ in places).values(), default=0) >= self.num_clients

    def admit_no_more(self) -> None:
        """From now on nobody is taken in, and waits end."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()

    def wait_until_done(self, timeout_s: float | None) -> bool:
        """Waits until all clients have left, or were lost and did not come back within a minute; never, without a
        number of clients. Nobody is admitted any more then.

        Returns:
            False if ``timeout_s`` seconds were not enough.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not self._is_done():
                if deadline is not None and time.monotonic() > deadline:
                    return False
                self._changed.wait(deadlines.POLL_S)
            self._is_ending = True  # whoever comes now finds the server's successor, if there is one
        return True

    def _is_done(self) -> bool:
        if self._is_ending:
            return True
        if self.num_clients is None or self._sessions or not self._left:
            return False
        by_group = Counter(group for group, _ in self._left)  # each job that came must have come and gone whole
        if min(by_group.values()) < self.num_clients:
            return False
        now = time.monotonic()
        return all(lost_s is None or now - lost_s > deadlines.GRACE_S for lost_s in self._left.values())
