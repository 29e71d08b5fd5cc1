"""Sessions of clients, as the server and the client see them, and the membership of servers."""

import asyncio
import logging
import queue
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from promptness import eventually
from service import ANSWER, ENTRY

from glt import _deadlines as deadlines
from glt.distributed.server import client as client_module
from glt.distributed.server import remote
from glt.distributed.server import sessions as session_module
from glt.distributed.server.client import ServerSession
from glt.distributed.server.membership import Membership
from glt.distributed.server.sessions import ClientRegistry, ClientSession
from glt.distributed.wire.calls import decode_value, encode_value
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.listener import Listener
from glt.distributed.wire.threads import NativePool, call_on_loop, wait_for
from glt.errors import GltError, MessageError, PeerLost, RendezvousError, WorkerDied

HELLO = {"num_clients": 1, "rank": 0, "group": "g", "host": "h", "pid": 1}


class End:
    """One end of a connection, whose frames wait until the test takes them."""

    def __init__(self, sock):
        self.connection = Connection(sock, "the other")
        self.send, self.close = self.connection.send, self.connection.close
        self._arrived = queue.SimpleQueue()
        call_on_loop(lambda: self.connection.start(self._arrived.put, self._arrived.put, max_data_bytes=1 << 20))

    def next(self):
        """The next frame; raises why the connection has ended."""
        found = self._arrived.get(timeout=60.0)
        if isinstance(found, GltError):
            raise found
        return found

    def answer(self, tree, data=()):
        """Answers the next call."""
        self.send({"result": tree}, data or (), number=self.next().number)


def begin(session, on_end):
    async def start():
        session.start(on_end)

    wait_for(start())


@pytest.fixture
def served(monkeypatch):
    """A session whose calls run when the test says so, and the client's end of it."""
    monkeypatch.setattr(session_module, "_MOST_CALLS", 1)
    monkeypatch.setattr(session_module, "_MOST_WAITING_BYTES", 100_000)
    here, there = socket.socketpair()
    made = SimpleNamespace(
        may_run=threading.Semaphore(0), seen=[], pool=NativePool(8, "test"), ends=queue.SimpleQueue()
    )

    def call(session, args, kwargs):
        assert made.may_run.acquire(timeout=60.0)
        made.seen.append((args[0], session._waiting_bytes))
        return args[0] if len(args) == 1 or isinstance(args[1], torch.Tensor) else torch.zeros(args[1])

    made.session = ClientSession(Connection(there, "client"), HELLO, lambda name: call, made.pool)
    begin(made.session, made.ends.put)
    made.line = ServerSession(Connection(here, "server"), ANSWER, 60.0)
    yield made
    made.may_run.release(100)
    made.line.connection.close()
    made.session.connection.close()
    made.pool.shutdown(60.0)


def test_arguments_that_wait_take_so_much_memory_and_no_more(served):
    row, replies = torch.zeros(40_000, dtype=torch.uint8), queue.SimpleQueue()

    def ask():
        for number in range(20):
            replies.put(served.line.call("f", number, row))  # waits when nothing is read any more

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    served.may_run.release(20)
    assert [replies.get(timeout=60.0).result(60.0) for _ in range(20)] == list(range(20))
    assert [number for number, _ in served.seen] == list(range(20))
    assert max(waiting for _, waiting in served.seen) < 100_000 + 3 * 41_000, served.seen
    asking.join(60.0)


def test_a_client_that_takes_no_answers_gets_no_more_of_them(served):
    """Answers that it does not take must not fill the server's memory."""
    wait_for(pause(served.line.connection))
    for number in range(10):
        served.line.call("f", number, 1 << 20)
    served.may_run.release(10)
    assert eventually(lambda: len(served.seen) > 0)
    time.sleep(0.3)
    assert len(served.seen) == 1, "the others wait until the first has arrived"
    call_on_loop(served.line.connection.resume)
    assert eventually(lambda: len(served.seen) == 10)


async def pause(connection):
    await asyncio.sleep(0.1)  # it has begun to read
    connection.pause()


def test_what_a_client_asked_that_is_gone_is_not_begun(served):
    replies = [served.line.call("f", number) for number in range(5)]
    served.may_run.release()
    assert replies[0].result(60.0) == 0  # the second has begun, or will; the others wait
    served.line.connection.close()
    assert "lost the connection" in served.ends.get(timeout=60.0)
    served.may_run.release(5)
    served.pool.shutdown(60.0)
    assert [number for number, _ in served.seen] in ([0], [0, 1])


def test_a_client_that_said_that_it_leaves_is_none_that_was_lost(served):
    """On a busy host its connection ends before its call has its turn; the server would wait for it for a minute."""

    def leave(session, args, kwargs):
        session.has_left, session.left_why = True, args[0]

    other = served.session._find
    served.session._find = lambda name: leave if name == "glt.leave" else other(name)
    served.line.call("f", 1)  # takes the only place
    served.line.call("glt.leave", "a mistake")
    served.line.connection.close()
    assert served.ends.get(timeout=60.0) == "it left, having failed: a mistake"
    assert served.session.has_left and served.seen == []


def test_a_client_that_gives_no_sign_of_life_is_told_so(served, monkeypatch):
    monkeypatch.setattr(deadlines, "LEASE_S", 0.0)
    assert "no sign of life for 0 s" in served.ends.get(timeout=60.0)


def test_a_session_ends_once_with_the_reason(served):
    served.line.connection.send({"name": "f"}, number=1)
    assert served.ends.get(timeout=60.0) == "it sent nonsense: a call without arguments"
    call_on_loop(served.session.end, "another reason")
    served.line.connection.close()
    wait_for(asyncio.sleep(0.1))
    assert served.ends.empty()


def client(group, rank, has_left=True, is_alive=True, is_guest=False):
    place = {"group": group, "rank": rank, "place": (group, rank), "is_guest": is_guest}
    more = {"gave_sign_since": lambda when_s: is_alive, "connection": SimpleNamespace(close=lambda: None)}
    return SimpleNamespace(id=f"{group}{rank}", **place, has_left=has_left, **more)


def admit(clients, session):
    return wait_for(clients.admit(session))


def test_each_job_that_came_has_to_go_whole():
    clients = ClientRegistry(2)
    for rank in range(2):
        assert not clients.wait_until_done(0.0), f"rank {rank} has not come"
        for group in ("train", "evaluate"):
            assert admit(clients, client(group, rank))
            assert not clients.wait_until_done(0.0)
            clients.remove(client(group, rank))
    assert clients.wait_until_done(0.0)
    assert not admit(clients, client("train", 0)), "it is for the successor"


def test_guests_neither_end_a_server_nor_keep_it_from_its_end():
    clients, guests = ClientRegistry(1), [client("readers", rank, is_guest=True) for rank in range(2)]
    assert all(admit(clients, guest) for guest in guests)
    clients.remove(guests[0])
    assert not clients.wait_until_done(0.0) and clients.awaited() == [] and clients.done() == []
    assert admit(clients, client("train", 0))
    clients.remove(client("train", 0))
    assert clients.wait_until_done(0.0) and clients.sessions() == guests[1:]


def test_a_living_client_keeps_its_place_and_a_dead_one_loses_it(monkeypatch):
    clients = ClientRegistry(None)
    assert admit(clients, client("train", 0))
    with pytest.raises(RendezvousError, match=r"client_rank = 0 of 'train' is taken by"):
        admit(clients, replaced("train", 0, "second"))
    monkeypatch.setattr(deadlines, "TAKEN_S", 0.1)
    clients = ClientRegistry(None)
    assert admit(clients, client("train", 0, is_alive=False))
    assert admit(clients, replaced("train", 0, "second"))


def replaced(group, rank, id_):
    made = client(group, rank)
    made.id = id_
    return made


def test_what_other_servers_know_of_clients_that_are_done():
    """As after a restart: this server has never seen the first client. The other was lost, and has a minute."""
    clients = ClientRegistry(2)
    assert admit(clients, client("train", 1))
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
    server = End(there)
    line = ServerSession(Connection(here, "server"), ANSWER, 60.0)
    yield line, server
    server.close()
    line.close()


def test_a_call_has_a_deadline_of_its_own_while_others_are_answered_and_what_comes_later_is_undone(ends):
    line, server = ends
    undone = queue.SimpleQueue()
    reply = line.call_within(0.3, "glt.create_loader")
    reply.too_late = undone.put
    asked = server.next()
    until = time.monotonic() + 60.0
    while not reply.done():
        assert time.monotonic() < until
        other = line.call("torch.cuda.is_available")
        server.answer(8)
        assert other.result(20.0) == 8
    with pytest.raises(PeerLost, match=r"no answer to glt\.create_loader within 0\.3 s"):
        reply.result(0.0)
    server.send({"result": 7}, number=asked.number)
    assert undone.get(timeout=20.0) == 7


@pytest.mark.parametrize("shape", [(5, 3), (1 << 15, 5), (0, 4), (3, 0)])
def test_a_tensor_lands_where_it_is_wanted(ends, shape):
    line, server = ends
    out, rows = torch.zeros(shape), torch.rand(shape)
    reply = line.call_into(out, "rows")
    server.answer(*encode_value(rows, "it"))
    assert reply.result(20.0) is out and torch.equal(out, rows)


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
        server.send(told, number=server.next().number)
    else:
        server.answer(*encode_value(wrong, "it"))
    with pytest.raises((MessageError, IndexError), match=r"expected one tensor, torch\.float32 \[5, 3\]|no such row"):
        reply.result(20.0)
    fine = line.call("next")
    server.answer(7)
    assert fine.result(20.0) == 7


def test_what_may_not_be_done_and_what_is_too_long_raise_at_the_caller(ends):
    line, server = ends
    reply = line.call("glt.tensor.delete", 1)
    told = {"error": "builtins.PermissionError", "text": "glt.tensor.delete: the write token", "traceback": ""}
    server.send(told, number=server.next().number)
    with pytest.raises(PermissionError, match=r"glt\.tensor\.delete: the write token"):
        reply.result(20.0)
    line._most_bytes = 1000
    with pytest.raises(ValueError, match=r"arguments of scale have .*: server 0 .* takes at most 1000 B"):
        line.call("scale", torch.zeros(1000))
    fine = line.call("scale", torch.zeros(100))
    assert server.next().data.numel() < 1000
    server.close()
    with pytest.raises(PeerLost):
        fine.result(20.0)


def test_an_argument_may_be_changed_when_it_was_sent(ends):
    """It is sent from where it is: until all of it has gone out, the call waits."""
    line, server = ends
    values, replies = torch.zeros(100_000), queue.SimpleQueue()
    wait_for(pause(server.connection))

    def ask():
        for number in range(20):
            values.fill_(number)
            replies.put(line.call("write", values))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    time.sleep(0.2)
    assert replies.qsize() < 20, "the kernel has no room for all"
    call_on_loop(server.connection.resume)
    for number in range(20):
        frame = server.next()
        (sent,), _ = decode_value(frame.value["arguments"], frame.data)
        assert (sent == number).all(), number
    asking.join(20.0)


def test_what_was_asked_before_a_fork_is_not_waited_for_in_it(ends, monkeypatch):
    reply = ends[0].call("hangs")
    monkeypatch.setattr(client_module.os, "getpid", lambda: 1)
    with pytest.raises(RuntimeError, match=r"this process \(pid 1\) is a fork of the client"):
        reply.wait()
    monkeypatch.undo()


def open_stream(session, patience_s, loader="1"):
    granted = remote.GrantedLoader(session, loader, "secret", [2])
    share = {"first": 0, "step": 1}
    return wait_for(remote.open_stream(granted, 2, share, time.monotonic() + patience_s), 60.0)


def test_a_stream_is_tried_again_while_its_server_lives(ends, monkeypatch):
    session, server = ends
    here, there = socket.socketpair()
    tries, places = [], queue.SimpleQueue()

    def answer(frame):
        """As a server that is replacing the sampler at first."""
        if frame.value["name"] == "glt.stream_at":
            is_first = places.qsize() == 0
            places.put(frame.value["arguments"])
            where = {"wait": "it is being replaced"} if is_first else {"port": 1, "local": "", "host_id": "another"}
            server.send({"result": encode_value(where, "it")[0]}, number=frame.number)

    async def reset_twice(*args, **kwargs):
        tries.append(args[3])
        if len(tries) < 3:
            raise PeerLost("connection reset by peer; it ended during the handshake")
        return Connection(here, "worker 2"), {}

    async def always_reset(*args, **kwargs):
        raise PeerLost("connection reset by peer")

    call_on_loop(lambda: server.connection.start(answer, answer, max_data_bytes=1 << 20))
    monkeypatch.setattr(remote, "connect", reset_twice)
    open_stream(session, 20.0).close()
    assert len(tries) == 3 and all(0 < left_s <= 20.0 for left_s in tries)
    assert places.qsize() == 4
    there.close()
    monkeypatch.setattr(remote, "connect", always_reset)
    with pytest.raises(PeerLost, match="reset by peer"):
        open_stream(session, 0.3)
    server.send({"died": "worker 2 died", "loader": "1", "worker": 2})
    with pytest.raises(WorkerDied, match="worker 2 died"):
        open_stream(session, 0.3)
    call_on_loop(lambda: server.connection.start(lambda frame: None, lambda error: None, max_data_bytes=1 << 20))
    server.send({"closing": "server 0 was shut down"})
    with pytest.raises(PeerLost, match="was shut down"):
        open_stream(session, 60.0, "2")


@pytest.fixture
def server_0():
    made = Membership(ENTRY, ("127.0.0.1", 1), ClientRegistry(None), lambda servers: None)
    yield made
    made.close()


@pytest.fixture
def join(server_0):
    """Joins as another server; returns its end of the connection."""
    ends = []

    def start(entry):
        mine, theirs = socket.socketpair()
        ends.append(End(mine))
        call_on_loop(server_0.admit, Connection(theirs, "the other"), {"entry": entry.to_json()})
        return ends[-1]

    yield start
    for each in ends:
        each.close()


def test_a_process_of_another_container_is_another_process(server_0, join, monkeypatch):
    """The first process of each container has pid 1: two that were given one rank took turns in ending each other."""
    monkeypatch.setattr(deadlines, "TAKEN_S", 3600.0)  # a busy machine is not silence
    first = replace(ENTRY, rank=1, host_id="h1")
    assert "version" in join(first).next().value
    other = join(replace(first, host_id="h2", host="there"))
    assert "server_rank = 1 is taken" in other.next().value["refused"]
    member = join(first)
    assert "version" in member.next().value  # it lost its connection, and joins again
    assert "servers" in member.next().value  # and is in the list
    server_0.close()
    assert "is_leaving" in member.next().value


def test_a_server_that_leaves_is_no_failure(server_0, join, caplog):
    """Neither to server 0 nor to those that follow it."""
    leaver, follower = (join(replace(ENTRY, rank=rank)) for rank in (1, 2))
    for each in (leaver, follower):
        assert "version" in each.next().value
    with caplog.at_level(logging.INFO):
        leaver.send({"is_leaving": True, "done": []})
        assert eventually(lambda: len(server_0.wait(0.0)) == 2)
        server_0.close()
        while "is_leaving" not in follower.next().value:  # they are told of each change before
            pass
    assert not [each for each in caplog.records if each.levelno > logging.INFO]


def test_a_server_follows_server_0_and_joins_its_successor(monkeypatch):
    """What is told of clients that are done reaches all; a server 0 that is shut down is waited for."""
    monkeypatch.setattr(deadlines, "POLL_S", 0.05)
    lists, clients = queue.SimpleQueue(), [ClientRegistry(1), ClientRegistry(1)]

    def serve(port=0):
        async def welcome(connection, hello):
            found.admit(connection, hello)

        listener = Listener(("127.0.0.1", port), "server 0", ("127.0.0.1", 1), welcome)
        found = Membership(replace(ENTRY, num_servers=2), listener.address, clients[0], lambda servers: None)
        listener.open()
        return listener, found

    listener, server_0 = serve()
    other = Membership(replace(ENTRY, rank=1, num_servers=2), listener.address, clients[1], lists.put)
    other.join(20.0)
    try:
        assert sorted(other.wait_for_all(20.0)) == sorted(server_0.wait_for_all(20.0)) == [0, 1]
        server_0.send_done([("train", 0)])
        assert eventually(lambda: clients[1].done() == [("train", 0)])
        server_0.close()
        listener.close()
        listener, server_0 = serve(listener.address[1])
        assert sorted(server_0.wait_for_all(20.0)) == [0, 1], "it joins again"
        assert eventually(lambda: clients[0].done() == [("train", 0)]), "and says what it knows"
    finally:
        for each in (other, server_0, listener):
            each.close()


def test_a_server_says_every_few_seconds_which_others_it_waits_for(monkeypatch, caplog):
    monkeypatch.setattr(deadlines, "HINT_S", 0.2)
    alone = Membership(replace(ENTRY, num_servers=3), ("127.0.0.1", 1), ClientRegistry(1), lambda servers: None)
    with pytest.raises(RendezvousError, match=r"servers of rank \[1, 2\] of 3 are not there"):
        alone.wait_for_all(2.0)
    assert caplog.text.count("servers of rank [1, 2] of 3 have not come yet; waiting for up to") >= 2


def test_a_callback_that_waits_for_a_server_is_told_that_it_cannot():
    """It runs on the loop, on which the answer would come."""

    async def wait_for_a_reply():
        client_module.Reply().result()

    async def wait_for_more():
        wait_for(asyncio.sleep(0))

    for wait in (wait_for_a_reply, wait_for_more):
        with pytest.raises(RuntimeError, match=r"where callbacks of replies run: .*on a thread of your own"):
            wait_for(wait(), 60.0)
