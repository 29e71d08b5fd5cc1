"""Accounts of sampling processes: their counters never fall, and nothing is counted twice."""

import random

import pytest

from glt.distributed.server import stats as ledger_module
from glt.distributed.server.stats import COUNTERS, GAUGES, WorkerMetrics, total


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(ledger_module, "time", clock)
    return clock


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


def test_what_comes_after_a_loader_was_closed_counts_for_the_process():
    ledger = WorkerMetrics()
    ledger.open_loader("a-0-1")
    ledger.beat(0, {"a-0-1/0": told(3)})
    ledger.close_loader("a-0-1")
    ledger.end_stream(0, "a-0-1/0", told(4))
    workers, loaders = ledger.read()
    assert workers[0]["num_batches"] == 4 and loaders == {}


def test_the_counters_of_a_process_that_died_stay(clock):
    ledger = WorkerMetrics()
    ledger.open_loader("a-0-1")
    ledger.beat(0, {"a-0-1/0": told(3, 2)})
    clock.now += 1
    ledger.beat(0, {"a-0-1/0": told(5, 2)})
    ledger.lose_worker(0)
    ledger.beat(0, {})  # its successor
    ledger.beat(0, {"b-0-2/0": told(1)})
    workers, loaders = ledger.read()
    assert workers[0]["num_batches"] == 6 and workers[0]["num_queued"] == 0
    assert loaders["a-0-1"]["num_batches"] == 5 and loaders["a-0-1"]["batches_per_s"] == 0


def test_rates_are_those_of_the_last_five_seconds(clock):
    ledger = WorkerMetrics()
    batches = 0
    for second in range(20):
        batches += 10 if second < 12 else 4
        ledger.beat(0, {"a-0-1/0": told(batches)})
        if second == 0:
            assert ledger.read()[0][0]["batches_per_s"] == 10  # a second ago there was nothing
        clock.now += 1
    assert ledger.read()[0][0]["batches_per_s"] == 4
    for _ in range(6):
        ledger.beat(0, {"a-0-1/0": told(batches)})
        clock.now += 1
    assert ledger.read()[0][0]["bytes_per_s"] == 0


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
