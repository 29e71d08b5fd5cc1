"""The transport over ``torch.distributed.rpc`` (TensorPipe).

One agent per process, as torch has it: collocated loaders of a trainer share it. Requests name a registered handler and
carry flat bytes; what a handler raises comes back as an error message, not as a pickled exception.

TensorPipe's own default on one host, its shared-memory transport, keeps a thread spinning in every process (half a
core each on a two-core machine, idle, measured with torch 2.13). Here connections use sockets, and large replies on one
host move by one copy from process to process (``cma``), which idles at nothing.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc

from glt import _deadlines as deadlines
from glt.channel.message import error_message, starts_like_message
from glt.distributed.wire.transport import Handler, Peer, Transport
from glt.errors import PeerLost

_TRANSPORTS = ["uv"]
_CHANNELS = ["cma", "mpt_uv", "basic"]
_SCHEME = "glt"
_SMALL_BYTES = 32 << 10
_IN_FLIGHT = 1

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_stores: dict[str, tuple[dist.Store, int, int]] = {}  # how init_rpc gets at a store that is open already
_handlers: dict[str, Handler] = {}
_me: Peer | None = None


def _rendezvous(url: str, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    yield _stores[url.split("?")[0]]  # torch appends the rank and world size


def _answer_all(asked: list[tuple[str, bytes | Tensor]]) -> list[Tensor]:
    """Runs in the process that is asked."""
    return [_answer(method, _unpacked(request)) for method, request in asked]


def _answer(method: str, request: Tensor) -> Tensor:
    try:
        handler = _handlers.get(method)
        if handler is None:
            raise ValueError(f"method {method!r} is not served here; served are {sorted(_handlers)}")
        return handler(request)
    except Exception as error:
        rank = -1 if _me is None else _me.rank
        return error_message(error, role="sampler of trainer", rank=rank)


def _packed(request: Tensor) -> bytes | Tensor:
    """Small requests travel inside the call's own bytes, which costs less than a tensor beside them."""
    return bytes(request.numpy()) if len(request) <= _SMALL_BYTES else request


def _unpacked(request: bytes | Tensor) -> Tensor:
    if isinstance(request, Tensor):
        return request
    # Copied once more, into the alignment that messages have.
    return torch.frombuffer(bytearray(request), dtype=torch.uint8).clone()


@dataclass
class _Call:
    method: str
    request: Tensor
    result: Future[Tensor] = field(default_factory=Future)


class _Line:
    """The connection to one peer. A call of torch.distributed.rpc costs most of a millisecond of processor time on the
    two sides together, whatever it carries; so what is asked while ``_IN_FLIGHT`` calls are under way waits, and goes
    out as one call when one of them returns. With few batches in flight nothing ever waits."""

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        self.peer, self.timeout_s = peer, timeout_s
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._num_in_flight = 0

    def call_all(self, requests: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        calls = [_Call(method, request) for method, request in requests]
        with self._lock:
            self._waiting += calls
        self._send_waiting()
        return [call.result for call in calls]

    def _send_waiting(self) -> None:
        with self._lock:
            if self._num_in_flight >= _IN_FLIGHT or not self._waiting:
                return
            calls = [call for call in self._waiting if call.result.set_running_or_notify_cancel()]
            self._waiting = []
            if not calls:
                return  # all of them were given up meanwhile
            self._num_in_flight += 1
        try:
            asked = [(call.method, _packed(call.request)) for call in calls]
            future = rpc.rpc_async(self.peer.name, _answer_all, args=(asked,), timeout=self.timeout_s)
            future.add_done_callback(partial(self._done, calls))
        except RuntimeError as error:
            self._finish(calls, None, error)

    def _done(self, calls: list[_Call], future: Any) -> None:
        try:
            replies = future.value()
        except Exception as error:
            self._finish(calls, None, error)
        else:
            self._finish(calls, replies, None)

    def _finish(self, calls: list[_Call], replies: list[Tensor] | None, error: Exception | None) -> None:
        with self._lock:
            self._num_in_flight -= 1
        self._send_waiting()
        for i, call in enumerate(calls):
            if error is not None:
                call.result.set_exception(_named(error, self.peer, call.method, self.timeout_s))
            elif replies is not None and starts_like_message(replies[i]):
                call.result.set_result(replies[i])
            else:
                # ``cma`` reads from the peer's memory, which a peer that ends without waiting has given back.
                call.result.set_exception(
                    PeerLost(f"lost {self.peer} during {call.method}: it ended while its answer was on the way")
                )


class RpcTransport(Transport):
    """Opens the agent of this process and waits until all peers have opened theirs.

    Args:
        me: This process.
        handlers: What it answers, by method name.
        index, num_peers: Its number among all, and how many there are.
        store: Shared by all of them, used during start-up.
        num_threads: Threads that answer requests.
        timeout_s: Deadline of start-up and of each request.
    """

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
        global _me
        self.timeout_s = timeout_s
        self._closed = False
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        url = f"{_SCHEME}://{me.name}"
        with _lock:
            if not _stores:
                dist.register_rendezvous_handler(_SCHEME, _rendezvous)
            _stores[url] = (store, index, num_peers)
        _me = me
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
                warnings.simplefilter("ignore")  # torch says that rpc is in maintenance mode; see DESIGN in the README
                rpc.init_rpc(me.name, rank=index, world_size=num_peers, rpc_backend_options=options)
        except RuntimeError as error:
            raise PeerLost(
                f"{me}: not all {num_peers} samplers came up within {timeout_s:g} s; look at the output of the other "
                f"trainers for the reason ({error})"
            ) from error

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[Future[Tensor]]:
        with self._lock:
            line = self._lines.setdefault(peer.name, _Line(peer, self.timeout_s))
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
    if not isinstance(error, RuntimeError) or type(error) is not RuntimeError:
        return error
    text = str(error)
    if "timeout" in text.lower():
        return PeerLost(f"{peer} gave no answer to {method} within {timeout_s:g} s: it hangs, or the network does")
    return PeerLost(
        f"lost {peer} during {method}: it died or its connection broke. If it was killed, its trainer names the exit "
        f"code; often it is the OOM killer (see dmesg on {peer.host}) ({text.splitlines()[0]})"
    )
