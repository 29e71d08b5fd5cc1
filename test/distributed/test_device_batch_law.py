"""GPU samplers of a distributed job give the CPU's batches, wherever they are; the host plays the GPU.

Where there is a GPU, the same runs on it.
"""

import threading

import pytest
import torch
from batch_law import CASES as PLAIN
from batch_law import assert_same as assert_same_plain
from batch_law import reference as plain_reference
from dist_typed_world import SCHEMA, reference, snapshot
from dist_world import options, seeds_of
from dist_world import snapshot as plain_snapshot
from gpus import DEVICES
from test_typed_batch_law import CASES, LINKS, NODE_TIMES, OPTIONS, assert_same

import glt
from glt.distributed.engine.dataset import joined
from glt.sampler.device import DeviceSampling
from glt.testing.cluster import Cluster


def run(
    trainer, path, mode, load, given, cases,
    more,
):  # fmt: skip
    """Two epochs of each case."""
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    data = glt.distributed.DistDataset().load(path, trainer.rank, **load)
    results = []
    for case in cases:
        made = getattr(glt.distributed, case.kind)
        where = options(trainer, mode, **{"read_local": True, **given})
        with made(data, worker_options=where, **case.arguments(trainer.rank), **more) as loader:
            batches = []
            for _ in range(2):
                for batch in loader:
                    if torch.cuda.is_available() and "cuda" in (more.get("to_device"), given.get("device")):
                        tensors = [v for s in batch.stores for v in s.values() if isinstance(v, torch.Tensor)]
                        assert all(tensor.is_cuda for tensor in tensors)
                    batches.append(snapshot(batch.to("cpu")))
            results.append(batches)
    return results


def compare(world, mode, load, given, cases, more=None):
    with Cluster(world.num_parts, run, world.path, mode, load, given, cases, more or {}) as cluster:
        by_rank = cluster.results()
        cluster.expect_nothing_left()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(cases, results, strict=True):
            assert_same(batches, list(reference(world, case, rank)), f"{case.name}, rank {rank}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("parts", "edge_dir", "graph_mode"), [(1, "out", "ZERO_COPY"), (2, "in", "CUDA")])
def test_collocated_samplers(typed_world, parts, edge_dir, graph_mode, device):
    load = {"graph_mode": graph_mode, "device": device, "split_ratio": 0.4 if parts == 2 else 0.0}
    given = {"worker_concurrency": 3} | ({"device": device} if graph_mode == "ZERO_COPY" else {})
    compare(typed_world(parts, edge_dir), "collocated", load, given, CASES + OPTIONS + LINKS)


ELSEWHERE = [*CASES, *OPTIONS, *LINKS]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("parts", "edge_dir", "graph_mode"), [(2, "in", "CUDA"), (3, "out", "ZERO_COPY")])
def test_partitions_elsewhere_are_asked(typed_world, parts, edge_dir, graph_mode, device):
    """The kernels sample the partition of each trainer, and batches reach into those of the others."""
    load = {"graph_mode": graph_mode, "device": device, "split_ratio": 0.4 if parts == 2 else 0.0}
    given = {"worker_concurrency": 3, "read_local": False}
    given |= {"device": device} if graph_mode == "ZERO_COPY" else {}
    compare(typed_world(parts, edge_dir), "collocated", load, given, ELSEWHERE if parts == 2 else CASES + OPTIONS[:6])


@pytest.mark.parametrize("device", DEVICES)
def test_times_of_nodes_of_partitions_elsewhere(typed_world, device):
    load, given = {"graph_mode": "CUDA", "device": device}, {"worker_concurrency": 2, "read_local": False}
    compare(typed_world(2, "in", "node"), "collocated", load, given, NODE_TIMES)


@pytest.mark.parametrize("device", DEVICES)
def test_workers_ask_partitions_elsewhere(typed_world, device):
    """One worker on the GPU, one on the CPU."""
    load = {"graph_mode": "CUDA", "device": device, "split_ratio": 0.5}
    given = {"worker_concurrency": 3, "num_workers": 2, "worker_devices": [device, "cpu"], "read_local": False}
    compare(typed_world(2, "in"), "mp", load, given, [CASES[0]], {"to_device": device})


@pytest.mark.parametrize("device", DEVICES)
def test_times_of_nodes(typed_world, device):
    load = {"graph_mode": "CUDA", "device": device}
    compare(typed_world(2, "in", "node"), "collocated", load, {"worker_concurrency": 1}, NODE_TIMES)


@pytest.mark.parametrize("device", DEVICES)
def test_samplers_in_workers_and_copies_to_the_trainer(typed_world, device):
    """One worker on the GPU, one on the CPU: who made a batch cannot be told. Rows of both kinds of memory."""
    load = {"graph_mode": "ZERO_COPY", "device": device, "split_ratio": 0.5}
    given = {"worker_concurrency": 3, "num_workers": 2, "worker_devices": [device, "cpu"]}
    compare(typed_world(1, "in"), "mp", load, given, [CASES[0]], {"to_device": device})


@pytest.mark.parametrize("device", DEVICES)
def test_samplers_of_the_cpu_and_copies_to_the_trainer(typed_world, device):
    given = {"worker_concurrency": 3} | ({"pin_memory": True} if device == "cuda" else {})
    compare(typed_world(1, "in"), "mp", {}, given, [CASES[0]], {"to_device": device})
    compare(typed_world(1, "in"), "collocated", {}, {}, [*CASES, LINKS[1]], {"to_device": device})


def run_plain(trainer, path, device):
    glt.distributed.init_worker_group(trainer.world_size, trainer.rank, "test-trainer")
    data = glt.distributed.DistDataset().load(path, trainer.rank, "CUDA", device=device, split_ratio=1.0)
    results = []
    for case in PLAIN:
        with glt.distributed.DistNeighborLoader(
            data, list(case.num_neighbors), seeds_of(trainer.rank), batch_size=16, random_seed=77 + trainer.rank,
            worker_options=options(trainer, "collocated", read_local=True), **case.loader,
        ) as loader:  # fmt: skip
            results.append([plain_snapshot(batch.to("cpu")) for _ in range(2) for batch in loader])
    return results


def run_disturbed(trainer, path):
    """As run_plain, but whatever memory a batch gives back is another batch's at once, as of another thread."""
    end, thread = DeviceSampling.end, threading.local()

    def end_and_go_on(sampling, batch):
        end(sampling, batch)
        if sampling._config.temporal is None and not getattr(thread, "disturbs", False):
            thread.disturbs = True  # that batch ends too
            sampling.launch(sampling._config, [(0, torch.tensor([0]))], None, 0)()
            thread.disturbs = False

    DeviceSampling.end = end_and_go_on
    return run_plain(trainer, path, "host")


def test_memory_that_was_given_back_is_not_read(world):
    with Cluster(2, run_disturbed, world(2).path) as cluster:
        by_rank = cluster.results()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(PLAIN, results, strict=True):
            assert_same_plain(batches, plain_reference(world(2), case, rank), f"{case.name}, rank {rank}")


@pytest.mark.parametrize("device", DEVICES)
def test_one_type(world, device):
    with Cluster(2, run_plain, world(2).path, device) as cluster:
        by_rank = cluster.results()
    for rank, results in enumerate(by_rank):
        for case, batches in zip(PLAIN, results, strict=True):
            assert_same_plain(batches, plain_reference(world(2), case, rank), f"{case.name}, rank {rank}")


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_partitions_joined_are_the_local_graph(typed_world, parts, edge_dir):
    world = typed_world(parts, edge_dir)
    loaded = [glt.distributed.DistDataset().load(world.path, p) for p in range(parts)]
    for r, expected in enumerate(world.topologies(weighted=True)):
        expanded = SCHEMA.ends(edge_dir)[r][0]
        got = joined({p: each.own.graphs[r].topology for p, each in enumerate(loaded)}, loaded[0].node_books[expanded])
        assert torch.equal(got.indptr, expected.indptr) and torch.equal(got.indices, expected.indices)
        assert got.edge_ids is not None and torch.equal(got.edge_ids, expected.edge_ids)
        assert (got.layout, got.num_nodes, got.num_neighbor_nodes, got.book) == (
            expected.layout, expected.num_nodes, expected.num_neighbor_nodes, None,
        )  # fmt: skip
        for name in ("weights", "by_time"):
            ours, theirs = getattr(got, name), getattr(expected, name)
            assert (ours is None) == (theirs is None)
            for a, b in zip(ours or (), theirs or (), strict=True):
                assert torch.equal(a.view(torch.uint8), b.to(a.dtype).view(torch.uint8))
