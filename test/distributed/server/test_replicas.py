"""Servers that are killed while clients use them: others make the same batches, each once, in order."""

import os
import random
import signal
import threading
import time
from contextlib import contextmanager, suppress

import pytest
import torch
from dist_world import NUM_NODES
from promptness import eventually, expect_prompt
from replicas import START_S, Servers, digest

import glt
from glt import _deadlines as deadlines
from glt.distributed.context import resign
from glt.errors import PeerLost

BATCH_SIZE = 4
PER_EPOCH = NUM_NODES // BATCH_SIZE
ARGUMENTS = {"shuffle": True, "with_edge": True, "collect_features": True, "random_seed": 11}


@pytest.fixture
def serve(tmp_path):
    made = []

    def start(path, num_servers, **lowered):
        made.append(Servers(path, num_servers, tmp_path, **lowered))
        made[-1].start(*range(num_servers))
        return made[-1]

    yield start
    for each in made:
        each.close()


@contextmanager
def client_of(servers):
    glt.distributed.init_client(servers.num_servers, 1, 0, "127.0.0.1", servers.port, rpc_timeout=60.0)
    try:
        yield
    finally:
        glt.distributed.shutdown_client()


def loader_of(server_rank=None, **given):
    options = glt.distributed.RemoteDistSamplingWorkerOptions(server_rank=server_rank, buffer_size="16MB", **given)
    seeds = torch.arange(NUM_NODES)
    return glt.distributed.DistNeighborLoader(None, [4, 3], seeds, BATCH_SIZE, worker_options=options, **ARGUMENTS)


@pytest.fixture(scope="module")
def expected(world):
    """The batches that one process makes of the whole graph, in so many epochs."""

    def make(num_epochs):
        resign()
        glt.distributed.init_worker_group(1, 0, "alone")
        try:
            data = glt.distributed.DistDataset().load(world(1).path, 0)
            options = glt.distributed.CollocatedDistSamplingWorkerOptions()
            seeds, given = torch.arange(NUM_NODES), {"worker_options": options, **ARGUMENTS}
            with glt.distributed.DistNeighborLoader(data, [4, 3], seeds, BATCH_SIZE, **given) as loader:
                return [digest(batch) for _ in range(num_epochs) for batch in loader]
        finally:
            resign()

    return make


def go(loader, num_batches, before=lambda at: None):
    """Takes so many batches, over several epochs; returns their digests, and how long each was waited for."""
    found, waits = [], []
    while len(found) < num_batches:
        batches = iter(loader)
        for _ in range(min(PER_EPOCH, num_batches - len(found))):
            before(len(found))
            start = time.monotonic()
            batch = next(batches)
            waits.append(time.monotonic() - start)
            found.append(digest(batch))
    return found, waits


def test_one_is_killed_and_then_the_only_one_of_the_other_partition(world, serve, expected):
    """Servers 0 and 2 have the first partition, server 1 the second, which the samplers of the others ask for."""
    servers = serve(world(2).path, 3)
    restarts = []

    def happens(at):
        if at == 100:
            servers.kill(2)
        elif at == 200:
            servers.kill(1)
            restarts.append(threading.Thread(target=servers.start, args=(1,)))
            restarts[0].start()
        elif at == 300:
            restarts[0].join(START_S)
            servers.start(2)
            assert eventually(lambda: glt.distributed.server.api.require_client().is_there(2))

    with client_of(servers), loader_of([2, 1]) as loader:
        found, waits = go(loader, 4 * PER_EPOCH, happens)
        stats = loader.stats()
        print(
            f"\nlongest wait {max(waits):.2f} s, at batch {waits.index(max(waits))}; {stats['channel_num_moved']} moved"
        )
        assert stats["channel_num_moved"] == 2 and stats["num_batches"] == 4 * PER_EPOCH
        # Servers that are back have their shares again.
        by_server = [glt.distributed.server_stats(rank)["num_loaders"] for rank in range(3)]
        assert by_server == [0, 1, 1], by_server
    assert found == expected(4)


FROZEN = {
    "sampler": lambda servers: servers.samplers(2),
    "server": lambda servers: [servers.processes[2].pid],
    "host": lambda servers: [servers.processes[2].pid, *servers.samplers(2)],
}


@pytest.mark.parametrize("who", FROZEN)
def test_what_is_frozen_is_given_up_after_a_silence_and_has_its_share_again_later(
    world, serve, expected, monkeypatch, who
):
    silence_s = 5.0
    monkeypatch.setattr(deadlines, "STUCK_S", silence_s)
    servers = serve(world(2).path, 3, STUCK_S=silence_s)
    client = glt.distributed.server.api.require_client

    def go_on():
        while frozen:
            with suppress(ProcessLookupError):  # a server kills a sampler that is frozen
                os.kill(frozen.pop(), signal.SIGCONT)

    def happens(at):
        if at == 50:
            frozen.extend(FROZEN[who](servers))
            for pid in frozen:
                os.kill(pid, signal.SIGSTOP)
        elif at == 2 * PER_EPOCH - 1:
            if who == "host":  # else it may have been frozen for less than its silence
                assert not client().is_there(2)
            go_on()
            assert eventually(lambda: client().is_there(2))

    frozen = []
    with client_of(servers), loader_of([2, 1]) as loader:
        try:
            found, waits = go(loader, 3 * PER_EPOCH, happens)
        finally:
            go_on()
        print(f"\n{who}: longest waits {sorted(waits)[-3:]}; {loader.stats()['channel_num_moved']} moved")
        expect_prompt(max(waits), "a frozen process to be given up", silence_s + 3.0)
        assert [glt.distributed.server_stats(rank)["num_loaders"] for rank in range(3)] == [0, 1, 1]
    assert found == expected(3)


def test_a_server_that_is_being_stopped_finishes_its_loaders_and_another_opens_new_ones(world, serve, expected):
    servers, wanted = serve(world(1).path, 2), expected(1)
    with client_of(servers):
        with loader_of(1) as loader:
            batches = iter(loader)
            found = [digest(next(batches))]
            servers.processes[1].terminate()
            assert eventually(lambda: glt.distributed.server_stats(1)["is_draining"])
            with loader_of(1) as other, loader_of([0, 1]) as both:
                assert go(other, PER_EPOCH)[0] == go(both, PER_EPOCH)[0] == wanted
            found += [digest(batch) for batch in batches]
            assert found == wanted and loader.stats()["channel_num_moved"] == 0
        process = servers.processes.pop(1)
        assert process.wait(60) == 0
        process.stdout.close()


def test_a_server_that_is_being_stopped_does_not_wait_for_those_that_only_ask(world, serve):
    """A SamplingClient has no end: it asks the other server."""
    servers = serve(world(1).path, 2)
    where = glt.distributed.RemoteDistSamplingWorkerOptions([0, 1], buffer_size="8MB")
    with client_of(servers), glt.distributed.SamplingClient([3], worker_options=where) as client:
        before = [client.sample([seed]).n_id.tolist() for seed in range(20)]
        process, start = servers.processes.pop(1), time.monotonic()
        process.terminate()
        while process.poll() is None:
            assert [client.sample([seed]).n_id.tolist() for seed in range(20)] == before
        expect_prompt(time.monotonic() - start, "the server to end", 10.0)
        assert process.wait() == 0
        process.stdout.close()
        assert [client.sample([seed]).n_id.tolist() for seed in range(20)] == before


def test_the_last_server_is_killed(world, serve):
    servers = serve(world(1).path, 1)
    pid = servers.processes[0].pid
    with client_of(servers), loader_of() as loader:
        batches = iter(loader)
        next(batches)
        servers.kill(0)
        start = time.monotonic()
        with pytest.raises(PeerLost, match=f"server 0 .*pid {pid}"):
            list(batches)
        expect_prompt(time.monotonic() - start, "the client to notice")
        with pytest.raises(PeerLost, match=f"server 0 .*pid {pid}"):
            loader_of()


class Killer:
    """Kills a server, or the sampler of one, at random, and starts another in its place; so one of each partition is
    always there."""

    def __init__(self, servers, seed):
        self.servers, self.random, self.counts = servers, random.Random(seed), {"server": 0, "sampler": 0}
        self.error, self._over = None, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._over.wait(self.random.uniform(0.0, 2.0)):
                rank = self.random.randrange(self.servers.num_servers)
                if self.random.random() < 0.25:
                    self._kill_sampler(rank)
                else:
                    self.servers.kill(rank)
                    self.counts["server"] += 1
                    self.servers.start(rank)
        except BaseException as error:
            self.error = error

    def _kill_sampler(self, rank):
        for victim in self.servers.samplers(rank):
            os.kill(victim, signal.SIGKILL)
            self.counts["sampler"] += 1

    def end(self):
        self._over.set()
        self._thread.join(START_S)
        if self.error is not None:
            raise self.error


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_servers_killed_at_random_for_ten_thousand_batches(world, serve, expected):
    """Four servers, two of each partition; the client uses two. None lost, none repeated, none different."""
    num_batches, pace_s, seed = 10_000, 0.03, random.randrange(1 << 30)
    print(f"\nseed {seed}")
    servers = serve(world(2).path, 4)
    killer = Killer(servers, seed)
    with client_of(servers), loader_of([0, 3]) as loader:
        began = time.monotonic()
        found, waits = go(loader, num_batches, lambda at: time.sleep(pace_s))
        killer.end()
        moved = loader.stats()["channel_num_moved"]
    waits.sort(reverse=True)
    longest = ", ".join(f"{wait:.2f}" for wait in waits[:5])
    print(
        f"{num_batches} batches in {time.monotonic() - began:.0f} s; killed {killer.counts}; {moved} streams moved; "
        f"longest waits {longest} s; mean {1000 * sum(waits) / len(waits):.1f} ms"
    )
    wanted = expected(-(-num_batches // PER_EPOCH))[:num_batches]
    assert len(found) == num_batches
    assert [at for at, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other] == []
    assert killer.counts["server"] > 5 and moved > 5
