"""GPU samplers of a distributed job give the CPU's batches, wherever they are; the host plays the GPU.

Where there is a GPU, the same runs on it.
"""

import inspect
import threading

import pytest
import torch
from dist_typed_world import CASES, LINKS, NODE_TIMES, OPTIONS, SCHEMA
from dist_world import CASES as PLAIN
from dist_world import expect_law, sample_as_trainer
from gpus import DEVICES

import glt
from glt.distributed.engine.local_graph import joined
from glt.sampler.device import DeviceSampling

# By name: the partitions, how they are loaded and sampled, and which cases; each on the host and on a GPU.
ELSEWHERE = {"read_local": False}
LAW = {
    "in the process, all partitions": ((1, "out"), "collocated", "ZERO_COPY", {}, CASES + OPTIONS + LINKS),
    "in the process, two partitions": ((2, "in"), "collocated", "CUDA", {}, CASES + OPTIONS + LINKS),
    "partitions elsewhere are asked": ((2, "in"), "collocated", "CUDA", ELSEWHERE, CASES + OPTIONS + LINKS),
    "out-edges elsewhere": ((3, "out"), "collocated", "ZERO_COPY", ELSEWHERE, CASES + OPTIONS[:6]),
    "times of nodes": ((2, "in", "node"), "collocated", "CUDA", {"worker_concurrency": 1}, NODE_TIMES),
    "times of nodes elsewhere": ((2, "in", "node"), "collocated", "CUDA", ELSEWHERE, NODE_TIMES),
    "workers, one on the CPU": ((1, "in"), "mp", "ZERO_COPY", {"num_workers": 2}, CASES[:1]),
    "workers ask partitions elsewhere": ((2, "in"), "mp", "CUDA", {"num_workers": 2, **ELSEWHERE}, CASES[:1]),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", LAW)
def test_samplers_on_gpus(typed_world, name, device):
    world_of, mode, graph_mode, given, cases = LAW[name]
    load = {"graph_mode": graph_mode, "device": device}
    if world_of[-1] != "node":
        load["split_ratio"] = 0.5 if mode == "mp" else 0.4 if world_of[0] == 2 else 0.0
    given = {"read_local": True} | given
    if mode == "mp":  # who made a batch cannot be told
        given["worker_devices"] = [device, "cpu"]
    elif graph_mode == "ZERO_COPY":
        given["device"] = device
    expect_law(
        typed_world(*world_of), mode, given, cases, load=load, more={"to_device": device} if mode == "mp" else {}
    )


@pytest.mark.parametrize("device", DEVICES)
def test_samplers_of_the_cpu_and_copies_to_the_trainer(typed_world, device):
    given = {"read_local": True} | ({"pin_memory": True} if device == "cuda" else {})
    for mode, options, cases in (("mp", given, CASES[:1]), ("collocated", {"read_local": True}, [*CASES, LINKS[1]])):
        expect_law(typed_world(1, "in"), mode, options, cases, more={"to_device": device})


def sample_disturbed(trainer, *args):
    """Whatever memory a batch gives back is another batch's at once, as of another thread."""
    init, end, thread, configs = DeviceSampling.__init__, DeviceSampling.end, threading.local(), {}

    def init_and_note(sampling, *args, **given):
        configs[id(sampling)] = inspect.signature(init).bind(sampling, *args, **given).arguments["config"]
        init(sampling, *args, **given)

    def end_and_go_on(sampling, batch):
        end(sampling, batch)
        config = configs[id(sampling)]
        if config.temporal is None and not getattr(thread, "disturbs", False):
            thread.disturbs = True  # that batch ends too
            sampling.launch(config, [(0, torch.tensor([0]))], None, 0)()
            thread.disturbs = False

    DeviceSampling.__init__, DeviceSampling.end = init_and_note, end_and_go_on
    return sample_as_trainer(trainer, *args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("run", [sample_as_trainer, sample_disturbed])
def test_one_type_and_memory_that_was_given_back_is_not_read(world, device, run):
    load = {"graph_mode": "CUDA", "device": device, "split_ratio": 1.0}
    expect_law(world(2), "collocated", {"read_local": True}, PLAIN, load=load, run=run)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_partitions_joined_are_the_local_graph(typed_world, parts, edge_dir):
    world = typed_world(parts, edge_dir)
    loaded = [glt.distributed.DistDataset().load(world.path, p) for p in range(parts)]
    for r, expected in enumerate(world.topologies(weighted=True)):
        expanded = SCHEMA.ends(edge_dir)[r][0]
        got = joined({p: each.own.graphs[r].topology for p, each in enumerate(loaded)}, loaded[0].node_books[expanded])
        assert torch.equal(got.indptr, expected.indptr) and torch.equal(got.indices, expected.indices)
        assert torch.equal(got.all_edge_ids(), expected.all_edge_ids())
        assert (got.layout, got.num_nodes, got.num_neighbor_nodes, got.book) == (
            expected.layout,
            expected.num_nodes,
            expected.num_neighbor_nodes,
            None,
        )
        for name in ("weights", "by_time"):
            ours, theirs = getattr(got, name), getattr(expected, name)
            assert (ours is None) == (theirs is None)
            for a, b in zip(ours or (), theirs or (), strict=True):
                assert torch.equal(a.view(torch.uint8), b.to(a.dtype).view(torch.uint8))
