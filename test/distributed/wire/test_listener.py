"""The port of a server: silent and unlucky connections take no place from others."""

import socket
import threading
import time
from collections.abc import Callable

import pytest

from glt.distributed.wire import listener
from glt.distributed.wire.connection import Connection
from glt.distributed.wire.listener import Listener, dial, introduce
from glt.errors import PeerLost

Listen = Callable[..., Listener]


@pytest.fixture
def listen():
    """Makes a port of server 0; connections are given to ``welcome``, or answered and closed."""
    made = []

    def close(connection, hello):
        connection.send(introduce("client"))
        connection.close()

    def start(welcome=close, is_open=True):
        made.append(Listener(("127.0.0.1", 0), 0, ("127.0.0.1", 1), welcome, 20.0))
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


def test_silent_connections_make_room(listen, monkeypatch):
    """Many connect and say nothing: a client that says something is welcomed nevertheless."""
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES", 4)
    kept = []

    def welcome(connection, hello):
        kept.append(connection)
        connection.send(introduce("client", got=hello["number"]))

    here = listen(welcome)
    silent = [socket.create_connection(here.address) for _ in range(20)]
    try:
        for number in range(6):
            assert say_hello(here, number=number)["got"] == number
        silent[0].settimeout(20.0)
        assert silent[0].recv(1) == b""  # the oldest lost its place
    finally:
        for each in [*silent, *kept]:
            each.close()


def test_a_port_outlives_what_it_cannot_take(listen, monkeypatch):
    """No thread for the first connection, no descriptors for the second: the next one is welcomed."""
    num_welcomed = 0

    def welcome(connection, hello):
        nonlocal num_welcomed
        num_welcomed += 1
        if num_welcomed == 1:
            raise OSError(24, "Too many open files")
        connection.send(introduce("client"))
        connection.close()

    here = listen(welcome)
    refuse_threads(monkeypatch, 1)
    for _ in range(2):
        with pytest.raises(PeerLost, match="ended during the handshake"):
            say_hello(here)
    say_hello(here)
    assert not here._silent and not here._num_greeted


def test_a_port_without_threads_after_the_script_has_ended(listen, monkeypatch):
    """As in Python 3.12: connections are welcomed one after the other."""

    class Ended:
        def is_alive(self):
            return False

    here = listen()
    refuse_threads(monkeypatch)
    monkeypatch.setattr(threading, "main_thread", Ended)
    for _ in range(2):
        say_hello(here)
    assert here.has_no_threads and not here._silent and not here._num_greeted


def test_a_client_that_has_introduced_itself_keeps_its_place(listen, monkeypatch):
    monkeypatch.setattr(listener, "_MAX_HANDSHAKES", 2)
    here = listen(is_open=False)
    guests = [Connection(socket.create_connection(here.address), "server") for _ in range(2)]
    try:
        for guest in guests:
            guest.send(introduce("client"))
        deadline = time.monotonic() + 20.0
        while here._num_greeted < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with socket.create_connection(here.address, timeout=20.0) as late:
            assert late.recv(1) == b""
        assert here._num_greeted == 2
    finally:
        for guest in guests:
            guest.close()
