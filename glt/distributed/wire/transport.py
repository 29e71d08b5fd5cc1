"""Requests between samplers. Nothing above this interface knows what carries them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch import Tensor

from glt import _deadlines as deadlines
from glt.channel.message import error_message
from glt.distributed.wire.calls import PendingCalls
from glt.distributed.wire.connection import Connection, pulse
from glt.distributed.wire.listener import dial, introduce
from glt.errors import ChannelTimeout, ConnectionLost, GltError, PeerLost

# Takes the bytes of a request and returns those of the reply: one-dimensional uint8 tensors.
Handler = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Peer:
    """A process that answers requests, as errors name it.

    Attributes:
        name: Unique in the job.
        rank: The trainer that it samples for, or the server that it is.
        worker: Which of that trainer's samplers it is; None: the trainer or server itself.
        host, pid: Where it runs.
        partition_idx: The partition that it serves.
        role: What has that rank.
    """

    name: str
    rank: int
    worker: int | None
    host: str
    pid: int
    partition_idx: int
    role: str = "trainer"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        of = f"{self.role} {self.rank}"
        who = of if self.worker is None else f"worker {self.worker} of {of}"
        return f"{who} (partition {self.partition_idx}, host {self.host}, pid {self.pid})"


class Transport(ABC):
    """Carries requests to named peers and their replies back; replies are pure functions of requests.

    An implementation is given its handlers when it is opened, before any peer can ask, and answers with no others.
    """

    @abstractmethod
    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        """Sends requests, ``(method, bytes)`` each, together. A future gives the reply, an error message if the handler
        raised; or it raises :class:`glt.errors.PeerLost`, naming the peer, when that is gone or silent past the
        deadline."""

    @abstractmethod
    def close(self, gracefully: bool = False) -> None:
        """Stops serving and calling. May be called again.

        Args:
            gracefully: All peers are closing too: wait for them, a few seconds at most, so that nobody sees a
                connection break.
        """


# The transport between servers: requests for partitions over plain connections.
#
# ``torch.distributed.rpc``, which samplers of trainers use, opens its world once, for a fixed set of processes.
# Servers are restarted and replaced while others go on; and since a reply is a pure function of its request, what was
# under way when a connection broke is asked again.


logger = logging.getLogger(__name__)

MAX_REPLY_BYTES: Final = 64 << 30

Address = Callable[[int], tuple[str, int] | None]


class _Line:
    """Calls to one server: a thread that writes, and one that reads for as long as the connection lasts."""

    def __init__(self, peer: Peer, address: Address, codes: Mapping[str, int], timeout_s: float) -> None:
        self.peer, self._address, self._codes, self.timeout_s = peer, address, codes, timeout_s
        self._outbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._calls: PendingCalls[Future[Tensor]] = PendingCalls()
        self._connection: Connection | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._write, name=f"glt-to-{peer.name}", daemon=True)
        self._thread.start()

    def call_all(self, requests: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        replies: list[Future[Tensor]] = []
        for method, request in requests:
            replies.append(Future())
            self._outbox.put(self._calls.add(method, replies[-1], self.timeout_s, request))
        return replies

    def _write(self) -> None:
        while not self._closed:
            try:
                number = self._outbox.get(timeout=deadlines.POLL_S)
            except queue.Empty:
                self._calls.expire(self.peer)
                continue
            if number is None:
                return
            call = self._calls.get(number)
            if call is None:
                continue
            try:
                connection = self._connected()
            except PeerLost as lost:
                self._broke(lost)
                continue
            try:
                connection.send_data(call.request, self.timeout_s, self._codes[call.name], number)
            except ConnectionLost as error:
                self._reconnect(connection, error)
            except ChannelTimeout as error:
                self._broke(error)

    def _connected(self) -> Connection:
        """The connection, opened anew where it broke; raises PeerLost if that takes too long."""
        with self._lock:
            current = self._connection
        if current is not None:
            return current
        patience_s = min(deadlines.RECONNECT_S, self.timeout_s)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                address = self._address(self.peer.rank)
                if address is None:
                    raise PeerLost(f"{self.peer} is gone")
                left = max(0.1, deadline - time.monotonic())
                hello = introduce("partition")
                connection, _ = dial(address, str(self.peer), hello, left, max_bytes=MAX_REPLY_BYTES, retry=False)
                break
            except GltError as error:
                if time.monotonic() > deadline or self._closed:
                    raise PeerLost(
                        f"lost {self.peer}: {error}. It was tried for {patience_s:g} s; its log, or dmesg on "
                        f"{self.peer.host}, says why it ended"
                    ) from error
                time.sleep(deadlines.RETRY_S)
        with self._lock:
            self._connection = connection
        threading.Thread(target=self._read, args=(connection,), name=f"glt-from-{self.peer.name}", daemon=True).start()
        return connection

    def _read(self, connection: Connection) -> None:
        try:
            while not self._closed:
                try:
                    reply = connection.receive_data(deadlines.POLL_S)
                except ChannelTimeout:
                    self._calls.expire(self.peer)
                    # If it is silent it is asked again: perhaps another sampler of that server has taken its place.
                    connection.check_beats(self.peer.host)
                    continue
                call = self._calls.pop(connection.number)
                if call is not None:
                    call.reply.set_result(reply)
        except GltError as error:
            self._reconnect(connection, error)

    def _reconnect(self, connection: Connection, error: GltError) -> None:
        """Asks again what was asked over a connection that broke."""
        connection.close()
        with self._lock:
            if self._connection is not connection:
                return  # it was replaced already
            self._connection = None
        if self._closed:
            return
        logger.info("%s; connecting anew", error)
        time.sleep(deadlines.RETRY_S)  # for a server that accepts connections and drops them
        self._calls.expire(self.peer)
        for number in self._calls.numbers():
            self._outbox.put(number)

    def _broke(self, error: GltError) -> None:
        """Fails all calls: the server could not be reached, or takes nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._calls.fail(error, self.peer, self.peer.host)

    def close(self) -> None:
        self._closed = True
        self._outbox.put(None)
        self._broke(PeerLost(f"the transport to {self.peer} was closed"))


class TcpTransport(Transport):
    """Calls servers by the rank of their peer.

    Args:
        address: Gives host and port of a server by rank, None while there is none; asked anew for each connection.
        methods: What servers answer.
        timeout_s: Deadline of a request in seconds.
    """

    def __init__(self, address: Address, methods: Sequence[str], timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._codes = {method: code for code, method in enumerate(sorted(methods))}
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        with self._lock:
            line = self._lines.get(peer.name)
            if line is None:
                line = self._lines[peer.name] = _Line(peer, self._address, self._codes, self._timeout_s)
        return line.call_all(calls)

    def close(self, gracefully: bool = False) -> None:
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()


class PartitionServer:
    """Answers requests for a partition, on a thread for each connection.

    Args:
        handlers: By method.
        rank: Of the server, in errors.
        num_threads: Requests that are worked on at the same time.
        silence_s: A connection that gives no sign of life for so long is ended.
    """

    def __init__(self, handlers: Mapping[str, Handler], rank: int, num_threads: int, silence_s: float) -> None:
        self._handlers = [handlers[method] for method in sorted(handlers)]
        self._rank, self._silence_s = rank, silence_s
        self._places = threading.Semaphore(num_threads)

    def serve(self, connection: Connection) -> None:
        """Answers over ``connection``, in the background, until it ends."""
        pulse.add(connection)
        threading.Thread(target=self._serve, args=(connection,), name="glt-partition", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            while True:
                try:
                    request = connection.receive_data(deadlines.POLL_S)
                except ChannelTimeout:
                    if connection.silent_s() > self._silence_s:
                        return
                    continue
                what, number = connection.what, connection.number
                with self._places:
                    reply = self._answer(what, request)
                connection.send_data(reply, self._silence_s, number=number)
        except GltError as error:
            logger.debug("%s", error)
        finally:
            connection.close()

    def _answer(self, what: int, request: Tensor) -> Tensor:
        try:
            if what >= len(self._handlers):
                raise ValueError(f"method {what} is not served here: there are {len(self._handlers)}")
            return self._handlers[what](request)
        except Exception as error:
            return error_message(error, role="sampler of server", rank=self._rank)
