"""A client as its server sees it: what it asks, one answer each, until it leaves or is lost."""

from __future__ import annotations

import logging
import secrets
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from glt.distributed.context import check_place
from glt.distributed.native_pool import NativePool
from glt.distributed.service.connection import Connection
from glt.distributed.service.stream import LEASE_S
from glt.distributed.service.values import decode_value, encode_value
from glt.errors import ChannelTimeout, GltError

logger = logging.getLogger(__name__)

_POLL_S = 0.5
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
                    asked = self.connection.receive_json(_POLL_S)
                except ChannelTimeout:
                    if self.connection.silent_s() > LEASE_S:
                        return f"it has given no sign of life for {LEASE_S:g} s"
                    continue
                message = self.connection.receive_rest(LEASE_S) if asked["has_data"] else None
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
                self._changed.wait(_POLL_S)

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
        self.say({
            "number": asked.get("number"), "has_data": False,
            "error": f"{type(error).__module__}.{type(error).__qualname__}", **_texts(error),
        })  # fmt: skip

    def say(self, value: dict[str, Any], data: Sequence[Tensor] = (), timeout_s: float = 60.0) -> None:
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
