"""Trainers as threads of one process, with servers that are objects of it: all but the connections is real."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from store_world import copy_answer, through_the_wire

from glt.distributed.server.client import Reply
from glt.distributed.tensors.meeting import Meetings
from glt.distributed.tensors.store import TensorStore, row_update_calls, store_calls


class Servers:
    """What the trainers of a test share."""

    def __init__(self, num_servers: int, num_trainers: int) -> None:
        self.num_trainers = num_trainers
        self.meetings = [Meetings() for _ in range(num_servers)]
        self.stores = [TensorStore(rank, owner=f"server {rank}") for rank in range(num_servers)]
        self.calls = [
            store_calls(store) | row_update_calls(store, meetings)
            for store, meetings in zip(self.stores, self.meetings, strict=True)
        ]


class ThreadWorld:
    """A world of :class:`Servers`. Arguments go through the wire's encoding, so that what cannot be sent is seen."""

    group, data = "test", None

    def __init__(self, servers: Servers, rank: int) -> None:
        self.servers, self.rank, self.id = servers, rank, f"session {rank}"
        self.num_trainers, self.num_servers = servers.num_trainers, len(servers.stores)
        self._num_met = 0
        for meetings in servers.meetings:
            meetings.came(self)

    def call(self, server: int, name: str, *args: Any, **kwargs: Any) -> Reply:
        reply = Reply()
        reply.set_running_or_notify_cancel()
        given, options = through_the_wire((args, kwargs), name)
        try:
            result = self.servers.calls[server][name](self, tuple(given), options)
        except Exception as error:
            reply.set_exception(error)
            return reply
        if isinstance(result, Future):
            result.add_done_callback(lambda done: _copy(done, reply))
        else:
            reply.set_result(result)
        return reply

    def call_into(self, out: Any, server: int, name: str, *args: Any) -> Reply:
        reply = Reply()
        reply.set_running_or_notify_cancel()
        self.call(server, name, *args).add_done_callback(lambda done: copy_answer(done, out, reply))
        return reply

    def call_within(self, timeout_s: float, server: int, name: str, *args: Any) -> Reply:
        return self.call(server, name, *args)

    def barrier(self, timeout_s: float | None = None) -> None:
        self._num_met += 1
        self.servers.meetings[0].arrive("barrier", self._num_met - 1, self, self.num_trainers).result(60.0)

    def leave(self, why: str) -> None:
        """Is gone, as when its process dies."""
        for meetings in self.servers.meetings:
            meetings.went(self, why)

    def __str__(self) -> str:
        return f"thread {self.rank}"


def _copy(done: Future[Any], reply: Reply) -> None:
    error = done.exception()
    if error is None:
        reply.set_result(done.result())
    else:
        reply.set_exception(error)


def run_trainers(num_trainers: int, num_servers: int, train: Callable[..., Any], *args: Any) -> list[Any]:
    """Runs ``train(world, *args)`` in as many threads, and returns what each returned."""
    servers = Servers(num_servers, num_trainers)
    worlds = [ThreadWorld(servers, rank) for rank in range(num_trainers)]
    with ThreadPoolExecutor(num_trainers) as pool:
        try:
            return [each.result(100.0) for each in [pool.submit(train, world, *args) for world in worlds]]
        finally:
            for meetings in servers.meetings:
                meetings.close("the test is over")
