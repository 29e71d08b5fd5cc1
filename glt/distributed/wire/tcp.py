"""The transport over connections of glt's own, between servers and between samplers of trainers; all on the loop.

Servers are restarted and replaced while others go on; and since a reply is a pure function of its request, what was
under way when a connection broke is asked again: of another that serves the same, if there is one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import error_message
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.calls import no_answer
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.frames import Frame
from glt.distributed.wire.handshake import Address, NotYet, connect, introduce, refuse
from glt.distributed.wire.listener import Listener, LocalListener
from glt.distributed.wire.threads import NativePool, call_on_loop, process_loop
from glt.distributed.wire.transport import Handler, Peer, Transport
from glt.errors import ChannelTimeout, GltError, MessageError, PeerLost, RendezvousError

MAX_REPLY_BYTES: Final = 64 << 30
_SMALL_BYTES = 8 << 10  # requests up to which are answered on the loop: two changes of threads would cost more
_ROOM_BYTES = 256 << 20  # of a request, beyond what its ids take: trees may have nodes in common
_BYTES_PER_ID = 24
_MOST_WAITING, _MOST_WAITING_BYTES = 8, 64 << 20  # requests, and replies, of a connection: it is not read meanwhile
_NOTHING = torch.empty(0, dtype=torch.uint8)

# Where a peer takes connections now, in the order in which they are tried; empty: it is gone.
Addresses = Callable[[Peer], Sequence[Address]]
# Peers that answer the same, in the order in which they are asked while that one is lost.
Others = Callable[[Peer], Sequence[Peer]]

logger = logging.getLogger(__name__)


# -- asking --------------------------------------------------------------------------------------------------------


@dataclass
class _Call:
    method: str
    request: Tensor
    reply: asyncio.Future[Tensor]
    deadline: float

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():  # the batch may have been given up
            self.reply.set_exception(error)
            self.reply.exception()  # or asyncio complains where no task waits for it any more


class _Line:
    """The calls to one peer, and the connection to it. On the loop.

    ``is_replaced``: another process may take its place, and is waited for. Else a connection that is refused says that
    the peer has ended. ``hand_on`` gives its calls to the line to another peer, if one answers the same.

    Attributes:
        is_lost: Whether the peer was not reached, or its connection broke, and it has not been reached since.
    """

    def __init__(
        self,
        peer: Peer,
        addresses: Addresses,
        codes: Mapping[str, int],
        timeout_s: float,
        is_replaced: bool,
        hand_on: Callable[[_Line], bool],
    ) -> None:
        self.peer, self._addresses, self._codes = peer, addresses, codes
        self._timeout_s, self._is_replaced, self._hand_on = timeout_s, is_replaced, hand_on
        self.is_lost = False
        self._tried_s = 0.0  # when it was last found lost, of time.monotonic()
        self._calls: dict[int, _Call] = {}  # that wait for answers, by number
        self._last = 0
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._max_request_bytes = MAX_REPLY_BYTES

    def add(self, calls: Iterable[_Call]) -> None:
        for call in calls:
            self._last += 1
            self._calls[self._last] = call
            self._send(self._last, call)
        self._connect_if_needed()

    def look(self) -> None:
        """Looks whether a lost peer is back, now and then; waits for nothing."""
        if time.monotonic() - self._tried_s > deadlines.POLL_S:
            self._connect_if_needed()

    def take_calls(self) -> list[_Call]:
        """The calls that wait here, which are another's from now on."""
        calls, self._calls = self._calls, {}
        return list(calls.values())

    def _connect_if_needed(self) -> None:
        if self._connection is None and self._connecting is None:
            self._connecting = process_loop.get().create_task(self._connect())

    def _send(self, number: int, call: _Call) -> None:
        if self._connection is None:
            return
        if len(call.request) > self._max_request_bytes:
            del self._calls[number]
            call.fail(
                ValueError(
                    f"a request of {len(call.request)} bytes for {self.peer}, which takes at most "
                    f"{self._max_request_bytes}: use a smaller batch_size, or fewer neighbours"
                )
            )
            return
        try:
            self._connection.send(data=[call.request], what=self._codes[call.method], number=number)
        except GltError as error:  # it has ended: it is asked again when that is heard of
            logger.debug("%s", error)

    async def _connect(self) -> None:
        patience_s = min(deadlines.RECONNECT_S, self._timeout_s)
        deadline = time.monotonic() + patience_s
        try:
            while True:
                try:
                    connection, answer = await self._reach(max(0.1, deadline - time.monotonic()))
                    break
                except GltError as error:
                    self.is_lost, self._tried_s = True, time.monotonic()
                    if not self._calls or self._hand_on(self):
                        self._connecting = None
                        return
                    if isinstance(error, NotYet):  # its server lives: it is given the time that its calls have
                        deadline = time.monotonic() + patience_s
                    is_gone = not self._is_replaced and isinstance(error.__cause__, ConnectionRefusedError)
                    if is_gone or time.monotonic() > deadline:
                        tried = "" if is_gone else f". It was tried for {patience_s:g} s"
                        raise PeerLost(
                            f"lost {self.peer}: {error}{tried}; its log, its trainer, or dmesg on {self.peer.host}, "
                            "says why it ended"
                        ) from error
                await asyncio.sleep(deadlines.RETRY_S)
        except Exception as error:
            self._connecting = None
            self._fail(error)
            return
        self._connecting, self._connection, self.is_lost = None, connection, False
        self._max_request_bytes = int(answer.get("max_request_bytes", MAX_REPLY_BYTES))
        connection.start(
            self._take,
            partial(self._lose, connection),
            max_data_bytes=MAX_REPLY_BYTES,
            silence_s=deadlines.STUCK_S,  # it is asked again then: perhaps another sampler of that server answers
        )
        for number, call in list(self._calls.items()):
            self._send(number, call)

    async def _reach(self, timeout_s: float) -> tuple[Connection, dict[str, Any]]:
        """A connection to where requests are answered; raises GltError if there is none."""
        until = time.monotonic() + timeout_s
        connection, answer, at = await self._first_of(self._addresses(self.peer), timeout_s)
        if answer["kind"] == "redirect":  # a server tells which of its processes to ask
            connection.close()
            self.peer = replace(self.peer, host=str(answer["host"]), pid=int(answer["pid"]))  # it may be a new one
            elsewhere: list[Address] = [answer["local"]] if answer.get("local") else []
            elsewhere += [] if isinstance(at, str) else [(at[0], int(answer["port"]))]
            connection, answer, _ = await self._first_of(elsewhere, max(0.1, until - time.monotonic()))
        if answer["kind"] != "partition":
            connection.close()
            raise MessageError(f"{self.peer} answers no requests, but is a {answer['kind']}")
        return connection, answer

    async def _first_of(
        self, addresses: Sequence[Address], timeout_s: float
    ) -> tuple[Connection, dict[str, Any], Address]:
        lost = PeerLost(f"{self.peer} is gone")
        for address in addresses:
            try:
                hello = introduce("partition")
                return *await connect(address, str(self.peer), hello, timeout_s, retry=False), address
            except (PeerLost, RendezvousError) as error:
                # A Unix socket is not found from elsewhere: the next address, then. One that is silent is that of the
                # same process.
                is_silent = isinstance(error.__cause__, ChannelTimeout)
                if not isinstance(address, str) or address == addresses[-1] or is_silent:
                    raise
                lost.__cause__ = error
        raise lost

    def _take(self, frame: Frame) -> None:
        call = self._calls.pop(frame.number, None)
        if call is not None and not call.reply.done():
            call.reply.set_result(_NOTHING if frame.data is None else frame.data)

    def _lose(self, connection: Connection, error: GltError) -> None:
        if self._connection is not connection:
            return
        self._connection = None
        self.is_lost, self._tried_s = True, time.monotonic()
        self.expire()
        if self._calls and not self._hand_on(self):
            logger.info("%s; connecting anew", error)
            self._connecting = process_loop.get().create_task(self._connect_anew())

    async def _connect_anew(self) -> None:
        await asyncio.sleep(deadlines.RETRY_S)  # for a server that accepts connections and drops them
        await self._connect()

    def expire(self) -> None:
        """Gives up the calls whose deadline is over."""
        now = time.monotonic()
        for number, call in list(self._calls.items()):
            if call.deadline <= now:
                del self._calls[number]
                call.fail(no_answer(self.peer, call.method, self._timeout_s))

    def _fail(self, error: BaseException) -> None:
        for call in self.take_calls():
            call.fail(error)

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._fail(PeerLost(f"the transport to {self.peer} was closed"))


class TcpTransport(Transport):
    """Asks peers over a connection to each, which is made when it is first asked something.

    Args:
        addresses: Where a peer is; asked anew for each connection. What answers there may tell another port
            (``redirect``).
        methods: What peers answer.
        timeout_s: The deadline of a request.
        is_replaced: Whether peers that end are replaced by others, as servers are, and are waited for.
        others: Who answers the same as a peer. While one of them is there, none that is lost is waited for.
    """

    def __init__(
        self,
        addresses: Addresses,
        methods: Sequence[str],
        timeout_s: float,
        is_replaced: bool = True,
        others: Others = lambda peer: (),
    ) -> None:
        self._addresses, self._timeout_s, self._is_replaced = addresses, timeout_s, is_replaced
        self._others = others
        self._codes = {method: code for code, method in enumerate(sorted(methods))}
        self._lines: dict[str, _Line] = {}
        self._closed = False
        add_tick(self._expire)

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[asyncio.Future[Tensor]]:
        loop, deadline = process_loop.get(), time.monotonic() + self._timeout_s
        made = [_Call(method, request, loop.create_future(), deadline) for method, request in calls]
        line = self._line(peer)
        if line.is_lost and (other := self._other(line)) is not None:
            line.look()
            line = other
        line.add(made)
        return [call.reply for call in made]

    def _line(self, peer: Peer) -> _Line:
        line = self._lines.get(peer.name)
        if line is None:
            if self._closed:
                raise PeerLost(f"the transport to {peer} was closed")
            line = self._lines[peer.name] = _Line(
                peer, self._addresses, self._codes, self._timeout_s, self._is_replaced, self._hand_on
            )
        return line

    def _other(self, lost: _Line) -> _Line | None:
        """The line to the first peer that answers the same and is not lost, as far as is known."""
        for line in map(self._line, self._others(lost.peer)):
            if not line.is_lost:
                return line
            line.look()
        return None

    def _hand_on(self, lost: _Line) -> bool:
        if self._closed or (other := self._other(lost)) is None:
            return False
        logger.info("%s is lost: %s is asked in its place", lost.peer, other.peer)
        other.add(lost.take_calls())
        return True

    def _expire(self) -> None:
        for line in self._lines.values():
            line.expire()

    def close(self, gracefully: bool = False) -> None:
        call_on_loop(self._close)

    def _close(self) -> None:
        self._closed = True
        discard_tick(self._expire)
        while self._lines:
            _, line = self._lines.popitem()
            line.close()


# -- answering -----------------------------------------------------------------------------------------------------


class PartitionServer:
    """Answers requests for a partition: small ones at once, others on ``num_threads`` threads, all connections in turn.

    Args:
        handlers: By method.
        rank: Of the server or trainer, ``role``, as errors name it.
        silence_s: A connection that gives no sign of life for so long is ended.
        most_ids: Of the type of nodes or edges that has most, how many there are: it bounds a request.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        rank: int,
        num_threads: int,
        silence_s: float,
        most_ids: int,
        role: str = "server",
    ) -> None:
        self.handlers = [handlers[method] for method in sorted(handlers)]
        self.rank, self.role, self._silence_s = rank, f"sampler of {role}", silence_s
        self._max_request_bytes = _ROOM_BYTES + _BYTES_PER_ID * most_ids
        self.pool = NativePool(num_threads, "glt-partition")
        self._askers: set[_Asker] = set()
        self._closed = False

    def serve(self, connection: Connection) -> None:
        """Says who this is, and answers over ``connection``, which is not started, until it ends. On the loop."""
        if self._closed:
            connection.close()
            return
        try:
            connection.send(introduce("partition", max_request_bytes=self._max_request_bytes))
        except GltError as error:
            logger.debug("%s", error)
            return
        asker = _Asker(self, connection)
        self._askers.add(asker)
        connection.stall_s = self._silence_s
        connection.start(
            asker.take,
            lambda error: self._forget(asker, error),
            max_data_bytes=self._max_request_bytes,
            max_json_bytes=0,
            silence_s=self._silence_s,
        )

    def _forget(self, asker: _Asker, error: GltError) -> None:
        logger.debug("%s", error)
        self._askers.discard(asker)

    def close(self) -> None:
        """Ends all connections and, after what they are at, the threads. From any thread."""
        call_on_loop(self._close)

    def _close(self) -> None:
        self._closed = True
        self.pool.end()
        for asker in list(self._askers):
            asker.connection.close()


class _Asker:
    """A connection over which requests come. No more is read of it while too much waits, to be answered or sent: a peer
    that asks and takes nothing costs a bounded amount of memory."""

    def __init__(self, server: PartitionServer, connection: Connection) -> None:
        self.connection, self._server = connection, server
        self._lock = threading.Lock()
        self._num_asked = self._asked_bytes = 0  # requests that are not answered yet
        self._is_held = False
        self._answered = asyncio.Event()

    def take(self, frame: Frame) -> None:
        if frame.data is None:
            raise MessageError(f"{self.connection.peer} sent an empty request")
        if len(frame.data) <= _SMALL_BYTES:
            self._reply(frame)
        else:
            with self._lock:
                self._num_asked += 1
                self._asked_bytes += len(frame.data)
            self._server.pool.submit(self._work, frame)
        if self._is_much(1) and not self._is_held:
            self._is_held = True
            self.connection.pause()
            process_loop.get().create_task(self._read_on())

    def _work(self, frame: Frame) -> None:
        assert frame.data is not None
        try:
            self._reply(frame)
        finally:
            with self._lock:
                self._num_asked -= 1
                self._asked_bytes -= len(frame.data)
            if self._is_held:
                process_loop.get().call_soon_threadsafe(self._answered.set)

    def _reply(self, frame: Frame) -> None:
        assert frame.data is not None
        server = self._server
        try:
            if frame.what >= len(server.handlers):
                raise ValueError(f"method {frame.what} is not served here: there are {len(server.handlers)}")
            reply = server.handlers[frame.what](frame.data)
        except Exception as error:
            reply = error_message(error, role=server.role, rank=server.rank)
        try:
            self.connection.send(data=[reply], number=frame.number)
        except GltError as error:  # who asked is gone, or asks again
            logger.debug("%s", error)

    def _is_much(self, part: int) -> bool:
        """Whether as much waits as may, or with ``part`` 2 half of it."""
        with self._lock:
            waiting_bytes = self._asked_bytes + self.connection.unsent_bytes
            return self._num_asked >= _MOST_WAITING // part or waiting_bytes > _MOST_WAITING_BYTES // part

    async def _read_on(self) -> None:
        """Reads on when less waits."""
        try:
            while self._is_much(2):
                self._answered.clear()
                if self.connection.unsent_bytes > _MOST_WAITING_BYTES // 2:
                    await self.connection.drained()
                elif self._is_much(2):
                    await self._answered.wait()
        except GltError as error:  # it has ended
            logger.debug("%s", error)
            return
        self._is_held = False
        self.connection.resume()


class SamplerTransport(TcpTransport):
    """Between the samplers of trainers: asks the others, and answers them at a port of its own.

    A Unix socket besides is for those on this host.

    Args:
        me: This process.
        host: The address of this host at which the others reach it.
        most_ids: See :class:`PartitionServer`.
    """

    def __init__(
        self, me: Peer, handlers: Mapping[str, Handler], host: str, num_threads: int, timeout_s: float, most_ids: int
    ) -> None:
        silence_s = max(deadlines.STUCK_S, timeout_s)
        self._server = PartitionServer(handlers, me.rank, num_threads, silence_s, most_ids, me.role)
        self._listeners: list[Listener] = [LocalListener(self._welcome)]
        try:
            self._listeners.append(Listener((host, 0), str(me), (host, 0), self._welcome))
        except BaseException:
            self._end_serving()
            raise
        self._me, self._addresses_of = me, dict[str, list[Address]]()
        super().__init__(lambda peer: self._addresses_of[peer.name], list(handlers), timeout_s, is_replaced=False)
        for listener in self._listeners:
            listener.open()

    def introduction(self) -> dict[str, Any]:
        """JSON by which others find this process."""
        local, port = self._listeners
        assert isinstance(local, LocalListener)
        return {"peer": self._me.to_json(), "local": local.name, "address": list(port.address)}

    def meet(self, introductions: Sequence[Mapping[str, Any]]) -> list[Peer]:
        """Takes note of where the others are; returns them in the same order."""
        peers = [Peer(**each["peer"]) for each in introductions]
        for peer, each in zip(peers, introductions, strict=True):
            host, port = each["address"]
            self._addresses_of[peer.name] = [each["local"], (host, port)]
        return peers

    async def _welcome(self, connection: Connection, hello: dict[str, Any]) -> None:
        if hello["kind"] == "partition":
            self._server.serve(connection)
        else:
            refuse(connection, f"this is {self._me}, which answers other samplers, not a {hello['kind']}")

    def _end_serving(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._server.close()

    def close(self, gracefully: bool = False) -> None:
        super().close(gracefully)
        self._end_serving()
