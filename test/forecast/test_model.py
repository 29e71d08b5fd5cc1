"""The model: what must hold whatever the constants are."""

import heapq
from dataclasses import asdict, replace
from random import Random

import pytest

from glt.forecast import Cluster, Costs, Counts, Shape, forecast_job

COUNTS = Counts(
    num_batches=32, num_nodes=100_000, num_edges=150_000, frontier=(1e3, 1e4, 6e4), remote_frontier=(5e2, 5e3, 3e4),
    hop_requests=(7, 7, 7), remote_edges=8e4, remote_rows=5e4, cached_rows=0, window_rows=0, row_requests=7,
    edge_bytes=5e5, row_bytes=2.5e7, request_bytes=7e5, peers=7, most_served=1.0, disk_rows=100,
)  # fmt: skip
LOCAL = replace(
    COUNTS, remote_frontier=(0, 0, 0), hop_requests=(0, 0, 0), remote_edges=0, remote_rows=0, row_requests=0,
    edge_bytes=0, row_bytes=0, request_bytes=0, peers=0, disk_rows=0,
)  # fmt: skip
SHAPE = Shape(1_000_000, 20_000_000, 512)
CLUSTER = Cluster(8)
ROUNDED = 1 + 1e-9


@pytest.mark.parametrize("name", [each for each in asdict(Costs()) if each != "round_trip_s"])
def test_dearer_units_never_make_a_job_faster(name):
    costs = Costs()
    dearer = replace(costs, **{name: 3 * getattr(costs, name)})
    before, after = (forecast_job(COUNTS, SHAPE, CLUSTER, each) for each in (costs, dearer))
    assert sum(after.cpu_s.values()) > sum(before.cpu_s.values())
    assert after.latency_s > before.latency_s and after.batches_per_s <= before.batches_per_s * ROUNDED


@pytest.mark.parametrize(
    "name, value",
    [
        *(("num_cores", 32), ("nic_gbit", 100.0), ("worker_concurrency", 8), ("num_workers", 16)),
        ("disk_reads_per_s", 2e5),
    ],
)
def test_more_of_a_resource_never_makes_a_job_slower(name, value):
    small = replace(CLUSTER, num_workers=4)
    before, after = (forecast_job(COUNTS, SHAPE, each) for each in (small, replace(small, **{name: value})))
    assert after.batches_per_s * ROUNDED >= before.batches_per_s


def test_a_longer_way_makes_batches_wait_and_nothing_else():
    near, far = (forecast_job(COUNTS, SHAPE, replace(CLUSTER, rtt_ms=rtt)) for rtt in (0.0, 2.0))
    assert far.waiting_s == pytest.approx(near.waiting_s + 4 * 2e-3)
    assert far.cpu_s == near.cpu_s and far.sent_bytes == near.sent_bytes


def test_the_scarcest_resource_is_named():
    for words, cluster in (
        ("cores that sample", replace(CLUSTER, num_cores=1, num_workers=8)),
        ("network cards", replace(CLUSTER, nic_gbit=0.1)),
        ("batches in flight", replace(CLUSTER, rtt_ms=500.0)),
        ("trainers", replace(CLUSTER, step_ms=500.0)),
        ("disks", replace(CLUSTER, disk_reads_per_s=1e2)),
        ("disks", replace(CLUSTER, disk_mb_s=0.05)),
        ("Python threads of the workers", replace(CLUSTER, num_workers=1, worker_concurrency=64, nic_gbit=400.0)),
    ):
        counts = replace(COUNTS, hop_requests=(70, 70, 70)) if "Python" in words else COUNTS
        assert forecast_job(counts, SHAPE, cluster).bottleneck == words
    for words, cluster in (
        ("network card of the host that owns most", replace(CLUSTER, nic_gbit=1.0)),
        ("disk of the host that owns most", replace(CLUSTER, disk_reads_per_s=1e2)),
    ):
        assert forecast_job(replace(COUNTS, most_served=6.0), SHAPE, cluster).bottleneck == words


def simulated_rate(cores_s, num_cores, card_s, delay_s, in_flight):
    """Batches that take exponential times of a core, then of a card, then wait: event by event."""
    random = Random(0)
    free = {"core": [0.0] * num_cores, "card": [0.0]}
    events, done = [(0.0, number, "core") for number in range(in_flight)], 0
    while done < 8_000:
        now, number, kind = heapq.heappop(events)
        if kind == "wait":
            done += 1
            heapq.heappush(events, (now + random.expovariate(1 / delay_s), number, "core"))
            continue
        begin = max(now, free[kind][0])
        seconds = random.expovariate(1 / (cores_s if kind == "core" else card_s))
        heapq.heapreplace(free[kind], begin + seconds)
        heapq.heappush(events, (begin + seconds, number, "card" if kind == "core" else "wait"))
    return done / now


@pytest.mark.parametrize("in_flight", [1, 4, 16])
@pytest.mark.parametrize("num_cores, nic_gbit", [(1, 0.5), (1, 4.0), (4, 4.0), (2, 40.0)])
@pytest.mark.parametrize("rtt_ms", [0.1, 20.0])
def test_batches_queue_for_cores_and_cards(rtt_ms, num_cores, nic_gbit, in_flight):
    cluster = Cluster(1, num_cores, nic_gbit, rtt_ms, num_workers=1, worker_concurrency=in_flight)
    job = forecast_job(COUNTS, SHAPE, cluster)
    cores_s, card_s = sum(job.cpu_s.values()), 1 / job.limits["network cards"]
    simulated = simulated_rate(cores_s, num_cores, card_s, job.latency_s - cores_s - card_s, in_flight)
    assert job.batches_per_s == pytest.approx(min(simulated, *job.limits.values()), rel=0.1)


def test_half_a_core_makes_half_as_many_batches():
    whole, half = (forecast_job(LOCAL, SHAPE, Cluster(1, num_cores=cores, num_workers=1)) for cores in (1, 0.5))
    assert half.batches_per_s == pytest.approx(whole.batches_per_s / 2)


def test_one_host_asks_nobody():
    job = forecast_job(LOCAL, SHAPE, Cluster(1))
    assert job.sent_bytes == job.waiting_s == 0 and job.bottleneck == "cores that sample"
    assert job.cpu_s["messages"] == job.cpu_s["transfer"] == 0


def test_memory_is_the_partition_the_book_the_cache_and_what_is_in_flight():
    two, eight = (forecast_job(COUNTS, SHAPE, replace(CLUSTER, num_hosts=hosts)) for hosts in (2, 8))
    assert two.memory_bytes - eight.memory_bytes == SHAPE.num_bytes(2) - SHAPE.num_bytes(8) > 0
    cached = forecast_job(COUNTS, SHAPE, CLUSTER, cache_ratio=0.1)
    assert cached.memory_bytes - eight.memory_bytes == 100_000 * (512 + 8)
    assert not forecast_job(COUNTS, SHAPE, replace(CLUSTER, memory_gb=0.5)).fits and eight.fits


def test_rows_on_disk_take_no_memory():
    rows = 1_000_000 // 8
    whole, none, some, all_fit = (
        forecast_job(COUNTS, SHAPE, replace(CLUSTER, feature_memory_gb=gb)).memory_bytes
        for gb in (None, 0.0, 0.0052, 0.064)
    )
    assert whole == all_fit and whole - none == 512 * rows and some - none == pytest.approx(5.2e6, abs=1)
    assert replace(CLUSTER, feature_memory_gb=0.0052).memory_ratio(SHAPE) == pytest.approx(10_000 / rows)


def test_labels_never_stay_on_disk_and_hot_rows_are_read_one_by_one():
    labelled = replace(SHAPE, bytes_of_row=520, mapped_bytes_of_row=8)
    none = replace(CLUSTER, feature_memory_gb=0.0)
    assert none.memory_ratio(replace(SHAPE, bytes_of_row=8, mapped_bytes_of_row=8)) == 1
    assert replace(CLUSTER, feature_memory_gb=0.064).memory_ratio(labelled) == 1
    rows = 1_000_000 // 8
    whole, cold = (forecast_job(COUNTS, labelled, each).memory_bytes for each in (CLUSTER, none))
    assert whole - cold == 512 * rows
    disk = replace(CLUSTER, disk_reads_per_s=1e6, disk_mb_s=1000.0)
    none, half = (
        forecast_job(COUNTS, labelled, replace(disk, feature_memory_gb=gb)).start_s for gb in (0.0, 520 * rows / 2e9)
    )
    assert half - none == pytest.approx(rows / 2 / 1e6, rel=1e-3)
    with pytest.raises(ValueError, match="mapped_bytes_of_row = 9"):
        Shape(1, 1, 8, 9)


def test_costs_are_kept_and_damage_is_named(tmp_path):
    path = tmp_path / "costs.json"
    costs = Costs(edge_s=3e-8)
    costs.write(path)
    assert Costs.read(path) == costs
    for text in ("{", "[]", '{"edge_s": 1}', path.read_text().replace("3e-08", "-1")):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"costs\.json is no file of costs.*--calibrate"):
            Costs.read(path)
    with pytest.raises(ValueError, match="edge_s = -1"):
        Costs(edge_s=-1)


@pytest.mark.parametrize(
    "words, make",
    [
        ("num_hosts = 0", lambda: Cluster(0)),
        ("nic_gbit = 0", lambda: Cluster(nic_gbit=0)),
        ("rtt_ms = -1", lambda: Cluster(rtt_ms=-1)),
        ("feature_memory_gb = -1", lambda: Cluster(feature_memory_gb=-1)),
        ("disk_reads_per_s = 0", lambda: Cluster(disk_reads_per_s=0)),
        ("worker_concurrency = 0", lambda: Cluster(worker_concurrency=0)),
        ("num_nodes = 0", lambda: Shape(0, 1)),
        ("bytes_of_row = -1", lambda: Shape(1, 1, -1)),
    ],
)
def test_impossible_clusters_and_graphs_are_refused(words, make):
    with pytest.raises(ValueError, match=words):
        make()
