"""What a training process stands in: other trainers, and servers that keep partitions and tensors."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from torch import Tensor

from glt.distributed.engine.dataset import DistDataset
from glt.distributed.engine.queries import GraphQueries, graph_calls
from glt.distributed.options import CollocatedDistSamplingWorkerOptions, MpDistSamplingWorkerOptions, WorkerOptions
from glt.distributed.server.client import RemoteDataset, Reply
from glt.distributed.tensors.meeting import BARRIER_S, Meetings, check_timeout
from glt.distributed.tensors.store import Call, TensorStore, row_update_calls, store_calls
from glt.distributed.wire import calls as functions


class World(Protocol):
    """Trainers and servers, as one trainer sees them.

    Attributes:
        rank: Of this trainer.
        num_trainers, num_servers: How many there are.
        data: What is known of the graph: its schema, counts and books; None where there is none.
    """

    rank: int
    num_trainers: int
    num_servers: int
    data: DistDataset | RemoteDataset | None

    def owner_of(self, partition: int) -> int:
        """The server that keeps the rows of a partition's nodes and edges."""

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        """Asks a server for something; the reply raises what the server raised, or says who is lost."""

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        """The same where the answer is a tensor like ``out``, contiguous and on the CPU, to which it goes."""

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        """The same where the answer waits for other trainers, for up to ``timeout_s`` seconds."""

    def barrier(self, timeout_s: float | None = None) -> None:
        """Waits until all trainers have come here; what they wrote and flushed before is then seen by all."""

    def meet(self, tag: str, timeout_s: float | None = None, told: str = "") -> None:
        """As :meth:`barrier`, among the meetings of a tag, and fails for all if they do not say the same."""

    def call_off(self, tag: str, why: str) -> None:
        """Fails the next meeting of a tag for all trainers, which are told who did and why."""

    def trouble(self, tag: str) -> str | None:
        """Why the next meeting of a tag has failed, which it then counts as; None: nothing stands against it."""

    def worker_options(self, num_workers: int) -> WorkerOptions:
        """How loaders of this world sample."""

    def stats(self) -> list[dict[str, Any]]:
        """Numbers of each server; ``tensors``: of each tensor there, by name."""

    def close(self) -> None:
        """Leaves it. May be called again."""


_world: World | None = None


def enter(world: World) -> World:
    """Makes a world that of this process.

    Raises:
        RuntimeError: If it has one already.
    """
    global _world
    if _world is not None:
        raise RuntimeError(f"this process is in {_world} already: call glt.distributed.finalize() first")
    _world = world
    return world


def leave() -> World | None:
    """Makes this process have no world; returns the one that it had, which is not closed."""
    global _world
    left, _world = _world, None
    return left


def current_world() -> World | None:
    """The world of this process, if it has one."""
    return _world


def require_world() -> World:
    """The world of this process.

    Raises:
        RuntimeError: If it has none.
    """
    if _world is None:
        raise RuntimeError("this process is in no world yet: call glt.distributed.job.initialize() first")
    return _world


class StandaloneWorld:
    """One trainer that is its own server: no processes, no ports; for notebooks and tests.

    Args:
        data: A partition, loaded; others are mapped from its directory when they are needed. None: no graph, tensors
            only.

    Attributes:
        store: Of the tensors.
    """

    rank, num_trainers, num_servers = 0, 1, 1
    id, group = "standalone", "standalone"  # as a participant of meetings

    def __init__(self, data: DistDataset | None = None) -> None:
        self.data: DistDataset | RemoteDataset | None = None
        self.meetings = Meetings()
        self.meetings.came(self)
        self.store = TensorStore()
        self._calls = store_calls(self.store) | row_update_calls(self.store, self.meetings)
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
        """See :class:`World`."""
        return 0

    def add_calls(self, calls: dict[str, Call]) -> None:
        """Makes more of a server's calls available here."""
        self._calls |= calls

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        """See :class:`World`; runs at once."""
        if server != 0:
            raise ValueError(f"server = {server!r}: expected 0, this process")
        return answered(lambda: self._find(name)(self, args, kwargs))

    def call_into(self, out: Tensor, server: int, name: str, *args: Any) -> Reply:
        """See :class:`World`."""
        return answered(lambda: out.copy_(self.call(server, name, *args).result()))

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        """See :class:`World`."""
        return self.call(server, name, *args)

    def _find(self, name: str) -> Call:
        if name in self._calls:
            return self._calls[name]
        function = functions.registered(name)
        return lambda _, args, kwargs: function(*args, **kwargs)

    def barrier(self, timeout_s: float | None = None) -> None:
        """See :class:`World`; there is nobody to wait for."""
        check_timeout(BARRIER_S if timeout_s is None else timeout_s)

    def meet(self, tag: str, timeout_s: float | None = None, told: str = "") -> None:
        """See :class:`World`; there is nobody to wait for."""
        self.barrier(timeout_s)

    def call_off(self, tag: str, why: str) -> None:
        """See :class:`World`; there is nobody to be told."""

    def trouble(self, tag: str) -> str | None:
        """See :class:`World`."""
        return None

    def worker_options(self, num_workers: int) -> WorkerOptions:
        """See :class:`World`."""
        if num_workers == 0:
            return CollocatedDistSamplingWorkerOptions()
        return MpDistSamplingWorkerOptions(num_workers=num_workers)

    def stats(self) -> list[dict[str, Any]]:
        """See :class:`World`."""
        return [{"server": str(self), "tensors": self.store.stats()}]

    def close(self) -> None:
        """See :class:`World`; the tensors go with it."""
        self.store.end_session(self)
        self.meetings.close(f"{self} has left its world")

    def __str__(self) -> str:
        return f"the standalone process {os.getpid()}"


def answered(call: Callable[[], Any]) -> Reply:
    """Runs a call now; returns its reply."""
    reply = Reply()
    reply.set_running_or_notify_cancel()
    try:
        result = call()
        # An answer that waits for others waits for nobody here: all who could come have come.
        reply.set_result(result.result(0) if isinstance(result, Future) else result)
    except Exception as error:
        reply.set_exception(error)
    return reply
