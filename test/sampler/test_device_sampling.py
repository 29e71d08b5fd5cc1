"""A sampler's batches from the kernels: equal to the CPU sampler's for every option; what they lack is refused."""

from dataclasses import replace

import pytest
import torch
from gpus import GPU, needs_gpu
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput

from glt.data import Dataset, Graph, Topology
from glt.data.device import Accelerator, missing_for_cuda
from glt.sampler import NeighborSampler
from glt.sampler.device import DeviceSampling
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph

HETERO = random_hetero_graph(seed=4)
HOMO = random_graph(80, 700, seed=3).to_data()
HOMO.time = torch.arange(80) % 20
HOMO.edge_weight = torch.rand(700, generator=torch.Generator().manual_seed(2))

OPTIONS = [
    {},
    {"replace": True, "with_edge": False},
    {"disjoint": True},
    {"weight_attr": "edge_weight"},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"subgraph_type": "induced"},
    {"subgraph_type": "induced", "with_edge": False},
]


def on_host(sampler, columns=None):
    """The kernels of a sampler, their bodies run by the host on the arrays in host memory, or on ``columns``."""
    place = (columns or sampler.graph.topologies).__getitem__
    return DeviceSampling(sampler.graph, sampler.config, torch.device("cpu"), place, order="shuffled")


def ask_kernels(sampler, monkeypatch):
    """Makes a sampler of the CPU ask its kernels from now on."""
    monkeypatch.setitem(sampler.__dict__, "on_device", on_host(sampler))
    monkeypatch.setattr(sampler, "accelerator", Accelerator(torch.device("cpu")))
    monkeypatch.setattr(sampler, "_sample_on_host", None)


def assert_same(one, other):
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges"):
        values = getattr(one, name), getattr(other, name)
        assert [type(v) for v in values] == [type(values[0])] * 2
        pairs = zip(values[0].items(), values[1].items(), strict=True) if isinstance(values[0], dict) else [values]
        for a, b in pairs:
            if isinstance(a, tuple):
                assert a[0] == b[0]
                a, b = a[1], b[1]
            assert torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b, name


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_gives_what_the_cpu_gives(options, edge_dir):
    attrs = {name: options.get(name) for name in ("time_attr", "weight_attr")}
    for data, kind, seeds in ((HOMO, 0, [5, 5, 0, 79, 31]), (HETERO, 1, [3, 0, 44])):
        dataset = Dataset.from_pyg(data, edge_dir=edge_dir, **attrs)
        sampler = NeighborSampler(dataset, [4, -1, 2], random_seed=1, **options)
        seeds = torch.tensor(seeds)
        time = sampler.graph.seed_time(kind, seeds) if sampler.is_temporal else None
        expected = sampler.sample([(kind, seeds)], time, batch_key=7)
        kernels = on_host(sampler)
        for _ in range(2):
            assert_same(kernels.launch(sampler.config, [(kind, seeds)], time, 7)(), expected)


@pytest.mark.parametrize("replace", [False, True])
def test_one_hop_gives_what_the_cpu_gives(replace):
    sampler = NeighborSampler(HETERO, [2], replace=replace, random_seed=1)
    kernels, seeds = on_host(sampler), torch.tensor([3, 3, 0, 44])
    for at, edge_type in enumerate(HETERO.edge_types):
        seeds = seeds % sampler.graph.num_nodes[sampler.graph.ends[at][0]]
        expected = sampler.sample_one_hop(seeds, 3, edge_type=edge_type, batch_key=5)
        nbr_num, nbr, edge = kernels.sample_rows(at, seeds, num_neighbors=3, hop=0, batch_key=5)
        assert torch.equal(nbr, expected.nbr) and torch.equal(nbr_num, expected.nbr_num)
        assert torch.equal(edge, expected.edge)


SRC_WEIGHT = torch.rand(80, generator=torch.Generator().manual_seed(3)) + 0.1
LINK_OPTIONS = [
    ({"exclude_edges": "self"}, None),
    ({"exclude_edges": "reverse"}, NegativeSampling("binary", 1.5)),
    ({"exclude_edges": "reverse", "disjoint": True}, NegativeSampling("triplet", 2)),
    ({"exclude_edges": "self", "weight_attr": "edge_weight"}, NegativeSampling("binary", 1, SRC_WEIGHT)),
    ({"time_attr": "time", "exclude_edges": "self"}, NegativeSampling("triplet", 1)),
    ({"time_attr": "time", "temporal_strategy": "last", "exclude_edges": "self"}, NegativeSampling("binary", 1)),
]


def named(value):
    """Without the weights, which are long."""
    return f"{value.mode.value}-{value.amount}" if isinstance(value, NegativeSampling) else str(value)


def link_case(options, input_type=None):
    """A sampler, seed edges of its graph, and what makes the copy of it that asks kernels."""
    data = HOMO if input_type is None else HETERO
    edge_index = HOMO.edge_index if input_type is None else HETERO[input_type].edge_index
    time = torch.arange(20) + 5 if "time_attr" in options else None
    index = EdgeSamplerInput(torch.arange(20), *edge_index[:, :20], time=time, input_type=input_type)
    return NeighborSampler(data, [4, 2], random_seed=1, **options), index


def assert_same_links(one, other):
    assert_same(one, other)
    for a, b in zip(one.metadata, other.metadata, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a is b


@pytest.mark.parametrize(("options", "neg_sampling"), LINK_OPTIONS, ids=named)
def test_link_batches_give_what_the_cpu_gives(options, neg_sampling, monkeypatch):
    sampler, index = link_case(options)
    expected = sampler.sample_from_edges(index, neg_sampling, batch_key=3)
    ask_kernels(sampler, monkeypatch)
    for _ in range(2):
        assert_same_links(sampler.sample_from_edges(index, neg_sampling, batch_key=3), expected)


@pytest.mark.parametrize("exclude", ["self", "reverse"])
def test_link_batches_of_every_edge_type(exclude, monkeypatch):
    for edge_type in HETERO.edge_types:
        if HETERO[edge_type].num_edges == 0:
            continue
        try:
            sampler, index = link_case({"exclude_edges": exclude}, edge_type)
            expected = sampler.sample_from_edges(index, NegativeSampling("binary", 1), batch_key=3)
        except ValueError:  # which type holds the reverses is not clear
            assert exclude == "reverse"
            continue
        ask_kernels(sampler, monkeypatch)
        assert_same_links(sampler.sample_from_edges(index, NegativeSampling("binary", 1), batch_key=3), expected)


@needs_gpu
@pytest.mark.parametrize("mode", ["CUDA", "ZERO_COPY"])
@pytest.mark.parametrize(("options", "neg_sampling"), LINK_OPTIONS, ids=named)
def test_link_batches_on_a_gpu_give_what_the_cpu_gives(options, neg_sampling, mode):
    on_cpu, index = link_case(options)
    expected = on_cpu.sample_from_edges(index, neg_sampling, batch_key=3)
    graph = replace(on_cpu.graph, graphs=tuple(Graph(t, mode) for t in on_cpu.graph.topologies))
    on_gpu = NeighborSampler(graph, [4, 2], random_seed=1, device="cuda", **options)
    for _ in range(4):  # the third is captured, the fourth replayed
        out = on_gpu.sample_from_edges(index, neg_sampling, batch_key=3)
        for name in ("node", "row", "col", "edge", "batch"):
            value = getattr(out, name)
            setattr(out, name, None if value is None else value.cpu())
        out.metadata = tuple(m.cpu() if isinstance(m, torch.Tensor) else m for m in out.metadata)
        assert_same_links(out, expected)


def test_asking_for_a_gpu_says_what_is_missing():
    graph = Graph(Topology(HOMO.edge_index), mode="ZERO_COPY")
    assert NeighborSampler(graph, [2]).device.type == "cpu"
    with pytest.raises(ValueError, match=r"device = 'meta': expected a GPU"):
        NeighborSampler(graph, [2], device="meta")
    missing = missing_for_cuda()
    if missing is None:
        with pytest.raises(ValueError, match="the graph is for CPU samplers; pass a glt Dataset or Graph"):
            NeighborSampler(HOMO, [2], device="cuda")
        return
    for device in ("cuda", "cuda:0", 0):
        with pytest.raises(ValueError, match=r"device = .*(no CUDA kernels|without CUDA|no GPU|no NVIDIA driver)"):
            NeighborSampler(graph, [2], device=device)


def whole(sampler, seeds):
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor(seeds)), batch_key=7)


@pytest.mark.parametrize("options", [{}, {"sample_direction": "backward"}, {"subgraph_type": "bidirectional"}], ids=str)
def test_a_sampler_asks_its_kernels(options, monkeypatch):
    sampler = NeighborSampler(HOMO, [4, 2], random_seed=1, **options)
    expected, hop = whole(sampler, [5, 5, 0]), sampler.sample_one_hop(torch.tensor([1, 2]), 3, batch_key=1)
    ask_kernels(sampler, monkeypatch)
    assert_same(whole(sampler, [5, 5, 0]), expected)
    assert torch.equal(sampler.sample_one_hop(torch.tensor([1, 2]), 3, batch_key=1).edge, hop.edge)
    with pytest.raises(IndexError, match=r"seeds\[1\] = 80 is outside \[0, 80\)"):
        whole(sampler, [5, 80])


@pytest.mark.parametrize("device", [None, "host", GPU])
@pytest.mark.parametrize("disjoint", [False, True])
def test_batches_begun_are_ended_in_any_order(disjoint, device):
    data = Dataset.from_pyg(HOMO)
    expected = NeighborSampler(data, [3, -1], disjoint=disjoint, random_seed=1)
    options = {"disjoint": disjoint, "random_seed": 1, "device": device}
    sampler = NeighborSampler(data if device is None else data.with_mode("ZERO_COPY"), [3, -1], **options)
    nodes = [NodeSamplerInput(None, torch.arange(at, 80, 5)) for at in range(3)]
    edges = [EdgeSamplerInput(None, *HOMO.edge_index[:, at:20]) for at in range(3)]
    negatives = NegativeSampling("binary")
    for _ in range(3):  # so that all memory is used again
        begun = [sampler.begin_from_nodes(each, batch_key=at) for at, each in enumerate(nodes)]
        begun += [sampler.begin_from_edges(each, negatives, batch_key=at) for at, each in enumerate(edges)]
        known = [expected.sample_from_nodes(each, batch_key=at) for at, each in enumerate(nodes)]
        known += [expected.sample_from_edges(each, negatives, batch_key=at) for at, each in enumerate(edges)]
        sampler.num_neighbors = [1, 1]  # of those that begin from now on
        for at in (4, 1, 0, 5, 2, 3):
            out = begun[at]()
            for name in ("node", "row", "col", "edge", "batch"):
                a, b = getattr(out, name), getattr(known[at], name)
                assert (a is None and b is None) or torch.equal(a.cpu(), b), name
            assert out.num_sampled_nodes == known[at].num_sampled_nodes
            for a, b in zip(out.metadata, known[at].metadata, strict=True):
                assert a is b or torch.equal(a.cpu(), b)
        sampler.num_neighbors = [3, -1]
    for finish in begun:
        with pytest.raises(RuntimeError, match="the batch was ended before; begin another"):
            finish()


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("device", [None, "host"])
def test_a_subclasss_sample_is_called_for_nodes_and_links(device, begins):
    class Own(NeighborSampler):
        def sample(self, seeds, seed_time=None, *, batch_key=None, **more):
            calls.append((len(seeds[0][1]), batch_key, *more))
            if begins:
                return self.begin(seeds, seed_time, batch_key=batch_key, **more)()
            return super().sample(seeds, seed_time, batch_key=batch_key, **more)

    calls, data = [], Dataset.from_pyg(HOMO)
    given = data if device is None else data.with_mode("ZERO_COPY")
    sampler = Own(given, [3, 2], exclude_edges="self", random_seed=1, device=device)
    expected = NeighborSampler(data, [3, 2], exclude_edges="self", random_seed=1)
    nodes, edges = NodeSamplerInput(None, torch.arange(4)), EdgeSamplerInput(None, *HOMO.edge_index[:, :1])
    assert_same(sampler.sample_from_nodes(nodes, batch_key=7), expected.sample_from_nodes(nodes, batch_key=7))
    assert_same(sampler.sample_from_edges(edges, batch_key=8), expected.sample_from_edges(edges, batch_key=8))
    assert calls == [(4, 7), (2, 8, "exclusions")]
