"""Requests between samplers, and what carries them: plain connections to servers, or ``torch.distributed.rpc``.

Nothing above :class:`Transport` knows which.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc

from glt import _deadlines as deadlines
from glt.channel.message import error_message, starts_like_message
from glt.distributed.wire.calls import PendingCalls
from glt.distributed.wire.old_connection import Connection, pulse
from glt.distributed.wire.old_listener import dial, introduce
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
        """Stops serving and calling; may be called again. ``gracefully``: all peers are closing too, and are waited
        for, a few seconds at most, so that none sees a connection break."""


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
                connection.send_data(call.request, self.timeout_s, self._codes[call.name], number)
            except ConnectionLost as error:  # of sending: one that cannot be opened is a PeerLost
                self._reconnect(connection, error)
            except (PeerLost, ChannelTimeout) as error:
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
    """Calls servers by the rank of their peer. ``address`` gives host and port of a server by rank, None while there is
    none; it is asked anew for each connection. ``timeout_s`` is the deadline of a request."""

    def __init__(self, address: Address, methods: Sequence[str], timeout_s: float) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._codes = {method: code for code, method in enumerate(sorted(methods))}
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        with self._lock:
            if peer.name not in self._lines:
                self._lines[peer.name] = _Line(peer, self._address, self._codes, self._timeout_s)
            line = self._lines[peer.name]
        return line.call_all(calls)

    def close(self, gracefully: bool = False) -> None:
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.close()


class PartitionServer:
    """Answers requests for a partition, on a thread for each connection, ``num_threads`` at the same time. A connection
    that gives no sign of life for ``silence_s`` is ended."""

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


# The transport over torch.distributed.rpc. It has one agent per process: collocated loaders of a trainer share it.
# Requests name a registered handler and carry flat bytes; what a handler raises comes back as an error message, not as
# a pickled exception. TensorPipe's default on one host, its shared-memory transport, keeps a thread spinning in every
# process (half a core each on a machine of two, idle, measured with torch 2.13). Here connections use sockets, and
# large replies on one host move by one copy from process to process ("cma"), which idles at nothing.

_TRANSPORTS = ["uv"]
_CHANNELS = ["cma", "mpt_uv", "basic"]
_SCHEME = "glt"
_SMALL_BYTES = 32 << 10


_rpc_lock = threading.Lock()
_stores: dict[str, tuple[dist.Store, int, int]] = {}  # how init_rpc gets at a store that is open already
_handlers: dict[str, Handler] = {}
_rank = -1  # of the trainer that this process samples for


def _rendezvous(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    yield _stores[url.split("?")[0]]  # torch appends the rank and world size


def _answer_all(asked: list[tuple[str, bytes | Tensor]]) -> list[Tensor]:
    """Runs in the process that is asked."""
    answers = []
    for method, request in asked:
        try:
            handler = _handlers.get(method)
            if handler is None:
                raise ValueError(f"method {method!r} is not served here; served are {sorted(_handlers)}")
            if not isinstance(request, Tensor):  # copied once more, into the alignment that messages have
                request = torch.frombuffer(bytearray(request), dtype=torch.uint8).clone()
            answers.append(handler(request))
        except Exception as error:
            answers.append(error_message(error, role="sampler of trainer", rank=_rank))
    return answers


_RpcCall = tuple[str, Tensor, Future[Tensor]]  # the method, the request and the reply


class _RpcLine:
    """The connection to one peer. A call of torch.distributed.rpc costs most of a millisecond of processor time on the
    two sides together, whatever it carries; so what is asked while a call is under way waits, and goes out as one call
    when that returns. With few batches in flight nothing ever waits."""

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        self.peer, self.timeout_s = peer, timeout_s
        self._lock = threading.Lock()
        self._waiting: list[_RpcCall] = []
        self._is_calling = False

    def call_all(self, requests: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        calls: list[_RpcCall] = [(method, request, Future()) for method, request in requests]
        with self._lock:
            self._waiting += calls
        self._send_waiting()
        return [reply for *_, reply in calls]

    def _send_waiting(self) -> None:
        with self._lock:
            if self._is_calling:
                return
            calls = [call for call in self._waiting if call[2].set_running_or_notify_cancel()]
            self._waiting = []
            if not calls:
                return
            self._is_calling = True
        try:
            # Small requests travel inside the call's own bytes, which costs less than a tensor beside them.
            asked = [(method, bytes(r.numpy()) if len(r) <= _SMALL_BYTES else r) for method, r, _ in calls]
            future = rpc.rpc_async(self.peer.name, _answer_all, args=(asked,), timeout=self.timeout_s)
            future.add_done_callback(partial(self._done, calls))
        except RuntimeError as error:
            self._finish(calls, error)

    def _done(self, calls: list[_RpcCall], future: Any) -> None:
        found: list[Tensor] | Exception
        try:
            found = future.value()
        except Exception as error:
            found = error
        self._finish(calls, found)

    def _finish(self, calls: list[_RpcCall], found: list[Tensor] | Exception) -> None:
        with self._lock:
            self._is_calling = False
        self._send_waiting()
        for i, (method, _, reply) in enumerate(calls):
            if isinstance(found, Exception):
                reply.set_exception(_named(found, self.peer, method, self.timeout_s))
            elif starts_like_message(found[i]):
                reply.set_result(found[i])
            else:
                # ``cma`` reads from the peer's memory, which a peer that ends without waiting has given back.
                reply.set_exception(
                    PeerLost(f"lost {self.peer} during {method}: it ended while its answer was on the way")
                )


class RpcTransport(Transport):
    """Opens the agent of this process and waits until all peers have opened theirs."""

    def __init__(
        self,
        me: Peer,
        handlers: Mapping[str, Handler],
        index: int,
        num_peers: int,
        store: dist.Store,
        num_threads: int,
        timeout_s: float,
    ) -> None:
        global _rank
        self.timeout_s = timeout_s
        self._closed = False
        self._lock = threading.Lock()
        self._lines: dict[str, _RpcLine] = {}
        url = f"{_SCHEME}://{me.name}"
        with _rpc_lock:
            if not _stores:
                dist.register_rendezvous_handler(_SCHEME, _rendezvous)
            _stores[url] = (store, index, num_peers)
        _rank = me.rank
        _handlers.clear()
        _handlers.update(handlers)
        options = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=num_threads,
            rpc_timeout=timeout_s,
            init_method=url,
            _transports=_TRANSPORTS,
            _channels=_CHANNELS,
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch says that rpc is in maintenance mode; see docs/design.md
                rpc.init_rpc(me.name, rank=index, world_size=num_peers, rpc_backend_options=options)
        except RuntimeError as error:
            raise PeerLost(
                f"{me}: not all {num_peers} samplers came up within {timeout_s:g} s; look at the output of the other "
                f"trainers for the reason ({error})"
            ) from error

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        with self._lock:
            line = self._lines.setdefault(peer.name, _RpcLine(peer, self.timeout_s))
        return line.call_all(calls)

    def close(self, gracefully: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            rpc.shutdown(graceful=gracefully, timeout=deadlines.JOIN_S)
        except RuntimeError as error:
            # A peer went without a word. The agent here is closed all the same, and nothing was lost.
            logger.info("%s", error)
        _handlers.clear()


def _named(error: Exception, peer: Peer, method: str, timeout_s: float) -> Exception:
    """The exception of a request that failed: a lost peer is named, what the peer raised is passed on."""
    if type(error) is not RuntimeError:
        return error
    text = str(error)
    if "timeout" in text.lower():
        return PeerLost(f"{peer} gave no answer to {method} within {timeout_s:g} s: it hangs, or the network does")
    return PeerLost(
        f"lost {peer} during {method}: it died or its connection broke. If it was killed, its trainer names the exit "
        f"code; often it is the OOM killer (see dmesg on {peer.host}) ({text.splitlines()[0]})"
    )
