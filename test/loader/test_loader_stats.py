"""What loaders of a trainer's process count, and what the numbers of any loader or server say as they print."""

import json
import os
import time

import pytest
import torch

import glt
from glt.data.synthetic import synthetic_graph, synthetic_hetero_graph
from glt.loader import (
    HGTLoader,
    LinkNeighborLoader,
    NeighborLoader,
    RandomNodeLoader,
    RandomWalkLoader,
    RelBenchLinkNeighborLoader,
    Stats,
    base,
    counts,
    keyed,
    tuning,
)

LOADER = {
    "num_batches": 100,
    "epoch_s": 10.0,
    "wait_s": 6.2,
    "collate_s": 0.1,
    "sampling_s": 1.0,
    "gathering_s": 1.0,
    "remote_s": 1.0,
    "blocked_s": 0.0,
    "remote_bytes": 500 << 20,
    "num_nodes": 1000,
    "num_remote_nodes": 500,
    "num_cached_nodes": 0,
    "num_window_nodes": 0,
    "remote_node_ratio": 0.5,
    "cache_hit_ratio": 0.0,
}

W = "it waited 62% of the time"
MORE = "raise num_workers, up to the free cores"
RULES = {
    "too few": ({"num_batches": 9}, "too few batches to tell: 9, at least 10 are needed"),
    "not timed": ({"epoch_s": 0.0}, "no iteration was timed, so that nothing can be told"),
    "gpu": (
        {"is_on_gpu": True},
        "a GPU makes the batches, and the host does not see its time: torch.profiler tells what limits",
    ),
    "the trainer": ({"wait_s": 0.3}, "nothing limits: the trainer is the slow one, it waited 3% of the time"),
    "the trainer holds samplers up": (
        {"wait_s": 0.3, "blocked_s": 9.0},
        "nothing limits: the trainer is the slow one, it waited 3% of the time; fewer num_workers give cores back to "
        "it",
    ),
    "collating": (
        {"wait_s": 0.5, "collate_s": 4.0},
        "making Data limits this job: 40% of the time; collect fewer tables and types",
    ),
    "pieces": (
        {"channel_num_oversize": 7},
        f"the channel limits this job: {W}, 7 batches passed in pieces; raise channel_size",
    ),
    "kept": (
        {"channel_num_copied": 7},
        f"the channel limits this job: {W}, 7 batches were copied since the trainer kept them; clone what you keep, or "
        "raise channel_size",
    ),
    "sampling": (
        {"sampling_s": 8.0},
        f"sampling limits this job: {W}, sampling_s is 80% of a batch's time; {MORE}",
    ),
    "sampling in the trainer": (
        {"sampling_s": 8.0, "num_workers": 0},
        f"sampling limits this job: {W}, sampling_s is 80% of a batch's time; sample in processes of their own, with "
        "MpDistSamplingWorkerOptions",
    ),
    "sampling with the workers that are best": (
        {"sampling_s": 8.0, "is_tuned": True},
        f"sampling limits this job: {W}, sampling_s is 80% of a batch's time; num_workers='auto' found that more "
        "workers gain nothing; take fewer neighbours, or more cores",
    ),
    "gathering": (
        {"gathering_s": 8.0},
        f"looking up features limits this job: {W}, gathering_s is 80% of a batch's time; {MORE}",
    ),
    "the disk": (
        {"gathering_s": 8.0, "disk_s": 6.0, "hot_row_ratio": 0.25},
        f"the disk limits this job: {W}, gathering_s is 80% of a batch's time, most of it waiting for rows, 25% of "
        "these rows were in memory; raise feature_memory",
    ),
    "remote rows": (
        {"remote_s": 8.0},
        f"rows of other hosts limit this job: {W}, remote_s is 80% of a batch's time; raise gather_window or "
        "cache_memory_budget",
    ),
    "remote rows beside a cache": (
        {"remote_s": 8.0, "cache_hit_ratio": 0.7},
        f"rows of other hosts limit this job: {W}, remote_s is 80% of a batch's time; partition with "
        "FrequencyPartitioner or a larger cache_ratio",
    ),
    "latency": (
        {"remote_s": 8.0, "remote_bytes": 1 << 20},
        f"waiting for other hosts limits this job: {W}, remote_s is 80% of a batch's time, but few bytes came; raise "
        "worker_concurrency",
    ),
    "nothing known of the work": (
        {"sampling_s": 0.0, "gathering_s": 0.0, "remote_s": 0.0},
        f"making batches limits this job: {W}; {MORE}",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_numbers_of_a_loader_say_what_limits_it(rule):
    numbers, told = RULES[rule]
    assert repr(Stats(LOADER | numbers)) == f"Stats({told})"


SERVER = {
    "server": "server 0",
    "uptime_s": 10.0,
    "num_workers": 2,
    "num_restarts": 0,
    "is_draining": False,
    "totals": LOADER | {"num_unread": 0, "num_running": 2, "num_queued": 0, "batches_per_s": 9.0},
}
ITS_RULES = {
    "restarts": (
        {"num_restarts": 2},
        {},
        "sampling processes died 2 times: read the server's log, often memory is short",
    ),
    "too few": ({}, {"num_batches": 0}, "too few batches to tell: 0, at least 10 are needed"),
    "blocked": (
        {},
        {"blocked_s": 9.0},
        "nothing limits here: clients are the slow ones, batches waited 9.0 s for room there",
    ),
    "unread": (
        {},
        {"num_unread": 4.0, "num_running": 0},
        "nothing limits here: clients are the slow ones, 4 batches wait there",
    ),
    "idle": (
        {"uptime_s": 100.0},
        {},
        "nothing limits here: the server is mostly idle, a sampling process made 0.015 batches at a time; if clients "
        "wait, raise their prefetch_size",
    ),
    "busy": (
        {},
        {"sampling_s": 8.0},
        "sampling limits this job: a sampling process made 0.5 batches at a time, sampling_s is 80% of a batch's time; "
        "raise --workers, and num_workers of the loader",
    ),
}


@pytest.mark.parametrize("rule", ITS_RULES)
def test_the_numbers_of_a_server_say_what_limits_it(rule):
    numbers, totals, told = ITS_RULES[rule]
    assert repr(Stats(SERVER | numbers | {"totals": SERVER["totals"] | totals})) == f"Stats({told})"


def test_a_difference_has_counters_of_the_time_between_and_ratios_of_its_own():
    later = LOADER | {"num_batches": 150, "num_nodes": 1400, "num_remote_nodes": 600, "num_cached_nodes": 300}
    between = Stats(later) - Stats(LOADER)
    assert isinstance(between, Stats) and between["num_batches"] == 50 and between["epoch_s"] == 0
    assert between["remote_node_ratio"] == 100 / 400 and between["cache_hit_ratio"] == 300 / 400
    json.dumps(between)


def test_a_difference_of_a_server_goes_into_its_parts_and_keeps_what_is_now():
    totals = SERVER["totals"] | {"num_batches": 130, "num_running": 1, "batches_per_s": 3.0}
    between = Stats(SERVER | {"uptime_s": 15.0, "totals": totals}) - Stats(SERVER)
    assert between["uptime_s"] == 5 and between["num_workers"] == 2 and between["is_draining"] is False
    assert between["server"] == "server 0" and between["totals"]["num_batches"] == 30
    assert between["totals"]["num_running"] == 1 and between["totals"]["batches_per_s"] == 3.0


def test_a_difference_is_of_numbers():
    with pytest.raises(TypeError, match="unsupported operand"):
        Stats(LOADER) - 3


TASK = synthetic_graph(2_000)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [False, True])
def test_all_batches_are_counted_with_workers_and_without(num_workers, filter_per_worker):
    data = glt.Dataset.from_pyg(TASK.to_pyg())
    options = {"num_workers": num_workers, "filter_per_worker": filter_per_worker}
    loader = NeighborLoader(data, [5, 3], torch.arange(330), batch_size=32, **options)
    for epoch in (1, 2):
        began, before = time.perf_counter(), loader.stats()
        nodes, edges = map(sum, zip(*((batch.num_nodes, batch.num_edges) for batch in loader), strict=True))
        took, stats = time.perf_counter() - began, loader.stats() - before
        assert stats["num_batches"] == 11 and stats["num_seeds"] == 330
        assert (stats["num_nodes"], stats["num_edges"]) == (nodes, edges)
        assert 0 < stats["wait_s"] <= stats["epoch_s"] <= took and stats["sampling_s"] > 0 and stats["gathering_s"] > 0
        assert loader.stats()["num_batches"] == 11 * epoch


def test_every_loader_counts():
    typed, plain = synthetic_hetero_graph(200, 100, 8).to_pyg(), TASK.to_pyg()
    kind = typed.node_types[0]
    loaders = [
        LinkNeighborLoader(plain, [3], edge_label_index=plain.edge_index[:, :64], batch_size=8),
        HGTLoader(typed, [4], input_nodes=(kind, torch.arange(64)), batch_size=8),
        RandomNodeLoader(plain, num_parts=8),
        RandomWalkLoader(glt.Dataset.from_pyg(plain), 4, 2, input_nodes=torch.arange(64), batch_size=8),
    ]
    for loader in loaders:
        assert loader.stats()["num_batches"] == 0
        assert len(list(loader)) == loader.stats()["num_batches"] == 8
        assert loader.stats()["num_seeds"] >= 64 and loader.stats()["sampling_s"] > 0


def test_triples_of_relbench_are_counted():
    edges = torch.randint(0, 20, (2, 100), generator=torch.Generator().manual_seed(1))
    data = glt.Dataset.from_arrays(
        {("user", "buys", "item"): edges, ("item", "by", "user"): edges.flip(0)}, {"user": 20, "item": 20}
    )
    for num_workers in (0, 2):
        loader = RelBenchLinkNeighborLoader(
            data, [2], ("user", torch.arange(20)), ("item", [[each] for each in range(20)]), 20, batch_size=8,
            num_workers=num_workers,
        )  # fmt: skip
        for epoch in (1, 2):
            triples, stats = list(loader), loader.stats()
            assert stats["num_workers"] == num_workers and 0 < stats["wait_s"] <= stats["epoch_s"]
            assert (stats["num_batches"], stats["num_seeds"]) == (3 * epoch, 60 * epoch)
            if epoch == 1:
                assert stats["num_nodes"] == sum(part.num_nodes for triple in triples for part in triple)


def test_workers_that_a_loader_tries_are_counted(monkeypatch):
    monkeypatch.setattr(tuning, "_MEASURED", 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    loader = NeighborLoader(TASK.to_pyg(), [3, 2], batch_size=50, num_workers="auto")
    nodes = sum(batch.num_nodes for batch in loader)
    stats = loader.stats()
    assert stats["num_batches"] == 40 and stats["num_workers"] == loader.num_workers
    # Batches that a worker had made when another number was tried were made again.
    assert stats["num_seeds"] >= 2000 and stats["num_nodes"] >= nodes


def test_a_worker_of_another_loader_counts_for_itself():
    inner = NeighborLoader(TASK.to_pyg(), [2], torch.arange(40), batch_size=10)
    outer = torch.utils.data.DataLoader(
        range(2), num_workers=2, batch_size=None, collate_fn=lambda _: sum(1 for _ in inner) and dict(inner.stats())
    )
    assert [told["num_batches"] for told in outer] == [4, 4] and inner.stats()["num_batches"] == 0


class Clock:
    """In place of ``time``."""

    now_s = 0.0

    def perf_counter(self):
        return self.now_s

    def pass_before(self, seconds, function):
        def slow(*given):
            self.now_s += seconds
            return function(*given)

        return slow


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (base, counts, keyed):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("sampling", "gathering", "transform", "training", "told"),
    [
        (1, 1, 1, 97, "nothing limits: the trainer is the slow one, it waited 3% of the time"),
        (7, 2, 1, 10, "sampling limits this job: it waited 50% of the time, sampling_s is 70%"),
        (1, 8, 1, 0, "looking up features limits this job: it waited 100% of the time, gathering_s is 80%"),
        (1, 1, 6, 2, "transform limits this job: it waited 80% of the time, transform_s is 75%"),
    ],
)
def test_what_is_slow_in_this_process_is_told(clock, sampling, gathering, transform, training, told):
    loader = NeighborLoader(TASK.to_pyg(), [2], torch.arange(120), batch_size=10, transform=lambda batch: batch)
    loader._sample = clock.pass_before(sampling, loader._sample)
    loader._with_seeds = clock.pass_before(gathering, loader._with_seeds)
    loader.transform = clock.pass_before(transform, loader.transform)
    for _ in range(2):
        before = loader.stats()
        for _ in loader:
            clock.now_s += training
        clock.now_s += 1000  # of no epoch
        more = f" of a batch's time; {MORE}" if "limits this job" in told else ""
        assert repr(loader.stats() - before) == f"Stats({told}{more})"


def test_the_time_after_an_epoch_is_not_of_the_epoch(clock):
    loader = NeighborLoader(TASK.to_pyg(), [2], torch.arange(20), batch_size=10)
    batches = iter(loader)
    for _ in batches:
        clock.now_s += 5
    clock.now_s += 1000
    with pytest.raises(StopIteration):
        next(batches)
    assert loader.stats()["epoch_s"] == 10 and loader.stats()["wait_s"] == 0
