"""For a fixed random_seed the batches of a rank are the same wherever they are made, element for element."""

import os
import shutil
from dataclasses import replace

import pytest
import torch
from batch_law import CASES, SEED, Case, assert_same, reference
from dist_world import NUM_NODES, join, options, seeds_of, snapshot

import glt
from glt.distributed.loader import deployment as agreement
from glt.errors import RendezvousError
from glt.testing import check_batch
from glt.testing.cluster import Cluster

FULL = os.environ.get("GLT_FULL") == "1"


def run_cases(trainer, path, mode, given, cases):
    """Two epochs of each case."""
    data = join(trainer, path)
    results = []
    for case in cases:
        if case.load:
            data = glt.distributed.DistDataset().load(path, trainer.rank, "ZERO_COPY", **case.load)
        with glt.distributed.DistNeighborLoader(
            data, list(case.num_neighbors), seeds_of(trainer.rank), batch_size=16, random_seed=SEED + trainer.rank,
            worker_options=options(trainer, mode, **given), **case.loader,
        ) as loader:  # fmt: skip
            batches = [snapshot(batch) for _ in range(2) for batch in loader]
            assert len(batches) == 2 * len(loader)
            results.append(batches)
    return results


def run_cases_apart(trainer, path, mode, given, cases):
    """As trainers of different hosts, which have the same files."""
    agreement.host_id = lambda: f"host {trainer.rank}"
    return run_cases(trainer, path, mode, given, cases)


def compare(
    world, mode, given, cases, num_trainers = None,
    run = run_cases,
):  # fmt: skip
    with Cluster(num_trainers or world.num_parts, run, world.path, mode, given, cases) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, reference(world, case, rank), f"{case.name}, rank {rank}")


GRID = [
    (parts, mode, workers, concurrency)
    for parts in (1, 2, 4)
    for mode, counts in (("mp", (1, 3)), ("collocated", (0,)))
    for workers in counts
    for concurrency in (1, 8)
]
# Every two of the values together; GLT_FULL=1 for every three.
DEFAULT_GRID = [
    (1, "mp", 1, 1), (1, "mp", 3, 8), (2, "mp", 1, 8), (2, "mp", 3, 1), (4, "mp", 1, 1), (4, "mp", 3, 8),
    (1, "collocated", 0, 1), (2, "collocated", 0, 1), (4, "collocated", 0, 8),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "mode", "workers", "concurrency"), GRID if FULL else DEFAULT_GRID)
def test_batches_are_the_same_everywhere(world, parts, mode, workers, concurrency):
    given = {"worker_concurrency": concurrency} | ({"num_workers": workers} if mode == "mp" else {})
    # Each loader in worker mode starts programs, which is what takes the time.
    cases = CASES if mode == "collocated" or FULL else CASES[:2] if parts * workers <= 3 else CASES[:1]
    compare(world(parts), mode, given, cases)


@pytest.mark.parametrize(("mode", "num_rpc_threads"), [("collocated", 1), ("collocated", 7), ("mp", 1)])
def test_any_number_of_threads_answers_the_others(world, mode, num_rpc_threads):
    compare(world(2), mode, {"num_rpc_threads": num_rpc_threads, "worker_concurrency": 8}, CASES[:1])


@pytest.mark.parametrize("mode", ["collocated", "mp"] if FULL else ["collocated"])
def test_out_edges_give_the_same_batches_everywhere(world, mode):
    compare(world(2, "out"), mode, {"worker_concurrency": 3}, CASES)


@pytest.mark.parametrize(("parts", "mode"), [(4, "collocated"), (2, "mp")])
def test_partitions_of_the_same_host_read_directly_give_the_same_batches(world, parts, mode):
    cases = CASES if mode == "collocated" else CASES[:2]
    compare(world(parts), mode, {"worker_concurrency": 8, "read_local": True}, cases)


@pytest.mark.parametrize(
    ("parts", "trainers", "mode", "run"),
    [(3, 1, "mp", run_cases), (4, 2, "collocated", run_cases), (3, 2, "mp", run_cases_apart),
     (3, 2, "collocated", run_cases_apart)],
)  # fmt: skip
def test_partitions_without_a_trainer_are_read_from_their_files(world, parts, trainers, mode, run):
    given = {"worker_concurrency": 8, "read_local": True}
    compare(world(parts), mode, given, CASES if mode == "collocated" else CASES[:2], trainers, run)


def load_some(trainer, path, read_local):
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank)
    data = glt.distributed.DistDataset().load(path, trainer.rank)
    with pytest.raises((ValueError, RendezvousError)) as raised:
        glt.distributed.DistNeighborLoader(
            data, [3], seeds_of(trainer.rank), batch_size=16,
            worker_options=options(trainer, "collocated", read_local=read_local),
        )  # fmt: skip
    return str(raised.value)


@pytest.mark.parametrize("trainers", [1, 2])
def test_a_partition_that_nobody_can_read_is_named(world, tmp_path, trainers):
    copied = tmp_path / "parts"
    shutil.copytree(world(3).path, copied)
    shutil.rmtree(copied / "part2" / "graph")
    for path, read_local, why in ((world(3).path, False, "read_local=False"), (copied, True, "is missing")):
        with Cluster(trainers, load_some, path, read_local) as cluster:
            for text in cluster.results():
                assert "no trainer loaded partitions" in text and "2] of 3" in text and why in text, text


def remote_bytes(trainer, path):
    """Of a loader that reads the other partition itself, and of one that asks for it; alive at the same time."""
    data = join(trainer, path)
    loaders = [
        glt.distributed.DistNeighborLoader(
            data, [3, 2], seeds_of(trainer.rank), batch_size=16, collect_features=True, random_seed=1,
            worker_options=options(trainer, "collocated", read_local=read_local),
        )
        for read_local in (True, False)
    ]  # fmt: skip
    with loaders[0], loaders[1]:
        for one, other in zip(*loaders, strict=True):
            assert torch.equal(one.x, other.x)
        return [loader.stats()["remote_bytes"] for loader in loaders]


def test_only_what_is_not_on_this_host_is_asked_for(world):
    with Cluster(2, remote_bytes, world(2).path) as cluster:
        for direct, asked in cluster.results():
            assert direct == 0 < asked


def label_file(folder, suffix, labels):
    path = folder / f"labels{suffix}"
    if suffix == ".pt":
        torch.save(labels, path)
    else:
        import numpy as np

        np.save(path, labels.numpy())
    return path


def test_bfloat16_features_and_label_files(world, tmp_path):
    made = world(2, "in", "b")
    labels = torch.stack([torch.arange(NUM_NODES) * 3, torch.arange(NUM_NODES)], dim=1)
    flags = {"collect_features": True, "shuffle": True}
    cases = [Case("bfloat16", (3, 2), flags)] + [
        Case(suffix, (3, 2), flags, {"whole_node_label_file": label_file(tmp_path, suffix, labels)})
        for suffix in (".pt", ".npy")
    ]
    with Cluster(2, run_cases, made.path, "collocated", {}, cases) as cluster:
        by_rank = cluster.results()
    labelled = replace(made, y=labels)
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, reference(labelled if case.load else made, case, rank), f"{case.name}, rank {rank}")


def test_a_graph_without_features(world):
    cases = [Case("nothing to collect", (3, 2), {"collect_features": True, "with_edge": True})]
    compare(world(2, "in", ""), "mp", {"num_workers": 1, "worker_concurrency": 2}, cases)


def test_the_local_loader_gives_these_batches_too(world):
    made = world(1)
    graph, case = made.graph, CASES[0]
    loader = glt.loader.NeighborLoader(
        graph.to_data(), list(case.num_neighbors), seeds_of(1), batch_size=16, shuffle=True, random_seed=SEED + 1
    )
    got = [batch for _ in range(2) for batch in loader]
    assert_same([snapshot(batch) for batch in got], reference(made, case, 1), "local")
    for batch in got[:10]:
        check_batch(
            batch, graph.edge_index, case.num_neighbors, num_nodes=NUM_NODES, x=graph.x, y=graph.y,
            edge_attr=graph.edge_attr,
        )  # fmt: skip
