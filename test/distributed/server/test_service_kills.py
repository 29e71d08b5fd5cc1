"""What is killed or stopped in a service is named within seconds, all others go on, and servers may come back."""

import os
import signal
import time

import pytest
from promptness import eventually, expect_prompt
from service import Stage

import glt


def test_a_killed_server(world, tmp_path):
    """Of two, the second. One client samples on it, one on the other and asks it for rows, one asks nobody."""
    here = world(2)
    with Stage(5) as stage:
        stage.ask(0, "lower", str(tmp_path), RECONNECT_S=3.0)
        pids = stage.start_servers(here.path, 2, 3, read_local=False)
        stage.start_clients(2, 3)
        stage.set_going(2, "there", server_rank=1)
        stage.set_going(3, "through", server_rank=0)
        victim = stage.processes[1].pid
        start = time.monotonic()
        stage.kill(1)
        kind, text, at_s = stage.ask(2, "ended", "there")
        expect_prompt(at_s - start, "the client to notice")
        assert kind == "PeerLost" and "server 1" in text and f"pid {victim}" in text and "host" in text, (kind, text)
        kind, text, at_s = stage.ask(3, "ended", "through")
        expect_prompt(at_s - start, "the other server's sampler to give up")
        assert kind == "PeerLost" and "server 1 (partition 1" in text and f"pid {victim}" in text, (kind, text)
        stage.fails(4, "request", 1, "torch.cuda.device_count").expect("PeerLost", f"pid {victim}")
        assert stage.ask(4, "request", 0, "torch.cuda.device_count") >= 0
        assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids[1]))
        stage.finish((2, 3, 4), (0,))


def test_clients_of_another_server_need_nothing_of_a_killed_one(world):
    """On one host, servers read each other's partitions from their files; also for loaders that are created later."""
    here = world(2)
    with Stage(3) as stage:
        stage.start_servers(here.path, 2, 1, read_local=True)
        stage.start_clients(2, 1)
        stage.ask(2, "law", "before", 0, server_rank=1)
        stage.ask(2, "close", "before")
        stage.ask(2, "law", "during", 0, server_rank=1)
        got = stage.ask(2, "take", "during", 2)
        stage.kill(0)
        assert stage.processes[0].join(60) is None
        stage.expect_law(2, "during", here, 0, got)
        stage.ask(2, "law", "after", 0, server_rank=1)
        stage.expect_law(2, "after", here, 0)
        stage.finish((2,), (1,))


def test_a_killed_sampler(world):
    """It samples for one client, and answers the requests of the other server's sampler, which samples for another.
    Both go on when another process has taken its place."""
    here = world(2)
    with Stage(4) as stage:
        pids = stage.start_servers(here.path, 2, 2, read_local=False, num_workers=1)
        stage.start_clients(2, 2)
        stage.ask(3, "law", "spared too", 1, server_rank=0)
        stage.set_going(2, "hit", server_rank=1)
        stage.set_going(3, "spared", server_rank=0)
        (victim,) = pids[1]
        stage.ask(2, "law", "hit too", 0, server_rank=1)
        got = stage.ask(2, "take", "hit too", 2)
        os.kill(victim, signal.SIGKILL)
        # Requests that were on their way to it are asked again.
        for actor, name in ((2, "hit"), (3, "spared")):
            stage.goes_on(actor, name)
        stage.expect_law(2, "hit too", here, 0, got)
        assert stage.ask(2, "loader_stats", "hit too")["channel_num_moved"] == 1
        stage.expect_law(3, "spared too", here, 1)
        for actor, name in ((2, "hit"), (3, "spared")):
            assert stage.ask(actor, "stop", name) > 0
        (new,) = stage.ask(1, "samplers")
        assert new != victim
        stage.finish((2, 3), (0, 1))


def test_a_sampler_that_is_replaced_slowly(world, tmp_path):
    """By one that comes up later than a server that is gone would be waited for: its own is there, and says so."""
    here = world(2)
    with Stage(3) as stage:
        for actor in range(2):
            (tmp_path / str(actor)).mkdir()
            stage.ask(actor, "lower", str(tmp_path / str(actor)), RECONNECT_S=2.0)
        pids = stage.start_servers(here.path, 2, 1, read_local=False, num_workers=1)
        stage.start_clients(2, 1)
        stage.set_going(2, "through", server_rank=0)
        with open(tmp_path / "1" / "sitecustomize.py", "a") as file:
            file.write("import time\ntime.sleep(4.0)\n")
        os.kill(pids[1][0], signal.SIGKILL)
        stage.goes_on(2, "through", 100)
        assert stage.ask(1, "samplers") not in ([], pids[1])
        assert stage.ask(2, "stop", "through") > 0
        stage.finish((2,), (0, 1))


def test_a_server_that_took_the_place_of_another_is_named(world, tmp_path):
    here = world(2)
    with Stage(4) as stage:
        stage.ask(0, "lower", str(tmp_path), RECONNECT_S=6.0)
        stage.start_servers(here.path, 2, 1, read_local=False)
        stage.ask(2, "join", 2, 1, 0)
        stage.set_going(2, "through", server_rank=0)
        stage.kill(1)
        stage.ask(3, "serve", here.path, 2, 1, 1, read_local=False)
        stage.goes_on(2, "through", 100)
        stage.kill(3)
        kind, text, _ = stage.ask(2, "ended", "through")
        assert kind == "PeerLost" and "server 1 (partition 1" in text, (kind, text)
        assert f"pid {stage.processes[3].pid}" in text, text
        stage.finish((2,), (0,))


def test_a_feature_file_cut_short_under_a_sampler(private_world):
    """No other takes its place, or they die too: that is not tried for ever."""
    with Stage(3) as stage:
        stage.start_servers(private_world.path, 2, 1, num_workers=1)
        stage.start_clients(2, 1)
        stage.set_going(2, "hit", server_rank=1)
        os.truncate(private_world.path / "part1" / "node_feat" / "node.npy", 0)
        kind, text, _ = stage.ask(2, "ended", "hit")
        assert kind == "WorkerDied", (kind, text)
        for word in ("pid", "exit code -7", "worker 0 of server 1", "bus error"):
            assert word in text, text
        stage.finish((2,), (0, 1))


def test_loaders_on_other_samplers_do_not_mind(world):
    here = world(2)
    with Stage(2) as stage:
        ((first, second),) = stage.start_servers(here.path, 1, 1, num_workers=2)
        stage.start_clients(1, 1)
        stage.ask(1, "make", "on both", num_workers=2)
        stage.ask(1, "make", "on one", num_workers=1)  # the first
        stage.ask(1, "take", "on both", 2)
        stage.ask(1, "take", "on one", 2)
        os.kill(second, signal.SIGKILL)
        assert len(stage.ask(1, "take", "on one")) > 10
        assert len(stage.ask(1, "take", "on both")) > 10
        stage.ask(1, "close", "on both")
        stage.ask(1, "law", "new", 0, num_workers=2)
        stage.expect_law(1, "new", here, 0)
        assert set(stage.ask(0, "samplers")) >= {first} and len(stage.ask(0, "samplers")) == 2
        stage.finish((1,), (0,))


def test_a_killed_client_and_its_successor(world):
    here = world(1)
    with Stage(4) as stage:
        stage.start_servers(here.path, 1, 2)
        for actor, rank in ((1, 0), (2, 1)):
            stage.ask(actor, "join", 1, 2, rank)
            stage.set_going(actor, "endless")
        stage.ask(2, "law", "law", 1)
        got = stage.ask(2, "take", "law", 2)
        before = stage.ask(0, "stats")
        assert before["num_clients"] == 2 and before["num_loaders"] == 3
        start = time.monotonic()
        stage.kill(1)

        def is_freed():
            stats = stage.ask(0, "stats")
            return stats["num_clients"] == 1 and stats["num_loaders"] == 2

        assert eventually(is_freed)
        expect_prompt(time.monotonic() - start, "the server to free its loaders")
        stage.goes_on(2, "endless")
        stage.expect_law(2, "law", here, 1, got)
        # Another of the same rank takes its place; the server waits for it.
        stage.ask(3, "join", 1, 2, 0)
        stage.ask(3, "law", "law", 0)
        stage.expect_law(3, "law", here, 0)
        stage.finish((2, 3), (0,))


def test_a_client_that_stops_reading(world):
    """It holds what it was promised and no more, and the others have the server to themselves."""
    here = world(1)
    with Stage(3) as stage:
        ((sampler,),) = stage.start_servers(here.path, 1, 2, max_concurrency=2)
        stage.start_clients(1, 2)
        stage.ask(1, "make", "idle", batch_size=64, worker_concurrency=16, prefetch_size=2, buffer_size="200KB")
        stage.ask(1, "take", "idle", 1)
        stage.set_going(2, "busy")
        stage.goes_on(2, "busy", 100)
        (idle,) = [
            each for id_, each in stage.ask(0, "stats")["loaders"].items() if each["client"].startswith("client 0")
        ]
        assert idle["num_unread"] <= 2 and idle["num_running"] == 0
        # What waits is what was begun while there was room, which the size of earlier batches tells.
        assert idle["queued_bytes"] <= 600 << 10, idle
        before = stage.ask(0, "census", sampler)[3]
        stage.goes_on(2, "busy", 200)
        assert stage.ask(0, "census", sampler)[3] < before + (64 << 20)
        assert len(stage.ask(1, "take", "idle")) == 9  # and it may go on when it likes
        stage.ask(2, "stop", "busy")
        stage.finish((1, 2), (0,))


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
    stage.expect_law(1, "law", here, 0, got)
    stage.kill(0, signal.SIGCONT)
    assert stage.ask(1, "request", 0, "torch.cuda.is_available") in (True, False)
    stage.ask(1, "law", "new", 0)
    stage.expect_law(1, "new", here, 0)
    stage.finish((1,), (0,))


def test_a_frozen_sampler(stage, world):
    """Its server kills it and starts another."""
    here = world(1)
    ((victim,),) = stage.start_servers(here.path, 1, 1)
    stage.start_clients(1, 1)
    stage.set_going(1, "endless")
    start = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    # The client may notice before the server does, which still counts on the frozen one until it has replaced it.
    while (now := stage.ask(0, "samplers")) == [victim] or not now:
        assert time.monotonic() - start < 120, now
        time.sleep(0.1)
    expect_prompt(time.monotonic() - start, "the server to notice", STUCK_S + 10)
    stage.goes_on(1, "endless")
    assert stage.ask(1, "stop", "endless") > 0
    stage.ask(1, "law", "new", 0)
    stage.expect_law(1, "new", here, 0)
    assert victim not in stage.ask(0, "samplers")
    stage.finish((1,), (0,))


def test_a_frozen_client(tmp_path, world):
    """It loses its loaders; woken, it comes back and goes on. Others do not mind."""
    here = world(1)
    with Stage(3) as stage:
        stage.ask(0, "lower", str(tmp_path), LEASE_S=STUCK_S)
        stage.start_servers(here.path, 1, 2)
        stage.start_clients(1, 2)
        for actor in (1, 2):
            stage.set_going(actor, "endless")
        stage.ask(1, "law", "law", 0)
        got = stage.ask(1, "take", "law", 2)
        start = time.monotonic()
        stage.freeze(1)
        assert eventually(lambda: stage.ask(0, "stats")["num_loaders"] == 1)
        expect_prompt(time.monotonic() - start, "the server to notice", STUCK_S + 10)
        stage.goes_on(2, "endless")
        stage.kill(1, signal.SIGCONT)
        stage.goes_on(1, "endless")
        stage.expect_law(1, "law", here, 0, got)
        for actor in (1, 2):
            stage.ask(actor, "stop", "endless")
        stage.finish((1, 2), (0,))


def serves_right(stage, actor, world, server_rank):
    stage.ask(actor, "law", "law", 0, server_rank=server_rank)
    stage.expect_law(actor, "law", world, 0)
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
            serves_right(stage, 3, here, rank)
        stage.kill(victim)
        stage.processes[victim].join(60)
        stage.fails(3, "request", victim, "torch.cuda.is_available").expect(
            "PeerLost", f"pid {stage.processes[victim].pid}"
        )
        stage.ask(2, "serve", here.path, 2, 1, victim, read_local=False)
        assert eventually(lambda: stage.reaches(3, victim))
        for rank in range(2):
            serves_right(stage, 3, here, rank)
        stage.finish((3,), (1 - victim, 2))


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
        stage.finish((3, 4), (1 - victim, 2))
