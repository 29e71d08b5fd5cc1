"""LABOR: as many edges per node, the right ones, and fewer nodes."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput

from glt import _core
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.sampler import NeighborSampler
from glt.testing import random_graph
from glt.testing.reference import node_number

GRAPH = random_graph(400, 20_000, seed=5).to_data()


def sampled(sampler, seeds, **keys):
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.as_tensor(seeds)), **keys)


def degrees(data):
    return torch.bincount(data.edge_index[1], minlength=data.num_nodes)


def test_a_node_has_as_many_edges_and_a_batch_fewer_nodes():
    seeds = torch.arange(100)
    plain, labor = (NeighborSampler(GRAPH, [5, 5], sampler=name, random_seed=1) for name in ("neighbor", "labor"))
    num_nodes = {"plain": [], "labor": []}
    for key in range(20):
        for name, sampler in (("plain", plain), ("labor", labor)):
            out = sampled(sampler, seeds, batch_key=key)
            counts = torch.bincount(out.col, minlength=len(out.node))[: sum(out.num_sampled_nodes[:2])]
            expanded = out.node[: len(counts)]
            assert torch.equal(counts, degrees(GRAPH)[expanded].clamp(max=5))
            num_nodes[name].append(out.num_sampled_nodes[1])
    assert np.mean(num_nodes["labor"]) < 0.6 * np.mean(num_nodes["plain"])


def test_each_neighbour_is_taken_as_often_as_any_other():
    """40 neighbours, 10 taken, in 4,000 batches: each 1,000 times, within five deviations."""
    data = Data(edge_index=torch.stack([torch.arange(1, 41), torch.zeros(40, dtype=torch.long)]), num_nodes=41)
    sampler = NeighborSampler(data, [10], sampler="labor")
    counts = np.zeros(40)
    for key in range(4000):
        counts[sampled(sampler, [0], batch_key=key).edge.numpy()] += 1
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(4000 * 0.25 * 0.75)


def test_by_weight_one_neighbour_is_taken_in_proportion():
    """Of two edges of weight w and 1, the first number over w is below the second with probability 1 - 1 / (2 w)."""
    data = Data(edge_index=torch.tensor([[1, 2], [0, 0]]), num_nodes=3)
    data.weight = torch.tensor([4.0, 1.0])
    sampler = NeighborSampler(data, [1], sampler="labor", weight_attr="weight")
    taken = sum(int(sampled(sampler, [0], batch_key=key).edge) == 0 for key in range(4000))
    expected = 4000 * (1 - 1 / 8)
    assert abs(taken - expected) < 5 * np.sqrt(expected / 8)


def test_an_estimate_of_the_mean_is_right_and_varies_as_that_of_plain_sampling():
    """The mean of 10 neighbours' values over batches is that of all neighbours; its variance that of a simple sample
    without replacement, within a tenth."""
    values = torch.from_numpy(np.random.default_rng(0).normal(size=400))
    seed = int(degrees(GRAPH).argmax())
    of_seed = values[GRAPH.edge_index[0][GRAPH.edge_index[1] == seed].unique()]
    ends = torch.stack([GRAPH.edge_index[0][GRAPH.edge_index[1] == seed].unique(), torch.full((len(of_seed),), seed)])
    sampler = NeighborSampler(Data(edge_index=ends, num_nodes=400), [10], sampler="labor")
    means = []
    for key in range(6000):
        out = sampled(sampler, [seed], batch_key=key)
        means.append(float(values[out.node[1:]].mean()))
    n = len(of_seed)
    variance = float(of_seed.var(correction=1)) / 10 * (1 - 10 / n)
    assert abs(np.mean(means) - float(of_seed.mean())) < 5 * np.sqrt(variance / 6000)
    assert abs(np.var(means) / variance - 1) < 0.1


@pytest.mark.parametrize("make", ["nodes", "links"])
def test_batches_of_a_window_share_their_numbers(make):
    """Three batches in succession take the same neighbours of the same nodes; the next three others. Negatives and the
    order of seeds are those of each batch."""
    data = Data(edge_index=torch.stack([torch.arange(1, 201), torch.zeros(200, dtype=torch.long)]), num_nodes=201)
    options = {"sampler": "labor", "batch_dependency": 3, "batch_size": 1, "random_seed": 4}
    if make == "nodes":
        loader = NeighborLoader(data, [8], torch.zeros(9, dtype=torch.long), **options)
    else:
        pairs = torch.tensor([[1], [0]]).repeat(1, 9)
        loader = LinkNeighborLoader(data, [8], pairs, neg_sampling="binary", **options)
    taken, negatives = [], set()
    for batch in loader:
        of_zero = batch.edge_index[1] == (batch.n_id == 0).nonzero()[0]
        taken.append(frozenset(batch.n_id[batch.edge_index[0][of_zero]].tolist()))
        if make == "links":
            negatives.add(tuple(batch.n_id[batch.edge_label_index[:, 1]].tolist()))
    assert [len(set(taken[first : first + 3])) for first in (0, 3, 6)] == [1, 1, 1]
    assert len({taken[0], taken[3], taken[6]}) == 3
    assert make == "nodes" or len(negatives) > 5


def test_the_order_of_seeds_may_still_be_torchs():
    order = torch.utils.data.SequentialSampler(range(6))
    loader = NeighborLoader(GRAPH, [3], torch.arange(6), sampler=order, batch_size=2)
    assert [batch.input_id.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"replace": True}, ValueError, "sampler = 'labor' and replace = True"),
        ({"sampler": "pagerank"}, ValueError, "sampler = 'pagerank': expected one of"),
        ({"sampler": "neighbor", "batch_dependency": 2}, ValueError, "batch_dependency = 2 and sampler = 'neighbor'"),
        ({"batch_dependency": 0}, ValueError, "batch_dependency = 0: expected an integer of at least 1"),
    ],
)
def test_what_does_not_fit_is_named(options, error, message):
    with pytest.raises(error, match=message):
        NeighborLoader(GRAPH, [3], torch.arange(6), **{"sampler": "labor", **options})


def test_the_last_edges_are_no_choice():
    data = GRAPH.clone()
    data.time = torch.arange(400)
    with pytest.raises(ValueError, match="sampler = 'labor' and temporal_strategy = 'last'"):
        NeighborLoader(data, [3], torch.arange(6), sampler="labor", time_attr="time", temporal_strategy="last")


def lowest(csr, count, key):
    """Positions of the edges that the first row gives."""
    hop = _core.OneHop(csr, np.array([0]), count, False, 0, 0, number_key=key)
    counts, neighbor, edge = (
        np.empty(1, np.uint32),
        np.empty(hop.num_edges, np.int64),
        np.empty(hop.num_edges, np.int64),
    )
    hop.copy_out(counts, neighbor, edge)
    return edge


def row_of(neighbor, num_nodes):
    indptr = np.array([0, len(neighbor)])
    return _core.Csr(indptr, neighbor, row_of=np.zeros(1, np.uint32), num_nodes=1, num_neighbor_nodes=num_nodes)


@pytest.mark.parametrize("num_nodes", [40, 2**31 - 1, 2**45])
@pytest.mark.parametrize("degree", [50, 1003, 3000])
def test_rows_take_the_lowest_numbers_and_of_parallel_edges_the_first(degree, num_nodes):
    """By the same rule in Python; 40 nodes make parallel edges, 2^45 numbers that differ in their low half."""
    random = np.random.default_rng(degree)
    neighbor = random.integers(0, num_nodes, degree)
    neighbor[::7] = neighbor[3] % 2**32 + 2**32 if num_nodes > 2**32 else neighbor[3]
    for dtype in (np.int32, np.int64) if num_nodes < 2**31 else (np.int64,):
        csr = row_of(neighbor.astype(dtype), num_nodes)
        for key in random.integers(0, 2**63, 20).tolist():
            number = [node_number(key, int(each)) for each in neighbor]
            order = sorted(range(degree), key=lambda at: (number[at], at))
            for count in (1, 2, 10, 41, 49):
                assert lowest(csr, count, key).tolist() == sorted(order[:count]), (dtype, key, count)


@pytest.mark.parametrize("stride", [1, 3 * 2**16, 2**33])
def test_each_pair_of_neighbours_is_taken_as_often_as_any_other(stride):
    """Of ids in a row, and of ids that differ in a few bits; 780 pairs in 4,000 draws, within five deviations."""
    csr = row_of(np.arange(40) * stride, 40 * stride)
    taken = np.zeros((40, 40))
    for index in range(4000):
        edge = lowest(csr, 10, _core.batch_key(1, 0, index))
        taken[np.ix_(edge, edge)] += 1
    share = 10 * 9 / (40 * 39)
    pairs = taken[np.triu_indices(40, 1)]
    assert abs(pairs.mean() - 4000 * share) < 1e-6
    assert np.abs(pairs - 4000 * share).max() < 5 * np.sqrt(4000 * share * (1 - share))
