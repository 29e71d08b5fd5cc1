"""Hotness that kernels compute: the CPU's, bit for bit when the host runs them; on a GPU to 1e-5."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from gpus import needs_gpu

from glt import _core
from glt.data import Dataset, Graph, Topology
from glt.data.device import Accelerator
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph

ORDERS = ["forward", "backward", "shuffled"]


def directed(edge_dir="in", num_edges=1500, symmetric=False):
    """Hubs, isolated nodes, loops and parallel edges; weights, a few of them 0."""
    edge_index = random_graph(300, num_edges, seed=11).edge_index
    if symmetric:
        edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
    weight = torch.rand(edge_index.shape[1], generator=torch.Generator().manual_seed(1)) ** 4
    weight[::7] = 0
    return Dataset.from_arrays(edge_index, 300, edge_dir=edge_dir, edge_weight=weight)


OPTIONS = [
    {"num_neighbors": [3, 2, 2]},
    {"num_neighbors": [-1, 2]},
    {"num_neighbors": [3, 2], "replace": True},
    {"num_neighbors": [3, 0, 2], "disjoint": True},
    {"num_neighbors": [1, 2, 4], "weight_attr": "edge_weight"},
    {"num_neighbors": [2, 3], "weight_attr": "edge_weight", "replace": True},
]


# exp and log1p of CUDA, which kernels as nvcc wrote them have on the host too (test/ptx), are not the C library's to
# the last bit.
HAS_CUDAS_EXP = "GLT_COMPILED_CORE" in os.environ


def same(got, expected):
    if HAS_CUDAS_EXP:
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(got, expected)


def asks_kernels(sampler, monkeypatch, order):
    topologies = sampler.graph.topologies
    kernels = DeviceSampling(
        sampler.graph, sampler.config, torch.device("cpu"), topologies.__getitem__, order=order, num_threads=2
    )
    monkeypatch.setitem(sampler.__dict__, "on_device", kernels)
    monkeypatch.setattr(sampler, "accelerator", Accelerator(torch.device("cpu")))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
def test_kernels_give_the_hotness_of_the_cpu(options, symmetric, monkeypatch):
    for edge_dir, order in zip(("in", "out", "in"), ORDERS, strict=True):
        sampler = NeighborSampler(directed(edge_dir, symmetric=symmetric), random_seed=1, **options)
        seeds = torch.arange(0, 300, 3)
        expected = sampler.sample_prob(seeds, 300, batch_size=8, num_batches=0)
        corrected = sampler.sample_prob(seeds, 310, batch_size=8, num_batches=5)
        with monkeypatch.context() as patch:
            asks_kernels(sampler, patch, order)
            for _ in range(2):
                same(sampler.sample_prob(seeds, 300, batch_size=8, num_batches=0), expected)
            same(sampler.sample_prob(seeds, 310, batch_size=8, num_batches=5), corrected)


@pytest.mark.parametrize("disjoint", [False, True])
def test_types_that_lead_to_each_other(disjoint, monkeypatch):
    sampler = NeighborSampler(random_hetero_graph(seed=4), [3, -1, 2], disjoint=disjoint, random_seed=1)
    types = sampler.graph.schema.node_types
    seeds = {types[0]: torch.arange(0, sampler.graph.num_nodes[0], 2), types[1]: torch.tensor([1, 1, 3])}
    expected = sampler.sample_prob(seeds, None, batch_size=4, num_batches=4)
    asks_kernels(sampler, monkeypatch, "shuffled")
    got = sampler.sample_prob(seeds, None, batch_size=4, num_batches=4)
    assert set(got) == set(expected) and all(torch.equal(got[t], expected[t]) for t in expected)


def test_rows_longer_than_a_block_add_up_in_another_order(monkeypatch):
    num, hub = 700, torch.zeros(700, dtype=torch.int64)
    edge_index = torch.stack([torch.arange(num), hub])
    weight = torch.rand(num, generator=torch.Generator().manual_seed(2)) + 0.01
    data = Dataset.from_arrays(edge_index, num, edge_dir="in", edge_weight=weight)
    for k in (1, 2, 20):
        sampler = NeighborSampler(data, [k], weight_attr="edge_weight", random_seed=1)
        expected = sampler.sample_prob(torch.tensor([0]), num, num_batches=0)
        with monkeypatch.context() as patch:
            asks_kernels(sampler, patch, "forward")
            got = sampler.sample_prob(torch.tensor([0]), num, num_batches=0)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-9)
        assert abs(float(got[1:].sum()) - k) < 0.2 * k


def test_more_hops_than_kernels_have_room_for_are_the_cpus(monkeypatch):
    sampler = NeighborSampler(directed(), [1] * (_core.most_hotness_hops + 1), random_seed=1)
    expected = sampler.sample_prob(torch.tensor([0]), 300, num_batches=0)
    asks_kernels(sampler, monkeypatch, "forward")
    monkeypatch.setattr(sampler.on_device, "hotness", None)
    assert torch.equal(sampler.sample_prob(torch.tensor([0]), 300, num_batches=0), expected)


def test_hops_that_do_not_fit_are_refused():
    kernels = _core.DeviceHotness(device=-1)
    topology = Topology(torch.tensor([[0], [1]]), 2)
    table, doubt = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)
    given = {"wide_indices": topology.indices.dtype == torch.int64, "num_nodes": 2, "num_neighbor_nodes": 2}
    given |= {"num_edges": 1}
    rows = _core.DeviceRows(indptr=topology.indptr.data_ptr(), indices=topology.indices.data_ptr(), **given)
    options = {
        "weighted": False, "replace": False, "expanded": table.ctypes.data, "neighbor": table.ctypes.data,
        "num_columns": 3, "doubt": doubt.ctypes.data,
    }  # fmt: skip
    with pytest.raises(ValueError, match="hop = 3: expected 0 to 2"):
        kernels.add_doubt(rows, [1, 1], hop=3, **options)
    with pytest.raises(ValueError, match="num_neighbors has 1 hops: expected more than hop = 1 and at most"):
        kernels.add_doubt(rows, [1], hop=1, **options)


@needs_gpu
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_gpu_gives_the_hotness_of_the_cpu(options, symmetric):
    on_cpu = NeighborSampler(directed(symmetric=symmetric), random_seed=1, **options)
    graph = replace(on_cpu.graph, graphs=tuple(Graph(t, "CUDA") for t in on_cpu.graph.topologies))
    on_gpu = NeighborSampler(graph, random_seed=1, device="cuda", **options)
    for num_batches in (0, 5):
        expected = on_cpu.sample_prob(torch.arange(0, 300, 3), 300, batch_size=8, num_batches=num_batches)
        got = on_gpu.sample_prob(torch.arange(0, 300, 3), 300, batch_size=8, num_batches=num_batches)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
