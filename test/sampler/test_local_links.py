"""sample_from_edges: in either direction, with every way of sampling, and what it refuses."""

import pickle

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling

from glt.data import Dataset
from glt.sampler import NeighborSampler
from glt.testing import random_graph

GRAPH = random_graph(80, 900, seed=4)
EDGES = set(map(tuple, GRAPH.edge_index.t().tolist()))
BINARY = NegativeSampling("binary", 1)


def links(num=30, time=None, input_type=None):
    return EdgeSamplerInput(torch.arange(num), *GRAPH.edge_index[:, :num], time=time, input_type=input_type)


def pairs(first, second):
    return set(zip(first.tolist(), second.tolist(), strict=True))


@pytest.mark.parametrize("exclude", ["self", "reverse"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_edges_are_excluded_along_both_directions(edge_dir, exclude):
    dataset = Dataset.from_arrays(GRAPH.edge_index, 80, edge_dir=edge_dir)
    out = NeighborSampler(dataset, [-1, -1], exclude_edges=exclude).sample_from_edges(links(), BINARY, batch_key=1)
    neighbor, expanded = out.node[out.row], out.node[out.col]
    found = pairs(neighbor, expanded) if edge_dir == "in" else pairs(expanded, neighbor)
    seeds = pairs(*GRAPH.edge_index[:, :30])
    gone = seeds | ({(d, s) for s, d in seeds} if exclude == "reverse" else set())
    assert not found & gone
    first = set(out.node[: out.num_sampled_nodes[0]].tolist())
    end = 1 if edge_dir == "in" else 0
    assert {edge for edge in EDGES if edge[end] in first} - gone <= found, "all others are there"
    assert not pairs(*out.node[out.metadata[1][:, 30:]]) & EDGES


def test_bidirectional_batches_do_not_bring_excluded_edges_back():
    sampler = NeighborSampler(GRAPH.to_data(), [5, 5], "bidirectional", exclude_edges="reverse")
    out = sampler.sample_from_edges(links())
    seeds = pairs(*GRAPH.edge_index[:, :30])
    assert not pairs(out.node[out.row], out.node[out.col]) & (seeds | {(d, s) for s, d in seeds})


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_times_of_edges_bind_edges_but_not_negatives(strategy):
    data = Data(edge_index=GRAPH.edge_index, stamp=torch.arange(900), num_nodes=80)
    sampler = NeighborSampler(data, [3, 3], time_attr="stamp", temporal_strategy=strategy)
    late = torch.arange(30) * 20
    out = sampler.sample_from_edges(links(time=late), BINARY)
    assert torch.equal(out.metadata[3], late.repeat(2))
    assert (data.stamp[out.edge] <= late[out.batch[out.col]]).all() and len(out.edge)


def test_weighted_links_and_draws_with_replacement():
    weight = (torch.arange(900) % 3 == 0).float()
    data = Data(edge_index=GRAPH.edge_index, weight=weight, num_nodes=80)
    out = NeighborSampler(data, [2], replace=True, weight_attr="weight").sample_from_edges(links(), BINARY)
    some = torch.bincount(GRAPH.edge_index[1], weight, minlength=80) > 0
    assert weight[out.edge][some[out.node[out.col]]].all()


def test_a_key_gives_one_batch_and_a_copy_of_the_sampler_gives_it_too():
    sampler = NeighborSampler(GRAPH.to_data(), [4, 4], disjoint=True, random_seed=1, exclude_edges="self")
    outs = [
        each.sample_from_edges(links(), NegativeSampling("triplet", 2), batch_key=9)
        for each in (sampler, sampler, pickle.loads(pickle.dumps(sampler)))
    ]
    for out in outs[1:]:
        assert torch.equal(out.node, outs[0].node) and torch.equal(out.edge, outs[0].edge)
        assert torch.equal(out.batch, outs[0].batch) and torch.equal(out.metadata[3], outs[0].metadata[3])
    free = [sampler.sample_from_edges(links(), BINARY).node for _ in range(2)]
    assert not torch.equal(*free), "without a key, each call draws anew"


def test_int32_graphs_have_int32_batches():
    data = Data(edge_index=GRAPH.edge_index.int(), num_nodes=80)
    index = EdgeSamplerInput(None, *data.edge_index[:, :9])
    out = NeighborSampler(data, [4], disjoint=True).sample_from_edges(index, BINARY)
    assert out.node.dtype == out.batch.dtype == torch.int32
    assert torch.equal(out.node[out.metadata[1][:, :9]], data.edge_index[:, :9])


def test_what_does_not_fit_is_named():
    hetero = HeteroData(a={"num_nodes": 80}, b={"num_nodes": 80})
    for edge_type in (("a", "to", "b"), ("a", "or", "b"), ("b", "back", "a"), ("b", "to", "a")):
        hetero[edge_type].edge_index = GRAPH.edge_index
    of_data, of_hetero = NeighborSampler(GRAPH.to_data(), [1]), NeighborSampler(hetero, [1], exclude_edges="reverse")
    timed = NeighborSampler(Data(edge_index=GRAPH.edge_index, t=torch.arange(80), num_nodes=80), [1], time_attr="t")
    far = EdgeSamplerInput(None, torch.tensor([1, 2]), torch.tensor([80, 0]))
    for sampler, index, error, message in [
        (of_data, links(input_type=("a", "to", "b")), ValueError, "expected None, the graph being homogeneous"),
        (of_hetero, links(), ValueError, "input_type = None: expected an edge type"),
        (of_hetero, links(input_type=("a", "to", "c")), KeyError, "'c' is not in the graph"),
        (of_hetero, links(input_type=("a", "to", "b")), ValueError, "not clear.*'back'.*name it"),
        (of_data, links(time=torch.arange(30)), ValueError, "'edge_label_time' is set and 'time_attr' is not set"),
        (timed, links(), ValueError, "'time_attr' is set and 'edge_label_time' is not set"),
        (of_data, far, IndexError, r"edge_label_index\[1, 0\] = 80 is outside \[0, 80\)"),
    ]:
        with pytest.raises(error, match=message):
            sampler.sample_from_edges(index)
