"""Servers that come back: with the same rank at the same port, and all others find them again."""

import pytest
from batch_law import assert_same, reference
from promptness import eventually
from service_actors import CASE, Failed, Stage

import glt


def is_right(stage, actor, world, server_rank):
    stage.ask(actor, "law", "law", 0, server_rank=server_rank)
    got = stage.ask(actor, "take", "law")
    assert_same(got, reference(world, CASE, 0)[: len(got)], f"from server {server_rank}")
    assert len(got) > 4
    stage.ask(actor, "close", "law")


def wait_for_servers():
    glt.distributed.server.api.get_server().membership.wait_for_all(60.0)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_server_restarted(world, victim):
    """Actor 2 takes the place of the victim; the client, and the other server, which asks it for rows, stay."""
    here = world(2)
    with Stage(4) as stage:
        stage.start_servers(here.path, 2, 1, read_local=False)
        stage.ask(3, "join", 2, 1, 0)
        for rank in range(2):
            is_right(stage, 3, here, rank)
        stage.kill(victim)
        stage.processes[victim].join(60)
        failed = stage.fails(3, "request", victim, "torch.cuda.is_available")
        assert failed.kind == "PeerLost" and f"pid {stage.processes[victim].pid}" in failed.text, failed
        stage.ask(2, "serve", here.path, 2, 1, victim, read_local=False)

        def is_back():
            try:
                stage.ask(3, "request", victim, "torch.cuda.is_available")
            except Failed as failed:
                assert failed.kind == "PeerLost", failed
                return False
            return True

        assert eventually(is_back)
        for rank in range(2):
            is_right(stage, 3, here, rank)
        stage.ask(3, "leave")
        for actor in (1 - victim, 2):
            assert stage.ask(actor, "wait_and_shutdown", 60.0)
        stage.end(1 - victim, 2, 3)
        stage.outcomes()
        stage.expect_nothing_left()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_server_restarted_ends_with_the_others(world, victim):
    """It has not seen the client that was done before, nor the other, which asks it for nothing any more."""
    here = world(2)
    with Stage(5) as stage:
        stage.start_servers(here.path, 2, 2)
        for rank in range(2):
            stage.ask(3 + rank, "join", 2, 2, rank)
        stage.ask(3, "leave")
        stage.kill(victim)
        stage.processes[victim].join(60)
        stage.ask(2, "serve", here.path, 2, 2, victim)
        stage.ask(2, "run_function", wait_for_servers)  # a server that ends before tells nobody anything
        stage.ask(4, "leave")
        for actor in (1 - victim, 2):
            assert stage.ask(actor, "wait_and_shutdown", 100.0)
        stage.end(1 - victim, 2, 3, 4)
        stage.outcomes()
        stage.expect_nothing_left()
