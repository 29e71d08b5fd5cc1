"""The numbers of servers: those of their clients' loaders, of sampling processes, by process and by loader."""

import os
import random
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from dist_world import run_cluster, seeds_of
from promptness import eventually
from service import Stage, options, serve_or

import glt
from glt.distributed import server_stats
from glt.distributed.server import stats as ledger_module
from glt.distributed.server.stats import COUNTERS, GAUGES, WorkerMetrics, total

EXACT = """num_batches num_nodes num_edges num_remote_nodes num_cached_nodes num_window_nodes remote_bytes cached_bytes
window_bytes disk_bytes num_disk_rows num_hot_rows""".split()

TIMES = ("sampling_s", "gathering_s", "remote_s")

# Of every loader in every mode.
MODES = set(
    """num_batches num_seeds num_nodes num_edges wait_s collate_s sampling_s remote_s gathering_s blocked_s
remote_bytes cached_bytes window_bytes num_remote_nodes num_cached_nodes num_window_nodes remote_node_ratio
cache_hit_ratio disk_s disk_bytes num_disk_rows num_hot_rows hot_row_ratio channel_num_sent channel_num_received
channel_num_queued channel_sent_bytes channel_received_bytes channel_num_copied channel_num_oversize
channel_num_producer_waits channel_producer_wait_s channel_num_consumer_waits channel_consumer_wait_s""".split()
)


def make(rank, batch_size=16, **given):
    flags = {"batch_size": batch_size, "random_seed": 3, "collect_features": True, "worker_options": options(**given)}
    return glt.distributed.DistNeighborLoader(None, [4, 3], seeds_of(rank), **flags)


def until(found, seconds=60.0):
    """What ``found`` returns, once it is true."""
    deadline = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < deadline, [server_stats(rank) for rank in (0,)]
        time.sleep(0.1)
    return what


def summed(of, name):
    return sum(each[name] for each in of)


def test_totals_are_those_of_the_clients_loaders(world):
    """Two epochs of two clients on two servers."""
    with Stage(4) as stage:
        stage.start_servers(world(2).path, 2, 2)
        stage.start_clients(2, 2)
        for client in (2, 3):
            stage.ask(client, "make", "loader", 16, server_rank=[0, 1])
            for _ in range(2):
                stage.ask(client, "take", "loader")
        loaders = [stage.ask(client, "loader_stats", "loader") for client in (2, 3)]

        def told(num_loaders):
            """What the servers say once they have counted all batches, and heard that all are taken."""
            found = []

            def is_complete():
                found[:] = [stage.ask(2, "run_function", server_stats, rank) for rank in range(2)]
                totals = [each["totals"] for each in found]
                at_rest = summed(totals, "num_unread") == 0  # word of the last batches taken comes after them
                counted = summed(totals, "num_batches") == summed(loaders, "num_batches")
                return at_rest and counted and summed(found, "num_loaders") == num_loaders

            assert eventually(is_complete), found
            return found

        servers = told(4)
        for client in (2, 3):
            stage.ask(client, "close", "loader")
        closed = told(0)
        stage.finish((2, 3), (0, 1))

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
    assert max(row["remote_node_ratio"] for rows in by_client.values() for row in rows) > 0  # the rest is cached
    for client, rows in by_client.items():
        loader = loaders[int(client.split()[1])]
        for name in EXACT:
            assert summed(rows, name) == loader[name], (client, name)
    for loader in loaders:
        assert loader.keys() >= MODES
        assert loader["channel_num_received"] == loader["channel_num_sent"] == loader["num_batches"]
        assert loader["channel_received_bytes"] == loader["channel_sent_bytes"] > 0
        assert loader["channel_num_queued"] == 0
        assert 0 < loader["channel_consumer_wait_s"] <= loader["wait_s"]


def wait_and_lose(trainer, rank):
    """One loader stops reading; then the sampling process is killed, and another loader carries on."""
    lazy = make(rank, batch_size=4, prefetch_size=2, worker_concurrency=5)
    batches = iter(lazy)
    next(batches)
    assert len(lazy) > 1 + 2 + 5  # more could be made
    (row,) = until(
        lambda: [
            row
            for row in server_stats(0)["loaders"].values()
            if row["num_queued"] == 5 and row["blocked_s"] > 0 and row["num_batches"] == 3
        ]
    )
    assert row["num_unread"] == 2 and row["num_running"] == 0 and row["queued_bytes"] > 0
    assert lazy.stats()["channel_num_queued"] <= 2
    before = server_stats(0)
    assert before["totals"]["num_queued"] == 5

    os.kill(before["workers"]["0"]["pid"], signal.SIGKILL)
    after = until(lambda: (now := server_stats(0))["num_restarts"] and now["num_workers"] == 1 and now)
    assert after["workers"]["0"]["num_restarts"] == after["num_restarts"] == 1
    assert after["workers"]["0"]["pid"] != before["workers"]["0"]["pid"]
    ((id_, mine),) = before["loaders"].items()
    for old, new in ((before["totals"], after["totals"]), (mine, after["loaders"][id_])):
        for name in (*EXACT, *TIMES, "sent_bytes"):
            assert new[name] >= old[name], name
    assert after["totals"]["num_queued"] == 0
    between = after - before
    assert between["num_restarts"] == 1 and 0 < between["uptime_s"] < after["uptime_s"]
    assert between["totals"]["num_batches"] == after["totals"]["num_batches"] - before["totals"]["num_batches"]
    assert repr(between).startswith("Stats(sampling processes died 1 times: ")
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
    assert run_cluster(2, serve_or, world(1).path, 1, 1, wait_and_lose, {})[1] > 0


def told(batches, queued=0):
    return {**dict.fromkeys(COUNTERS, float(batches)), **dict.fromkeys(GAUGES, float(queued))}


def test_a_stream_counts_for_its_process_and_its_loader():
    ledger = WorkerMetrics()
    for loader in ("a-0-1", "a-1-2"):
        ledger.open_loader(loader)
    ledger.beat(0, {"a-0-1/0": told(3, 2), "a-1-2/0": told(5, 1)})
    ledger.beat(1, {"a-0-1/1": told(4)})
    workers, loaders = ledger.read()
    assert {w: each["num_batches"] for w, each in workers.items()} == {0: 8, 1: 4}
    assert {name: each["sent_bytes"] for name, each in loaders.items()} == {"a-0-1": 7, "a-1-2": 5}
    assert total(workers.values())["num_queued"] == 3
    ledger.end_stream(0, "a-0-1/0", told(6, 9))  # what waits of a stream that ended is gone
    workers, loaders = ledger.read()
    assert workers[0]["num_batches"] == 11 and workers[0]["num_queued"] == 1
    assert loaders["a-0-1"]["num_batches"] == 10 and loaders["a-0-1"]["num_queued"] == 0


def test_rates_are_those_of_the_last_five_seconds(monkeypatch):
    ledger, batches, now = WorkerMetrics(), 0, 100.0
    monkeypatch.setattr(ledger_module, "time", SimpleNamespace(monotonic=lambda: now))
    for second in range(26):
        batches += 10 if second < 12 else 4 if second < 20 else 0
        ledger.beat(0, {"a-0-1/0": told(batches)})
        rates = ledger.read()[0][0]
        wanted = {0: 10, 19: 4, 25: 0}  # a second before the first there was nothing
        assert rates["batches_per_s"] == rates["bytes_per_s"] == wanted.get(second, rates["bytes_per_s"])
        now += 1


def test_no_counter_ever_falls_whatever_happens():
    draw = random.Random(7)
    ledger = WorkerMetrics()
    streams = {}
    before = {}
    for step in range(2000):
        what, worker = draw.choice(["begin", "beat", "beat", "beat", "end", "lose", "close"]), draw.randrange(3)
        mine = {key: n for (w, key), n in streams.items() if w == worker}
        if what == "begin":
            ledger.open_loader(f"c-0-{step}")
            streams[worker, f"c-0-{step}/0"] = 0
        elif what == "beat":
            for key in mine:
                streams[worker, key] += draw.randrange(5)
            ledger.beat(worker, {key: told(n) for (w, key), n in streams.items() if w == worker})
        elif what == "end" and mine:
            key = draw.choice(list(mine))
            ledger.end_stream(worker, key, told(streams.pop((worker, key)) + 1))
        elif what == "lose":
            ledger.lose_worker(worker)
            for key in mine:
                del streams[worker, key]
        elif what == "close" and mine:
            ledger.close_loader(draw.choice(list(mine)).rpartition("/")[0])
        now = {w: each["num_batches"] for w, each in ledger.read()[0].items()}
        assert all(now[w] >= n for w, n in before.items()), (step, what, before, now)
        before = now
