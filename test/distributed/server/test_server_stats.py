"""The numbers of servers are those of their clients' loaders, and say what is going on."""

import os
import signal
import time

import pytest
import torch
from dist_world import seeds_of
from service_world import options, serve_or

import glt
from glt.distributed import server_stats
from glt.testing.cluster import Cluster

EXACT = ("num_batches", "num_nodes", "num_edges", "num_remote_nodes", "num_cached_nodes", "remote_bytes")
TIMES = ("sampling_s", "gathering_s", "remote_s")
MODES = {  # of every loader in every mode
    "num_batches", "num_seeds", "num_nodes", "num_edges", "wait_s", "collate_s", "sampling_s", "remote_s",
    "gathering_s", "blocked_s", "remote_bytes", "num_remote_nodes", "num_cached_nodes", "remote_node_ratio",
    "cache_hit_ratio", "channel_num_sent", "channel_num_received", "channel_num_queued", "channel_sent_bytes",
    "channel_received_bytes", "channel_num_copied", "channel_num_oversize", "channel_num_producer_waits",
    "channel_producer_wait_s", "channel_num_consumer_waits", "channel_consumer_wait_s",
}  # fmt: skip


def make(rank, batch_size=16, **given):
    return glt.distributed.DistNeighborLoader(
        None,
        [4, 3],
        seeds_of(rank),
        batch_size=batch_size,
        random_seed=3,
        collect_features=True,
        worker_options=options(**given),
    )


def until(found, seconds=60.0):
    """What ``found`` returns, once it is true."""
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, [server_stats(rank) for rank in (0,)]
        time.sleep(0.1)
    return what


def summed(of, name):
    return sum(each[name] for each in of)


def count(trainer, rank, num_servers):
    """Two epochs on all servers; then client 0 looks at what the servers have counted."""
    loader = make(rank, server_rank=list(range(num_servers)))
    for _ in range(2):
        for _ in loader:
            pass
    trainer.say(loader.stats())
    everyone = trainer.hear()
    if rank == 0:
        wanted = summed(everyone, "num_batches")

        def told():
            all_ = [server_stats(each) for each in range(num_servers)]
            return all_ if summed([each["totals"] for each in all_], "num_batches") == wanted else None

        trainer.say(until(told))
        loader.shutdown()
        trainer.hear()  # the others have closed theirs
        until(lambda: all(server_stats(each)["num_loaders"] == 0 for each in range(num_servers)))
        trainer.say(until(told))
        trainer.say("done")
    else:
        trainer.hear()
        loader.shutdown()
        trainer.say("closed")
    trainer.hear()


def test_totals_are_those_of_the_clients_loaders(world):
    with Cluster(4, serve_or, world(2).path, 2, 2, count, {}, 2) as cluster:
        loaders = [cluster.hear(rank) for rank in (2, 3)]
        for rank in (2, 3):
            cluster.say(rank, loaders)
        servers = cluster.hear(2)
        cluster.say(3)
        cluster.hear(3)
        cluster.say(2)
        closed = cluster.hear(2)
        cluster.hear(2)
        for rank in (2, 3):
            cluster.say(rank)
        cluster.results()
        cluster.expect_nothing_left()

    for stats in (servers, closed):
        totals = [each["totals"] for each in stats]
        for name in EXACT:
            assert summed(totals, name) == summed(loaders, name), name
            assert summed([row for each in stats for row in each["workers"].values()], name) == summed(loaders, name)
        for name in TIMES:
            assert summed(totals, name) == pytest.approx(summed(loaders, name)), name
        assert summed(totals, "sent_bytes") == summed(loaders, "channel_received_bytes")
        assert summed(totals, "num_errors") == summed(totals, "num_queued") == summed(totals, "num_unread") == 0
    assert summed(loaders, "remote_bytes") > 0 and summed(loaders, "num_remote_nodes") > 0
    by_client = {}
    for each in servers:
        assert (each["num_clients"], each["num_loaders"], each["num_workers"]) == (2, 2, 1)
        assert each["num_restarts"] == 0 and not each["is_draining"] and each["uptime_s"] > 0
        for row in each["loaders"].values():
            by_client.setdefault(row["client"], []).append(row)
    assert len(by_client) == 2
    for client, rows in by_client.items():
        loader = loaders[int(client.split()[1])]
        for name in EXACT:
            assert summed(rows, name) == loader[name], (client, name)
        assert rows[0]["remote_node_ratio"] > 0
    for loader in loaders:
        assert loader.keys() >= MODES
        assert loader["channel_num_received"] == loader["channel_num_sent"] == loader["num_batches"]
        assert loader["channel_received_bytes"] == loader["channel_sent_bytes"] > 0
        assert loader["channel_num_queued"] == 0
        assert 0 < loader["channel_consumer_wait_s"] <= loader["wait_s"]


def wait_and_lose(trainer, rank):
    """One loader stops reading; then the sampling process is killed, and another loader carries on."""
    lazy = make(rank, batch_size=4, prefetch_size=2)
    batches = iter(lazy)
    next(batches)
    size = len(lazy)
    (row,) = until(
        lambda: [
            row for row in server_stats(0)["loaders"].values()
            if row["num_queued"] == size - 3 and row["blocked_s"] > 0 and row["num_batches"] == 3
        ]
    )  # fmt: skip
    assert row["num_unread"] == 2 and row["num_running"] == 0 and row["queued_bytes"] > 0
    assert lazy.stats()["channel_num_queued"] <= 2
    before = server_stats(0)
    assert before["totals"]["num_queued"] == size - 3

    os.kill(before["workers"]["0"]["pid"], signal.SIGKILL)
    after = until(lambda: (now := server_stats(0))["num_restarts"] and now["num_workers"] == 1 and now)
    assert after["workers"]["0"]["num_restarts"] == after["num_restarts"] == 1
    assert after["workers"]["0"]["pid"] != before["workers"]["0"]["pid"]
    for scope in ("totals", "loaders"):
        rows = [(before[scope], after[scope])] if scope == "totals" else [
            (each, after[scope][id_]) for id_, each in before[scope].items()
        ]  # fmt: skip
        for old, new in rows:
            for name in (*EXACT, *TIMES, "sent_bytes"):
                assert new[name] >= old[name], (scope, name)
    assert after["totals"]["num_queued"] == 0
    lazy.shutdown()
    with make(rank) as loader:
        num_batches = sum(1 for _ in loader)
        wanted = after["totals"]["num_batches"] + num_batches
        told = until(lambda: (now := server_stats(0))["totals"]["num_batches"] == wanted and now)
        assert told["num_loaders"] == 1
        rates = until(lambda: sum(1 for _ in loader) and (now := server_stats(0)["totals"])["batches_per_s"] and now)
        assert rates["bytes_per_s"] > rates["batches_per_s"] > 0
    return torch.tensor(num_batches)


def test_what_waits_is_told_and_no_counter_falls_with_a_process(world):
    with Cluster(2, serve_or, world(1).path, 1, 1, wait_and_lose, {}) as cluster:
        assert cluster.results()[1] > 0
        cluster.expect_nothing_left()
