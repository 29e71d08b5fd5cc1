"""Trainers and servers in one process, with calls that travel as they do in the service, on threads."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import torch

from glt.data.partition_book import PartitionBook
from glt.data.schema import Schema
from glt.distributed.server.client import Reply
from glt.distributed.tensors.store import TensorStore, store_calls
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
    """Stores with the threads that answer."""

    def __init__(self, num_servers, data=None, tables=None):
        self.stores = [TensorStore(rank, data, f"server {rank}", tables) for rank in range(num_servers)]
        self.pool = ThreadPoolExecutor(6)

    def trainer(self, rank=0, num_trainers=1):
        return StoreWorld(self, rank, num_trainers)

    def trainers(self, num_trainers):
        return [self.trainer(rank, num_trainers) for rank in range(num_trainers)]

    def close(self):
        self.pool.shutdown()


def through_the_wire(value, what):
    """A value as the other end has it."""
    tree, parts = encode_value(value, what)
    return decode_value(tree, None if parts is None else torch.cat(parts))


def copy_answer(done, out, reply):
    """What :meth:`World.call_into` does with an answer."""
    try:
        assert out.is_contiguous()
        reply.set_result(out.copy_(done.result()))
    except Exception as error:
        reply.set_exception(error)


class StoreWorld:
    """One trainer. As in a session, up to four of its calls run on a server at a time, begun in order."""

    def __init__(self, servers, rank, num_trainers):
        self.servers, self.rank, self.num_trainers = servers, rank, num_trainers
        self.num_servers, self.data = len(servers.stores), servers.stores[0].data
        self.lost = {}  # by server, what calls of it raise
        self.num_calls = 0
        self._replies = []
        self._lock = threading.Lock()
        self._waiting = [deque() for _ in servers.stores]
        self._running = [0] * self.num_servers

    def __str__(self):
        return f"client {self.rank} (test)"

    def owner_of(self, partition):
        return partition % self.num_servers

    def call(self, server, name, *args, **kwargs):
        self.num_calls += 1
        self._replies = [each for each in self._replies if not each.done()]
        reply = Reply()
        reply.set_running_or_notify_cancel()
        self._replies.append(reply)
        if server in self.lost:
            reply.set_exception(self.lost[server])
            return reply
        asked = through_the_wire((args, kwargs), name)
        with self._lock:
            self._waiting[server].append((name, asked, reply))
        self._run_next(server)
        return reply

    def _run_next(self, server):
        with self._lock:
            if not self._waiting[server] or self._running[server] >= 4:
                return
            self._running[server] += 1
            self.servers.pool.submit(self._answer, server, *self._waiting[server].popleft())

    def _answer(self, server, name, asked, reply):
        try:
            args, kwargs = asked
            answer = store_calls(self.servers.stores[server])[name](self, tuple(args), dict(kwargs))
            found, error = through_the_wire(answer, name), None
        except Exception as raised:
            found, error = None, raised
        with self._lock:
            self._running[server] -= 1
        self._run_next(server)
        if error is None:
            reply.set_result(found)
        else:
            reply.set_exception(error)

    def call_into(self, out, server, name, *args):
        reply = Reply()
        reply.set_running_or_notify_cancel()
        self.call(server, name, *args).add_done_callback(lambda done: copy_answer(done, out, reply))
        return reply

    def settle(self):
        """Waits for all answers, also those that nobody waits for."""
        for reply in self._replies:
            reply.exception()

    def leave(self):
        for store in self.servers.stores:
            store.end_session(self)
