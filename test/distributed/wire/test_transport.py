"""Requests between samplers, over both transports: answered, asked again or given up in bounded time; who is lost."""

import asyncio
import logging
import os
import signal
import threading
import time

import pytest
import torch
from promptness import eventually, expect_prompt, freeze

from glt import _deadlines as deadlines
from glt.channel.message import MessageKind, encode_message, read_message
from glt.distributed.wire import rpc
from glt.distributed.wire.credentials import Credentials, Token, set_credentials
from glt.distributed.wire.handshake import introduce
from glt.distributed.wire.listener import Listener, LocalListener
from glt.distributed.wire.tcp import PartitionServer, SamplerTransport, TcpTransport
from glt.distributed.wire.threads import process_loop, wait_for
from glt.distributed.wire.transport import Peer, chosen_transport
from glt.errors import PeerLost, RemoteError
from glt.testing.cluster import Cluster

PEER = Peer("server-1", 1, None, "there", 4711, 1, "server")


def double(request):
    return request + request


def fail(request):
    raise ZeroDivisionError("the handler's own mistake")


async def call(transport, peer, *calls):
    """Asks several things together; waits for all answers."""
    return await asyncio.gather(*transport.call_all(peer, calls))


def of(*numbers):
    return torch.tensor(numbers, dtype=torch.uint8)


# -- the contract of both ------------------------------------------------------------------------------------------

LARGE = 12_345_678


def large(request):
    return encode_message({"found": torch.arange(LARGE, dtype=torch.int32)}, MessageKind.REPLY)


def hang(request):
    time.sleep(1000)


def whole(request):
    return encode_message({"found": read_message(request).tensors["asked"] * 2}, MessageKind.REPLY)


def broken(request):
    raise ZeroDivisionError("the handler's own mistake")


def asking(*numbers, room=0):
    return encode_message({"asked": torch.tensor(numbers), "room": torch.zeros(room)}, MessageKind.REQUEST)


def found(reply):
    message = read_message(reply)
    message.raise_if_error()
    return message.tensors["found"]


def open_transport(kind, trainer, timeout_s):
    """Opens a transport in each process of a cluster; returns it, and the other peer."""
    handlers = {"whole": whole, "broken": broken, "large": large, "hang": hang}
    me = Peer(f"sampler-{trainer.rank}", trainer.rank, None, "here", os.getpid(), trainer.rank)
    if kind == "tcp":
        transport = SamplerTransport(me, handlers, "127.0.0.1", 2, timeout_s, 1 << 20)
        trainer.say(transport.introduction())
        return transport, transport.meet(trainer.hear())[1 - trainer.rank]
    from glt.distributed.wire.store import connect, host_store

    trainer.say((me.to_json(), host_store() if trainer.rank == 0 else None))
    told = trainer.hear()
    store = connect("127.0.0.1", told[0][1], "test", 60.0)
    opened = rpc.RpcTransport(me, handlers, me.rank, 2, store, 2, timeout_s)
    return opened, Peer(**told[1 - trainer.rank][0])


def serve_and_ask(trainer, kind):
    transport, peer = open_transport(kind, trainer, 60.0)
    for room in (0, 1 << 20):  # small requests and large ones are answered on different threads
        answers = wait_for(call(transport, peer, *(("whole", asking(n, n + 1, room=room)) for n in range(20))), 60.0)
        assert [found(each).tolist() for each in answers] == [[2 * n, 2 * n + 2] for n in range(20)]
        (failed,) = wait_for(call(transport, peer, ("broken", asking(1, room=room))), 60.0)
        with pytest.raises(RemoteError, match=rf"(?s)the handler's own mistake.*sampler of trainer {peer.rank}"):
            found(failed)
    for reply in wait_for(call(transport, peer, *[("large", asking(1))] * 3), 60.0):
        assert torch.equal(found(reply), torch.arange(LARGE, dtype=torch.int32))
    (unknown,) = wait_for(call(transport, peer, ("whole", of(1, 2, 3))), 60.0)
    with pytest.raises(RemoteError, match="MessageError"):
        found(unknown)
    trainer.say("asked")
    trainer.hear()
    transport.close(gracefully=True)
    transport.close()
    return eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("glt-partition")])


@pytest.mark.parametrize("kind", ["tcp", "rpc"])
def test_a_transport_answers_what_is_asked(kind):
    with Cluster(2, serve_and_ask, kind) as cluster:
        exchange(cluster)
        exchange(cluster)
        assert cluster.results() == [True, True]
        cluster.expect_nothing_left()


def exchange(cluster):
    """Tells all processes what each has said."""
    said = [cluster.hear(rank) for rank in range(cluster.world_size)]
    for rank in range(cluster.world_size):
        cluster.say(rank, said)


def ask_one_that_dies(trainer, kind):
    transport, peer = open_transport(kind, trainer, 60.0)
    if trainer.rank == 1:
        time.sleep(1000)
    assert found(wait_for(call(transport, peer, ("whole", asking(1))), 60.0)[0]).tolist() == [2]
    waiting = asyncio.run_coroutine_threadsafe(
        call(transport, peer, ("hang", asking(1, room=1 << 20))), process_loop.get()
    )
    trainer.say(peer.pid)
    start = time.monotonic()
    with pytest.raises(PeerLost, match=rf"lost trainer 1 \(partition 1, host here, pid {peer.pid}\)"):
        waiting.result(60.0)
    with pytest.raises(PeerLost, match=rf"lost trainer 1 .*pid {peer.pid}"):  # and again
        wait_for(call(transport, peer, ("whole", asking(1))), 60.0)
    transport.close()
    return time.monotonic() - start


@pytest.mark.parametrize("kind", ["tcp", "rpc"])
def test_a_peer_that_dies_is_named(kind):
    with Cluster(2, ask_one_that_dies, kind) as cluster:
        exchange(cluster)
        os.kill(cluster.hear(0), signal.SIGKILL)
        survivor = cluster.outcomes()[0]
        assert survivor.error_type is None and survivor.value < 10.0, survivor


def ask_one_that_hangs(trainer, kind):
    transport, peer = open_transport(kind, trainer, 3.0)
    if trainer.rank == 1:
        trainer.hear()
        os._exit(0)
    start = time.monotonic()
    first, second = (  # over rpc, the second is not sent while the first is under way
        asyncio.run_coroutine_threadsafe(call(transport, peer, ("hang", asking(1, room=1 << 20))), process_loop.get())
        for _ in range(2)
    )
    for asked in (first, second):
        with pytest.raises(PeerLost, match=rf"pid {peer.pid}\) gave no answer to hang within 3 s"):
            asked.result(60.0)
    waited_s = time.monotonic() - start
    if kind == "tcp":  # over rpc, too, after the call before is given up
        assert found(wait_for(call(transport, peer, ("whole", asking(1))), 60.0)[0]).tolist() == [2]
    trainer.say("given up")
    transport.close()
    return waited_s


@pytest.mark.parametrize("kind", ["tcp", "rpc"])
def test_a_peer_that_hangs_is_given_up(kind):
    """All that it was asked, with one deadline each, counted from the asking."""
    with Cluster(2, ask_one_that_hangs, kind) as cluster:
        exchange(cluster)
        assert cluster.hear(0) == "given up"
        cluster.say(1, None)
        assert 2.9 < cluster.outcomes()[0].value < 5.0


def ask_one_that_is_stopped(trainer, kind):
    deadlines.STUCK_S = deadlines.RECONNECT_S = 1.0
    deadlines.HANDSHAKE_S = 4.0
    transport, peer = open_transport(kind, trainer, 60.0 if kind == "tcp" else 3.0)
    if trainer.rank == 1:
        trainer.hear()
        return None
    assert found(wait_for(call(transport, peer, ("whole", asking(1))), 60.0)[0]).tolist() == [2]
    freeze(peer.pid)
    start = time.monotonic()
    said = "is stopped" if kind == "tcp" else "gave no answer to whole within 3 s"
    with pytest.raises(PeerLost, match=rf"trainer 1 \(partition 1, host here, pid {peer.pid}\).*{said}"):
        wait_for(call(transport, peer, ("whole", asking(1))), 60.0)
    waited_s = time.monotonic() - start
    os.kill(peer.pid, signal.SIGCONT)
    trainer.say("given up")
    transport.close()
    return waited_s


@pytest.mark.parametrize("kind", ["tcp", "rpc"])
def test_a_peer_that_is_stopped_is_given_up(kind):
    """Over tcp after its silence, and one try to connect anew: what says nothing at one address is not tried at two."""
    with Cluster(2, ask_one_that_is_stopped, kind) as cluster:
        exchange(cluster)
        assert cluster.hear(0) == "given up"
        cluster.say(1)
        expect_prompt(cluster.outcomes()[0].value, "a stopped peer to be given up", 7.0)


# -- tcp -----------------------------------------------------------------------------------------------------------


class Server:
    """A process that answers requests, here, at one port, for as long as it is told to."""

    def __init__(self, handlers=None):
        self.partitions = PartitionServer(handlers or {"double": double, "fail": fail}, 1, 4, 60.0, 1000)
        self.connections, self.answers = [], lambda connection: self.partitions.serve(connection)
        self.drop = 0  # so many more connections
        self.listener = Listener(("127.0.0.1", 0), "server 1", ("127.0.0.1", 1), self._welcome)
        self.port = self.listener.address[1]
        self.listener.open()

    async def _welcome(self, connection, hello):
        assert hello["kind"] == "partition"
        self.connections.append(connection)
        if self.drop:
            self.drop -= 1
            connection.send(introduce("partition"))
            connection.start(lambda frame: connection.close(), lambda error: None, max_data_bytes=1 << 20)
        else:
            self.answers(connection)

    def close(self):
        self.listener.close()
        for connection in self.connections:
            connection.close()
        self.partitions.close()


@pytest.fixture
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def transport_to():
    made = []

    def transport(ports, timeout_s=30.0):
        def addresses(peer):
            return [("127.0.0.1", ports[peer.rank])] if peer.rank in ports else []

        made.append(TcpTransport(addresses, ["fail", "double"], timeout_s))
        return made[-1]

    yield transport
    for each in made:
        each.close()


def ask(transport, *numbers):
    answers = wait_for(call(transport, PEER, *(("double", of(n)) for n in numbers)), 60.0)
    return [int(each) for each in answers]


def ask_later(transport, request):
    return asyncio.run_coroutine_threadsafe(call(transport, PEER, ("double", request)), process_loop.get())


def test_answers_come_over_one_connection(server, transport_to):
    transport = transport_to({1: server.port})
    assert ask(transport, *range(100)) == [2 * n for n in range(100)]
    (failed,) = wait_for(call(transport, PEER, ("fail", of(0))), 60.0)
    with pytest.raises(RemoteError, match="the handler's own mistake"):
        read_message(failed).raise_if_error()
    assert len(server.connections) == 1


def test_all_who_wait_hear_that_the_transport_was_closed(transport_to):
    transport = transport_to({})
    waiting = ask_later(transport, of(0))
    assert eventually(lambda: transport._lines)
    transport.close()
    with pytest.raises(PeerLost, match="was closed"):
        waiting.result(60.0)
    with pytest.raises(PeerLost, match="was closed"):
        ask(transport, 1)


def test_a_batch_that_is_given_up(server, transport_to, caplog):
    """Its answers come, or fail, and are of no use to anything."""
    transport = transport_to({1: server.port})
    waiting = ask_later(transport, of(0))
    waiting.cancel()
    assert ask(transport, 4) == [8]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_what_was_under_way_is_asked_again(server, transport_to):
    server.drop = 3
    transport = transport_to({1: server.port})
    assert ask(transport, 1, 2, 3) == [2, 4, 6]
    assert len(server.connections) == 4
    server.connections[-1].close()
    assert ask(transport, 4) == [8]


def test_a_server_that_is_restarted_elsewhere(server, transport_to):
    ports = {1: server.port}
    transport = transport_to(ports)
    assert ask(transport, 1) == [2]
    server.close()
    del ports[1]
    waiting = ask_later(transport, of(5))
    successor = Server()
    ports[1] = successor.port
    assert waiting.result(60.0)[0].tolist() == [10]
    successor.close()


@pytest.mark.parametrize("ports", [{}, {1: 1}], ids=["unknown", "nobody listens"])
def test_a_server_that_does_not_come_back(ports, transport_to, monkeypatch):
    monkeypatch.setattr(deadlines, "RECONNECT_S", 0.5)
    transport = transport_to(ports)
    with pytest.raises(PeerLost, match=r"lost server 1 .*host there, pid 4711.* tried for 0.5 s"):
        ask(transport, 1)
    with pytest.raises(PeerLost):  # and again
        ask(transport, 1)


def test_an_answer_that_does_not_come(transport_to):
    """The server lives, its handler hangs: the deadline of the request ends the wait, and others are answered."""
    hangs, passed = threading.Event(), threading.Event()

    def maybe(request):
        if int(request[0]) == 13:
            hangs.wait(60)
            passed.set()
        return request

    server = Server({"double": maybe, "fail": fail})
    transport = transport_to({1: server.port}, 1.0)
    with pytest.raises(PeerLost, match=r"pid 4711.* gave no answer to double within 1 s"):
        ask_later(transport, torch.full((1 << 20,), 13, dtype=torch.uint8)).result(60.0)
    assert ask(transport, 5) == [5]
    hangs.set()
    assert passed.wait(60)
    assert ask(transport, 6) == [6]
    server.close()


def test_a_silent_server_is_left_and_asked_again(server, transport_to, monkeypatch):
    """Its connection gives no sign of life; the next one does."""
    monkeypatch.setattr(deadlines, "STUCK_S", 4.0)  # more than two beats
    answers = server.answers
    server.answers = lambda connection: connection.send(introduce("partition"))
    transport = transport_to({1: server.port})
    waiting = ask_later(transport, of(4))
    assert eventually(lambda: len(server.connections) == 1)
    server.answers = answers
    start = time.monotonic()
    assert waiting.result(60.0)[0].tolist() == [8]
    assert time.monotonic() - start > 0.5 and len(server.connections) == 2


@pytest.mark.parametrize("here", [True, False])
def test_a_server_tells_which_process_to_ask(server, transport_to, here):
    """By its Unix socket, if that is found."""
    locals_ = []

    async def welcome(connection, hello):
        locals_.append(hello)
        server.partitions.serve(connection)

    local = LocalListener(welcome)
    local.open()
    name = local.name if here else local.name + "-elsewhere"

    async def redirect(connection, hello):
        connection.send(introduce("redirect", port=server.port, local=name))
        connection.part()

    front = Listener(("127.0.0.1", 0), "server 1", ("127.0.0.1", 1), redirect)
    front.open()
    assert ask(transport_to({1: front.address[1]}), 3, 4) == [6, 8]
    assert (len(locals_), len(server.connections)) == ((1, 0) if here else (0, 1))
    front.close()
    local.close()


def test_a_request_beyond_all_that_a_partition_can_be_asked(server, transport_to, monkeypatch):
    """It is refused before it is sent; one that is sent all the same ends the connection."""
    server.partitions._max_request_bytes = 1000
    transport = transport_to({1: server.port})
    (long,) = [torch.zeros(1001, dtype=torch.uint8)]
    assert ask(transport, 1) == [2]
    with pytest.raises(ValueError, match=r"a request of 1001 bytes for server 1 .*takes at most 1000"):
        ask_later(transport, long).result(60.0)

    async def break_the_rule():
        transport._lines["server-1"]._connection.send(data=[long], number=77)

    wait_for(break_the_rule())
    assert eventually(lambda: server.connections[0].is_closed)
    assert ask(transport, 2) == [4]


def test_one_that_asks_and_takes_nothing_costs_bounded_memory(server, transport_to, monkeypatch):
    """The server reads no more of its requests while its answers wait."""
    made = []
    big = torch.zeros(20 << 20, dtype=torch.uint8)

    def answer(request):
        made.append(1)
        return big

    server.partitions.handlers[0] = answer
    transport = transport_to({1: server.port})
    assert ask_later(transport, of(1)).result(60.0)[0].numel() == 20 << 20

    async def stop_reading():
        transport._lines["server-1"]._connection.pause()
        return asyncio.gather(*transport.call_all(PEER, [("double", torch.zeros(1 << 20, dtype=torch.uint8))] * 40))

    before = len(made)
    waiting = wait_for(stop_reading())
    assert eventually(lambda: server.connections[0]._has_reader is False)
    time.sleep(0.5)
    assert len(made) - before < 12

    async def read_on():
        transport._lines["server-1"]._connection.resume()
        return len(await waiting)

    assert wait_for(read_on(), 60.0) == 40


# -- rpc -----------------------------------------------------------------------------------------------------------


def test_an_answer_that_is_no_message_is_that_of_a_peer_that_has_ended():
    """A peer that shuts down frees the memory that its answer is read from: seen once in some twenty runs."""
    line = rpc._Line(Peer("sampler-1", 1, None, "there", 77, 1), 5.0)
    whole_one = encode_message({"found": torch.arange(3)}, MessageKind.REPLY)
    freed = whole_one.clone()
    freed[:16] = torch.arange(16, dtype=torch.uint8)

    async def finish():
        replies = [asyncio.get_running_loop().create_future() for _ in range(3)]
        calls = [rpc._Call("has_edges", torch.empty(0), reply, time.monotonic() + 5.0) for reply in replies]
        line.finish(calls, [whole_one, freed, torch.empty(0, dtype=torch.uint8)])
        return [each.exception() or each.result() for each in replies]

    first, *lost = wait_for(finish())
    assert torch.equal(first, whole_one)
    for each in lost:
        assert isinstance(each, PeerLost)
        assert "pid 77" in str(each) and "during has_edges: it ended while its answer" in str(each)


def test_infiniband_is_used_where_there_is_some(tmp_path, monkeypatch):
    assert rpc.transports() == ["uv"] or any(rpc._INFINIBAND.iterdir())
    monkeypatch.setattr(rpc, "_INFINIBAND", tmp_path)
    assert rpc.transports() == ["uv"]
    (tmp_path / "mlx5_0").mkdir()
    assert rpc.transports() == ["ibv", "uv"]
    monkeypatch.setenv("GLT_RPC_IBV", "0")
    assert rpc.transports() == ["uv"]


# -- which of both -------------------------------------------------------------------------------------------------


@pytest.fixture
def credentials():
    yield set_credentials
    set_credentials(None)


def test_the_environment_says_which_where_a_loader_does_not(monkeypatch):
    monkeypatch.delenv("GLT_TRANSPORT", raising=False)
    assert chosen_transport(None) in ("tcp", "rpc")
    assert [chosen_transport(each) for each in ("tcp", "rpc")] == ["tcp", "rpc"]
    monkeypatch.setenv("GLT_TRANSPORT", "rpc")
    assert (chosen_transport(None), chosen_transport("tcp")) == ("rpc", "tcp")
    monkeypatch.setenv("GLT_TRANSPORT", "udp")
    with pytest.raises(ValueError, match=r"GLT_TRANSPORT = 'udp': expected one of \['tcp', 'rpc'\]"):
        chosen_transport(None)


def test_what_proves_nothing_is_refused_where_a_token_is_given(tmp_path, monkeypatch, credentials):
    Token.new().write(tmp_path / "token")
    credentials(Credentials(str(tmp_path / "token")))
    monkeypatch.delenv("GLT_TRANSPORT", raising=False)
    assert chosen_transport(None) == "tcp"
    with pytest.raises(ValueError, match=r"transport = 'rpc': .* has a token; use 'tcp'"):
        chosen_transport("rpc")
    monkeypatch.setenv("GLT_TRANSPORT", "rpc")
    assert chosen_transport("tcp") == "tcp"
    with pytest.raises(ValueError, match="GLT_TRANSPORT = 'rpc'"):
        chosen_transport(None)
    credentials(Credentials(require_auth=True))
    assert chosen_transport("tcp") == "tcp"
    with pytest.raises(ValueError, match=r"GLT_TRANSPORT = 'rpc': .* has require_auth"):
        chosen_transport(None)
