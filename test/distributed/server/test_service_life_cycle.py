"""Servers, clients and loaders come in any order, leave as they like, share equally, and leave nothing behind."""

import gc
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from dist_world import NUM_NODES, assert_same, run_cluster, told_to_a_second_thread
from promptness import eventually, expect_prompt
from service import CASE, Stage, options, serve, serve_or

import glt
from glt.distributed.server.pool import SamplerPool

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
                stage.expect_law(actor, name, here, rank)
        # An epoch that is left in the middle; the next is whole.
        stage.ask(2, "law", "c", 0, server_rank=[1, 0], prefetch_size=1)
        stage.ask(2, "take", "c", 2)
        stage.ask(2, "again", "c")
        got = stage.ask(2, "take", "c")
        assert_same(got, CASE.reference(here, 0)[len(got) :], "the second epoch")
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
        stage.finish((1,), (0,))
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
            stage.failure(actor).expect("RendezvousError", str(stage.port))
        failed = stage.fails(2, "serve", here.path, 2, 1, 1, rpc_timeout=1.5)
        assert failed.kind in ("RendezvousError", "WorkerDied"), failed
        expect_prompt(time.monotonic() - start, "those who wait to give up", 20)
        # Server 0 is there, and server 1 is not.
        stage.ask(0, "serve", here.path, 2, 1, 0)
        stage.ask(1, "lower", None, HINT_S=0.2)
        start = time.monotonic()
        failed = stage.fails(1, "join", 2, 1, 0, rpc_timeout=4.0)
        expect_prompt(time.monotonic() - start, "the client to give up")
        assert failed.kind == "RendezvousError" and "rank [1]" in failed.text, failed
        assert stage.output(1).count("servers of rank [1] of 2 have not joined server 0 ") >= 2  # yet
        stage.ask(0, "wait_and_shutdown", 0.1)
        stage.end(0, 1, 2)
        stage.results()
        stage.expect_nothing_left()


FULL = os.environ.get("GLT_FULL") == "1"

NUM_CLIENTS = 8

# Half an hour of eight trainers that take ten batches a second and begin a new loader every five minutes, without the
# time between the batches: GLT_FULL=1.
NUM_LOADERS = 6 if FULL else 1  # that each client goes through, one after the other

BATCHES = 3000 if FULL else 400  # of each of them, at least

GROWTH = 64 << 20

LIMIT_S = 3600 if FULL else 300

FAIR = 0.9


@pytest.mark.timeout(LIMIT_S)
def test_eight_clients(world):
    """Two processes, four clients each in groups of their own, would do; here each is a process."""
    here = world(1)
    with Stage(1 + NUM_CLIENTS, deadline_s=LIMIT_S - 60.0) as stage:
        ((sampler,),) = stage.start_servers(here.path, 1, NUM_CLIENTS, max_concurrency=4)
        stage.start_clients(1, NUM_CLIENTS)
        clients = range(1, 1 + NUM_CLIENTS)

        def counts():
            for actor in clients:
                stage.begin(actor, "count", "hungry")
            return [stage.result(actor) for actor in clients]

        def holdings():
            for actor in clients:
                stage.begin(actor, "census")
            found = [stage.result(actor) for actor in clients]
            return [stage.ask(0, "census"), stage.ask(0, "census", sampler), *found]

        before = None
        for _ in range(NUM_LOADERS):
            for actor in clients:
                stage.ask(actor, "make", "hungry", batch_size=32)
            for actor in clients:
                stage.begin(actor, "go", "hungry")
            for actor in clients:
                stage.result(actor)
            assert eventually(lambda: min(counts()) > 30)  # warm, and all of them hungry
            if before is None:
                before = holdings()
            start, since = counts(), time.monotonic()
            while min(now - then for now, then in zip(counts(), start, strict=True)) < BATCHES:
                assert time.monotonic() - since < 600
                time.sleep(0.2)
            shares = [now - then for now, then in zip(counts(), start, strict=True)]
            assert min(shares) >= FAIR * max(shares), shares
            after = holdings()
            for actor in clients:
                stage.ask(actor, "stop", "hungry")
                stage.ask(actor, "close", "hungry")
            for now, then in zip(after, before, strict=True):
                assert now[0] <= then[0] + 3 and now[1] <= then[1] + 3 and now[2] == then[2], (before, after)
                assert now[3] <= then[3] + GROWTH, (before, after)
        assert stage.ask(0, "samplers") == [sampler]
        stage.finish(clients, (0,))


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def make(**given):
    return glt.distributed.DistNeighborLoader(
        None, [4, 3], torch.arange(NUM_NODES), batch_size=8, worker_options=options(**given)
    )


def in_a_fork(*calls):
    """What a child of this process gets from the calls, which is killed if it hangs."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as out:
            out.write("\n".join(error_of(call) for call in calls))
        os._exit(0)
    os.close(writer)
    killer = threading.Timer(60.0, os.kill, (child, signal.SIGKILL))
    killer.start()
    with os.fdopen(reader) as told:
        lines = told.read().splitlines()
    os.waitpid(child, 0)
    killer.cancel()
    return lines


def fork(trainer, rank):
    def join_again():
        glt.distributed.init_client(1, 1, 0, "localhost", trainer.port, client_group_name="fork", rpc_timeout=60.0)
        with make() as loader:
            assert len(list(loader)) == len(loader)
        glt.distributed.shutdown_client()

    with make(prefetch_size=1) as loader:
        batches = iter(loader)
        next(batches)
        lines = in_a_fork(
            lambda: next(batches),
            lambda: list(loader),
            make,
            loader.shutdown,
            lambda: glt.distributed.request_server(0, "torch.cuda.is_available"),
            join_again,
        )
        assert len(list(batches)) == len(loader) - 1  # it took nothing from its parent
    return os.getpid(), lines


def test_a_fork_of_a_client(world):
    pid, lines = run_cluster(2, serve_or, world(1).path, 1, 1, fork, {})[1]
    for line in lines[:3] + lines[4:5]:
        assert line.startswith("RuntimeError") and f"is a fork of the client (pid {pid})" in line, lines
        assert "init_client" in line, lines
    assert [lines[3], lines[5]] == ["nothing was raised"] * 2, lines


def shut_down_while_reading(trainer, rank):
    """The batch that is awaited never comes: its epoch was not begun."""
    loader = make()
    ended = [0.0]

    def end():
        ended[0] = time.monotonic()
        loader.shutdown()

    threading.Timer(0.3, end).start()
    told = error_of(lambda: loader._backend.receive(0))
    return told, time.monotonic() - ended[0]


def test_a_loader_that_is_shut_down_while_it_is_read(world):
    told, took_s = run_cluster(2, serve_or, world(1).path, 1, 1, shut_down_while_reading, {})[1]
    assert told == "RuntimeError: the loader was shut down while a batch was awaited"
    expect_prompt(took_s, "to hear that the loader was shut down", within_s=5)


def serve_slowly(path, seconds, **given):
    """Its samplers take long to come up."""
    ensure = SamplerPool.ensure

    def ensure_late(pool, count):
        time.sleep(seconds)
        return ensure(pool, count)

    SamplerPool.ensure = ensure_late
    try:
        serve(SimpleNamespace(**given), path, 1, 1)
    finally:
        SamplerPool.ensure = ensure


def ask_from_two_threads():
    given = {"batch_size": 10, "worker_options": options(server_rank=[0])}
    with glt.distributed.DistNeighborLoader(None, [3], torch.arange(50), **given) as loader:
        return told_to_a_second_thread(loader)


def test_a_second_thread_is_refused_while_the_first_waits_for_a_batch(world):
    with Stage(2) as stage:
        stage.begin(0, "serve", world(1).path, 1, 1, 0)
        stage.ask(1, "join", 1, 1, 0)
        stage.result(0)
        num_batches, told = stage.ask(1, "run_function", ask_from_two_threads)
        assert num_batches == 5 and len(told) == 10
        assert all("'second' asks this loader for a batch while thread 'MainThread' does" in each for each in told)
        stage.ask(1, "leave")
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        stage.end(0, 1)
        stage.results()


def test_a_client_waits_for_a_server_that_takes_longer_to_start_than_a_handshake(world):
    with Stage(2) as stage:
        stage.ask(1, "lower", None, HANDSHAKE_S=0.5)
        stage.begin(0, "run_function", serve_slowly, world(1).path, 3.0, rank=0, port=stage.port)
        stage.start_clients(1, 1)
        stage.result(0)
        stage.ask(1, "law", "law", 0)
        stage.expect_law(1, "law", world(1), 0)
        stage.finish((1,), (0,))
