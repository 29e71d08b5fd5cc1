"""Clients as a server sees them: what one may ask at a time, and when the server is done."""

import socket
import threading
from types import SimpleNamespace

import pytest
import torch
from service_world import ANSWER

from glt.distributed.server import sessions as session_module
from glt.distributed.server.client import ServerSession
from glt.distributed.server.sessions import ClientRegistry, ClientSession
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.threads import NativePool

HELLO = {"num_clients": 1, "rank": 0, "group": "g", "host": "h", "pid": 1}


class Served:
    """A session whose calls run when the test says so, and the client's end of it."""

    def __init__(self):
        here, there = socket.socketpair()
        self.may_run = threading.Semaphore(0)
        self.seen = []
        self.pool = NativePool(8, "test")
        self.session = ClientSession(Connection(there, "client", 1 << 20), HELLO, lambda name: self.call, self.pool)
        self.ends = []
        self.thread = threading.Thread(target=lambda: self.ends.append(self.session.run()), daemon=True)
        self.thread.start()
        self.line = ServerSession(Connection(here, "server", 1 << 20), ANSWER, 60.0)

    def call(self, session, args, kwargs):
        assert self.may_run.acquire(timeout=60.0)
        self.seen.append((args[0], session._waiting_bytes))
        return int(args[0])


@pytest.fixture
def served(monkeypatch):
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


def test_arguments_that_wait_take_so_much_memory_and_no_more(served):
    row = torch.zeros(4000, dtype=torch.uint8)
    replies = [served.line.call("f", number, row) for number in range(20)]
    for _ in replies:
        served.may_run.release()
    assert [reply.result(60.0) for reply in replies] == list(range(20))
    assert [number for number, _ in served.seen] == list(range(20))
    assert max(waiting for _, waiting in served.seen) < 10_000 + 2 * 4000, served.seen


def test_what_a_client_asked_that_is_gone_is_not_begun(served):
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


def client(group, rank, has_left=True):
    connection = SimpleNamespace(heard_s=0.0, close=lambda: None)
    place = {"group": group, "rank": rank, "place": (group, rank)}
    return SimpleNamespace(id=f"{group}{rank}", **place, has_left=has_left, connection=connection)


def test_each_job_that_came_has_to_go_whole():
    clients = ClientRegistry(2)
    assert not clients.wait_until_done(0.0)
    for group in ("train", "evaluate"):
        assert clients.admit(client(group, 0))
        clients.remove(client(group, 0))
    assert not clients.wait_until_done(0.0), "rank 1 of neither has come"
    for group in ("train", "evaluate"):
        assert clients.admit(client(group, 1))
        assert not clients.wait_until_done(0.0)
        clients.remove(client(group, 1))
    assert clients.wait_until_done(0.0)
    assert not clients.admit(client("train", 0)), "it is for the successor"


def test_a_client_that_was_lost_may_come_back():
    clients = ClientRegistry(1)
    lost = client("train", 0, has_left=False)
    assert clients.admit(lost)
    clients.remove(lost)
    assert not clients.wait_until_done(0.0), "it has a minute"
    assert clients.admit(client("train", 0))
    clients.remove(client("train", 0))
    assert clients.wait_until_done(0.0)


def test_what_other_servers_know_of_clients_that_are_done():
    """As after a restart: this server has never seen the first client."""
    clients = ClientRegistry(2)
    assert clients.admit(client("train", 1))
    assert clients.add_done([("train", 0), ("train", 1)]) == [("train", 0)], "who is here says itself when it is done"
    assert clients.add_done([("train", 0)]) == []
    assert not clients.wait_until_done(0.0)
    clients.remove(client("train", 1, has_left=False))
    assert not clients.wait_until_done(0.0), "it has a minute"
    assert clients.add_done([("train", 1)]) == [("train", 1)]
    assert clients.wait_until_done(0.0)
    assert sorted(clients.done()) == [("train", 0), ("train", 1)]


def test_nothing_is_kept_where_any_number_of_clients_may_come():
    clients = ClientRegistry(None)
    assert clients.admit(client("train", 0))
    clients.remove(client("train", 0))
    assert clients.add_done([("train", 1)]) == [] and clients.done() == [] and not clients.wait_until_done(0.0)
