"""A network that is cut between two hosts: both sides notice, by name, and whoever is on the right side goes on."""

import time

import pytest
from network import enter, switch
from promptness import eventually, expect_prompt
from service import Stage

pytestmark = pytest.mark.integration

CUT_S = 3.0


def place(stage, hosts, folder, **constants):
    """Moves each actor to its host, with other deadlines than users have."""
    for actor, host in enumerate(hosts):
        (folder / str(actor)).mkdir()
        stage.ask(actor, "run_function", enter, host)
        stage.ask(actor, "lower", str(folder / str(actor)), **constants)


def test_a_cut_network(hosts, world, tmp_path):
    """The server and one client are on one host, another client on the other."""
    here = world(1)
    with Stage(3) as stage:
        place(stage, (hosts[0], hosts[0], hosts[1]), tmp_path, CUT_S=CUT_S)
        stage.ask(0, "serve", here.path, 1, 2, 0, master_addr="10.199.0.1")
        for rank in range(2):
            stage.ask(1 + rank, "join", 1, 2, rank, master_addr="10.199.0.1")
            stage.set_going(1 + rank, "endless")
        assert eventually(lambda: all(stage.ask(actor, "count", "endless") > 5 for actor in (1, 2)))
        assert stage.ask(0, "stats")["num_clients"] == 2
        start = time.monotonic()
        switch(hosts, "down")
        kind, text, at_s = stage.ask(2, "ended", "endless")
        expect_prompt(at_s - start, "the client to notice", CUT_S + 10)
        assert kind == "PeerLost" and "server 0" in text and f"pid {stage.processes[0].pid}" in text, (kind, text)
        stage.fails(2, "request", 0, "torch.cuda.is_available").expect("PeerLost", "server 0")

        def is_freed():
            stats = stage.ask(0, "stats")
            return stats["num_clients"] == 1 and stats["num_loaders"] == 1

        assert eventually(is_freed)
        expect_prompt(time.monotonic() - start, "the server to notice", CUT_S + 15)
        stage.goes_on(1, "endless", 20)
        # And mended: the client comes back.
        switch(hosts, "up")
        assert stage.ask(2, "request", 0, "torch.cuda.is_available") in (True, False)
        stage.ask(1, "stop", "endless")
        stage.finish((1, 2), (0,))


def test_a_cut_between_servers(hosts, world, tmp_path):
    """The samplers of one ask the other for rows. Mended, the servers find each other again by themselves."""
    here = world(2)
    with Stage(3) as stage:
        place(stage, (hosts[0], hosts[1], hosts[0]), tmp_path, CUT_S=CUT_S, RECONNECT_S=2.0)
        for rank in range(2):
            stage.begin(rank, "serve", here.path, 2, 1, rank, master_addr="10.199.0.1")
        for rank in range(2):
            stage.result(rank)
        stage.ask(2, "join", 2, 1, 0, master_addr="10.199.0.1")
        stage.set_going(2, "endless", server_rank=0)
        start = time.monotonic()
        switch(hosts, "down")
        kind, text, at_s = stage.ask(2, "ended", "endless")
        expect_prompt(at_s - start, "the samplers to give up", CUT_S + 15)
        assert kind == "PeerLost" and "server 1" in text and f"pid {stage.processes[1].pid}" in text, (kind, text)
        stage.fails(2, "request", 1, "torch.cuda.is_available").expect("PeerLost", "server 1")
        switch(hosts, "up")
        assert eventually(lambda: stage.reaches(2, 1))
        for rank in range(2):
            stage.ask(2, "law", "law", 0, server_rank=rank)
            stage.expect_law(2, "law", here, 0)
        stage.finish((2,), range(2))
