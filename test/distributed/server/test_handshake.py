"""How two processes begin to talk, and every way in which they do not."""

import socket
import threading
import time
from collections.abc import Callable

import pytest
from promptness import expect_prompt

import glt
from glt import _deadlines as deadlines
from glt.distributed.wire import listener as handshake
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.listener import dial, introduce, require_same_version
from glt.errors import GltError, PeerLost, RendezvousError
from glt.testing.cluster import free_port

Answer = Callable[[Connection], None]


@pytest.fixture
def listen():
    """Listens on a port; each connection is treated by the next of some functions, further ones by the last."""
    listeners = []

    def start(*answers, port=0):
        listener = socket.create_server(("127.0.0.1", port))
        listeners.append(listener)

        def accept():
            for number in range(1000):
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                answers[min(number, len(answers) - 1)](Connection(sock, "a client"))

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def welcome(connection):
    connection.receive_json(20.0)
    connection.send(introduce("client", more="told"))
    kept.append(connection)


kept = []


@pytest.fixture(autouse=True)
def _close_kept():
    yield
    while kept:
        kept.pop().close()


def hang_up(connection):
    connection.close()


def say(value):
    def answer(connection):
        connection.receive_json(20.0)
        connection.send(value)
        kept.append(connection)

    return answer


def keep_quiet(connection):
    kept.append(connection)


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
    results = []
    thread = threading.Thread(target=lambda: results.append(greet(port, 60.0)))
    thread.start()
    time.sleep(0.3)
    listen(hang_up, hang_up, say({"refused": "soon", "is_ending": True}), welcome, port=port)
    thread.join(60)
    assert results and results[0]["more"] == "told"


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
def test_they_do_not_meet(
    listen, answer, timeout_s, words,
    monkeypatch,
):  # fmt: skip
    monkeypatch.setattr(deadlines, "HANDSHAKE_S", 1.0)
    port = free_port() if answer is None else listen(answer)
    start = time.monotonic()
    with pytest.raises(RendezvousError) as caught:
        greet(port, timeout_s)
    expect_prompt(time.monotonic() - start, "to give up")
    assert all(word in str(caught.value) for word in words), caught.value


def test_without_patience(listen):
    with pytest.raises(PeerLost, match="cannot be reached"):
        greet(free_port(), retry=False)
    with pytest.raises(PeerLost, match="ended during the handshake"):
        greet(listen(hang_up), retry=False)


def test_no_such_host():
    with pytest.raises(RendezvousError, match="there is no host"):
        dial(("no-such-host.invalid", 1), "server 0", introduce("client"), 5.0)


def test_versions_differ_in_the_last_place_only(monkeypatch):
    monkeypatch.setattr(glt, "__version__", "3.4.5")
    for version in ("3.4.5", "3.4.9", "3.4"):
        require_same_version({"protocol": handshake.PROTOCOL, "version": version}, "they")
    for theirs in ({}, {"protocol": handshake.PROTOCOL, "version": "3.5.5"}, {"protocol": None, "version": "3.4.5"}):
        with pytest.raises(GltError, match="they runs glt"):
            require_same_version(theirs, "they")
