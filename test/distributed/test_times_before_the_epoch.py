"""Negative times of partitioned graphs are sampled as the local loader samples them, whatever integers they come in."""

import pytest
import torch
from dist_typed_world import snapshot
from dist_world import NUM_EDGES, NUM_NODES

import glt
from glt.distributed import CollocatedDistSamplingWorkerOptions, DistDataset, context
from glt.partition import RandomPartitioner, graph_arguments
from glt.testing import random_graph

SEEDS = torch.arange(0, NUM_NODES, 7)


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """This process is the only trainer."""
    monkeypatch.setattr(context, "_context", None)
    glt.distributed.init_worker_group(1, 0, "alone")
    yield


def timed(level, dtype):
    data = random_graph(NUM_NODES, NUM_EDGES, seed=3).to_data()
    generator = torch.Generator().manual_seed(1)
    size = NUM_EDGES if level == "edge" else NUM_NODES
    data["time"] = torch.randint(-100, 28, (size,), generator=generator).to(dtype)
    return data


def batches(loader):
    return [snapshot(batch) for batch in loader]


def assert_equal(got, wanted):
    assert len(got) == len(wanted) > 0
    for a, b in zip(got, wanted, strict=True):
        for name in a.keys() & b.keys():
            assert not isinstance(a[name], torch.Tensor) or torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("level", ["edge", "node"])
def test_batches_are_those_of_the_local_loader(tmp_path, level, dtype):
    given = {
        "num_neighbors": [4, 3], "batch_size": 16, "random_seed": 5, "time_attr": "time", "disjoint": True,
        "input_nodes": SEEDS, "input_time": torch.arange(len(SEEDS)) % 120 - 95,
    }  # fmt: skip

    def partitioned(name, data):
        arguments = graph_arguments(data, time_attr="time")
        RandomPartitioner(tmp_path / name, 1, **arguments, edge_assign_strategy="by_dst").partition()
        with glt.distributed.DistNeighborLoader(
            DistDataset().load(tmp_path / name, 0), worker_options=CollocatedDistSamplingWorkerOptions(), **given,
            with_edge=True, collect_features=True,
        ) as loader:  # fmt: skip
            return batches(loader)

    got = partitioned("narrow", timed(level, dtype))
    local = batches(glt.loader.NeighborLoader(timed(level, dtype), **given))
    assert any(value.numel() for batch in local for name, value in batch.items() if name.endswith("edge_index"))
    assert_equal(got, local)
    assert_equal(got, partitioned("wide", timed(level, torch.int64)))
