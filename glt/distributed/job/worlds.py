"""The worlds of a training process (servers in other processes, or one process that is its own server), the server
beside the first trainer of a host, and tasks that all trainers do together."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.distributed.context import DistContext, DistRole, World
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.partitions import GraphQueries, graph_calls
from glt.distributed.job.hosts import JobEnvironment
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    WorkerOptions,
)
from glt.distributed.server.client import DistClient, RemoteDataset, Reply, ServerSession
from glt.distributed.server.options import ServerOptions
from glt.distributed.server.server import DistServer
from glt.distributed.tensors.barrier import Barriers, checked_timeout
from glt.distributed.tensors.store import Call, TensorStore, update_calls
from glt.distributed.wire import calls as functions
from glt.distributed.wire.addresses import host_id, is_own_address, own_address
from glt.errors import GltError, PeerLost

logger = logging.getLogger(__name__)

MOST_WHY = 2000  # characters of what is said of a failure


class ServedWorld:
    """Trainers that are clients of the same servers; a :class:`~glt.distributed.context.World`."""

    def __init__(self, client: DistClient) -> None:
        self.client = client
        self.rank, self.num_trainers = client.context.rank, client.num_clients
        self.num_servers = client.num_servers
        dataset = client.dataset()
        self.data: DistDataset | RemoteDataset | None = dataset
        self._lock = threading.Lock()
        self._num_entered: Counter[str] = Counter()  # barriers that it came to, by tag
        self._num_passed: Counter[str] = Counter()  # those of them that are known to be over
        entries = client.entries()
        parts = range(dataset.num_partitions)
        self._serving = [[rank for rank, each in entries.items() if each.partition_idx == part] for part in parts]
        self._near = [rank for rank, entry in entries.items() if entry.host_id == host_id()]

    def owner_of(self, partition: int) -> int:
        """The first server that has loaded a partition; where none has, one that maps its files."""
        return next(iter(self._serving[partition]), partition % self.num_servers)

    def reader_of(self, partition: int) -> int:
        there = [rank for rank in self._serving[partition] if self.client.is_living(rank)]
        return there[self.rank % len(there)] if there else self.owner_of(partition)

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        return self._ask(server, lambda session: session.call(name, *args, **kwargs))

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        return self._ask(server, lambda session: session.call_into(out, name, *args))

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        return self._ask(server, lambda session: session.call_within(timeout_s + deadlines.ANSWER_S, name, *args))

    def _ask(self, server: int, ask: Callable[[ServerSession], Reply]) -> Reply:
        try:
            return ask(self.client.session(server))
        except PeerLost as lost:
            reply = Reply()
            reply.set_exception(lost)
            return reply

    def barrier(self, timeout_s: float | None = None, *, tag: str = "barrier", agreed: str = "") -> None:
        timeout_s = checked_timeout(deadlines.BARRIER_S if timeout_s is None else timeout_s)
        with self._lock:
            number = self._num_entered[tag]
            self._num_entered[tag] += 1
        reply = self.call_within(timeout_s, 0, "glt.barrier", tag, number, self.num_trainers, timeout_s, agreed)
        reply.exception()  # waits: a barrier whose wait Ctrl-C ends is not over
        self._num_passed[tag] = number + 1
        reply.result()

    def abort(self, tag: str, why: str) -> None:
        failed = self.call(0, "glt.barrier.abort", tag, self._num_passed[tag], why).result()
        self._num_entered[tag] = self._num_passed[tag] = failed + 1

    def failure(self, tag: str) -> str | None:
        number = self._num_passed[tag]
        text = self.call(0, "glt.barrier.failure", tag, number, self.num_trainers).result()
        if text is not None:
            self._num_entered[tag] = self._num_passed[tag] = number + 1
        return text

    def worker_options(self, num_workers: int) -> RemoteDistSamplingWorkerOptions:
        server = self._near[self.rank % len(self._near)] if self._near else None
        return RemoteDistSamplingWorkerOptions(server_rank=server, num_workers=max(1, num_workers))

    def stats(self) -> list[dict[str, Any]]:
        return [reply.result() for reply in [self.call(rank, "glt.stats") for rank in range(self.num_servers)]]

    def close(self) -> None:
        self.client.close()

    def __str__(self) -> str:
        return f"a job of {self.num_trainers} trainers and {self.num_servers} servers, as trainer {self.rank}"


class StandaloneWorld:
    """One trainer that is its own server, for notebooks and tests; a :class:`~glt.distributed.context.World`. Calls run
    at once, in the thread of the caller. ``data`` is a loaded partition; others are mapped when they are needed. None:
    tensors only."""

    rank, num_trainers, num_servers = 0, 1, 1
    id, group, is_guest = "standalone", "standalone", False  # of its session with itself

    def __init__(self, data: DistDataset | None = None) -> None:
        self.data: DistDataset | RemoteDataset | None = None
        self.barriers = Barriers()
        self.barriers.add(self)
        self.store = TensorStore()
        self._calls = self.store.calls() | update_calls(self.store, self.barriers)
        if data is not None:
            self.open_graph(data)

    def open_graph(self, data: DistDataset) -> None:
        if self.data is not None:
            raise RuntimeError(f"{self} has {self.data} already: call glt.distributed.finalize() first")
        queries = GraphQueries(data)
        self.store.data, self.store.tables = data, queries.stored_rows
        self._calls |= graph_calls(queries)
        self.data = data

    def owner_of(self, partition: int) -> int:
        return 0

    def reader_of(self, partition: int) -> int:
        return 0

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        if server != 0:
            raise ValueError(f"server = {server!r}: expected 0, this process")
        return answered(lambda: self._find(name)(self, args, kwargs))

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        return answered(lambda: out.copy_(self.call(server, name, *args).result()))

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        return self.call(server, name, *args)

    def _find(self, name: str) -> Call:
        if name in self._calls:
            return self._calls[name]
        function = functions.registered(name)
        return lambda _, args, kwargs: function(*args, **kwargs)

    def barrier(self, timeout_s: float | None = None, *, tag: str = "barrier", agreed: str = "") -> None:
        checked_timeout(deadlines.BARRIER_S if timeout_s is None else timeout_s)

    def abort(self, tag: str, why: str) -> None:
        """There are no other trainers."""

    def failure(self, tag: str) -> str | None:
        return None

    def worker_options(self, num_workers: int) -> WorkerOptions:
        if num_workers == 0:
            return CollocatedDistSamplingWorkerOptions()
        return MpDistSamplingWorkerOptions(num_workers=num_workers)

    def stats(self) -> list[dict[str, Any]]:
        return [{"server": str(self), "tensors": self.store.stats()}]

    def close(self) -> None:
        self.store.end_session(self)
        self.barriers.close(f"{self} has left its world")

    def __str__(self) -> str:
        return f"the standalone process {os.getpid()}"


def answered(call: Callable[[], Any]) -> Reply:
    reply = Reply()
    try:
        result = call()
        # An answer that waits for other trainers is there at once: there are none.
        reply.set_result(result.result(0) if isinstance(result, Future) else result)
    except Exception as error:
        reply.set_exception(error)
    return reply


class HostServer(DistServer):
    """The server in the first trainer of a host, for all trainers of the job. ``master`` is the address of server 0,
    for which that one finds a port if it is 0; ``timeout_s`` the deadline of start-up and of requests between
    servers."""

    def __init__(
        self, env: JobEnvironment, data: DistDataset, master: tuple[str, int], num_workers: int, timeout_s: float
    ) -> None:
        rank = env.host_index
        host = own_address(master) if rank else master[0] if is_own_address(master[0]) else "0.0.0.0"  # behind NAT
        bind = (host, 0 if rank else master[1])
        options = ServerOptions(rpc_timeout=timeout_s, num_workers=max(1, num_workers))
        context = DistContext(
            DistRole.SERVER, env.num_servers, rank, "distributed-server", env.num_servers + env.num_trainers, rank
        )
        super().__init__(data, context, env.num_trainers, master, bind, 16, options)

    def finish(self, timeout_s: float | None) -> bool:
        """Waits until all trainers have left, or are gone, but at most ``timeout_s`` seconds, and ends; returns whether
        they had."""
        try:
            return wait_for_trainers(
                self, deadlines.GRACE_S, math.inf if timeout_s is None else timeout_s, logging.INFO
            )
        finally:
            self.close()


def wait_for_trainers(
    server: DistServer, alone_s: float, timeout_s: float = math.inf, level: int = logging.DEBUG
) -> bool:
    """Waits until all trainers have left a server; gives up where none has been there for ``alone_s`` seconds, and
    after ``timeout_s``. Says meanwhile, at ``level``, whom it waits for. Returns whether all had."""
    now = alone_since = time.monotonic()
    deadline, say_at = now + timeout_s, now + deadlines.COMPLAINT_S
    while not server.wait_until_done(max(0.0, min(deadlines.POLL_S, deadline - now))):
        now = time.monotonic()
        sessions = [str(session) for session in server.clients.awaited()]
        if sessions:
            alone_since = now
        if now >= deadline or now - alone_since > alone_s:
            return False
        if now >= say_at:
            logger.log(level, "%s waits until all trainers have left; there are %s", server.entry, sessions)
            say_at = now + deadlines.COMPLAINT_S
    return True


class CollectiveTask:
    """A task of all trainers with barriers in between, as a context manager.

    A trainer that leaves it by an exception, or dies, fails the next barrier for all: the others learn of that where
    they wait for it, and in :meth:`check` within a second or so. They may then enter the next task of the same ``name``
    together.
    """

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._has_failed = False  # for all trainers
        self._checked_at = time.monotonic()

    def barrier(self, agreed: str = "") -> None:
        """Waits until all trainers have come here, with the same ``agreed``. ValueError on all of them if they differ;
        PeerLost, which says why, if another has failed or is gone."""
        try:
            self._world.barrier(tag=self._name, agreed=agreed)
        except Exception:
            self._has_failed = True
            raise
        self._checked_at = time.monotonic()

    def check(self) -> None:
        """Asks, once a second at most, whether the others still work; PeerLost, which says why, if one does not."""
        if time.monotonic() - self._checked_at < deadlines.BEAT_S:
            return
        text = self._world.failure(self._name)
        if text is not None:
            self._has_failed = True
            raise PeerLost(text)
        self._checked_at = time.monotonic()

    def __enter__(self) -> CollectiveTask:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._has_failed:
            return
        what = in_words(error)[:MOST_WHY]
        try:
            text = self._world.failure(self._name)
            if text is None:
                self._world.abort(self._name, f"has failed in {self._name}: {what}. Its own output says more")
        except GltError as lost:  # server 0, which the others then lose as well
            logger.warning("the other trainers are not told of a failure (%s): %s", what, lost)
            return
        # The first to fail deletes what the others read and write: their errors are to say why.
        if text is not None and (type(error) is LookupError or isinstance(error, GltError)):
            raise PeerLost(text) from error


def in_words(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
