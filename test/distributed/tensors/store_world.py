"""Trainers and servers in one process: calls travel as in the service, on threads; all but connections is real."""

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import torch

from glt.data.schema import PartitionBook, Schema
from glt.distributed.server.client import Reply
from glt.distributed.tensors.barrier import Barriers
from glt.distributed.tensors.store import TensorStore, update_calls
from glt.distributed.wire.calls import decode_value, encode_value


def graph(num_nodes, num_parts, relabelled, seed=0):
    """As much of a dataset as placing needs: some partitions may be empty."""
    owner = np.random.default_rng(seed).integers(0, num_parts, num_nodes)
    if relabelled:
        book = PartitionBook.of_ranges(np.searchsorted(np.sort(owner), np.arange(num_parts + 1)).astype(np.int64))
    else:
        rows = np.empty(num_nodes, np.uint32)
        for part in range(num_parts):
            rows[owner == part] = np.arange((owner == part).sum())
        book = PartitionBook.of_arrays(owner.astype(np.uint8), rows, num_parts)
    schema = Schema(("node",), (("node", "to", "node"),), False)
    return SimpleNamespace(schema=schema, node_books=(book,), edge_books=(None,))


class Servers:
    """Stores and barriers, with the threads that answer. A context manager."""

    def __init__(self, num_servers, data=None, tables=None):
        self.stores = [TensorStore(rank, data, f"server {rank}", tables) for rank in range(num_servers)]
        self.barriers = [Barriers() for _ in range(num_servers)]
        self.pool = ThreadPoolExecutor(6)

    def restart(self, rank):
        """A server forgets what it had."""
        self.stores[rank] = TensorStore(rank, owner=f"server {rank}")

    def trainer(self, rank=0, num_trainers=1):
        return StoreWorld(self, rank, num_trainers)

    def trainers(self, num_trainers):
        return [self.trainer(rank, num_trainers) for rank in range(num_trainers)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for barriers in self.barriers:
            barriers.close("the test is over")
        self.pool.shutdown()


class StoreWorld:
    """One trainer. As in a session, up to four of its calls run on a server at a time, begun in order."""

    group, is_guest = "test", False

    def __init__(self, servers, rank, num_trainers):
        self.servers, self.rank, self.num_trainers, self.id = servers, rank, num_trainers, f"session {rank}"
        self.num_servers, self.data = len(servers.stores), servers.stores[0].data
        self.lost = {}  # by server, what calls of it raise
        self.num_calls = self._num_barriers = self.most_waiting = 0
        self._replies = []
        self._lock = threading.Lock()
        self._waiting = [deque() for _ in servers.stores]
        self._running = [0] * self.num_servers
        for barriers in servers.barriers:
            barriers.add(self)

    def __str__(self):
        return f"client {self.rank} (test)"

    def owner_of(self, partition):
        return partition % self.num_servers

    def call(self, server, name, *args, **kwargs):
        self.num_calls += 1
        reply = Reply()
        self._replies = [each for each in self._replies if not each.done()] + [reply]
        if server in self.lost:
            reply.set_exception(self.lost[server])
            return reply
        asked = _through_the_wire((args, kwargs), name)
        with self._lock:
            self.most_waiting = max(self.most_waiting, len(self._waiting[server]) + self._running[server])
            self._waiting[server].append((name, asked, reply))
        self._run_next(server)
        return reply

    def call_into(self, out, server, name, *args):
        assert out.is_contiguous()
        reply = Reply()
        self.call(server, name, *args).add_done_callback(lambda done: _settle(reply, lambda: out.copy_(done.result())))
        return reply

    def call_within(self, timeout_s, server, name, *args):
        return self.call(server, name, *args)

    def barrier(self, timeout_s=60.0):
        self._num_barriers += 1
        barriers = self.servers.barriers[0]
        barriers.arrive(self, "barrier", self._num_barriers - 1, self.num_trainers, timeout_s).result(timeout_s)

    def _run_next(self, server):
        with self._lock:
            if not self._waiting[server] or self._running[server] >= 4:
                return
            self._running[server] += 1
            self.servers.pool.submit(self._answer, server, *self._waiting[server].popleft())

    def _answer(self, server, name, asked, reply):
        store = self.servers.stores[server]
        calls = store.calls() | update_calls(store, self.servers.barriers[server])
        answer = Future()
        _settle(answer, lambda: calls[name](self, tuple(asked[0]), dict(asked[1])))
        with self._lock:
            self._running[server] -= 1
        self._run_next(server)
        if answer.exception() is None and isinstance(answer.result(), Future):
            answer = answer.result()  # of a barrier
        answer.add_done_callback(lambda done: _settle(reply, lambda: _through_the_wire(done.result(), name)))

    def settle(self):
        """Waits for all answers, also those that no call waits for."""
        for reply in self._replies:
            reply.exception()

    def leave(self, why="it left"):
        """Is gone, as when its process dies."""
        for barriers, store in zip(self.servers.barriers, self.servers.stores, strict=True):
            barriers.remove(self, why)
            store.end_session(self)


def _settle(future, call):
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)


def _through_the_wire(value, what):
    """A value as the other end has it, so that what cannot be sent is seen."""
    tree, parts = encode_value(value, what)
    return decode_value(tree, None if parts is None else torch.cat(parts))


def in_threads(function, values):
    """Calls a function with each of the values, in as many threads, and returns what it returned."""
    with ThreadPoolExecutor(len(values)) as pool:
        return [each.result(100.0) for each in [pool.submit(function, value) for value in values]]


def run_trainers(num_trainers, num_servers, train, *args, **more):
    """Runs ``train(world, *args, **more)`` in as many threads, and returns what each returned."""
    with Servers(num_servers) as servers:
        return in_threads(lambda world: train(world, *args, **more), servers.trainers(num_trainers))
