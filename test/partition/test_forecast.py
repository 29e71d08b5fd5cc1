"""What a partitioner says beforehand is what it then takes."""

import logging
import os
from types import SimpleNamespace

import numpy as np
import pytest
from partition_world import hetero_world

from glt.errors import PartitionError
from glt.partition import Forecast, RandomPartitioner
from glt.partition.methods import partitioner as module


def num_bytes(root):
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("relabel", [False, True])
@pytest.mark.parametrize("time_level", ["edge", "node", None])
def test_the_size_of_the_result(tmp_path, time_level, relabel):
    partitioner = RandomPartitioner(tmp_path / "parts", 3, **hetero_world(time_level), relabel=relabel)
    forecast = partitioner.forecast()
    assert isinstance(forecast, Forecast) and forecast.scratch_bytes == 0
    partitioner.partition()
    # Mostly headers and manifest here, whose entries are counted as of a fixed length, rather too long.
    assert 1 <= forecast.result_bytes / num_bytes(tmp_path / "parts") < 1.3


@pytest.mark.parametrize("relabel", [False, True])
def test_the_size_of_a_larger_result_and_of_its_scratch_file(tmp_path, monkeypatch, relabel):
    num_nodes, num_edges = 5000, 50_000
    rng = np.random.default_rng(0)
    partitioner = RandomPartitioner(
        tmp_path / "parts",
        2,
        num_nodes,
        rng.integers(0, num_nodes, (2, num_edges)),
        node_feat=np.zeros((num_nodes, 100), np.float32),
        edge_weight=np.ones(num_edges, np.float32),
        edge_time=np.arange(num_edges),
        edge_feat=np.zeros((num_edges, 3)),
        num_threads=2,
        relabel=relabel,
    )
    partitioner.sort_memory_bytes = 2  # below what users may ask for: the edges pass through a scratch file
    made = []
    room = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, begin, size: (made.append(size), room(fd, begin, size)))
    forecast = partitioner.forecast()
    assert forecast.disk_bytes == forecast.result_bytes + forecast.scratch_bytes
    partitioner.partition()
    assert made == [forecast.scratch_bytes] == [num_edges * (12 + 4 + 8)]
    assert forecast.result_bytes == pytest.approx(num_bytes(tmp_path / "parts"), rel=0.01)


@pytest.mark.parametrize("cache_ratio", [0, 0.2])
@pytest.mark.parametrize("relabel", [False, True])
def test_the_size_of_caches_with_their_headers(tmp_path, relabel, cache_ratio):
    """Many small files: headers and entries of the manifest are most of what caches take here."""
    num_nodes, num_parts = 400, 16
    rng = np.random.default_rng(0)
    partitioner = RandomPartitioner(
        tmp_path / "parts",
        num_parts,
        num_nodes,
        rng.integers(0, num_nodes, (2, 1000)),
        node_feat=np.zeros((num_nodes, 2), np.float32),
        node_time=np.arange(num_nodes),
        node_attrs={"mask": rng.random(num_nodes) < 0.5},
        hotness=1 + rng.random(num_nodes),
        cache_ratio=cache_ratio,
        relabel=relabel,
    )
    forecast = partitioner.forecast()
    partitioner.partition()
    assert len(list((tmp_path / "parts").glob("part*/cache/node/**/*.npy"))) == (num_parts * 4 if cache_ratio else 0)
    assert 1 <= forecast.result_bytes / num_bytes(tmp_path / "parts") < 1.3


@pytest.mark.parametrize("relabel", [False, True])
def test_the_bar_counts_what_was_forecast(tmp_path, monkeypatch, relabel):
    totals = {}

    class Bar:
        def __init__(self, total, **_):
            totals.update(total=total, done=0)

        def update(self, num_bytes):
            totals["done"] += num_bytes

        def close(self):
            totals["closed"] = True

    monkeypatch.setattr("tqdm.tqdm", Bar)
    num_edges = 50_000
    edge_index = np.random.default_rng(0).integers(0, 5000, (2, num_edges))
    partitioner = RandomPartitioner(
        tmp_path / "parts", 2, 5000, edge_index, edge_weight=np.ones(num_edges), relabel=relabel
    )
    partitioner.sort_memory_bytes = 64
    partitioner.partition(progress=True)
    assert totals["closed"] and totals["done"] == pytest.approx(totals["total"], rel=0.01)


def test_memory_is_that_of_the_sort_and_of_the_books(tmp_path):
    edge_index = np.zeros((2, 1), np.int32)
    whole = np.broadcast_to(edge_index, (2, 1))
    small = RandomPartitioner(tmp_path / "a", 2, 1000, whole, num_threads=4).forecast()
    nodes = RandomPartitioner(tmp_path / "a", 2, 100_001_000, whole, num_threads=4).forecast()
    assert nodes.peak_memory_bytes - small.peak_memory_bytes == pytest.approx(13e8, rel=0.01)
    many = np.broadcast_to(edge_index, (2, 3_000_000_000))  # nothing reads them
    partitioner = RandomPartitioner(tmp_path / "a", 2, 1000, edge_index, num_threads=4)
    object.__setattr__(partitioner.graph.edges[0], "edge_index", many)
    object.__setattr__(partitioner.graph.edges[0], "row_ids", many[0])
    object.__setattr__(partitioner.graph.edges[0], "col_ids", many[1])
    edges = partitioner.forecast()
    assert edges.peak_memory_bytes - small.peak_memory_bytes == pytest.approx(256 << 20, rel=0.05)
    assert edges.scratch_bytes == 12 * 3_000_000_000
    assert edges.seconds > 60 > small.seconds


def test_a_forecast_is_logged_before_the_work(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "glt.partition"):
        RandomPartitioner(tmp_path / "parts", 2, 3, np.array([[0], [1]])).partition()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("RandomPartitioner will take about") and "MB of scratch files" in first
    assert "2 partitions" in last


def test_a_disk_without_room_is_refused_before_any_work(tmp_path, monkeypatch):
    class Never(RandomPartitioner):
        def assign_nodes(self, node_type, num_nodes):
            raise AssertionError("work begun")

    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(PartitionError, match=r"parts needs 0\.0\d+ GB, .* has 1e-06 GB free: free some, or choose"):
        Never(tmp_path / "parts", 2, 3000, np.array([[0], [1]]), node_feat=np.zeros((3000, 1000))).partition()
    assert list(tmp_path.iterdir()) == []
    assert module.SORT_BYTES * 16 == module.MAX_SORT_BYTES
