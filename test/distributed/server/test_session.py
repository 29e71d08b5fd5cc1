"""What a client may have a server do at a time, and what becomes of that when it is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from glt.distributed.server import sessions as session_module
from glt.distributed.server.client import ServerSession
from glt.distributed.server.sessions import ClientSession
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.threads import NativePool

ENTRY = {
    "rank": 0, "address": "127.0.0.1", "port": 1, "host": "here", "pid": 5, "host_id": "h", "partition_idx": 0,
    "graph_dir": "g", "run_id": "r", "num_servers": 1, "num_clients": None,
}  # fmt: skip
HELLO = {"num_clients": 1, "rank": 0, "group": "g", "host": "h", "pid": 1}


class Served:
    """A session whose calls run when the test says so, and the client's end of it."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        self.may_run = threading.Semaphore(0)
        self.seen: list[tuple[int, int]] = []
        self.pool = NativePool(8, "test")
        self.session = ClientSession(Connection(there, "client", 1 << 20), HELLO, lambda name: self.call, self.pool)
        self.ends: list[str] = []
        self.thread = threading.Thread(target=lambda: self.ends.append(self.session.run()), daemon=True)
        self.thread.start()
        answer = {"entry": ENTRY, "session": "s", "about": {}}
        self.line = ServerSession(Connection(here, "server", 1 << 20), answer, 60.0)

    def call(self, session: ClientSession, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        assert self.may_run.acquire(timeout=60.0)
        self.seen.append((args[0], session._waiting_bytes))
        return int(args[0])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(session_module, "_MOST_CALLS", 1)
    monkeypatch.setattr(session_module, "_MOST_WAITING_BYTES", 10_000)
    made = Served()
    yield made
    for _ in range(100):
        made.may_run.release()
    made.line.connection.close()
    made.session.connection.close()
    made.thread.join(60)
    made.pool.shutdown(60.0)


def test_arguments_that_wait_take_so_much_memory_and_no_more(served: Served) -> None:
    row = torch.zeros(4000, dtype=torch.uint8)
    replies = [served.line.call("f", number, row) for number in range(20)]
    for _ in replies:
        served.may_run.release()
    assert [reply.result(60.0) for reply in replies] == list(range(20))
    assert [number for number, _ in served.seen] == list(range(20))
    assert max(waiting for _, waiting in served.seen) < 10_000 + 2 * 4000, served.seen


def test_what_a_client_asked_that_is_gone_is_not_begun(served: Served) -> None:
    replies = [served.line.call("f", number) for number in range(5)]
    served.may_run.release()
    assert replies[0].result(60.0) == 0  # the second has begun, or will; the others wait
    served.line.connection.close()
    served.thread.join(60)
    assert len(served.ends) == 1
    for _ in range(5):
        served.may_run.release()
    served.pool.shutdown(60.0)
    assert [number for number, _ in served.seen] in ([0], [0, 1])
