"""Who is taken in as a server."""

import logging
import socket
import threading
from dataclasses import replace

import pytest
from service_world import ENTRY

from glt import _deadlines as deadlines
from glt.distributed.server.membership import Membership
from glt.distributed.server.sessions import ClientRegistry
from glt.distributed.wire.connection import Connection


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
