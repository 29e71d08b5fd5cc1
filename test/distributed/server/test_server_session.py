"""A client's session with a server that is slow, and streams whose handshake is cut short."""

import queue
import socket
import threading
import time

import pytest
import torch
from service_world import ANSWER

from glt.distributed.server import client, remote
from glt.distributed.server.client import ServerSession
from glt.distributed.wire.calls import encode_value
from glt.distributed.wire.connection import Connection
from glt.errors import MessageError, PeerLost, WorkerDied

Ends = tuple[ServerSession, Connection]


@pytest.fixture
def ends():
    """A session and its server's end."""
    here, there = socket.socketpair()
    server = Connection(there, "a client")
    line = ServerSession(Connection(here, "server"), ANSWER, 60.0)
    yield line, server
    server.close()
    line.close()


def test_a_call_has_a_deadline_of_its_own_and_what_comes_later_is_undone(ends):
    line, server = ends
    undone = queue.SimpleQueue()
    reply = line.call_within(0.1, "glt.create_loader")
    reply.too_late = undone.put
    asked = server.receive_json(20.0)
    with pytest.raises(PeerLost, match=r"no answer to glt\.create_loader within 0\.1 s"):
        reply.result(20.0)
    other = line.call("torch.cuda.is_available")
    server.send({"number": asked["number"], "result": 7, "has_data": False})
    server.send({"number": server.receive_json(20.0)["number"], "result": 8, "has_data": False})
    assert undone.get(timeout=20.0) == 7 and other.result(20.0) == 8


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
    [torch.rand(5, 4), torch.rand(3, 5), torch.zeros(5, 3, dtype=torch.int32), [torch.rand(5, 3)], "text"],
    ids=["longer", "shape", "dtype", "list", "text"],
)
def test_another_value_than_the_tensor_that_was_asked_for_is_refused(ends, wrong):
    line, server = ends
    reply = line.call_into(torch.zeros(5, 3), "rows")
    tree, parts = encode_value(wrong, "it")
    server.send_all(answer_to(server, tree, parts is not None), parts or ())
    with pytest.raises(MessageError, match=r"expected one tensor, torch\.float32 \[5, 3\]"):
        reply.result(20.0)
    fine = line.call("next")
    server.send(answer_to(server, 7, False))
    assert fine.result(20.0) == 7


def test_an_error_in_place_of_a_tensor(ends):
    line, server = ends
    reply = line.call_into(torch.zeros(5, 3), "rows")
    told = {"error": "builtins.IndexError", "text": "no such row", "traceback": ""}
    server.send({"number": server.receive_json(20.0)["number"], "has_data": False, **told})
    with pytest.raises(IndexError, match="no such row"):
        reply.result(20.0)


def answer_to(server, tree, has_data=True):
    return {"number": server.receive_json(20.0)["number"], "result": tree, "has_data": has_data}


def test_a_call_is_given_up_while_others_are_answered(ends):
    line, server = ends
    hangs = line.call_within(0.3, "hangs")
    server.receive_json(20.0)
    until = time.monotonic() + 60.0
    while not hangs.done():
        assert time.monotonic() < until
        other = line.call("torch.cuda.is_available")
        server.send({"number": server.receive_json(20.0)["number"], "result": 8, "has_data": False})
        assert other.result(20.0) == 8
    with pytest.raises(PeerLost, match=r"no answer to hangs within 0\.3 s"):
        hangs.result(0.0)


def test_what_was_asked_before_a_fork_is_not_waited_for_in_it(ends, monkeypatch):
    reply = ends[0].call("hangs")
    monkeypatch.setattr(client.os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match=r"this process \(pid 1\) is a fork of the client"):
        reply.wait()
    monkeypatch.undo()


def open_stream(session, patience_s):
    return remote.open_stream(session, "1", 2, {"first": 0, "step": 1}, time.monotonic() + patience_s)


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
        remote.open_stream(session, "2", 0, {"first": 0, "step": 1}, time.monotonic() + 60.0)
