"""The transport over ``torch.distributed.rpc``, between samplers of trainers; imported only where it is used.

There is one agent per process: collocated loaders of a trainer share it. Requests name a registered handler and carry
flat bytes; what a handler raises comes back as an error message, not as a pickled exception. But torch unpickles what
comes before anything of glt sees it: for networks on which all are trusted.

TensorPipe's default on one host, its shared-memory transport, keeps a thread spinning in every process (half a core
each on a machine of two, idle, measured with torch 2.13). Here connections use sockets, or InfiniBand where there is
some, and large replies on one host move by one copy from process to process ("cma"), which idles at nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import rpc

from glt import _deadlines as deadlines
from glt.channel.message import error_message, starts_like_message
from glt.distributed.wire.beats import add_tick, discard_tick
from glt.distributed.wire.calls import no_answer
from glt.distributed.wire.threads import call_on_loop, process_loop
from glt.distributed.wire.transport import Handler, Peer, Transport
from glt.errors import PeerLost

_CHANNELS = ["cma", "mpt_uv", "basic"]
_SCHEME = "glt"
_SMALL_BYTES = 32 << 10
_INFINIBAND = Path("/sys/class/infiniband")

logger = logging.getLogger(__name__)

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


@dataclass
class _Call:
    method: str
    request: Tensor
    reply: asyncio.Future[Tensor]
    deadline: float  # of time.monotonic(), counted from the asking

    def fail(self, error: BaseException) -> None:
        if not self.reply.done():  # the batch may have been given up
            self.reply.set_exception(error)
            self.reply.exception()  # or asyncio complains where no task waits for it any more


class _Line:
    """The connection to one peer, on the loop. A call of torch.distributed.rpc costs most of a millisecond of processor
    time on the two sides together, whatever it carries; so what is asked while a call is under way waits, and goes out
    as one call when that returns. With few batches in flight nothing ever waits."""

    def __init__(self, peer: Peer, timeout_s: float) -> None:
        self.peer, self.timeout_s = peer, timeout_s
        self._waiting: list[_Call] = []
        self._under_way: list[_Call] = []

    def call_all(self, requests: Sequence[tuple[str, Tensor]]) -> list[asyncio.Future[Tensor]]:
        loop, deadline = process_loop.get(), time.monotonic() + self.timeout_s
        calls = [_Call(method, request, loop.create_future(), deadline) for method, request in requests]
        self._waiting += calls
        self._send_waiting()
        return [call.reply for call in calls]

    def _send_waiting(self) -> None:
        if self._under_way:
            return
        calls = [call for call in self._waiting if not call.reply.done()]
        self._waiting = []
        if not calls:
            return
        self._under_way = calls
        try:
            # Small requests travel inside the call's own bytes, which costs less than a tensor beside them.
            requests = [(call.method, call.request) for call in calls]
            asked = [(method, bytes(r.numpy()) if len(r) <= _SMALL_BYTES else r) for method, r in requests]
            left_s = max(deadlines.RETRY_S, max(call.deadline for call in calls) - time.monotonic())
            future = rpc.rpc_async(self.peer.name, _answer_all, args=(asked,), timeout=left_s)
            future.add_done_callback(partial(self._done, calls))
        except RuntimeError as error:
            self.finish(calls, error)

    def _done(self, calls: list[_Call], future: Any) -> None:
        """On a thread of torch's."""
        found: list[Tensor] | Exception
        try:
            found = future.value()
        except Exception as error:
            found = error
        call_on_loop(self.finish, calls, found)

    def finish(self, calls: list[_Call], found: list[Tensor] | Exception) -> None:
        """Hands on the replies to calls that went out together."""
        self._under_way = []
        for i, call in enumerate(calls):
            if isinstance(found, Exception):
                call.fail(_named(found, self.peer, call.method, self.timeout_s))
            elif not starts_like_message(found[i]):
                # ``cma`` reads from the peer's memory, which a peer that ends without waiting has given back.
                call.fail(PeerLost(f"lost {self.peer} during {call.method}: it ended while its answer was on the way"))
            elif not call.reply.done():
                call.reply.set_result(found[i])
        self._send_waiting()

    def expire(self) -> None:
        """Gives up the calls whose deadline is over, those too that still wait behind others."""
        now = time.monotonic()
        for call in (*self._under_way, *self._waiting):
            if call.deadline <= now:
                call.fail(no_answer(self.peer, call.method, self.timeout_s))


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
        self._lines: dict[str, _Line] = {}
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
            _transports=transports(),
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
        add_tick(self._expire)

    def call_all(self, peer: Peer, calls: Sequence[tuple[str, Tensor]]) -> list[asyncio.Future[Tensor]]:
        line = self._lines.get(peer.name)
        if line is None:
            line = self._lines[peer.name] = _Line(peer, self.timeout_s)
        return line.call_all(calls)

    def _expire(self) -> None:
        for line in self._lines.values():
            line.expire()

    def close(self, gracefully: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        discard_tick(self._expire)
        try:
            rpc.shutdown(graceful=gracefully, timeout=deadlines.JOIN_S)
        except RuntimeError as error:
            # A peer went without a word. The agent here is closed all the same, and nothing was lost.
            logger.info("%s", error)
        _handlers.clear()


def transports() -> list[str]:
    """What carries the bytes, of TensorPipe's transports, the best first: InfiniBand where this host has it, unless
    ``GLT_RPC_IBV=0`` says no; and sockets."""
    has_device = _INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())
    return ["ibv", "uv"] if has_device and os.environ.get("GLT_RPC_IBV", "1") not in ("0", "false", "no") else ["uv"]


def _named(error: Exception, peer: Peer, method: str, timeout_s: float) -> Exception:
    """The exception of a request that failed: a lost peer is named, what the peer raised is passed on."""
    if type(error) is not RuntimeError:
        return error
    text = str(error)
    if "timeout" in text.lower():
        return no_answer(peer, method, timeout_s)
    return PeerLost(
        f"lost {peer} during {method}: it died or its connection broke. If it was killed, its trainer names the exit "
        f"code; often it is the OOM killer (see dmesg on {peer.host}) ({text.splitlines()[0]})"
    )
