"""Who does not fit is refused, in words, on both sides; who is no part of glt at all harms nothing."""

import json
import socket
import struct
import time

import pytest
from promptness import eventually
from service import Stage

from glt.distributed.wire import connection, handshake
from glt.distributed.wire.calls import register_server_function


def pretend(protocol, version):
    """This process is of another version from here on."""
    handshake.PROTOCOL = protocol
    handshake.glt.__version__ = version


def shorten_frames():
    connection.MAX_JSON_BYTES = 4000


def long_list(*_):
    return list(range(5000))


def test_clients_that_do_not_fit(world):
    """One server, which stays as it is; one client that fits, and one that tries everything else."""
    here = world(1)
    with Stage(3) as stage:
        stage.start_servers(here.path, 1, 2)
        stage.ask(1, "join", 1, 2, 0)
        stage.ask(1, "law", "law", 0)
        got = stage.ask(1, "take", "law", 1)
        for arguments, words in (
            ((2, 2, 1), ["num_servers = 2", "1 on server 0"]),
            ((1, 3, 1), ["num_clients = 3", "2 on server 0"]),
            ((1, 2, 0), ["client_rank = 0", "client 0", f"pid {stage.processes[1].pid}"]),
        ):
            failed = stage.fails(2, "join", *arguments)
            assert failed.kind == "RendezvousError" and all(word in failed.text for word in words), failed
        stage.fails(2, "request", 0, "torch.cuda.is_available").expect("RuntimeError", "init_client")
        # Others may use the same server as a group of their own.
        stage.ask(2, "join", 1, 2, 1, client_group_name="others")
        stage.fails(2, "request", 0, "os.system", "true").expect("LookupError", "os.system", "register")
        stage.fails(2, "request", 0, "torch.cuda.is_available", 1).expect("TypeError")
        stage.fails(2, "request", 1, "torch.cuda.is_available").expect("ValueError", "server_rank = 1")
        # What is too long to be sent is refused where it is made, and the connections live on.
        stage.ask(0, "run_function", shorten_frames)
        stage.ask(0, "run_function", register_server_function, long_list)
        stage.fails(2, "request", 0, long_list).expect("ValueError", "at most 4000")
        stage.ask(2, "run_function", shorten_frames)
        stage.fails(2, "request", 0, long_list, long_list()).expect("ValueError", "send long lists as tensors")
        assert stage.ask(2, "request", 0, "torch.cuda.is_available") in (True, False)
        stage.ask(2, "leave")
        stage.ask(2, "run_function", pretend, handshake.PROTOCOL, "0.0.1")
        stage.fails(2, "join", 1, 2, 1).expect("RendezvousError", "0.0.1", "install the same glt")
        stage.ask(2, "run_function", pretend, 99, "9.9.0")
        stage.fails(2, "join", 1, 2, 1).expect("RendezvousError", "protocol 99", "install the same glt")
        stage.expect_law(1, "law", here, 0, got)
        log = stage.output(0)
        for word in ("num_servers = 2", "num_clients = 3", "client_rank = 0", "0.0.1", "protocol 99"):
            assert word in log, log
        stage.ask(0, "wait_and_shutdown", 0.0)
        stage.fails(1, "request", 0, "torch.cuda.is_available").expect("PeerLost", "shut down")
        stage.ask(1, "leave")
        stage.end(0, 1, 2)
        stage.results()
        stage.expect_nothing_left()


def test_servers_that_do_not_fit(world, private_world):
    """Server 0 refuses them, and says why; the right one is admitted afterwards."""
    here = world(2)
    with Stage(4) as stage:
        stage.ask(0, "serve", here.path, 2, 1, 0)
        for given, words in (
            ({"num_servers": 3}, ["num_servers", "2 on server 0", "3 on server 1"]),
            ({"num_clients": 5}, ["num_clients", "1 on server 0", "5 on server 1"]),
            ({"path": private_world.path}, ["partitioning run"]),
            ({"rank": 0}, ["cannot listen", str(stage.port)]),
        ):
            wanted = {"path": here.path, "num_servers": 2, "num_clients": 1, "rank": 1, **given}
            failed = stage.fails(1, "serve", **wanted)
            assert failed.kind == "RendezvousError" and all(word in failed.text for word in words), failed
        stage.ask(1, "serve", here.path, 2, 1, 1)
        stage.fails(2, "serve", here.path, 2, 1, 1).expect(
            "RendezvousError", "server_rank = 1 is taken", f"pid {stage.processes[1].pid}"
        )
        stage.ask(3, "join", 2, 1, 0)
        stage.ask(3, "law", "law", 0, server_rank=1)
        stage.expect_law(3, "law", here, 0)
        stage.end(2)
        stage.finish((3,), (0, 1))


HEADER = struct.Struct("<4sBB2xIQQ")
FRAME, GREETING = 1, 2


def head(kind, num_json=0, num_data=0, number=0):
    return HEADER.pack(b"GLT2", kind, 0, num_json, number, num_data)


def frame(value, data=b"", number=0):
    body = json.dumps(value).encode()
    return head(FRAME, len(body), len(data), number) + body + data


def greeting(protocol=handshake.PROTOCOL, token=0):
    return head(GREETING, 0, 35) + struct.pack("<HB32s", protocol, token, bytes(32))


def hello(**more):
    """What those say who are understood; None leaves a field out."""
    told = handshake.introduce("client", rank=0, group="g", num_servers=1, num_clients=1) | more
    return greeting() + frame({name: value for name, value in told.items() if value is not None})


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: server\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "half a header": greeting()[:12],
    "another protocol": greeting(99),
    "long greeting": head(GREETING, 0, 1 << 20) + bytes(1000),
    "short greeting": head(GREETING, 0, 3) + b"abc",
    "hello before a greeting": hello()[len(greeting()) :],
    "long hello": greeting() + head(FRAME, 60 << 20) + b"{",
    "hello with data": greeting() + frame(handshake.introduce("client"), b"data"),
    "longer frame": greeting() + head(FRAME, 0, 1 << 60),
    "half a frame": greeting() + head(FRAME, 100) + b"{",
    "no object": greeting() + head(FRAME, 2) + b"[]",
    "deep": greeting() + head(FRAME, 60_000) + b"[" * 60_000,
    "empty hello": greeting() + frame({}),
    "two greetings": greeting() * 2,
    "no kind": hello(kind=None),
    "kind of a list": hello(kind=[1]),
    "another kind": hello(kind="stream"),
    "client without a rank": hello(rank=None),
    "client with a list for a rank": hello(rank=[1]),
    "client without a host": hello(host=None),
    "server without an entry": hello(kind="server"),
    "server with half an entry": hello(kind="server", entry={"rank": 1}),
    "client that asks nonsense": hello(rank=7) + frame({"what": 1}),
    "client that asks without data": hello(rank=8) + head(FRAME, 2, 1 << 62) + b"{}",
    "partition with garbage": hello(kind="partition") + b"garbage, not a request" * 10,
}


def test_strangers(world):
    """They connect, say something or nothing, and leave or stay; the server and its client do not mind."""
    here = world(1)
    with Stage(2) as stage:
        stage.ask(0, "lower", None, HANDSHAKE_S=1.0)
        ((sampler,),) = stage.start_servers(here.path, 1, None)
        stage.start_clients(1, 1)
        stage.set_going(1, "endless")

        def bother(stay):
            stayed = []
            for sent in GARBAGE.values():
                stranger = socket.create_connection(("localhost", stage.port), timeout=20)
                try:
                    stranger.sendall(sent)
                except (ConnectionResetError, BrokenPipeError):
                    pass  # it knew from the beginning of it
                stayed.append(stranger)
                if not stay:
                    stranger.close()
            for stranger in stayed if stay else ():
                assert is_hung_up_on(stranger)
                stranger.close()

        bother(False)
        assert eventually(lambda: stage.ask(0, "stats")["num_clients"] == 1)
        before = [stage.ask(0, "census"), stage.ask(0, "census", sampler)]
        bother(True)
        slow = socket.create_connection(("localhost", stage.port), timeout=20)  # a byte now and then
        for byte in GARBAGE["half a header"]:
            try:
                slow.send(bytes([byte]))
            except OSError:
                break
            time.sleep(0.15)
        assert is_hung_up_on(slow)
        slow.close()
        bother(False)
        assert eventually(lambda: stage.ask(0, "stats")["num_clients"] == 1)

        def is_as_before():
            now = [stage.ask(0, "census"), stage.ask(0, "census", sampler)]
            return all(now[i][k] <= before[i][k] + 2 for i in range(2) for k in range(3))

        assert eventually(is_as_before), (before, stage.ask(0, "census"), stage.ask(0, "census", sampler))
        stage.goes_on(1, "endless", 10)
        stage.ask(1, "stop", "endless")
        assert stage.ask(0, "samplers") == [sampler]
        stage.ask(1, "leave")
        stage.ask(0, "wait_and_shutdown", 0.0)
        stage.end(0, 1)
        stage.results()
        stage.expect_nothing_left()
        assert "Traceback" not in stage.output(0), stage.output(0)


def is_hung_up_on(stranger):
    """Whether the server ends the connection, perhaps after a few words."""
    try:
        while stranger.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass  # reset: it had not read all of it
    return True


@pytest.mark.parametrize("given", [{"max_loaders": 2}, {"max_buffer_size": "26MB"}], ids=["loaders", "memory"])
def test_caps(world, given):
    here = world(1)
    with Stage(2) as stage:
        stage.start_servers(here.path, 1, 1, **given)
        stage.start_clients(1, 1)
        for name in ("a", "b"):
            stage.ask(1, "law", name, 0)
        failed = stage.fails(1, "law", "c", 0)
        (option,) = given
        assert failed.kind in ("RemoteError", "MemoryError") and option in failed.text, failed
        stage.ask(1, "close", "a")
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 1)
        stage.ask(1, "law", "c", 0)
        for name in ("b", "c"):
            stage.expect_law(1, name, here, 0)
        stage.finish((1,), (0,))
