"""Sessions of clients, as the server and the client see them, and the membership of servers."""

import logging
import queue
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from service import ANSWER, ENTRY

from glt import _deadlines as deadlines
from glt.distributed.server import client as client_module
from glt.distributed.server import remote
from glt.distributed.server import sessions as session_module
from glt.distributed.server.client import ServerSession
from glt.distributed.server.membership import Membership
from glt.distributed.server.sessions import ClientRegistry, ClientSession
from glt.distributed.wire.calls import encode_value
from glt.distributed.wire.old_connection import Connection
from glt.distributed.wire.threads import NativePool
from glt.errors import MessageError, PeerLost, WorkerDied

HELLO = {"num_clients": 1, "rank": 0, "group": "g", "host": "h", "pid": 1}


@pytest.fixture
def served(monkeypatch):
    """A session whose calls run when the test says so, and the client's end of it."""
    monkeypatch.setattr(session_module, "_MOST_CALLS", 1)
    monkeypatch.setattr(session_module, "_MOST_WAITING_BYTES", 10_000)
    here, there = socket.socketpair()
    made = SimpleNamespace(may_run=threading.Semaphore(0), seen=[], pool=NativePool(8, "test"), ends=[])

    def call(session, args, kwargs):
        assert made.may_run.acquire(timeout=60.0)
        made.seen.append((args[0], session._waiting_bytes))
        return int(args[0])

    session = ClientSession(Connection(there, "client", 1 << 20), HELLO, lambda name: call, made.pool)
    made.thread = threading.Thread(target=lambda: made.ends.append(session.run()), daemon=True)
    made.thread.start()
    made.line = ServerSession(Connection(here, "server", 1 << 20), ANSWER, 60.0)
    yield made
    made.may_run.release(100)
    made.line.connection.close()
    session.connection.close()
    made.thread.join(60)
    made.pool.shutdown(60.0)


def test_arguments_that_wait_take_so_much_memory_and_no_more(served):
    row = torch.zeros(4000, dtype=torch.uint8)
    replies = [served.line.call("f", number, row) for number in range(20)]
    served.may_run.release(20)
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
    served.may_run.release(5)
    served.pool.shutdown(60.0)
    assert [number for number, _ in served.seen] in ([0], [0, 1])


def client(group, rank, has_left=True):
    connection = SimpleNamespace(heard_s=0.0, close=lambda: None)
    place = {"group": group, "rank": rank, "place": (group, rank)}
    return SimpleNamespace(id=f"{group}{rank}", **place, has_left=has_left, connection=connection)


def test_each_job_that_came_has_to_go_whole():
    clients = ClientRegistry(2)
    for rank in range(2):
        assert not clients.wait_until_done(0.0), f"rank {rank} has not come"
        for group in ("train", "evaluate"):
            assert clients.admit(client(group, rank))
            assert not clients.wait_until_done(0.0)
            clients.remove(client(group, rank))
    assert clients.wait_until_done(0.0)
    assert not clients.admit(client("train", 0)), "it is for the successor"


def test_what_other_servers_know_of_clients_that_are_done():
    """As after a restart: this server has never seen the first client. The other was lost, and has a minute."""
    clients = ClientRegistry(2)
    assert clients.admit(client("train", 1))
    assert clients.add_done([("train", 0), ("train", 1)]) == [("train", 0)], "who is here says itself when it is done"
    assert clients.add_done([("train", 0)]) == []
    clients.remove(client("train", 1, has_left=False))
    assert not clients.wait_until_done(0.0)
    assert clients.add_done([("train", 1)]) == [("train", 1)]
    assert clients.wait_until_done(0.0)
    assert sorted(clients.done()) == [("train", 0), ("train", 1)]


@pytest.fixture
def ends():
    """A session and its server's end."""
    here, there = socket.socketpair()
    server = Connection(there, "a client")
    line = ServerSession(Connection(here, "server"), ANSWER, 60.0)
    yield line, server
    server.close()
    line.close()


def test_a_call_has_a_deadline_of_its_own_while_others_are_answered_and_what_comes_later_is_undone(ends):
    line, server = ends
    undone = queue.SimpleQueue()
    reply = line.call_within(0.3, "glt.create_loader")
    reply.too_late = undone.put
    asked = server.receive_json(20.0)
    until = time.monotonic() + 60.0
    while not reply.done():
        assert time.monotonic() < until
        other = line.call("torch.cuda.is_available")
        server.send(answer_to(server, 8, False))
        assert other.result(20.0) == 8
    with pytest.raises(PeerLost, match=r"no answer to glt\.create_loader within 0\.3 s"):
        reply.result(0.0)
    server.send({"number": asked["number"], "result": 7, "has_data": False})
    assert undone.get(timeout=20.0) == 7


@pytest.mark.parametrize("shape", [(5, 3), (1 << 15, 5), (0, 4), (3, 0)])
def test_a_tensor_lands_where_it_is_wanted(ends, shape):
    line, server = ends
    out, rows = torch.zeros(shape), torch.rand(shape)
    reply = line.call_into(out, "rows")
    tree, parts = encode_value(rows, "it")
    sender = threading.Thread(target=server.send_all, args=(answer_to(server, tree), parts))
    sender.start()
    assert reply.result(20.0) is out and torch.equal(out, rows)
    sender.join(20)


@pytest.mark.parametrize(
    "wrong",
    [torch.rand(5, 4), torch.rand(3, 5), torch.zeros(5, 3, dtype=torch.int32), [torch.rand(5, 3)], "text", IndexError],
    ids=["longer", "shape", "dtype", "list", "text", "an error"],
)
def test_another_value_than_the_tensor_that_was_asked_for_is_refused(ends, wrong):
    line, server = ends
    reply = line.call_into(torch.zeros(5, 3), "rows")
    if wrong is IndexError:
        told = {"error": "builtins.IndexError", "text": "no such row", "traceback": ""}
        server.send({"number": server.receive_json(20.0)["number"], "has_data": False, **told})
    else:
        tree, parts = encode_value(wrong, "it")
        server.send_all(answer_to(server, tree, parts is not None), parts or ())
    with pytest.raises((MessageError, IndexError), match=r"expected one tensor, torch\.float32 \[5, 3\]|no such row"):
        reply.result(20.0)
    fine = line.call("next")
    server.send(answer_to(server, 7, False))
    assert fine.result(20.0) == 7


def answer_to(server, tree, has_data=True):
    return {"number": server.receive_json(20.0)["number"], "result": tree, "has_data": has_data}


def test_what_was_asked_before_a_fork_is_not_waited_for_in_it(ends, monkeypatch):
    reply = ends[0].call("hangs")
    monkeypatch.setattr(client_module.os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match=r"this process \(pid 1\) is a fork of the client"):
        reply.wait()
    monkeypatch.undo()


def open_stream(session, patience_s, loader="1"):
    return remote.open_stream(session, loader, 2, {"first": 0, "step": 1}, time.monotonic() + patience_s)


def test_a_stream_is_tried_again_while_its_server_lives(ends, monkeypatch):
    session, server = ends
    here, there = socket.socketpair()
    tries = []

    def reset_twice(*args, **kwargs):
        tries.append(args[3])
        if len(tries) < 3:
            raise PeerLost("connection reset by peer; it ended during the handshake")
        return Connection(here, "worker 2"), {}

    def always_reset(*args, **kwargs):
        raise PeerLost("connection reset by peer")

    monkeypatch.setattr(remote, "dial", reset_twice)
    open_stream(session, 20.0).close()
    assert len(tries) == 3 and all(0 < left_s <= 20.0 for left_s in tries)
    there.close()
    monkeypatch.setattr(remote, "dial", always_reset)
    with pytest.raises(PeerLost, match="reset by peer"):
        open_stream(session, 0.3)
    server.send({"died": "worker 2 died", "loader": "1", "worker": 2, "has_data": False})
    with pytest.raises(WorkerDied, match="worker 2 died"):
        open_stream(session, 60.0)
    server.send({"closing": "server 0 was shut down", "has_data": False})
    with pytest.raises(PeerLost, match="was shut down"):
        open_stream(session, 60.0, "2")


@pytest.fixture
def server_0():
    made = Membership(ENTRY, ("127.0.0.1", 1), ClientRegistry(None), lambda servers: None)
    yield made
    made.close()


@pytest.fixture
def join(server_0):
    """Joins as another server; returns its end of the connection, and the thread of server 0 that listens to it."""
    ends = []

    def start(entry):
        mine, theirs = (Connection(each, "the other") for each in socket.socketpair())
        ends.extend((mine, theirs))
        thread = threading.Thread(target=server_0.admit, args=(theirs, {"entry": entry.to_json()}), daemon=True)
        thread.start()
        return mine, thread

    yield start
    for each in ends:
        each.close()


def test_a_process_of_another_container_is_another_process(server_0, join, monkeypatch):
    """The first process of each container has pid 1: two that were given one rank took turns in ending each other."""
    monkeypatch.setattr(deadlines, "TAKEN_S", 3600.0)  # a busy machine is not silence
    first = replace(ENTRY, rank=1, host_id="h1")
    member, _ = join(first)
    assert "protocol" in member.receive_json(60.0)
    other, _ = join(replace(first, host_id="h2", host="there"))
    assert "server_rank = 1 is taken" in other.receive_json(60.0)["refused"]
    member, _ = join(first)
    assert "protocol" in member.receive_json(60.0)  # it lost its connection, and joins again
    assert "servers" in member.receive_json(60.0)  # and is in the list
    server_0.close()
    frame = member.receive_json(60.0)
    while "is_leaving" not in frame:  # the list may come twice: the first to join is told later than the second
        assert "servers" in frame
        frame = member.receive_json(60.0)


def test_a_server_that_leaves_is_no_failure(server_0, join, caplog):
    """Neither to server 0 nor to those that follow it."""
    (leaver, watch), (follower, _) = (join(replace(ENTRY, rank=rank)) for rank in (1, 2))
    for each in (leaver, follower):
        assert "protocol" in each.receive_json(60.0)
    with caplog.at_level(logging.INFO):
        leaver.send({"is_leaving": True, "done": []})
        watch.join(60.0)
        server_0.close()
        while "is_leaving" not in follower.receive_json(60.0):  # they are told of each change before
            pass
    assert not [each for each in caplog.records if each.levelno > logging.INFO]
