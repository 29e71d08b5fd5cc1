"""Sources for which there is no negative are found when the loader is made, exactly."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from glt.data import Topology
from glt.loader import LinkNeighborLoader
from glt.sampler.negatives import linked_to_all

TRIPLET = {"mode": "triplet", "amount": 2}


@pytest.mark.parametrize("layout", ["CSC", "CSR"])
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.full] * (n >= 10)) for n in range(40)])
def test_the_same_sources_as_a_dense_matrix_tells(layout, seed):
    rng = np.random.default_rng(seed)
    num_sources, num_targets = rng.integers(1, 40, 2)
    dense = rng.random((num_sources, num_targets)) < rng.choice([0.1, 0.6, 0.95])
    dense[rng.random(num_sources) < 0.3] = True
    edges = np.repeat(np.stack(dense.nonzero()), rng.integers(1, 3), axis=1)  # parallel edges count once
    topology = Topology(torch.from_numpy(edges), (int(num_sources), int(num_targets)), layout=layout)
    sources = rng.integers(0, num_sources, 30)
    drawable = None if seed % 2 else np.flatnonzero(rng.random(num_targets) < 0.5)
    counted = dense if drawable is None else dense[:, drawable]
    expected = [s for s in np.unique(sources) if counted.shape[1] and counted[s].all()]
    assert linked_to_all(topology, sources, drawable).tolist() == expected


def test_large_graphs_are_looked_at_in_portions():
    num_nodes = 1_500_000
    hub = torch.stack([torch.full((num_nodes,), 7), torch.arange(num_nodes)])
    almost = torch.stack([torch.full((num_nodes - 1,), 8), torch.arange(num_nodes - 1)])
    topology = Topology(torch.cat([hub, almost], dim=1), num_nodes, layout="CSC")
    assert linked_to_all(topology, np.array([7, 8, 9])).tolist() == [7]


def bipartite():
    data = HeteroData()
    data["user"].num_nodes, data["item"].num_nodes = 5, 4
    hub, other = torch.stack([torch.full((4,), 2), torch.arange(4)]), torch.tensor([[0, 1, 1], [3, 0, 3]])
    data["user", "buys", "item"].edge_index = torch.cat([hub, other], dim=1)
    return data


def test_a_source_without_negatives_is_refused_where_it_is_given():
    data, buys = bipartite(), ("user", "buys", "item")
    with pytest.raises(ValueError, match=r"'triplet' and edge_label_index\[0\] holds 1 source.* 2, of 4 seed edges"):
        LinkNeighborLoader(data, [2], buys, neg_sampling=TRIPLET)
    edges = data[buys].edge_index
    for kept in (edges[:, edges[0] != 2], edges):
        drawn = "binary" if kept is edges else TRIPLET  # pairs have their sources drawn too
        assert len(list(LinkNeighborLoader(data, [2], (buys, kept), neg_sampling=drawn))) == kept.shape[1]
    only_three = TRIPLET | {"dst_weight": torch.tensor([0.0, 0.0, 0.0, 1.0])}
    with pytest.raises(ValueError, match=r"holds 3 source nodes.*the first of them 0, of 1 seed edges"):
        LinkNeighborLoader(data, [2], buys, neg_sampling=only_three)


def test_a_graph_without_types_and_seed_edges_of_no_type():
    star = Data(edge_index=torch.stack([torch.zeros(6, dtype=torch.int64), torch.arange(6)]), num_nodes=6)
    with pytest.raises(ValueError, match="the first of them 0, of 6 seed edges"):
        LinkNeighborLoader(star, [2], neg_sampling="triplet")
    one = torch.tensor([[1], [0]])
    batch = next(iter(LinkNeighborLoader(star, [2], one, neg_sampling="triplet")))
    assert batch.dst_neg_index.shape == (1,)
    unknown = (("item", "likes", "user"), torch.zeros(2, 3, dtype=torch.int64))
    assert len(list(LinkNeighborLoader(bipartite(), [2], unknown, neg_sampling="triplet"))) == 3
