"""When a server is done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from glt.distributed.server.sessions import ClientRegistry


def client(group: str, rank: int, has_left: bool = True) -> Any:
    connection = SimpleNamespace(heard_s=0.0, close=lambda: None)
    place = {"group": group, "rank": rank, "place": (group, rank)}
    return SimpleNamespace(id=f"{group}{rank}", **place, has_left=has_left, connection=connection)


def test_each_job_that_came_has_to_go_whole() -> None:
    clients = ClientRegistry(2)
    assert not clients.wait_until_done(0.0)
    for group in ("train", "evaluate"):
        assert clients.admit(client(group, 0))
        clients.remove(client(group, 0))
    assert not clients.wait_until_done(0.0), "rank 1 of neither has come"
    for group in ("train", "evaluate"):
        assert clients.admit(client(group, 1))
        assert not clients.wait_until_done(0.0)
        clients.remove(client(group, 1))
    assert clients.wait_until_done(0.0)
    assert not clients.admit(client("train", 0)), "it is for the successor"


def test_a_client_that_was_lost_may_come_back() -> None:
    clients = ClientRegistry(1)
    lost = client("train", 0, has_left=False)
    assert clients.admit(lost)
    clients.remove(lost)
    assert not clients.wait_until_done(0.0), "it has a minute"
    assert clients.admit(client("train", 0))
    clients.remove(client("train", 0))
    assert clients.wait_until_done(0.0)


def test_what_other_servers_know_of_clients_that_are_done() -> None:
    """As after a restart: this server has never seen the first client."""
    clients = ClientRegistry(2)
    assert clients.admit(client("train", 1))
    assert clients.add_done([("train", 0), ("train", 1)]) == [("train", 0)], "who is here says itself when it is done"
    assert clients.add_done([("train", 0)]) == []
    assert not clients.wait_until_done(0.0)
    clients.remove(client("train", 1, has_left=False))
    assert not clients.wait_until_done(0.0), "it has a minute"
    assert clients.add_done([("train", 1)]) == [("train", 1)]
    assert clients.wait_until_done(0.0)
    assert sorted(clients.done()) == [("train", 0), ("train", 1)]


def test_nothing_is_kept_where_any_number_of_clients_may_come() -> None:
    clients = ClientRegistry(None)
    assert clients.admit(client("train", 0))
    clients.remove(client("train", 0))
    assert clients.add_done([("train", 1)]) == [] and clients.done() == [] and not clients.wait_until_done(0.0)
