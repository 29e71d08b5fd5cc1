"""Asking for samplers on GPUs: what cannot be is refused by name, and memory that they use is let go of."""

import itertools
import os
import signal
import time
from types import SimpleNamespace

import pytest
import torch
from dist_world import expect_error, options, run_cluster, sample_for_ever
from gpus import GPU
from promptness import expect_prompt

import glt
from glt.data.device import missing_for_cuda
from glt.data.pinned import process_buffers, process_pages
from glt.distributed import CollocatedDistSamplingWorkerOptions as Here
from glt.distributed import MpDistSamplingWorkerOptions as Workers
from glt.distributed import RemoteDistSamplingWorkerOptions as Servers
from glt.distributed.server import worker
from glt.distributed.server.pool import PoolWorkerSpec
from glt.testing.cluster import Cluster


def test_workers_take_devices_in_turn():
    assert Workers(num_workers=3, worker_devices=["host", "cpu"]).devices == ["host", "cpu", "host"]
    assert Workers(num_workers=2, worker_devices="cpu").devices == ["cpu", "cpu"]
    assert Workers(num_workers=2, worker_devices=[torch.device("cpu")] * 2).devices == ["cpu", "cpu"]
    assert Workers(num_workers=2).devices is None
    assert Servers(num_workers=2, worker_devices=["cpu"]).devices == ["cpu", "cpu"]
    for given, error, message in [
        (["cpu"] * 3, ValueError, "worker_devices has 3 devices: expected one per worker"),
        ([], ValueError, "worker_devices has 0 devices"),
        (1.5, TypeError, "worker_devices = 1.5: expected a device"),
        (["meta"], ValueError, r"worker_devices\[0\] = 'meta': expected 'cpu', or a GPU"),
        (["cuda:9x"], ValueError, r"worker_devices\[0\] = 'cuda:9x' is no device"),
        ([True], TypeError, r"worker_devices\[0\] = True: expected a device"),
    ]:
        with pytest.raises(error, match=message):
            Workers(num_workers=2, worker_devices=given)


@pytest.mark.skipif(missing_for_cuda() is None, reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", 0, torch.device("cuda", 0)], ids=str)
def test_without_a_gpu_everything_says_what_is_missing(world, device):
    missing = r"(no CUDA kernels|without CUDA|no GPU|no NVIDIA driver)"
    load = glt.distributed.DistDataset().load
    for make in (
        lambda: Workers(worker_devices=[device]),
        lambda: Here(device=device),
        lambda: load(world(1).path, 0, "CUDA"),
        lambda: load(world(1).path, 0, "CUDA", device=device),
        lambda: load(world(1).path, 0, "ZERO_COPY", device=device),
        lambda: load(world(1).path, 0, "ZERO_COPY", split_ratio=0.5),
    ):
        with pytest.raises(ValueError, match=missing):
            make()
    assert load(world(1).path, 0, "ZERO_COPY").sampling_device is None  # means CPU, where there is no GPU
    with pytest.warns(UserWarning, match="pin_memory = True: memory stays pageable, for"):
        Workers(pin_memory=True)


def test_a_dataset_for_the_cpu_is_refused(world):
    for_cpu = glt.distributed.DistDataset().load(world(1).path, 0)
    with pytest.raises(ValueError, match="graph_mode = 'CPU': the partition was loaded for samplers on the CPU"):
        for_cpu.require_for_gpu()
    with pytest.raises(ValueError, match=r"split_ratio = 0\.5 and graph_mode = 'CPU'"):
        glt.distributed.DistDataset().load(world(1).path, 0, split_ratio=0.5)
    with pytest.raises(ValueError, match="split_ratio = 2: expected a share"):
        glt.distributed.DistDataset().load(world(1).path, 0, "CUDA", device="host", split_ratio=2)


def refused(trainer, path):
    glt.distributed.init_worker_group(1, 0, "test-trainer")
    data = glt.distributed.DistDataset().load(path, 0)
    said = []
    for where in (options(trainer, "mp", worker_devices="host"), options(trainer, "collocated", device="host")):
        try:
            glt.distributed.DistNeighborLoader(data, [2], torch.arange(4), worker_options=where)
        except ValueError as error:
            said.append(str(error))
    return said


def test_loaders_say_so_when_they_are_created(world):
    ((first, second),) = run_cluster(1, refused, world(1).path)
    assert "graph_mode = 'CPU'" in first and first == second


def refused_by_the_cpus_own(trainer, path):
    glt.distributed.init_worker_group(1, 0, "test-trainer")
    data, said = glt.distributed.DistDataset().load(path, 0), []
    gpus = (
        options(trainer, "mp", num_workers=2, worker_devices=["cpu", "host"]),
        options(trainer, "collocated", device="host"),
    )
    for make in (
        lambda **more: glt.distributed.DistHGTLoader(data, [2], torch.arange(4), **more),
        lambda **more: glt.distributed.DistClusterLoader(data, torch.zeros(data.num_nodes, dtype=torch.int64), **more),
        lambda **more: glt.distributed.DistGraphSAINTRandomWalkSampler(data, 4, 2, **more),
        lambda **more: glt.distributed.DistRandomWalkLoader(data, 3, 2, torch.arange(4), **more),
        lambda **more: glt.distributed.DistPageRankLoader(data, 3, torch.arange(4), **more),
    ):
        for where in gpus:
            try:
                make(worker_options=where)
            except ValueError as error:
                said.append(str(error))
        make(worker_options=options(trainer, "collocated", device="cpu")).shutdown()
    return said


def test_gpus_are_refused_by_loaders_that_the_cpu_samples(world):
    (said,) = run_cluster(1, refused_by_the_cpus_own, world(1).path)
    kinds = ("HGTLoader", "ClusterLoader", "GraphSAINTRandomWalkSampler", "RandomWalkLoader", "PageRankLoader")
    assert said == [
        f"worker_options has {given}, and Dist{kind} samples on the CPU: leave it out"
        for kind in kinds
        for given in ("worker_devices = ['cpu', 'host']", "device = 'host'")
    ]


def endless(trainer, path, device):
    """Samples in a worker on a GPU for as long as it can."""
    glt.distributed.init_worker_group(1, 0, "test-trainer")
    data = glt.distributed.DistDataset().load(path, 0, "CUDA", device=device)
    given = {"collect_features": True, "to_device": device}
    sample_for_ever(trainer, data, worker_options=options(trainer, "mp"), **given)


@pytest.mark.parametrize("device", ["host", GPU])
def test_a_killed_gpu_worker_is_named_and_leaves_nothing(world, device):
    with Cluster(1, endless, world(1).path, device) as cluster:
        (victim,) = cluster.hear(0)
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        (own,) = cluster.outcomes()
        expect_prompt(own.at_s - start, "the trainer to notice")
        expect_error(own, "WorkerDied", f"pid {victim}", "exit code -9")
        cluster.expect_nothing_left()


def leave_early(trainer, path, mode, device):
    """Epochs that are left early, then a whole one; what is pinned afterwards."""
    glt.distributed.init_worker_group(1, 0, "test-trainer")
    data = glt.distributed.DistDataset().load(path, 0, "ZERO_COPY", device=device)
    given = {"device": device} if mode == "collocated" else {"worker_devices": [device]}
    flags = {"batch_size": 10, "collect_features": True, "to_device": device}
    flags["worker_options"] = options(trainer, mode, **given)
    with glt.distributed.DistNeighborLoader(data, [3, 2], torch.arange(100), **flags) as loader:
        for stop in (1, 4):
            assert len(list(itertools.islice(loader, stop))) == stop
        seen = torch.cat([batch.input_id.cpu() for batch in loader])
        stats = loader.stats()
    for graph in data._local_graphs.values():
        graph.close()
    pinned = process_pages().num_bytes + process_buffers().num_bytes if device == "cuda" else 0
    return [seen.tolist(), stats["num_batches"], pinned]


@pytest.mark.parametrize("device", ["host", GPU])
@pytest.mark.parametrize("mode", ["mp", "collocated"])
def test_leaving_early_loses_nothing_and_unpins_all(world, mode, device):
    ((seen, num_batches, pinned),) = run_cluster(1, leave_early, world(1).path, mode, device)
    assert seen == list(range(100)) and num_batches == 1 + 4 + 10
    assert pinned == 0


@pytest.mark.parametrize(
    ("graph_mode", "missing", "may"),
    [("CPU", None, False), ("ZERO_COPY", None, True), ("CUDA", None, True), ("ZERO_COPY", "there is no GPU", False)],
)
def test_samplers_of_a_server(monkeypatch, graph_mode, missing, may):
    """Whatever GPU a loader will ask for."""
    monkeypatch.setattr(worker, "missing_for_cuda", lambda: missing)
    spec = PoolWorkerSpec(0, 0, {"graph_mode": graph_mode, "device": "host"}, 1, 1, 1.0, 20, "text")
    assert worker.may_use_gpu(spec) == may


def test_samplers_of_a_server_that_share_a_gpu_are_counted():
    dataset = SimpleNamespace(sampling_device="host", num_sharers=1)
    process = SimpleNamespace(spec=SimpleNamespace(worker=1), dataset=dataset)
    for devices, samplers, expected in (
        (None, [0, 1, 2], 3),
        (["host"], [1], 1),
        (["host", "cpu"], [0, 1, 2, 3], 2),
        (["host", "host"], [0, 1], 2),
    ):
        granted = SimpleNamespace(request={"devices": devices, "samplers": samplers})
        worker.PoolWorker._place(process, granted)
        assert dataset.num_sharers == expected
