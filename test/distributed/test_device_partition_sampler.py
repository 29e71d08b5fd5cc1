"""A GPU that samples some partitions, and asks for the others, makes the batches of the CPU; the host plays it."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from dist_typed_world import SCHEMA, write_typed_world

import glt
from glt.data.device import require_accelerator
from glt.distributed.engine.device_sampler import DevicePartitionSampler, StitchedBatch, sampler_of
from glt.distributed.engine.sampler import STATS, BatchStart, DistNeighborSampler
from glt.distributed.engine.seeds import NodeSeeds, SamplingJob, SeedTable
from glt.sampler.config import SamplingConfig
from glt.sampler.device import DeviceSampling
from glt.sampler.order import SeedOrder

HOST = require_accelerator("host", "device")
USER, ITEM = 0, 1


class Elsewhere:
    """Answers for partitions in this process as if they were in others."""

    def __init__(self, root, parts):
        loaded = {part: glt.distributed.DistDataset().load(root, part) for part in parts}
        self.handlers = {part: data.own.handlers() for part, data in loaded.items()}
        self.asked = []

    def ask(self, part, requests):
        futures = []
        for request in requests:
            self.asked.append(request.method)
            futures.append(Future())
            futures[-1].set_result(self.handlers[part][request.method](request.encode()))
        return futures


def on_host(data, others, config, router, loop, staged=False):
    """A sampler for the GPU that the host plays."""
    table = SeedTable({"node": torch.arange(1)})
    job = SamplingJob(config, NodeSeeds(0), table, SeedOrder(1, 1), collect_features=True)
    return sampler_of(job, HOST, data, others, router, loop, staged=staged)


def made(sampler, start, key):
    out = {}

    async def produce():
        sampled = await sampler.sample(start, key)
        out.update({name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in sampled.specs.items()})
        await sampler.fill(sampled, out)

    task = sampler.loop.submit(produce)
    assert task is not None
    task.result(60)
    return out


def configs():
    options = [{}, {}, {"weighted": True}, {"replace": True}]
    fan_outs = ([4, 3], [-1, 2], [3, 3], [20, 2])
    return [SamplingConfig.checked(n, SCHEMA, with_edge=True, **o) for n, o in zip(fan_outs, options, strict=True)]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize(("edge_dir", "relabel"), [("in", False), ("out", True)])
def test_batches_are_those_of_the_cpu(tmp_path, edge_dir, relabel, staged):
    """Two partitions of three are here, and copies of some rows of the third: the cache."""
    rng = np.random.default_rng(2)
    hotness = {"user": rng.random(90), "item": rng.random(60)}
    root = write_typed_world(
        tmp_path, 3, edge_dir, hotness=[hotness] * 3, cache_ratio=0.1, relabel=relabel
    ).path  # fmt: skip
    loop, elsewhere = glt.distributed.ConcurrentEventLoop(2), Elsewhere(root, [1])
    try:
        plain, placed = (
            glt.distributed.DistDataset().load(root, 0, *mode, **given)
            for mode, given in (((), {}), (("CUDA",), {"device": "host", "split_ratio": 0.3}))
        )
        for config in configs():
            arguments = {"config": config, "router": elsewhere, "loop": loop}
            ours = on_host(placed, {2: placed.map_other(root, 2)}, staged=staged, **arguments)
            assert isinstance(ours, DevicePartitionSampler)
            theirs = DistNeighborSampler(plain, others={2: plain.map_other(root, 2)}, **arguments)
            for key, seeds in enumerate(([(ITEM, torch.arange(0, 60, 7))], [(USER, torch.tensor([3, 3, 80, 4]))])):
                got, wanted = made(ours, BatchStart(seeds), key), made(theirs, BatchStart(seeds), key)
                assert got.keys() == wanted.keys()
                stats = dict(zip(STATS, got["stats"].tolist(), strict=True))
                assert stats["num_cached_nodes"] > 0 and stats["num_remote_nodes"] > 0
                for name in got.keys() - {"stats"}:
                    assert got[name].dtype == wanted[name].dtype and torch.equal(got[name], wanted[name]), name
        assert {"sample_one_hop", "gather_rows"} <= set(elsewhere.asked)
    finally:
        loop.shutdown(10)


WAITS = ["start", "frontier", "expand_from", "end_hop", "nodes", "edges", "induce_from", "copy_nodes", "copy_edges"]


@pytest.mark.parametrize("subgraph_type", ["directional", "induced"])
def test_what_waits_for_the_gpu_runs_off_the_loop_however_little_it_is(tmp_path, monkeypatch, subgraph_type):
    """On the loop it would hold up all other batches and requests."""
    threads = {}

    def watch(kind, name):
        call = getattr(kind, name)

        def watched(*arguments, **named):
            threads.setdefault(name, set()).add(threading.current_thread().name)
            return call(*arguments, **named)

        monkeypatch.setattr(kind, name, watched)

    for name in WAITS:
        watch(StitchedBatch, name)
    watch(DeviceSampling, "sample_rows")
    root = write_typed_world(tmp_path, 2).path
    data = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host")
    loop = glt.distributed.ConcurrentEventLoop(2, "test")
    try:
        config = SamplingConfig.checked([2, 2], SCHEMA, with_edge=True, subgraph_type=subgraph_type)
        given = {"config": config, "router": Elsewhere(root, [1]), "loop": loop}
        made(on_host(data, {}, **given), BatchStart([(USER, torch.tensor([3, 80, 4]))]), 0)
    finally:
        loop.shutdown(10)
    assert threads.keys() >= {"start", "frontier", "nodes", "copy_nodes", "sample_rows"}
    assert ("induce_from" in threads) == (subgraph_type == "induced")
    names = {thread for several in threads.values() for thread in several}
    assert names and all(name.startswith("test-native") for name in names), threads


def test_a_gpu_that_reads_all_partitions_asks_nobody(tmp_path):
    root = write_typed_world(tmp_path, 2).path
    data = glt.distributed.DistDataset().load(root, 0, "CUDA", device="host")
    loop = glt.distributed.ConcurrentEventLoop(1)
    config = configs()[0]
    sampler = on_host(data, {1: data.map_other(root, 1)}, config, None, loop)
    assert not isinstance(sampler, DevicePartitionSampler)
    with pytest.raises(ValueError, match=r"partitions \[1\] are not read here: a router to them is needed"):
        on_host(data, {}, config, None, loop)
    loop.shutdown(10)
