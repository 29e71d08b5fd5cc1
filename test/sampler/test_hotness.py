"""How hot nodes are: counted in batches that were made, by degree, and expected.

Counts of 1000 batches have a standard deviation of at most 0.016, so that chance alone moves none of 400 of them by
0.08 but in one of some 1000 runs; all draws are fixed by their seeds. The computation neglects that several parents of
a node may owe their discovery to one node, which these small graphs with hubs have much of: hence the tolerances.
"""

import numpy as np
import pytest
import torch
from torch_geometric.sampler import NodeSamplerInput

import glt
from glt.data import Dataset, Graph, Topology
from glt.loader import NeighborLoader
from glt.sampler import NeighborSampler, hotness_from_counts, hotness_from_degrees
from glt.testing import random_graph, ring_graph
from glt.testing.batches import random_hetero_graph


def test_counts_are_shares_of_batches():
    data = random_graph(100, 500, seed=2).to_data()
    loader = NeighborLoader(data, [3, 2], torch.arange(30), batch_size=8, random_seed=1)
    expected = torch.zeros(120)
    for batch in loader:
        expected[batch.n_id.unique()] += 1 / len(loader)
    loader.set_epoch(0)
    assert torch.allclose(hotness_from_counts(loader, 120), expected)


def test_a_node_of_several_trees_counts_once():
    data = random_graph(20, 200, seed=2).to_data()
    loader = NeighborLoader(data, [5, 5], torch.arange(20), batch_size=20, disjoint=True, random_seed=1)
    assert hotness_from_counts(loader, 20).max() == 1


def test_counts_come_near_the_probabilities():
    graph = random_graph(400, 1200, seed=11)
    sampler = NeighborSampler(Graph(Topology(graph.edge_index, 400, layout="CSC")), [3, 2], random_seed=0)
    loader = NeighborLoader(
        graph.to_data(), [3, 2], torch.arange(0, 400, 2), batch_size=10, shuffle=True, random_seed=3
    )
    counts = hotness_from_counts((batch for _ in range(30) for batch in loader), 400)
    prob = sampler.sample_prob(torch.arange(0, 400, 2), batch_size=10)
    assert float((counts - prob).abs().max()) < 0.1  # 600 batches: at most 0.02 of standard deviation


def test_counts_by_type():
    data = random_hetero_graph()
    loader = NeighborLoader(data, [3, 2], ("user", torch.arange(20)), batch_size=5, random_seed=1)
    found = hotness_from_counts(loader, {"user": 60, "item": 45, "shop": 8})
    assert {t: h.shape[0] for t, h in found.items()} == {"user": 60, "item": 45, "shop": 8}
    assert 0 < found["item"].max() <= 1 and torch.isclose(found["user"][:20].min(), torch.tensor(0.25))
    with pytest.raises(KeyError, match="node type 'item'"):
        hotness_from_counts(loader, {"user": 60})
    with pytest.raises(TypeError, match="expected a dict by node type for HeteroData"):
        hotness_from_counts(loader, 60)


def test_refusals_of_counts():
    data = random_graph(50, 300).to_data()
    loader = NeighborLoader(data, [2], torch.arange(5), batch_size=5, random_seed=0)
    with pytest.raises(IndexError, match=r"batch 0 has node \d+: num_nodes = 3"):
        hotness_from_counts(loader, 3)
    with pytest.raises(ValueError, match="batches is empty"):
        hotness_from_counts([], 3)
    with pytest.raises(TypeError, match="batch 0 has no n_id"):
        hotness_from_counts([data], 50)


@pytest.mark.parametrize(("edge_dir", "expected"), [("in", [2, 1, 0]), ("out", [0, 1, 2])])
def test_degrees_are_those_of_neighbours(edge_dir, expected):
    found = hotness_from_degrees(torch.tensor([[0, 0, 1], [2, 1, 2]]), 3, edge_dir)
    assert torch.allclose(found, torch.tensor(expected) / 3)


def test_degrees_by_type():
    edge_index = {("a", "to", "b"): np.array([[0, 0], [1, 1]]), ("b", "to", "a"): np.array([[0, 1], [0, 2]])}
    found = hotness_from_degrees(edge_index, {"a": 3, "b": 2})
    assert found["a"].tolist() == [0.5, 0, 0] and found["b"].tolist() == [0.25, 0.25]
    with pytest.raises(IndexError, match="has node 1: expected ids in"):
        hotness_from_degrees(edge_index, {"a": 3, "b": 1})
    with pytest.raises(TypeError, match="expected dicts by type of both"):
        hotness_from_degrees(edge_index, 3)


NUM_BATCHES = 1000


def measured(sampler, seeds, batch_size, num_batches=NUM_BATCHES):
    """Shares of batches, by node type; seeds by node type are shuffled together."""
    rng = np.random.default_rng(5)
    counts = [np.zeros(n) for n in sampler.graph.num_nodes]
    of_type = np.repeat(np.arange(len(seeds)), [len(s) for s in seeds])
    every = np.concatenate(seeds)
    for key in range(num_batches):
        at = rng.permutation(len(every))[:batch_size]
        given = [(t, torch.from_numpy(every[at[of_type[at] == t]])) for t in range(len(seeds))]
        out = sampler.sample(given, batch_key=key)
        node = out.node if isinstance(out.node, dict) else {"": out.node}
        for count, ids in zip(counts, node.values(), strict=True):
            count[ids.numpy()] += 1
    return [count / num_batches for count in counts]


def sparse_graph(edge_dir, **given):
    """Directed, 400 nodes and 1200 edges: hubs, isolated nodes, parallel edges and loops."""
    graph = random_graph(400, 1200, seed=11)
    return Graph(Topology(graph.edge_index, 400, layout="CSC" if edge_dir == "in" else "CSR", **given))


OPTIONS = {
    "fan-outs below degrees": {"num_neighbors": [3, 2, 2]},
    "all edges": {"num_neighbors": [-1, -1]},
    "with replacement": {"num_neighbors": [3, 2], "replace": True},
    "disjoint": {"num_neighbors": [3, 2], "disjoint": True},
    "nothing at the second hop": {"num_neighbors": [3, 0]},
    "seeds alone": {"num_neighbors": []},
}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_directed_graph(name, edge_dir):
    sampler = NeighborSampler(sparse_graph(edge_dir), random_seed=0, **OPTIONS[name])
    seeds = np.random.default_rng(1).integers(0, 400, 60)  # with duplicates
    prob = sampler.sample_prob(seeds, 400, batch_size=6, num_batches=0).numpy()
    share = measured(sampler, [seeds], 6)[0]
    assert prob.dtype == np.float32 and 0 <= prob.min() and prob.max() <= 1
    assert ((prob > 0) >= (share > 0)).all(), "what is sampled is possible"
    assert np.abs(prob - share).max() < 0.12 and np.abs(prob - share).mean() < 0.015
    assert abs(prob.sum() / share.sum() - 1) < 0.06


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_weighted_graph(count, replace):
    rng = np.random.default_rng(2)
    weight = rng.pareto(1.0, 1200) * (rng.random(1200) < 0.8)  # heavy tails, and a fifth without weight
    graph = sparse_graph("in", edge_weight=torch.from_numpy(weight))
    sampler = NeighborSampler(graph, [count, count], weight_attr="weight", replace=replace, random_seed=0)
    seeds = np.arange(0, 400, 5)
    prob = sampler.sample_prob(seeds, 400, batch_size=8, num_batches=0).numpy()
    share = measured(sampler, [seeds], 8)[0]
    assert np.abs(prob - share).max() < 0.12 and np.abs(prob - share).mean() < 0.015
    assert abs(prob.sum() / share.sum() - 1) < 0.06


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_one_hop_of_one_node_is_a_law_of_draws(count):
    """A star: nothing depends on anything else. One and two draws are exact, more within 0.03."""
    weight = torch.tensor([1.0, 2, 3, 4, 5, 0, 8, 0.5, 1, 20])
    edge_index = torch.stack([torch.arange(1, 11), torch.zeros(10, dtype=torch.int64)])
    graph = Graph(Topology(edge_index, 11, layout="CSC", edge_weight=weight))
    sampler = NeighborSampler(graph, [count], weight_attr="weight", random_seed=0)
    prob = sampler.sample_prob([0], 11, num_batches=0).numpy()
    share = measured(sampler, [np.array([0])], 1, 4000)[0]  # at most 0.008 of standard deviation
    assert abs(prob.sum() - 1 - count) < 1e-4
    assert np.abs(prob - share).max() < (0.03 if count < 3 else 0.05)


def test_a_path_that_turns_back_finds_nobody():
    """An undirected path: probabilities are those of being near a seed, however many hops could lead back to it."""
    ends = torch.stack([torch.arange(9), torch.arange(1, 10)])
    graph = Graph(Topology(torch.cat([ends, ends.flip(0)], dim=1), 10))
    sampler = NeighborSampler(graph, [2, 2, 2, 2], random_seed=0)
    prob = sampler.sample_prob([0, 9], 10, batch_size=1, num_batches=0)
    # Within four hops of one end alone: 1/2; the middle is out of reach of neither end.
    expected = torch.tensor([0.5] * 5 + [0.5] * 5)
    assert torch.allclose(prob, expected, atol=0.13), prob
    assert torch.allclose(prob[[0, 9]], expected[[0, 9]], atol=1e-6), "an end is not made likelier by its neighbours"


def test_an_undirected_graph_and_its_correction():
    """Many short cycles, all edges taken: the computation overestimates; 64 batches bring it near."""
    graph = ring_graph(120, 4)
    edges = torch.cat([graph.edge_index, graph.edge_index.flip(0)], dim=1)
    sampler = NeighborSampler(Graph(Topology(edges, 120)), [6, 4], random_seed=0)
    seeds = np.arange(0, 120, 3)
    share = measured(sampler, [seeds], 3)[0]
    errors = [
        np.abs(sampler.sample_prob(seeds, 120, batch_size=3, num_batches=n).numpy() - share).mean() for n in (0, 64)
    ]
    assert errors[0] < 0.25 and errors[1] < 0.3 * errors[0], errors


def test_a_heterogeneous_graph():
    data = random_hetero_graph()
    for edge_type in data.edge_types:
        data[edge_type].edge_index = data[edge_type].edge_index[:, ::3]  # fewer short cycles
    dataset = Dataset.from_pyg(data)
    sampler = NeighborSampler(dataset, [2, 2], random_seed=0)
    seeds = {"user": torch.arange(0, 60, 4), "shop": torch.tensor([1, 2, 2])}
    prob = sampler.sample_prob(seeds, batch_size=3)
    assert {t: p.shape for t, p in prob.items()} == {"user": (60,), "item": (45,), "shop": (8,)}
    given = [seeds["user"].numpy(), np.empty(0, np.int64), seeds["shop"].numpy()]
    for (node_type, p), share in zip(prob.items(), measured(sampler, given, 3), strict=True):
        assert np.abs(p.numpy() - share).max() < 0.16, node_type
        assert abs(p.sum() / share.sum() - 1) < 0.08, node_type


def test_the_result_depends_on_the_arguments_alone():
    graph = sparse_graph("out")
    seeds = torch.arange(0, 400, 3)
    results = [
        NeighborSampler(graph, [3, 3, 2], random_seed=seed, num_threads=threads).sample_prob(given, batch_size=20)
        for seed, threads, given in (
            (0, 1, seeds),
            (1, 4, seeds.to(torch.int32)),
            (2, 2, torch.isin(torch.arange(400), seeds)),
            (3, 1, NodeSamplerInput(None, seeds)),
        )
    ]
    for each in results[1:]:
        assert torch.equal(each, results[0])


def test_as_the_tutorial_calls_it():
    graph = random_graph(300, 3000, seed=4)
    edge_index = graph.edge_index
    csr_topo = glt.data.Topology(edge_index=edge_index, layout="CSR")
    store = glt.data.Graph(csr_topo, mode="ZERO_COPY")
    sampler = glt.sampler.NeighborSampler(store, num_neighbors=[15, 10, 5])
    prob = sampler.sample_prob(torch.arange(50), 310)
    assert prob.shape == (310,) and (prob[300:] == 0).all() and (prob[:50] == 1).all()
    beyond = sampler.sample_prob(torch.tensor([0, 305]), 310, batch_size=1)
    assert abs(float(beyond[305]) - 0.5) < 0.2 and float(beyond[306:].sum()) == 0


def test_all_seeds_at_once_are_certain():
    sampler = NeighborSampler(ring_graph(20, 2).to_dataset("out"), [-1], random_seed=0)
    prob = sampler.sample_prob([3, 4])
    assert prob.nonzero().view(-1).tolist() == [3, 4, 5, 6] and (prob[3:7] == 1).all()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"seeds": [0, 400]}, IndexError, r"seeds\[1\] = 400 is outside \[0, 400\)"),
        ({"seeds": []}, ValueError, "seeds is empty"),
        ({"seeds": np.arange(401) < 5}, ValueError, r"seeds is a mask of shape \[401\]: .*\[400\]"),
        ({"seeds": {"node": [1]}}, TypeError, "seeds is a dict by type"),
        ({"seeds": [0.5]}, TypeError, "seeds has dtype torch.float"),
        ({"seeds": [1], "num_nodes": 399}, ValueError, "num_nodes = 399: expected at least 400"),
        ({"seeds": [1], "num_nodes": 400.0}, TypeError, "num_nodes = 400.0: expected the number of nodes"),
        ({"seeds": [1], "batch_size": 0}, ValueError, "batch_size = 0: expected an integer of at least 1"),
        ({"seeds": [1], "num_batches": 1}, ValueError, "num_batches = 1: expected 0"),
    ],
)
def test_refusals(given, error, words):
    sampler = NeighborSampler(sparse_graph("in"), [2], random_seed=0)
    with pytest.raises(error, match=words):
        sampler.sample_prob(**given)


@pytest.mark.parametrize(
    ("seeds", "options", "error", "words"),
    [
        (("shop", [1]), {"time_attr": "time"}, ValueError, r"time_attr = 'time'.*hotness_from_counts"),
        ({"owl": [1]}, {}, KeyError, "seeds names node type 'owl'"),
        ([1], {}, TypeError, "seeds has type list: expected a dict by node type"),
        (("shop", [8]), {}, IndexError, r"seeds\['shop'\]\[0\] = 8 is outside \[0, 8\)"),
    ],
)
def test_refusals_name_times_and_types(seeds, options, error, words):
    with pytest.raises(error, match=words):
        NeighborSampler(random_hetero_graph(), [2], random_seed=0, **options).sample_prob(seeds)
