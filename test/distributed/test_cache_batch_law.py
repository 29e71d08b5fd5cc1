"""With a cache the batches of a rank are what they are without one; only fewer rows are asked for."""

import numpy as np
import pytest
import test_one_batch_law as one
import test_typed_batch_law as typed
import torch
from dist_typed_world import NUM_NODES as NUM_TYPED
from dist_typed_world import write_typed_world
from dist_world import NUM_NODES, options, seeds_of, write_world

import glt
from glt.partition import FrequencyPartitioner, RandomPartitioner
from glt.sampler import NeighborSampler
from glt.testing import random_graph
from glt.testing.cluster import Cluster

FAN_OUT = [5, 3, 2]


def probs(num_parts, batch_size=16):
    graph = random_graph(NUM_NODES, 6000, seed=3)
    sampler = NeighborSampler(graph.to_dataset("in"), FAN_OUT, random_seed=0)
    return [sampler.sample_prob(seeds_of(rank), NUM_NODES, batch_size=batch_size) for rank in range(num_parts)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("parts", "mode"), [(2, "mp"), (4, "collocated")])
def test_batches_with_a_cache_are_the_same(tmp_path, parts, mode):
    world = write_world(
        tmp_path, parts, partitioner=FrequencyPartitioner, probs=probs(parts), cache_ratio=0.2, chunk_size=7
    )
    assert list(tmp_path.glob("parts/part*/cache/node/feat.npy"))
    one.compare(world, mode, {"worker_concurrency": 3}, one.CASES if mode == "collocated" else one.CASES[:1])


@pytest.mark.timeout(200)
def test_labels_of_a_file_are_not_those_of_the_cache(tmp_path):
    hotness = np.ones(NUM_NODES)
    world = write_world(tmp_path, 2, tables="by", hotness=hotness, cache_ratio=0.5)
    labels = torch.arange(NUM_NODES) * 3
    cases = [
        one.Case("stored labels", (3, 2), {"collect_features": True}),
        one.Case(
            "labels of a file", (3, 2), {"collect_features": True},
            {"whole_node_label_file": one.label_file(tmp_path, ".pt", labels)},
        ),
    ]  # fmt: skip
    with Cluster(2, one.run_cases, world.path, "collocated", {}, cases) as cluster:
        by_rank = cluster.results()
    for rank, results in enumerate(by_rank):
        for case, batches, y in zip(cases, results, (world.y, labels), strict=True):
            one.assert_same(batches, one.reference(one.replace(world, y=y), case, rank), f"{case.name}, rank {rank}")


@pytest.mark.timeout(200)
def test_typed_batches_with_caches_are_the_same(tmp_path):
    rng = np.random.default_rng(0)
    hotness = {t: [rng.random(n) for _ in range(2)] for t, n in NUM_TYPED.items()}
    world = write_typed_world(tmp_path, 2, "in", "node", hotness=hotness, cache_ratio={"user": 0.3, "item": 0.1})
    assert len(list(tmp_path.glob("parts/part*/cache/*/time.npy"))) == 4
    typed.compare(world, "collocated", {"worker_concurrency": 3}, [typed.CASES[0], *typed.NODE_TIMES])


def count_reads(trainer, paths):
    """Counters of an epoch over each directory."""
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    found = []
    for path in paths:
        data = glt.distributed.DistDataset().load(path, trainer.rank)
        with glt.distributed.DistNeighborLoader(
            data, FAN_OUT, seeds_of(trainer.rank), batch_size=16, shuffle=True, collect_features=True, random_seed=1,
            worker_options=options(trainer, "collocated"),
        ) as loader:  # fmt: skip
            for _ in range(20):
                for _ in loader:
                    pass
            found.append(loader.stats())
    return found


@pytest.mark.timeout(240)
def test_the_forecast_is_what_is_measured(tmp_path):
    """Within two points: 20 epochs of seven batches and more count tens of thousands of reads."""
    paths, manifests = [], []
    for name, partitioner, given in (
        ("none", RandomPartitioner, {"hotness": probs(2), "cache_ratio": 0.0}),
        ("random", RandomPartitioner, {"hotness": probs(2), "cache_ratio": 0.1}),
        ("frequency", FrequencyPartitioner, {"probs": probs(2), "cache_ratio": 0.1}),
    ):
        (tmp_path / name).mkdir()
        world = write_world(tmp_path / name, 2, partitioner=partitioner, **given)
        paths.append(world.path)
        manifests.append(glt.partition.Manifest.read(world.path))
    with Cluster(2, count_reads, paths, deadline_s=200) as cluster:
        by_rank = cluster.results()
    for rank, counted in enumerate(by_rank):
        none, random, frequency = counted
        assert none["cache_hit_ratio"] == none["num_cached_nodes"] == 0 < none["num_remote_nodes"]
        assert random["num_remote_nodes"] + random["num_cached_nodes"] == none["num_remote_nodes"]
        assert frequency["num_remote_nodes"] < random["num_remote_nodes"] < none["num_remote_nodes"]
        assert random["remote_bytes"] < none["remote_bytes"]
        for stats, manifest in zip(counted, manifests, strict=True):
            forecast = manifest.node_types[0].forecast
            assert forecast is not None
            assert abs(stats["cache_hit_ratio"] - forecast.hit_ratio[rank]) < 0.02
            foreign = (stats["num_remote_nodes"] + stats["num_cached_nodes"]) / stats["num_nodes"]
            assert abs(foreign - forecast.remote_ratio[rank]) < 0.02
