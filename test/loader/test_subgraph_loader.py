"""SubGraphLoader: all edges among the nodes found, and where the seeds are."""

import pytest
import torch
from torch_geometric.data import HeteroData

from glt.data import Dataset
from glt.loader import NeighborLoader, SubGraphLoader
from glt.testing import random_graph

GRAPH = random_graph(150, 1200, seed=8)
DATA = GRAPH.to_data()


def induced(edge_index, source, target):
    """Ids of all edges whose ends are among these nodes, ascending."""
    return (torch.isin(edge_index[0], source) & torch.isin(edge_index[1], target)).nonzero().flatten()


@pytest.mark.parametrize("face", [DATA, Dataset.from_pyg(DATA)], ids=["data", "dataset"])
def test_subgraphs_hold_all_edges_among_their_nodes_and_say_where_the_seeds_are(face):
    seeds = torch.randperm(150)[:50]
    loader = SubGraphLoader(face, [3, 2], seeds, batch_size=4, random_seed=1)
    nodes = NeighborLoader(face, [3, 2], seeds, batch_size=4, random_seed=1)
    for batch, other in zip(loader, nodes, strict=True):
        assert torch.equal(batch.n_id, other.n_id)
        assert torch.equal(batch.n_id[batch.mapping], seeds[batch.input_id])
        assert torch.equal(batch.e_id.sort()[0], induced(GRAPH.edge_index, batch.n_id, batch.n_id))
        assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, GRAPH.edge_attr[batch.e_id])


def test_heterogeneous_subgraphs():
    data = HeteroData(a={"num_nodes": 50}, b={"num_nodes": 70})
    for source, target in (("a", "a"), ("a", "b"), ("b", "a")):
        sizes = data[source].num_nodes, data[target].num_nodes
        data[source, "to", target].edge_index = torch.stack([torch.randint(0, n, (300,)) for n in sizes])
    for batch in SubGraphLoader(data, [2, 2], ("b", torch.arange(20)), batch_size=6):
        assert torch.equal(batch["b"].n_id[batch["b"].mapping], batch["b"].input_id)
        assert "mapping" not in batch["a"]
        for source, relation, target in data.edge_types:
            store, edges = batch[source, relation, target], data[source, relation, target].edge_index
            assert torch.equal(store.e_id.sort()[0], induced(edges, batch[source].n_id, batch[target].n_id))


def test_transforms_see_the_mapping_and_copies_of_the_loader_have_it_once():
    def transform(data):
        data.doubled = data.mapping * 2
        return data

    loader = SubGraphLoader(DATA, [2], torch.arange(9), batch_size=3, transform=transform)
    again = SubGraphLoader(DATA, [2], torch.arange(9), batch_size=3, transform=loader.transform)
    for batch in (next(iter(loader)), next(iter(again))):
        assert batch.mapping.tolist() == [0, 1, 2] and batch.doubled.tolist() == [0, 2, 4]


def test_other_subgraphs_are_refused():
    with pytest.raises(ValueError, match="subgraph_type = 'directional': subgraphs are 'induced'"):
        SubGraphLoader(DATA, [2], subgraph_type="directional")
