"""Dataset: a graph with features and labels that fit it."""

import numpy as np
import pytest
import torch

from glt.data import Dataset, Feature, Graph, Topology
from glt.testing import ring_graph


def test_from_pyg_takes_edges_features_labels_and_isolated_nodes():
    data = ring_graph(10).to_data()
    data.num_nodes = None
    dataset = Dataset.from_pyg(data)
    assert dataset.num_nodes == 10 and dataset.edge_dir == "in"
    ids = torch.tensor([4, 9])
    assert torch.equal(dataset.node_features[ids], data.x[ids])
    assert torch.equal(dataset.node_labels[ids], ids)
    assert torch.equal(dataset.edge_features[ids], data.edge_attr[ids])


def test_from_arrays_counts_nodes_by_their_features():
    dataset = Dataset.from_arrays(np.array([[0], [1]]), node_features=np.zeros((5, 3), np.float32), edge_dir="out")
    assert dataset.num_nodes == 5 and dataset.edge_dir == "out"
    assert dataset.node_labels is None


def test_rows_that_do_not_fit_the_graph_are_named():
    edges = torch.tensor([[0, 1], [1, 2]])
    for arguments, message in [
        ({"node_features": torch.zeros(4, 1), "num_nodes": 3}, "node_features has 4 rows: expected one per node, 3"),
        ({"node_labels": torch.zeros(2)}, "node_labels has 2 rows: expected one per node, 3"),
        ({"edge_dir": "both"}, "edge_dir = 'both': expected 'in'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Dataset.from_arrays(edges, **arguments)
    with pytest.raises(IndexError, match=r"edge_index\[1\]\[1\] = 2 is outside \[0, 2\)"):
        Dataset.from_arrays(edges, node_features=torch.zeros(2, 1))
    with pytest.raises(ValueError, match="data has no edge_index"):
        Dataset.from_pyg(pytest.importorskip("torch_geometric.data").Data(x=torch.zeros(3, 1)))


def test_features_of_a_partition_need_not_have_a_row_per_node():
    row_of = torch.tensor([0, 2**32 - 1, 1], dtype=torch.uint32)
    graph = Graph(Topology(torch.tensor([[0, 1], [1, 2]])))
    dataset = Dataset(graph, Feature(torch.zeros(2, 1), row_of))
    assert len(dataset.node_features) == 2
