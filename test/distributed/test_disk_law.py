"""Partitions whose features stay on disk: the same batches in all modes, hot rows once per host, and refusals."""

import os

import numpy as np
import pytest
import torch
from dist_typed_world import CASES as TYPED_CASES
from dist_typed_world import write_typed_world
from dist_world import CASES, NUM_NODES, expect_law, join, options, run_cluster, write_world

import glt
from glt.data import DiskFeature, Feature
from glt.distributed import DistDataset
from glt.partition import FrequencyPartitioner

NOTHING, SOME = {"feature_memory": 0}, {"feature_memory": "1.5 KB"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("disk"), 2)


@pytest.mark.parametrize(
    ("mode", "given", "load"),
    [
        ("collocated", {"read_local": True}, SOME),
        ("collocated", {}, NOTHING),
        ("mp", {"read_local": True, "num_workers": 2}, SOME),
    ],
)
def test_batches_are_the_same(world, mode, given, load):
    expect_law(world, mode, given, CASES[:2], load=load)


def test_typed_and_packed_batches_are_the_same(tmp_path):
    expect_law(write_typed_world(tmp_path / "typed", 2, "in", None), "collocated", {}, TYPED_CASES[:1], load=SOME)
    random = torch.randn(NUM_NODES, 5, generator=torch.Generator().manual_seed(7))
    packed = write_world(tmp_path / "packed", 1, store_dtype={"x": "int8"}, node_feat=random)
    dataset = DistDataset().load(packed.path, 0, feature_memory=2000)
    ids = torch.arange(0, NUM_NODES, 3)
    assert isinstance(dataset.node_features, DiskFeature) and dataset.node_features.num_hot > 0
    assert torch.equal(dataset.node_features[ids], Feature(random, store_dtype="int8").dense()[ids])


def test_what_fits_is_mapped_and_the_hottest_rows_of_the_rest_are_kept(tmp_path):
    hotness = torch.arange(40).flip(0).float()
    graph = glt.testing.ring_graph()
    glt.partition.RandomPartitioner(
        tmp_path / "parts", 1, 40, graph.edge_index, graph.x, hotness=hotness,
        node_attrs={"mask": torch.ones(40, dtype=torch.bool)}, node_label=graph.y,
    ).partition()  # fmt: skip

    def load(memory):
        return DistDataset().load(tmp_path / "parts", 0, feature_memory=memory)

    assert not isinstance(load(None).node_features, DiskFeature)
    assert not isinstance(load("1 MB").node_features, DiskFeature)
    assert isinstance(load(0).node_attrs["mask"], DiskFeature) and load(0).node_features.num_hot == 0
    dataset = load(40 + 2 * 64 + 10 * (8 + 16))
    mask, x = dataset.node_attrs["mask"], dataset.node_features
    assert not isinstance(mask, DiskFeature) and not isinstance(dataset.node_labels, DiskFeature)
    assert isinstance(x, DiskFeature) and x.num_hot == 10
    stats = dict.fromkeys(("disk_s", "disk_bytes", "num_disk_rows", "num_hot_rows"), 0)
    x.sources(np.arange(20), None, stats)
    assert (stats["num_hot_rows"], stats["num_disk_rows"]) == (10, 10), "the hottest are 0 to 9"
    assert load(dataset.load_args["feature_memory"]).load_args["feature_memory"] == 40 + 2 * 64 + 10 * 24


def test_without_hotness_those_are_hot_to_which_most_edges_lead(tmp_path):
    edges = torch.tensor([[3] * 5 + [1] * 4 + [0, 2], [0, 1, 2, 4, 5, 0, 2, 3, 4, 1, 0]])
    glt.partition.RandomPartitioner(
        tmp_path / "parts", 1, 6, edges, torch.randn(6, 64), edge_assign_strategy="by_dst"
    ).partition()
    x = DistDataset().load(tmp_path / "parts", 0, feature_memory=2 * 264 + 2 * 64).node_features
    stats = dict.fromkeys(("disk_s", "disk_bytes", "num_disk_rows", "num_hot_rows"), 0)
    x.sources(np.array([3, 1]), None, stats)
    assert (x.num_hot, stats["num_hot_rows"]) == (2, 2)


def test_another_process_of_the_host_shares_the_hot_rows(world):
    dataset = DistDataset().load(world.path, 0, **SOME)
    again = DistDataset.from_json(dataset.to_json())
    assert again.to_json()["hot_rows"] == dataset.to_json()["hot_rows"]
    assert again.node_features.num_hot == dataset.node_features.num_hot > 0
    told, ids = dataset.to_json(), torch.from_numpy(np.asarray(dataset.own.nodes[0].owned, np.int64))
    assert torch.equal(again.node_features[ids], dataset.node_features[ids])
    # What is told of is something else, or gone: they are read again.
    fd = os.memfd_create("something else")
    (index, mine), *_ = told["hot_rows"]
    os.ftruncate(fd, os.stat(mine["path"]).st_size)
    for path in (f"/proc/{os.getpid()}/fd/{fd}", "/proc/0/fd/0"):
        lost = DistDataset.from_json(told | {"hot_rows": [(index, {"path": path, "name": "glt-hot-1"})]})
        assert torch.equal(lost.node_features[ids], dataset.node_features[ids]) and lost.node_features.num_hot > 0
        assert lost.to_json()["hot_rows"] != told["hot_rows"]
    os.close(fd)


def test_hot_rows_of_others_are_not_taken_into_memory_once_more(world):
    dataset = DistDataset().load(world.path, 0, **SOME)
    other = dataset.map_other(world.path, 1, is_loaded=False)
    x = other.node_tables[0]["x"]
    assert other.on_disk.told is None and isinstance(x, DiskFeature) and x.num_hot == 0
    ids = torch.from_numpy(np.asarray(other.nodes[0].owned, np.int64))
    assert torch.equal(x[ids], DistDataset().load(world.path, 1).node_features[ids])


def count(trainer, path, mode):
    data = join(trainer, path, **SOME)
    loader = glt.distributed.DistNeighborLoader(
        data, [4, 3], torch.arange(NUM_NODES), batch_size=50, collect_features=True, with_edge=True,
        worker_options=options(trainer, mode, read_local=True),
    )  # fmt: skip
    with loader:
        assert sum(1 for _ in loader) > 0
        stats = loader.stats()
    return dict(stats), len(data.hot_rows), all(data.hot_rows.values())


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_stats_count_and_trainers_of_a_host_share_the_hot_rows(world, mode):
    for stats, num_shared, all_told in run_cluster(2, count, world.path, mode):
        assert num_shared == 2 and all_told
        assert stats["num_disk_rows"] > 0 and stats["num_hot_rows"] > 0 and stats["disk_s"] > 0
        assert stats["disk_bytes"] > 0 and stats["gathering_s"] >= stats["disk_s"]
        assert stats["hot_row_ratio"] == stats["num_hot_rows"] / (stats["num_hot_rows"] + stats["num_disk_rows"])


def test_what_cannot_be_is_refused(world):
    with pytest.raises(ValueError, match="feature_memory = 0 and graph_mode = 'CUDA'"):
        DistDataset().load(world.path, 0, "CUDA", feature_memory=0)
    with pytest.raises(ValueError, match="feature_memory = 'much'"):
        DistDataset().load(world.path, 0, feature_memory="much")
    with pytest.raises(TypeError, match="feature_memory = True"):
        DistDataset().load(world.path, 0, feature_memory=True)


def test_frequency_partitions_have_hotness_of_their_own(tmp_path):
    probs = [torch.rand(NUM_NODES, generator=torch.Generator().manual_seed(p)) for p in range(2)]
    cached = write_world(tmp_path, 2, partitioner=FrequencyPartitioner, probs=probs, cache_ratio=0.2)
    expect_law(cached, "collocated", {}, CASES[:1], load=SOME)


def test_a_table_that_was_cut_fails_the_batch_by_name(tmp_path, alone):
    cut = write_world(tmp_path, 1)
    dataset = DistDataset().load(cut.path, 0, verify=False, **NOTHING)
    path = next(tmp_path.rglob("node_feat/node.npy"))
    os.truncate(path, 1000)
    where = glt.distributed.CollocatedDistSamplingWorkerOptions(master_addr="localhost", master_port=29500)
    loader = glt.distributed.DistNeighborLoader(
        dataset, [4], torch.arange(NUM_NODES), batch_size=50, collect_features=True, worker_options=where
    )
    named = r"node\.npy: row \d+, bytes \d+ to \d+ are beyond its end"
    with loader, pytest.raises(glt.errors.RemoteError, match=named) as caught:
        list(loader)
    assert caught.value.type_name == "builtins.OSError"
