"""Who is taken in as a server."""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import replace

import pytest

from glt import _deadlines as deadlines
from glt.distributed.server.membership import Membership, ServerEntry
from glt.distributed.server.sessions import ClientRegistry
from glt.distributed.wire.connection import Connection

ME = ServerEntry(0, "127.0.0.1", 1, "here", 1, "h0", 0, "g", "r", 3, None)


def test_a_process_of_another_container_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of each container has pid 1: two that were given one rank took turns in ending each other."""
    monkeypatch.setattr(deadlines, "TAKEN_S", 3600.0)  # a busy machine is not silence
    here = Membership(ME, ("127.0.0.1", 1), ClientRegistry(None), lambda servers: None)
    ends: list[Connection] = []

    def join(entry: ServerEntry) -> Connection:
        mine, theirs = socket.socketpair()
        ends.extend((Connection(mine, "server 0"), Connection(theirs, "server 1")))
        threading.Thread(target=here.admit, args=(ends[-1], {"entry": entry.to_json()}), daemon=True).start()
        return ends[-2]

    first = replace(ME, rank=1, host_id="h1")
    try:
        member = join(first)
        assert "protocol" in member.receive_json(60.0)
        told = join(replace(first, host_id="h2", host="there")).receive_json(60.0)
        assert "server_rank = 1 is taken" in told["refused"]
        member = join(first)
        assert "protocol" in member.receive_json(60.0)  # it lost its connection, and joins again
        assert "servers" in member.receive_json(60.0)  # and is in the list
        here.close()
        told = member.receive_json(60.0)
        while "is_leaving" not in told:  # the list may come twice: the first to join is told later than the second
            assert "servers" in told
            told = member.receive_json(60.0)
    finally:
        here.close()
        for each in ends:
            each.close()


def test_who_leaves_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is shut down is no failure, neither to server 0 nor to those that follow it."""
    here = Membership(ME, ("127.0.0.1", 1), ClientRegistry(None), lambda servers: None)
    lines: list[tuple[Connection, threading.Thread]] = []
    for rank in (1, 2):
        mine, theirs = (Connection(each, f"server {rank}") for each in socket.socketpair())
        entry = replace(ME, rank=rank)
        thread = threading.Thread(target=here.admit, args=(theirs, {"entry": entry.to_json()}), daemon=True)
        thread.start()
        assert "protocol" in mine.receive_json(60.0)
        lines.append((mine, thread))
    (leaver, watched), (follower, _) = lines
    try:
        with caplog.at_level(logging.INFO):
            leaver.send({"is_leaving": True, "done": []})
            watched.join(60.0)
            here.close()
            while "is_leaving" not in follower.receive_json(60.0):  # they are told of each change before
                pass
        assert not [each for each in caplog.records if each.levelno > logging.INFO]
    finally:
        here.close()
        for line, _ in lines:
            line.close()
