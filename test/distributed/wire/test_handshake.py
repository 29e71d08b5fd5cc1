"""How two processes begin to talk, every way in which they do not, and the port of a server."""

import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from promptness import expect_prompt

import glt
from glt import _deadlines as deadlines
from glt.distributed.wire import old_listener as listener
from glt.distributed.wire.old_connection import Connection
from glt.distributed.wire.old_listener import Listener, dial, introduce, require_same_version
from glt.errors import GltError, PeerLost, RendezvousError
from glt.testing.cluster import free_port


@pytest.fixture
def listen():
    """Listens on a port; each connection is treated by the next of some functions, further ones by the last."""
    made = []

    def start(*answers, port=0):
        made.append(socket.create_server(("127.0.0.1", port)))

        def accept(server):
            for answer in itertools.chain(answers, itertools.repeat(answers[-1])):
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                answer(Connection(sock, "a client"))

        threading.Thread(target=accept, args=made[-1:], daemon=True).start()
        return made[-1].getsockname()[1]

    yield start
    for each in made:
        each.shutdown(socket.SHUT_RDWR)
        each.close()


kept = []


@pytest.fixture(autouse=True)
def _close_kept():
    yield
    while kept:
        kept.pop().close()


def hang_up(connection):
    connection.close()


def keep_quiet(connection):
    kept.append(connection)


def say(value):
    def answer(connection):
        connection.receive_json(20.0)
        connection.send(value)
        kept.append(connection)

    return answer


welcome = say(introduce("client", more="told"))


def answer_http(connection):
    connection.socket.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    kept.append(connection)


def greet(port, timeout_s=20.0, retry=True):
    connection, answer = dial(("127.0.0.1", port), "server 3", introduce("client"), timeout_s, retry=retry)
    connection.close()
    return answer


def test_they_meet(listen):
    answer = greet(listen(welcome))
    assert answer["more"] == "told" and answer["version"] == glt.__version__ and answer["host"] == socket.gethostname()


def test_it_is_tried_until_somebody_is_there(listen):
    port = free_port()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(greet, port, 60.0)
        time.sleep(0.3)
        listen(hang_up, hang_up, say({"refused": "soon", "is_ending": True}), welcome, port=port)
        assert answer.result(60)["more"] == "told"


@pytest.mark.parametrize(
    ("answer", "timeout_s", "words"),
    [
        (None, 0.3, ["was not reached", "within 0.3 s", "master_port"]),
        (hang_up, 0.5, ["server 3", "ended during the handshake"]),
        (say({"refused": "you are late"}), 20.0, ["server 3", "refused: you are late"]),
        (say({"refused": "it ends", "is_ending": True}), 0.5, ["refused: it ends"]),
        (say({"hello": 1}), 20.0, ["no server of glt", "['hello']"]),
        (say({**introduce("client"), "protocol": 77}), 20.0, ["protocol 77", "install the same glt"]),
        (say({**introduce("client"), "version": "0.0.1"}), 20.0, ["glt 0.0.1", glt.__version__]),
        (answer_http, 20.0, ["no server of glt"]),
        (keep_quiet, 0.3, ["gave no answer"]),
    ],
    ids=["nobody", "hangs up", "refuses", "ends", "no handshake", "protocol", "version", "http", "silent"],
)
def test_they_do_not_meet(listen, answer, timeout_s, words, monkeypatch):
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 1.0)
    port = free_port() if answer is None else listen(answer)
    start = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        greet(port, timeout_s)
    expect_prompt(time.monotonic() - start, "to give up")
    assert all(word in str(caught.value) for word in words), caught.value


def test_without_patience(listen):
    for port, words in ((free_port(), "cannot be reached"), (listen(hang_up), "ended during the handshake")):
        with pytest.raises(PeerLost, match=words):
            greet(port, retry=False)
    with pytest.raises(RendezvousError, match="there is no host"):
        dial(("no-such-host.invalid", 1), "server 0", introduce("client"), 5.0)


def test_versions_differ_in_the_last_place_only(monkeypatch):
    monkeypatch.setattr(glt, "__version__", "3.4.5")
    for version in ("3.4.5", "3.4.9", "3.4"):
        require_same_version({"protocol": listener.PROTOCOL, "version": version}, "they")
    for theirs in ({}, {"protocol": listener.PROTOCOL, "version": "3.5.5"}, {"protocol": None, "version": "3.4.5"}):
        with pytest.raises(GltError, match="they runs glt"):
            require_same_version(theirs, "they")


@pytest.fixture
def open_port():
    """Makes a port of server 0; connections are given to ``welcome``, or answered and closed."""
    made = []

    def close(connection, hello):
        connection.send(introduce("client"))
        connection.close()

    def start(welcome=close, is_open=True):
        made.append(Listener(("127.0.0.1", 0), 0, ("127.0.0.1", 1), welcome))
        if is_open:
            made[-1].open()
        return made[-1]

    yield start
    for each in made:
        each.close()


def say_hello(port, **more):
    """Connects as a client and hangs up; returns the answer."""
    connection, answer = dial(port.address, "server", introduce("client", **more), 20.0, retry=False)
    connection.close()
    return answer


def refuse_threads(monkeypatch, most=float("inf")):
    """The first ``most`` handshakes get no thread."""
    start, refused = threading.Thread.start, [0]

    def no_thread(thread):
        if thread.name == "glt-handshake" and refused[0] < most:
            refused[0] += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", no_thread)


def test_silent_connections_make_room(open_port, monkeypatch):
    """Many connect and say nothing: a client that says something is welcomed nevertheless."""
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES", 4)
    kept = []

    def welcome(connection, hello):
        kept.append(connection)
        connection.send(introduce("client", got=hello["number"]))

    here = open_port(welcome)
    silent = [socket.create_connection(here.address) for _ in range(20)]
    try:
        for number in range(6):
            assert say_hello(here, number=number)["got"] == number
        silent[0].settimeout(20.0)
        assert silent[0].recv(1) == b""  # the oldest lost its place
    finally:
        for each in [*silent, *kept]:
            each.close()


def test_a_port_outlives_what_it_cannot_take(open_port, monkeypatch):
    """No thread for the first connection, no descriptors for the second: the next one is welcomed."""
    num_welcomed = 0

    def welcome(connection, hello):
        nonlocal num_welcomed
        num_welcomed += 1
        if num_welcomed == 1:
            raise OSError(24, "Too many open files")
        connection.send(introduce("client"))
        connection.close()

    here = open_port(welcome)
    refuse_threads(monkeypatch, 1)
    for _ in range(2):
        with pytest.raises(PeerLost, match="ended during the handshake"):
            say_hello(here)
    say_hello(here)
    assert not here._silent


def test_a_port_without_threads_after_the_script_has_ended(open_port, monkeypatch):
    """As in Python 3.12: connections are welcomed one after the other."""

    class Ended:
        def is_alive(self):
            return False

    here = open_port()
    refuse_threads(monkeypatch)
    monkeypatch.setattr(threading, "main_thread", Ended)
    for _ in range(2):
        say_hello(here)
    assert here.has_no_threads and not here._silent


def test_clients_that_come_before_it_is_opened_are_welcomed_then(open_port):
    here = open_port(is_open=False)
    with ThreadPoolExecutor(2) as pool:
        early = [pool.submit(say_hello, here) for _ in range(2)]
        assert not wait(early, 0.5).done
        here.open()
        assert all("protocol" in each.result(20.0) for each in early)
