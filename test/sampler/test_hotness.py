"""Hotness from batches that were made, and from degrees."""

import numpy as np
import pytest
import torch

from glt.data import Graph, Topology
from glt.loader import NeighborLoader
from glt.sampler import NeighborSampler, hotness_from_counts, hotness_from_degrees
from glt.testing import random_graph
from glt.testing.batches import random_hetero_graph


def test_counts_are_shares_of_batches() -> None:
    data = random_graph(100, 500, seed=2).to_data()
    loader = NeighborLoader(data, [3, 2], torch.arange(30), batch_size=8, random_seed=1)
    expected = torch.zeros(120)
    for batch in loader:
        expected[batch.n_id.unique()] += 1 / len(loader)
    loader.set_epoch(0)
    assert torch.allclose(hotness_from_counts(loader, 120), expected)


def test_a_node_of_several_trees_counts_once() -> None:
    data = random_graph(20, 200, seed=2).to_data()
    loader = NeighborLoader(data, [5, 5], torch.arange(20), batch_size=20, disjoint=True, random_seed=1)
    assert hotness_from_counts(loader, 20).max() == 1


def test_counts_come_near_the_probabilities() -> None:
    graph = random_graph(400, 1200, seed=11)
    sampler = NeighborSampler(Graph(Topology(graph.edge_index, 400, layout="CSC")), [3, 2], random_seed=0)
    loader = NeighborLoader(
        graph.to_data(), [3, 2], torch.arange(0, 400, 2), batch_size=10, shuffle=True, random_seed=3
    )
    counts = hotness_from_counts((batch for _ in range(30) for batch in loader), 400)
    prob = sampler.sample_prob(torch.arange(0, 400, 2), batch_size=10)
    assert float((counts - prob).abs().max()) < 0.1  # 600 batches: at most 0.02 of standard deviation


def test_counts_by_type() -> None:
    data = random_hetero_graph()
    loader = NeighborLoader(data, [3, 2], ("user", torch.arange(20)), batch_size=5, random_seed=1)
    found = hotness_from_counts(loader, {"user": 60, "item": 45, "shop": 8})
    assert {t: h.shape[0] for t, h in found.items()} == {"user": 60, "item": 45, "shop": 8}
    assert 0 < found["item"].max() <= 1 and torch.isclose(found["user"][:20].min(), torch.tensor(0.25))
    with pytest.raises(KeyError, match="node type 'item'"):
        hotness_from_counts(loader, {"user": 60})
    with pytest.raises(TypeError, match="expected a dict by node type for HeteroData"):
        hotness_from_counts(loader, 60)


def test_refusals_of_counts() -> None:
    data = random_graph(50, 300).to_data()
    loader = NeighborLoader(data, [2], torch.arange(5), batch_size=5, random_seed=0)
    with pytest.raises(IndexError, match=r"batch 0 has node \d+: num_nodes = 3"):
        hotness_from_counts(loader, 3)
    with pytest.raises(ValueError, match="batches is empty"):
        hotness_from_counts([], 3)
    with pytest.raises(TypeError, match="batch 0 has no n_id"):
        hotness_from_counts([data], 50)


@pytest.mark.parametrize(("edge_dir", "expected"), [("in", [2, 1, 0]), ("out", [0, 1, 2])])
def test_degrees_are_those_of_neighbours(edge_dir: str, expected: list[int]) -> None:
    found = hotness_from_degrees(torch.tensor([[0, 0, 1], [2, 1, 2]]), 3, edge_dir)
    assert torch.allclose(found, torch.tensor(expected) / 3)


def test_degrees_by_type() -> None:
    edge_index = {("a", "to", "b"): np.array([[0, 0], [1, 1]]), ("b", "to", "a"): np.array([[0, 1], [0, 2]])}
    found = hotness_from_degrees(edge_index, {"a": 3, "b": 2})
    assert found["a"].tolist() == [0.5, 0, 0] and found["b"].tolist() == [0.25, 0.25]
    with pytest.raises(IndexError, match="has node 1: expected ids in"):
        hotness_from_degrees(edge_index, {"a": 3, "b": 1})
    with pytest.raises(TypeError, match="expected dicts by type of both"):
        hotness_from_degrees(edge_index, 3)
