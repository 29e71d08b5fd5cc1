"""Servers, clients and loaders come in any order, leave as they like, and leave nothing behind."""

import gc
import time

from batch_law import assert_same, reference
from promptness import eventually, expect_prompt
from service_actors import CASE, Stage

STRAYS = 3  # threads and descriptors of what ends in its own time


def test_any_order(world):
    """Clients come first, then server 1, then server 0. Two clients create two loaders each, in different order."""
    here = world(2)
    with Stage(4) as stage:
        for rank in range(2):
            stage.begin(2 + rank, "join", 2, 2, rank)
        stage.begin(1, "serve", here.path, 2, 2, 1)
        time.sleep(1.0)  # so that they do wait
        stage.begin(0, "serve", here.path, 2, 2, 0)
        for actor in range(4):
            stage.result(actor)
        for actor, names in ((2, ("a", "b")), (3, ("b", "a"))):
            for name in names:
                stage.ask(actor, "law", name, "ab".index(name), server_rank=[0, 1])
        for actor in (2, 3):
            for rank, name in enumerate("ab"):
                got = stage.ask(actor, "take", name)
                assert_same(got, reference(here, CASE, rank)[: len(got)], f"{name} of actor {actor}")
                assert len(got) > 4
        # An epoch that is left in the middle; the next is whole.
        stage.ask(2, "law", "c", 0, server_rank=[1, 0], prefetch_size=1)
        stage.ask(2, "take", "c", 2)
        stage.ask(2, "again", "c")
        got = stage.ask(2, "take", "c")
        assert_same(got, reference(here, CASE, 0)[len(got) :], "the second epoch")
        for actor in (2, 3):
            stage.ask(actor, "leave")
            stage.ask(actor, "leave")
        for actor in (0, 1):
            assert stage.ask(actor, "wait_and_shutdown", 60.0)
            assert stage.ask(actor, "wait_and_shutdown", 60.0)
        stage.end(0, 1, 2, 3)
        stage.results()
        stage.expect_nothing_left()
        for rank in range(4):
            assert "Traceback" not in stage.output(rank), stage.output(rank)


def test_loaders_come_and_go(world):
    """Twenty of them: read whole, half, not at all, forgotten; nothing grows in client, server and sampler."""
    here = world(1)
    with Stage(2) as stage:
        ((sampler,),) = stage.start_servers(here.path, 1, 1)
        stage.start_clients(1, 1)

        def live(number):
            stage.ask(1, "law", "law", 0)
            if number % 2 == 0:
                got = stage.ask(1, "take", "law", 3)
                got = stage.ask(1, "take", "law")  # the rest
                assert got
            if number % 3 == 0:
                stage.ask(1, "take", "law", 2)  # left in the middle of an epoch
            stage.ask(1, "forget" if number % 4 == 1 else "close", "law")
            stage.ask(1, "run_function", gc.collect)

        def holdings():
            return [stage.ask(1, "census"), stage.ask(0, "census"), stage.ask(0, "census", sampler)]

        for number in range(4):
            live(number)
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 0)
        before = holdings()
        for number in range(20):
            live(number)
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 0)

        def is_as_before():
            return all(
                now[i] <= then[i] + STRAYS for now, then in zip(holdings(), before, strict=True) for i in range(3)
            )

        assert eventually(is_as_before), (before, holdings())
        for now, then in zip(holdings(), before, strict=True):
            assert now[3] < then[3] + (48 << 20), (before, holdings())
        assert stage.ask(0, "samplers") == [sampler]
        totals = stage.ask(0, "stats")["totals"]
        assert totals["num_queued"] == totals["num_running"] == 0
        stage.ask(1, "leave")
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        stage.end(0, 1)
        stage.results()
        stage.expect_nothing_left()
        for rank in range(2):
            assert "Traceback" not in stage.output(rank), stage.output(rank)


def test_a_client_that_ends_without_a_word(world):
    """The server waits for it to come back, for a while, and then is done."""
    here = world(1)
    with Stage(2) as stage:
        stage.ask(0, "lower", None, GRACE_S=2.0)
        stage.start_servers(here.path, 1, 1)
        stage.start_clients(1, 1)
        stage.ask(1, "law", "law", 0)
        stage.ask(1, "take", "law", 2)
        stage.end(1)
        stage.processes[1].join(60)
        start = time.monotonic()
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        expect_prompt(time.monotonic() - start, "the server to be done")
        stage.end(0)
        assert [outcome.error_type for outcome in stage.outcomes()] == [None, None]
        stage.expect_nothing_left()


def test_nobody_is_there(world):
    """Deadlines of start-up: no server at all; one that waits for another; a port that nobody answers."""
    here = world(2)
    with Stage(3) as stage:
        start = time.monotonic()
        for actor in (1, 2):
            stage.begin(actor, "join", 2, 1, 0, rpc_timeout=1.5)
        for actor in (1, 2):
            failed = stage.failure(actor)
            assert failed.kind == "RendezvousError" and str(stage.port) in failed.text, failed
        failed = stage.fails(2, "serve", here.path, 2, 1, 1, rpc_timeout=1.5)
        assert failed.kind in ("RendezvousError", "WorkerDied"), failed
        expect_prompt(time.monotonic() - start, "those who wait to give up", 20)
        # Server 0 is there, and server 1 is not.
        stage.ask(0, "serve", here.path, 2, 1, 0)
        start = time.monotonic()
        failed = stage.fails(1, "join", 2, 1, 0, rpc_timeout=2.0)
        expect_prompt(time.monotonic() - start, "the client to give up")
        assert failed.kind == "RendezvousError" and "rank [1]" in failed.text, failed
        stage.ask(0, "wait_and_shutdown", 0.1)
        stage.end(0, 1, 2)
        stage.results()
        stage.expect_nothing_left()
