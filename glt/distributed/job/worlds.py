"""The two worlds of a training process: servers in other processes, or one process that is its own server."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from glt import _deadlines as deadlines
from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.partitions import GraphQueries, graph_calls
from glt.distributed.options import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    WorkerOptions,
)
from glt.distributed.server.client import DistClient, RemoteDataset, Reply
from glt.distributed.tensors.barrier import Barriers, check_timeout
from glt.distributed.tensors.store import Call, TensorStore
from glt.distributed.tensors.updates import update_calls
from glt.distributed.wire import calls as functions
from glt.distributed.wire.connection import host_id
from glt.errors import PeerLost


class ServedWorld:
    """Trainers that are clients of the same servers; a :class:`~glt.distributed.context.World`.

    Args:
        client: This trainer, connected to all servers.
    """

    def __init__(self, client: DistClient) -> None:
        self.client = client
        self._dataset = client.dataset()
        self.rank, self.num_trainers = client.context.rank, client.num_clients
        self.num_servers = client.num_servers
        self.data: DistDataset | RemoteDataset | None = self._dataset
        self._lock = threading.Lock()
        self._num_entered: Counter[str] = Counter()  # barriers that it came to, by tag
        self._num_passed: Counter[str] = Counter()  # those of them that are known to be over
        entries = client.entries()
        serving = {entry.partition_idx: rank for rank, entry in sorted(entries.items(), reverse=True)}
        self._owners = [serving.get(part, part % self.num_servers) for part in range(self._dataset.num_partitions)]
        self._near = [rank for rank, entry in entries.items() if entry.host_id == host_id()]

    def owner_of(self, partition: int) -> int:
        """The first server that has loaded a partition; where none has, one that maps its files."""
        return self._owners[partition]

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        return self._on_line(server, lambda line: line.call(name, *args, **kwargs))

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        return self._on_line(server, lambda line: line.call_into(out, name, *args))

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        return self._on_line(server, lambda line: line.call_within(timeout_s + deadlines.ANSWER_S, name, *args))

    def _on_line(self, server: int, ask: Callable[[Any], Reply]) -> Reply:
        try:
            return ask(self.client.session(server))
        except PeerLost as lost:
            reply = Reply()
            reply.set_running_or_notify_cancel()
            reply.set_exception(lost)
            return reply

    def barrier(self, timeout_s: float | None = None, *, tag: str = "barrier", agreed: str = "") -> None:
        timeout_s = deadlines.BARRIER_S if timeout_s is None else timeout_s
        check_timeout(timeout_s)
        with self._lock:
            number, self._num_entered[tag] = self._num_entered[tag], self._num_entered[tag] + 1
        try:
            self.call_within(timeout_s, 0, "glt.barrier", tag, number, self.num_trainers, timeout_s, agreed).result()
        except Exception:
            self._num_passed[tag] = number + 1
            raise
        self._num_passed[tag] = number + 1  # not of one that Ctrl-C has ended the wait for

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
        """Loaders sample on a server of this host, if there is one."""
        server = self._near[self.rank % len(self._near)] if self._near else None
        return RemoteDistSamplingWorkerOptions(server_rank=server, num_workers=max(1, num_workers))

    def stats(self) -> list[dict[str, Any]]:
        return [reply.result() for reply in [self.call(rank, "glt.stats") for rank in range(self.num_servers)]]

    def close(self) -> None:
        self.client.close()

    def __str__(self) -> str:
        return f"a job of {self.num_trainers} trainers and {self.num_servers} servers, as trainer {self.rank}"


class StandaloneWorld:
    """One trainer that is its own server, for notebooks and tests; a :class:`~glt.distributed.context.World`.

    Calls run at once, in the thread of the caller.

    Args:
        data: A partition, loaded; others are mapped from its directory when they are needed. None: no graph, tensors
            only.

    Attributes:
        store: Of the tensors.
    """

    rank, num_trainers, num_servers = 0, 1, 1
    id, group = "standalone", "standalone"  # of its session with itself

    def __init__(self, data: DistDataset | None = None) -> None:
        self.data: DistDataset | RemoteDataset | None = None
        self.barriers = Barriers()
        self.barriers.add(self)
        self.store = TensorStore()
        self._calls = self.store.calls() | update_calls(self.store, self.barriers)
        if data is not None:
            self.open_graph(data)

    def open_graph(self, data: DistDataset) -> None:
        """Gives it a graph, once.

        Raises:
            RuntimeError: If it has one.
        """
        if self.data is not None:
            raise RuntimeError(f"{self} has {self.data} already: call glt.distributed.finalize() first")
        queries = GraphQueries(data)
        self.store.data, self.store.tables = data, queries.stored_rows
        self._calls |= graph_calls(queries)
        self.data = data

    def owner_of(self, partition: int) -> int:
        return 0

    def add_calls(self, calls: dict[str, Call]) -> None:
        """Makes more of a server's calls available here."""
        self._calls |= calls

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
        check_timeout(deadlines.BARRIER_S if timeout_s is None else timeout_s)

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
        """Leaves the world, and frees its tensors."""
        self.store.end_session(self)
        self.barriers.close(f"{self} has left its world")

    def __str__(self) -> str:
        return f"the standalone process {os.getpid()}"


def answered(call: Callable[[], Any]) -> Reply:
    """Runs a call now; returns its reply."""
    reply = Reply()
    reply.set_running_or_notify_cancel()
    try:
        result = call()
        # An answer that waits for other trainers is there at once: there are none.
        reply.set_result(result.result(0) if isinstance(result, Future) else result)
    except Exception as error:
        reply.set_exception(error)
    return reply
