"""A process of a server that is stopped, not dead: whoever waits for it hears of that in bounded time, by name."""

import os
import signal
import time

import pytest
from batch_law import assert_same, reference
from promptness import eventually, expect_prompt
from service_actors import CASE, Stage

STUCK_S = 5.0


@pytest.fixture
def stage(tmp_path):
    with Stage(2) as stage:
        for actor in range(2):
            folder = tmp_path / str(actor)
            folder.mkdir()
            stage.ask(actor, "lower", str(folder), STUCK_S=STUCK_S)
        yield stage


def test_a_frozen_server(stage, world):
    """Calls fail; batches come from its sampler all the same. Woken, it takes its client back."""
    here = world(1)
    stage.start_servers(here.path, 1, 1)
    stage.start_clients(1, 1)
    stage.ask(1, "law", "law", 0)
    got = stage.ask(1, "take", "law", 1)
    stage.freeze(0)
    start = time.monotonic()
    failed = stage.fails(1, "request", 0, "torch.cuda.is_available")
    expect_prompt(time.monotonic() - start, "the client to notice", STUCK_S + 10)
    pid = stage.processes[0].pid
    assert failed.kind == "PeerLost" and f"pid {pid}" in failed.text and "server 0" in failed.text, failed
    assert "no sign of life" in failed.text, failed
    got += stage.ask(1, "take", "law")
    assert_same(got, reference(here, CASE, 0)[: len(got)], "law")
    stage.kill(0, signal.SIGCONT)
    assert stage.ask(1, "request", 0, "torch.cuda.is_available") in (True, False)
    stage.ask(1, "law", "new", 0)
    got = stage.ask(1, "take", "new")
    assert_same(got, reference(here, CASE, 0)[: len(got)], "new")
    stage.ask(1, "leave")
    assert stage.ask(0, "wait_and_shutdown", 60.0)
    stage.end(0, 1)
    stage.results()
    stage.expect_nothing_left()


def test_a_frozen_sampler(stage, world):
    """Its server kills it and starts another."""
    here = world(1)
    ((victim,),) = stage.start_servers(here.path, 1, 1)
    stage.start_clients(1, 1)
    stage.ask(1, "make", "endless")
    stage.ask(1, "go", "endless")
    start = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    kind, text, at_s = stage.ask(1, "ended", "endless")
    expect_prompt(at_s - start, "the client to notice", STUCK_S + 10)
    assert kind in ("WorkerDied", "PeerLost") and "worker 0 of server 0" in text and "no sign of life" in text, text
    # The client may notice before the server does, which still counts on the frozen one until it has replaced it.
    while (now := stage.ask(0, "samplers")) == [victim] or not now:
        assert time.monotonic() - start < 120, now
        time.sleep(0.1)
    stage.ask(1, "law", "new", 0)
    got = stage.ask(1, "take", "new")
    assert_same(got, reference(here, CASE, 0)[: len(got)], "new")
    assert victim not in stage.ask(0, "samplers")
    stage.ask(1, "leave")
    assert stage.ask(0, "wait_and_shutdown", 60.0)
    stage.end(0, 1)
    stage.results()
    stage.expect_nothing_left()


def test_a_frozen_client(tmp_path, world):
    """It gives up its loaders, and hears why when it is woken; then it may come back. Others do not mind."""
    here = world(1)
    with Stage(3) as stage:
        stage.ask(0, "lower", str(tmp_path), LEASE_S=STUCK_S)
        stage.start_servers(here.path, 1, 2)
        stage.start_clients(1, 2)
        for actor in (1, 2):
            stage.ask(actor, "make", "endless")
            stage.ask(actor, "go", "endless")
        start = time.monotonic()
        stage.freeze(1)
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 1)
        expect_prompt(time.monotonic() - start, "the server to notice", STUCK_S + 10)
        count = stage.ask(2, "count", "endless")
        assert eventually(lambda: stage.ask(2, "count", "endless") > count + 10)
        stage.kill(1, signal.SIGCONT)
        kind, text, _ = stage.ask(1, "ended", "endless")
        assert kind == "PeerLost" and "server 0" in text, (kind, text)
        stage.ask(1, "law", "law", 0)
        got = stage.ask(1, "take", "law")
        assert_same(got, reference(here, CASE, 0)[: len(got)], "law")
        stage.ask(2, "stop", "endless")
        for actor in (1, 2):
            stage.ask(actor, "leave")
        assert stage.ask(0, "wait_and_shutdown", 60.0)
        stage.end(0, 1, 2)
        stage.results()
        stage.expect_nothing_left()
