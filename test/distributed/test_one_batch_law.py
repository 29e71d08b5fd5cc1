"""For a fixed random_seed the batches of a rank are the same wherever they are made, element for element."""

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from dist_typed_world import CASES as TYPED_CASES
from dist_typed_world import LINKS, NODE_TIMES, OPTIONS, write_typed_world
from dist_typed_world import NUM_NODES as NUM_TYPED
from dist_world import (
    CASES,
    NUM_NODES,
    Case,
    assert_same,
    default_of,
    expect_batches,
    expect_law,
    join,
    options,
    run_cluster,
    sample,
    sample_as_trainer,
    seeds_of,
    write_world,
)

import glt
from glt.distributed.loader import deployment
from glt.errors import RendezvousError
from glt.partition import FrequencyPartitioner, Manifest, RandomPartitioner
from glt.sampler import NeighborSampler
from glt.testing import random_graph

# Each loader in worker mode starts programs, which is what takes the time: there few cases are sampled by default.
MODES = [("mp", 1), ("mp", 3), ("collocated", 0)]
GRID = [(parts, *mode, concurrency, 6) for parts, mode, concurrency in product((1, 2, 4), MODES, (1, 8))]
DEFAULT_GRID = [(1, "mp", 1, 1, 2), (1, "mp", 3, 8, 2), (2, "mp", 1, 8, 2), (2, "mp", 3, 1, 1), (4, "mp", 1, 1, 1)]
DEFAULT_GRID += [(4, "mp", 3, 8, 1), (1, "collocated", 0, 1, 6), (2, "collocated", 0, 1, 6), (4, "collocated", 0, 8, 6)]


@pytest.mark.parametrize(("parts", "mode", "workers", "concurrency", "num_cases"), default_of(DEFAULT_GRID, GRID))
def test_batches_are_the_same_everywhere(world, parts, mode, workers, concurrency, num_cases):
    given = {"worker_concurrency": concurrency} | ({"num_workers": workers} if mode == "mp" else {})
    expect_law(world(parts), mode, given, CASES[:num_cases])


@pytest.mark.parametrize(("mode", "num_rpc_threads"), [("collocated", 1), ("collocated", 7), ("mp", 1)])
def test_any_number_of_threads_answers_the_others(world, mode, num_rpc_threads):
    expect_law(world(2), mode, {"num_rpc_threads": num_rpc_threads, "worker_concurrency": 8}, CASES[:1])


@pytest.mark.parametrize("mode", ["collocated", pytest.param("mp", marks=pytest.mark.full)])
def test_out_edges_give_the_same_batches_everywhere(world, mode):
    expect_law(world(2, "out"), mode, {}, CASES)


def sample_apart(trainer, *args):
    """As trainers of different hosts, which have the same files."""
    deployment.host_id = lambda: f"host {trainer.rank}"
    return sample_as_trainer(trainer, *args)


@pytest.mark.parametrize(
    ("parts", "trainers", "mode", "apart"),
    [
        (4, 4, "collocated", 0),
        (2, 2, "mp", 0),
        (3, 1, "mp", 0),
        (4, 2, "collocated", 0),
        (3, 2, "mp", 1),
        (3, 2, "collocated", 1),
    ],
)
def test_partitions_of_this_host_or_without_a_trainer_are_read_from_their_files(world, parts, trainers, mode, apart):
    given, run = {"worker_concurrency": 8, "read_local": True}, sample_apart if apart else sample_as_trainer
    expect_law(world(parts), mode, given, CASES if mode == "collocated" else CASES[:2], trainers, run=run)


@pytest.mark.parametrize("mode", ["collocated", "mp"])
def test_a_lone_trainer_reads_all_partitions_itself(world, alone, mode):
    name = f"{mode.title()}DistSamplingWorkerOptions"
    data = glt.distributed.DistDataset().load(world(2).path, 1)
    (batches,) = sample(data, 0, CASES[:1], getattr(glt.distributed, name))
    assert_same(batches, CASES[0].reference(world(2), 0), "alone")


def load_some(trainer, path, read_local):
    data = join(trainer, path)
    with pytest.raises((ValueError, RendezvousError)) as raised:
        where = options(trainer, "collocated", read_local=read_local)
        glt.distributed.DistNeighborLoader(data, [3], seeds_of(trainer.rank), batch_size=16, worker_options=where)
    return str(raised.value)


@pytest.mark.parametrize("trainers", [1, 2])
def test_a_partition_that_nobody_can_read_is_named(world, tmp_path, trainers):
    shutil.copytree(world(3).path, tmp_path / "parts")
    shutil.rmtree(tmp_path / "parts" / "part2" / "graph")
    for path, read_local, why in (
        (world(3).path, False, "read_local=False"),
        (tmp_path / "parts", True, "(partition 2: "),
    ):
        for text in run_cluster(trainers, load_some, path, read_local):
            assert "no trainer loaded partitions" in text and "2] of 3" in text and why in text, text
            assert not read_local or ("is missing" in text and "in everyone's graph_dir" in text), text


def remote_bytes(trainer, path):
    """Of a loader that reads the other partition itself, and of one that asks for it; alive at the same time."""
    data = join(trainer, path)
    given = {"batch_size": 16, "collect_features": True, "random_seed": 1}
    places = [options(trainer, "collocated", read_local=read_local) for read_local in (True, False)]
    make, seeds = glt.distributed.DistNeighborLoader, seeds_of(trainer.rank)
    loaders = [make(data, [3, 2], seeds, worker_options=where, **given) for where in places]
    with loaders[0], loaders[1]:
        for one, other in zip(*loaders, strict=True):
            assert torch.equal(one.x, other.x)
        return [loader.stats()["remote_bytes"] for loader in loaders]


def test_only_what_is_not_on_this_host_is_asked_for(world):
    for direct, asked in run_cluster(2, remote_bytes, world(2).path):
        assert direct == 0 < asked


def label_file(folder, suffix, labels):
    path = folder / f"labels{suffix}"
    torch.save(labels, path) if suffix == ".pt" else np.save(path, labels.numpy())
    return path


def expect_labels(world, by_file, cases):
    """Cases with labels of a file have those, the others the stored ones."""
    by_rank = run_cluster(2, sample_as_trainer, world.path, "collocated", {}, cases, {}, {})
    for case, *batches in zip(cases, *by_rank, strict=True):
        expect_batches([[each] for each in batches], replace(world, y=by_file) if case.load else world, [case])


def test_bfloat16_features_and_label_files(world, tmp_path):
    labels = torch.stack([torch.arange(NUM_NODES) * 3, torch.arange(NUM_NODES)], dim=1)
    flags = {"collect_features": True, "shuffle": True}
    files = {suffix: {"whole_node_label_file": label_file(tmp_path, suffix, labels)} for suffix in (".pt", ".npy")}
    cases = [Case("bfloat16", (3, 2), flags), *(Case(suffix, (3, 2), flags, load) for suffix, load in files.items())]
    expect_labels(world(2, "in", "b"), labels, cases)


def test_a_graph_without_features(world):
    cases = [Case("nothing to collect", (3, 2), {"collect_features": True, "with_edge": True})]
    expect_law(world(2, "in", ""), "mp", {"num_workers": 1, "worker_concurrency": 2}, cases)


# Heterogeneous graphs: parts, mode, edge_dir, read_local, and which cases: by default each has two collocated places.
ALL = [*TYPED_CASES, *OPTIONS, *LINKS]
TYPED_GRID = list(product((1, 2, 4), ("mp", "collocated"), ("in", "out"), (False, True), ("all",)))
TYPED_DEFAULT = [(2, "collocated", "in", False, "all"), (4, "collocated", "out", True, "even")]
TYPED_DEFAULT += [(1, "collocated", "out", False, "odd"), (2, "mp", "out", False, "few")]
TYPED = ("parts", "mode", "edge_dir", "read_local", "which")


@pytest.mark.parametrize(TYPED, default_of(TYPED_DEFAULT, TYPED_GRID))
def test_typed_batches_and_options_are_the_same_everywhere(typed_world, parts, mode, edge_dir, read_local, which):
    cases = {"all": ALL, "even": ALL[::2], "odd": ALL[1::2], "few": [TYPED_CASES[0], OPTIONS[4], LINKS[1]]}[which]
    expect_law(typed_world(parts, edge_dir), mode, {"read_local": read_local}, cases)


@pytest.mark.parametrize(TYPED[:4], default_of([TYPED_DEFAULT[0][:4]], [each[:4] for each in TYPED_GRID]))
def test_times_of_nodes_give_the_same_batches_everywhere(typed_world, parts, mode, edge_dir, read_local):
    expect_law(typed_world(parts, edge_dir, "node"), mode, {"read_local": read_local}, NODE_TIMES)


# Caches: batches stay the same; only fewer rows are asked for.
FAN_OUT = [5, 3, 2]


def probs(num_parts):
    sampler = NeighborSampler(random_graph(NUM_NODES, 6000, seed=3).to_dataset("in"), FAN_OUT, random_seed=0)
    return [sampler.sample_prob(seeds_of(rank), NUM_NODES, batch_size=16) for rank in range(num_parts)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("parts", "mode"), [(2, "mp"), (4, "collocated")])
def test_batches_with_a_cache_are_the_same(tmp_path, parts, mode):
    given = {"probs": probs(parts), "cache_ratio": 0.2, "chunk_size": 7}
    world = write_world(tmp_path, parts, partitioner=FrequencyPartitioner, **given)
    assert list(tmp_path.glob("parts/part*/cache/node/feat.npy"))
    expect_law(world, mode, {}, CASES if mode == "collocated" else CASES[:1])


@pytest.mark.timeout(200)
def test_labels_of_a_file_are_not_those_of_the_cache(tmp_path):
    world = write_world(tmp_path, 2, tables="by", hotness=np.ones(NUM_NODES), cache_ratio=0.5)
    labels, flags = torch.arange(NUM_NODES) * 3, {"collect_features": True}
    load = {"whole_node_label_file": label_file(tmp_path, ".pt", labels)}
    expect_labels(world, labels, [Case("stored labels", (3, 2), flags), Case("labels of a file", (3, 2), flags, load)])


@pytest.mark.timeout(200)
def test_typed_batches_with_caches_are_the_same(tmp_path):
    rng = np.random.default_rng(0)
    hotness = {t: [rng.random(n) for _ in range(2)] for t, n in NUM_TYPED.items()}
    world = write_typed_world(tmp_path, 2, "in", "node", hotness=hotness, cache_ratio={"user": 0.3, "item": 0.1})
    assert len(list(tmp_path.glob("parts/part*/cache/*/time.npy"))) == 4
    expect_law(world, "collocated", {}, [TYPED_CASES[0], *NODE_TIMES])


def count_reads(trainer, paths):
    """Counters of 20 epochs over each directory, with no cache but the partition's."""
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    found, flags = [], {"batch_size": 16, "shuffle": True, "collect_features": True, "random_seed": 1}
    for path in paths:
        data = glt.distributed.DistDataset().load(path, trainer.rank)
        where = options(trainer, "collocated", cache_memory_budget=0)
        make, seeds = glt.distributed.DistNeighborLoader, seeds_of(trainer.rank)
        with make(data, FAN_OUT, seeds, worker_options=where, **flags) as loader:
            for _ in (batch for _ in range(20) for batch in loader):
                pass
            found.append(loader.stats())
    return found


@pytest.mark.timeout(240)
def test_the_forecast_of_a_cache_is_what_is_measured(tmp_path):
    """Within two points: 20 epochs of seven batches and more count tens of thousands of reads."""
    paths, manifests = [], []
    for name, partitioner, given in (
        ("none", RandomPartitioner, {"hotness": probs(2), "cache_ratio": 0.0}),
        ("random", RandomPartitioner, {"hotness": probs(2), "cache_ratio": 0.1}),
        ("frequency", FrequencyPartitioner, {"probs": probs(2), "cache_ratio": 0.1}),
    ):
        (tmp_path / name).mkdir()
        paths.append(write_world(tmp_path / name, 2, partitioner=partitioner, **given).path)
        manifests.append(Manifest.read(paths[-1]))
    by_rank = run_cluster(2, count_reads, paths, deadline_s=200)
    for rank, counted in enumerate(by_rank):
        none, random, frequency = counted
        assert none["cache_hit_ratio"] == none["num_cached_nodes"] == 0 < none["num_remote_nodes"]
        assert random["num_remote_nodes"] + random["num_cached_nodes"] == none["num_remote_nodes"]
        assert frequency["num_remote_nodes"] < random["num_remote_nodes"] < none["num_remote_nodes"]
        assert random["remote_bytes"] < none["remote_bytes"]
        for stats, manifest in zip(counted, manifests, strict=True):
            forecast = manifest.node_types[0].forecast
            assert abs(stats["cache_hit_ratio"] - forecast.hit_ratio[rank]) < 0.02
            foreign = (stats["num_remote_nodes"] + stats["num_cached_nodes"]) / stats["num_nodes"]
            assert abs(foreign - forecast.remote_ratio[rank]) < 0.02
