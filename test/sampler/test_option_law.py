"""The one-batch law for every option: a sampler's output is the reference's, type by type."""

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NodeSamplerInput

from glt.data import Dataset
from glt.sampler import NeighborSampler
from glt.testing import random_graph, reference_key
from glt.testing.batches import random_hetero_graph, reference_output

HETERO = random_hetero_graph(seed=4)
HOMO = random_graph(80, 700, seed=3).to_data()
HOMO.time = torch.from_numpy(np.random.default_rng(0).integers(0, 20, 80))
HOMO.edge_time = torch.from_numpy(np.random.default_rng(1).integers(0, 20, 700))
HOMO.edge_weight = torch.rand(700, generator=torch.Generator().manual_seed(2)).relu()

FAN_OUT = {
    ("user", "follows", "user"): [3, 2],
    ("user", "buys", "item"): [2, -1],
    ("item", "rev_buys", "user"): [4, 1],
    ("user", "rates", "item"): [0, 3],
    ("item", "of", "shop"): [2, 2],
    ("shop", "sells", "item"): [1, 1],
}
OPTIONS = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"disjoint": True, "replace": True},
    {"weight_attr": "edge_weight"},
    {"weight_attr": "edge_weight", "replace": True},
    {"weight_attr": "edge_weight", "disjoint": True},
    {"time_attr": "time"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "time", "temporal_strategy": "last", "replace": True},
    {"time_attr": "edge_time"},
    {"time_attr": "edge_time", "temporal_strategy": "last"},
    {"time_attr": "edge_time", "replace": True},
    {"sampler": "labor"},
    {"sampler": "labor", "disjoint": True},
    {"sampler": "labor", "weight_attr": "edge_weight"},
    {"sampler": "labor", "time_attr": "edge_time", "time_window": 9},
    {"sampler": "labor", "time_attr": "time", "temporal_strategy": "decay", "half_life": 3},
    {"time_attr": "time", "time_bound": "<"},
    {"time_attr": "edge_time", "time_window": 6},
    {"time_attr": "edge_time", "time_window": 0, "replace": True},
    {"time_attr": "time", "time_bound": "<", "time_window": 4, "temporal_strategy": "last"},
    {"time_attr": "time", "temporal_strategy": "decay", "half_life": 3},
    {"time_attr": "edge_time", "temporal_strategy": "decay", "half_life": 1, "time_window": 9, "time_bound": "<"},
    {"time_attr": "edge_time", "temporal_strategy": "decay", "half_life": 2, "replace": True},
]


def sampled(sampler, seeds, time=None, input_type=None, **options):
    seeds = torch.as_tensor(seeds, dtype=torch.int64)
    return sampler.sample_from_nodes(NodeSamplerInput(torch.arange(len(seeds)), seeds, time, input_type), **options)


def assert_same(values, expected, names=None):
    """Whether a tensor, or a dict of them by type, is the list of the reference."""
    if names is None:
        values, names = {None: values}, [None]
    assert list(values) == list(names)
    for value, other in zip(values.values(), expected, strict=True):
        assert value == other if isinstance(value, list) else np.array_equal(value.numpy(), other)


def assert_is_reference(out, expected, sampler):
    schema, config = sampler.graph.schema, sampler.config
    nodes, edges = (schema.node_types, schema.edge_types) if schema.is_hetero else (None, None)
    assert_same(out.node, expected.node, nodes)
    assert_same(out.row, expected.row, edges)
    assert_same(out.col, expected.col, edges)
    assert_same(out.edge, expected.edge, edges)
    assert_same(out.num_sampled_nodes, expected.num_sampled_nodes, nodes)
    assert_same(out.num_sampled_edges, expected.num_sampled_edges, edges)
    assert (out.batch is not None) == config.disjoint
    if config.disjoint:
        assert_same(out.batch, expected.tree, nodes)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_heterogeneous_batches_are_the_references(options):
    sampler = NeighborSampler(HETERO, FAN_OUT, random_seed=1, **options)
    for index, (input_type, seeds) in enumerate(
        [("user", [0, 1, 1, 59, 7]), ("item", [3, 0, 44]), ("user", []), ("item", list(range(20)))]
    ):
        time = torch.arange(5, 5 + len(seeds)) if options.get("time_attr") == "edge_time" or index == 1 else None
        time = time if "time_attr" in options else None
        key = reference_key(1, 2, index)
        out = sampled(sampler, seeds, time, input_type, batch_key=key)
        expected = reference_output(
            HETERO, [(list(HETERO.node_types).index(input_type), seeds)], sampler, key, seed_time=time
        )
        assert_is_reference(out, expected, sampler)
        assert out.metadata[0].tolist() == list(range(len(seeds)))
        assert (out.metadata[1] is None) == (time is None)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_homogeneous_batches_are_the_references(options, num_threads):
    sampler = NeighborSampler(HOMO, [4, -1, 2], random_seed=1, num_threads=num_threads, **options)
    seeds = [5, 5, 0, 79, 31, 12]
    time = torch.tensor([19, 3, 10, 0, 25, 8]) if options.get("time_attr") == "edge_time" else None
    key = reference_key(1, 0, 0)
    expected = reference_output(HOMO, [(0, seeds)], sampler, key, seed_time=time)
    assert_is_reference(sampled(sampler, seeds, time, batch_key=key), expected, sampler)


def test_a_weighted_dataset_is_still_sampled_uniformly_on_request():
    dataset = Dataset.from_pyg(HETERO, weight_attr="edge_weight")
    plain, weighted = (
        sampled(NeighborSampler(source, [2, 2], random_seed=5), range(30), None, "user", batch_key=3)
        for source in (HETERO, dataset)
    )
    assert all(torch.equal(plain.edge[t], weighted.edge[t]) for t in HETERO.edge_types)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_along_out_edges_a_batch_holds_the_reverse_types(edge_dir):
    sampler = NeighborSampler(Dataset.from_pyg(HETERO, edge_dir=edge_dir), [2, 2], random_seed=0)
    out = sampled(sampler, [0, 4], None, "user", batch_key=3)
    expected = reference_output(HETERO, [(0, [0, 4])], sampler, 3)
    reverses = [
        ("user", "follows", "user"), ("item", "rev_buys", "user"), ("user", "buys", "item"),
        ("item", "rev_rates", "user"), ("shop", "rev_of", "item"), ("item", "rev_sells", "shop"),
    ]  # fmt: skip
    assert_same(out.row, expected.row, HETERO.edge_types if edge_dir == "in" else reverses)
    assert_same(out.edge, expected.edge, HETERO.edge_types if edge_dir == "in" else reverses)
    for source, relation, target in out.row:  # local ids index the nodes of the type that the key names
        assert out.row[source, relation, target].lt(len(out.node[source])).all()
        assert out.col[source, relation, target].lt(len(out.node[target])).all()


@pytest.mark.parametrize("data", [HOMO, HETERO], ids=["homogeneous", "heterogeneous"])
def test_sampling_backward_is_sampling_the_reversed_graph(data):
    hetero = data is HETERO
    reversed_data = data.clone()
    if hetero:
        for edge_type in data.edge_types:
            reversed_data[edge_type].edge_index = data[edge_type].edge_index
    else:
        reversed_data.edge_index = data.edge_index.flip([0])
    out = sampled(
        NeighborSampler(data, [3, 2], sample_direction="backward", random_seed=0), [1, 2], None,
        "user" if hetero else None, batch_key=3,
    )  # fmt: skip
    if not hetero:
        other = sampled(NeighborSampler(reversed_data, [3, 2], random_seed=0), [1, 2], batch_key=3)
        assert torch.equal(out.row, other.col) and torch.equal(out.col, other.row) and torch.equal(out.edge, other.edge)
        return
    for edge_type in data.edge_types:
        ends = torch.stack([out.node[edge_type[0]][out.row[edge_type]], out.node[edge_type[2]][out.col[edge_type]]])
        assert torch.equal(ends, data[edge_type].edge_index[:, out.edge[edge_type]])


def test_one_hop_of_an_edge_type():
    sampler = NeighborSampler(HETERO, [1], random_seed=0)
    out = sampler.sample_one_hop(torch.tensor([3, 0]), -1, edge_type=("user", "buys", "item"), batch_key=0)
    source, target = HETERO["user", "buys", "item"].edge_index
    edges = torch.cat([(target == 3).nonzero().view(-1), (target == 0).nonzero().view(-1)])
    assert torch.equal(out.edge, edges) and torch.equal(out.nbr, source[edges])
    with pytest.raises(KeyError, match="no edge type is named"):
        sampler.sample_one_hop(torch.tensor([3]), 1)


def test_a_node_type_is_needed_where_there_are_several():
    sampler = NeighborSampler(HETERO, [1], random_seed=0)
    with pytest.raises(ValueError, match="input_type = None: expected one of"):
        sampled(sampler, [1])
    with pytest.raises(KeyError, match="'friend' is not in the graph"):
        sampled(sampler, [1], None, "friend")
    with pytest.raises(ValueError, match="input_type = 'user': expected None"):
        sampled(NeighborSampler(HOMO, [1]), [1], None, "user")
    with pytest.raises(ValueError, match="'shop' nodes have no time"):
        sampled(NeighborSampler(HETERO, [1], time_attr="time"), [1], None, "shop")
    with pytest.raises(IndexError, match=r"seeds\[1\] = 60"):
        sampled(NeighborSampler(HETERO, [1], time_attr="time"), [1, 60], None, "user")


def test_num_neighbors_may_change_as_in_pyg():
    sampler = NeighborSampler(HETERO, [3, 2], random_seed=0)
    sampler.num_neighbors = [1]
    assert len(sampler.num_neighbors) == 1 and sampler.config.num_hops == 1
    assert sampled(sampler, [1], None, "user").num_sampled_nodes["user"].__len__() == 2


def test_induced_batches_have_the_edges_of_every_type_between_their_nodes():
    options = {"random_seed": 0, "weight_attr": "edge_weight"}
    out = sampled(NeighborSampler(HETERO, [2, 2], "induced", **options), [3, 3, 8], None, "user", batch_key=1)
    found = sampled(NeighborSampler(HETERO, [2, 2], **options), [3, 3, 8], None, "user", batch_key=1)
    assert out.num_sampled_nodes is None and out.num_sampled_edges is None
    for node_type, nodes in out.node.items():
        assert torch.equal(nodes, found.node[node_type])
    for edge_type, edges in out.edge.items():
        source, target = HETERO[edge_type].edge_index
        into = out.node[edge_type[2]]  # the seed 3 is there twice, and each row has its edges
        times = torch.bincount(into, minlength=60)[target] * torch.isin(source, out.node[edge_type[0]])
        assert torch.equal(torch.bincount(edges, minlength=len(source)), times)
        ends = torch.stack([out.node[edge_type[0]][out.row[edge_type]], into[out.col[edge_type]]])
        assert torch.equal(ends, HETERO[edge_type].edge_index[:, edges])
        assert (out.col[edge_type].diff() >= 0).all()


@pytest.mark.parametrize("data", [HOMO, HETERO], ids=["homogeneous", "heterogeneous"])
def test_the_original_edges_of_a_bidirectional_batch_are_kept_on_request(data):
    input_type = "user" if data is HETERO else None
    sampler = NeighborSampler(data, [2, 2], "bidirectional", random_seed=0)
    sampler.keep_orig_edges = True
    out = sampled(sampler, [3, 8], None, input_type, batch_key=1)
    plain = sampled(NeighborSampler(data, [2, 2], random_seed=0), [3, 8], None, input_type, batch_key=1)
    for kept, original in ((out.orig_row, plain.row), (out.orig_col, plain.col)):
        pairs = [(kept, original)] if input_type is None else [(kept[t], original[t]) for t in original]
        assert all(torch.equal(a, b) for a, b in pairs)
    assert out.num_sampled_nodes == plain.num_sampled_nodes


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("first", [2**24, 2**31, 2**40])
def test_large_ids_are_exact(first, disjoint):
    """Ids that a float32, or an int32, cannot hold, of nodes and of edges."""
    nodes, ids = first + torch.arange(12), first + 5 * torch.arange(12)
    dataset = Dataset.from_arrays(
        {("far", "to", "near"): torch.stack([nodes, torch.arange(12) // 4])},
        {"far": first + 100, "near": 3},
        edge_ids={("far", "to", "near"): ids},
    )
    out = sampled(NeighborSampler(dataset, [-1], disjoint=disjoint, random_seed=0), [2, 0], None, "near", batch_key=0)
    assert out.node["far"].tolist() == nodes[8:].tolist() + nodes[:4].tolist()
    assert out.edge["far", "to", "near"].tolist() == ids[8:].tolist() + ids[:4].tolist()
    assert out.num_sampled_nodes == {"far": [0, 8], "near": [2, 0]}
