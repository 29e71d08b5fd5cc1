"""A dataset behind PyG's store interfaces, and graphs out of other stores."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("torch_geometric")
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput
from torch_geometric.testing import MyGraphStore

from glt.data import Dataset
from glt.data.stores import DatasetFeatureStore, DatasetGraphStore, dataset_of_stores
from glt.testing import random_graph

WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")


def hetero_data(sort=False):
    generator = torch.Generator().manual_seed(3)
    data = HeteroData()
    data["paper"].x = torch.rand(30, 4, generator=generator)
    data["paper"].y = torch.arange(30)
    data["author"].x = torch.rand(20, 2, generator=generator)
    for edge_type, num_sources in ((WRITES, 20), (CITES, 30)):
        edges = torch.stack([torch.randint(n, (90,), generator=generator) for n in (num_sources, 29)])
        data[edge_type].edge_index = edges[:, edges[1].argsort(stable=True)] if sort else edges
    data[CITES].edge_attr = torch.arange(90.0).view(90, 1)
    return data


def stores_of(dataset):
    return DatasetFeatureStore(dataset), DatasetGraphStore(dataset)


def edges_of(store, layout, edge_type=None):
    row, col, _ = getattr(store, layout)([edge_type] if edge_type else None)
    return (row, col) if edge_type is None else (row[edge_type], col[edge_type])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("sort", [False, True])
def test_edges_in_every_layout_are_those_of_pyg(sort, edge_dir):
    data = hetero_data(sort)
    store = DatasetGraphStore(Dataset.from_pyg(data, edge_dir=edge_dir))
    for edge_type in (WRITES, CITES):
        edges = data[edge_type].edge_index
        source, target = edges
        by_target, by_source = edges[:, target.argsort(stable=True)], edges[:, source.argsort(stable=True)]
        expected = {
            "coo": edges,
            "csc": (by_target[0], _offsets(target, 30)),
            "csr": (_offsets(source, data[edge_type[0]].num_nodes), by_source[1]),
        }
        for layout, pair in expected.items():
            assert all(map(torch.equal, store.get_edge_index(edge_type, layout), pair)), (layout, edge_type)
            through = edges_of(store, layout, edge_type)  # PyG's conversion, whose sort breaks ties as it likes
            assert all(
                torch.equal(_sorted_if(a, layout), _sorted_if(b, layout)) for a, b in zip(through, pair, strict=True)
            )
    layouts = {(attr.edge_type, attr.layout.value): attr.size for attr in store.get_all_edge_attrs()}
    assert layouts[WRITES, "coo"] == (20, 30)
    assert ((WRITES, "csc") in layouts) == (sort and edge_dir == "in"), "announced where positions are edge ids"
    by_target = store.get_edge_index(CITES, "coo", is_sorted=True)
    assert bool((by_target[1].diff() >= 0).all())


def _offsets(ids, num_rows):
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(ids, minlength=num_rows).cumsum(0)])


def _sorted_if(ids, layout):
    return ids if layout == "coo" else ids.sort().values


def test_rows_by_node_type_and_by_edge_type():
    data = hetero_data()
    store = DatasetFeatureStore(Dataset.from_pyg(data))
    ids = torch.tensor([7, 0, 7])
    assert torch.equal(store.get_tensor("paper", "x", ids), data["paper"].x[ids])
    assert torch.equal(store["author", "x", None], data["author"].x)
    assert torch.equal(store.get_tensor(CITES, "edge_attr", index=ids), data[CITES].edge_attr[ids])
    assert torch.equal(store.get_tensor("paper", "y", slice(3, 6)), torch.arange(3, 6))
    assert store.get_tensor("paper", "y", 5) == 5
    mask = torch.zeros(30, dtype=torch.bool)
    mask[[3, 9]] = True
    assert torch.equal(store.get_tensor("paper", "x", mask), data["paper"].x[mask])
    assert store.get_tensor_size("paper", "x") == (30, 4) and store.get_tensor_size("paper", "z") is None
    listed = {(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()}
    assert listed == {("paper", "x"), ("paper", "y"), ("author", "x"), (CITES, "edge_attr")}
    pair = store.multi_get_tensor([_tensor_attr("paper", "y", ids), _tensor_attr("author", "x", ids)])
    assert torch.equal(pair[0], ids) and torch.equal(pair[1], data["author"].x[ids])
    assert torch.equal(pickle.loads(pickle.dumps(store)).get_tensor("paper", "y", ids), ids)


def _tensor_attr(*args):
    from torch_geometric.data import TensorAttr

    return TensorAttr(*args)


def test_a_homogeneous_store_lists_tables_of_nodes_and_serves_those_of_edges():
    graph = random_graph(40, 200)
    dataset = graph.to_dataset()
    features, edges = stores_of(dataset)
    assert [(a.group_name, a.attr_name) for a in features.get_all_tensor_attrs()] == [(None, "x"), (None, "y")]
    assert torch.equal(features.get_tensor(None, "edge_attr", torch.tensor([5])), graph.edge_attr[5:6])
    assert torch.equal(torch.stack(edges_of(edges, "coo")), graph.edge_index)
    assert edges.get_all_edge_attrs()[-1].size == (40, 40)


def test_what_a_store_refuses():
    dataset = Dataset.from_pyg(hetero_data())
    features, edges = stores_of(dataset)
    get, put, one, cites = (
        features.get_tensor,
        features.put_tensor,
        torch.tensor([0]),
        edges.get_edge_index(CITES, "coo"),
    )
    for call, arguments, error, message in [
        (get, ("paper", "z", None), KeyError, r"'paper' has no table 'z': expected one of \['x', 'y'\]"),
        (get, ("venue", "x", None), KeyError, "group 'venue' is not in the dataset"),
        (get, ("paper", "x", one + 30), IndexError, "30"),
        (put, (torch.zeros(1, 4), "paper", "x", one), ValueError, "index of 'x' is given: expected a whole table"),
        (put, (torch.zeros(3), "paper", "z", None), ValueError, "z has 3 rows: expected one per node, 30"),
        (edges.get_edge_index, (("paper", "reads", "paper"), "coo"), KeyError, "not found"),
        (edges.put_edge_index, (cites, CITES, "coo"), ValueError, "cannot be put: the graph of a glt Dataset is fixed"),
        (edges.remove_edge_index, (CITES, "coo"), ValueError, "cannot be removed"),
    ]:
        with pytest.raises(error, match=message):
            call(*arguments)


def test_edge_ids_that_are_no_positions_are_refused():
    for ids in ([5, 6], [0, 0]):
        dataset = Dataset.from_arrays(torch.tensor([[0, 1], [1, 0]]), edge_ids=torch.tensor(ids))
        with pytest.raises(ValueError, match=r"edge ids of .* are not 0 to 1, each once"):
            DatasetGraphStore(dataset)


def test_what_is_put_and_removed_stays_out_of_the_dataset():
    dataset = Dataset.from_pyg(hetero_data())
    store = DatasetFeatureStore(dataset)
    assert store.put_tensor(torch.arange(30) * 2, "paper", "z", None)
    assert store.get_tensor("paper", "z", torch.tensor([4])).tolist() == [8]
    assert store.remove_tensor("paper", "x", None) and not store.remove_tensor("paper", "x", None)
    assert store.get_tensor_size("paper", "x") is None
    assert sorted(dataset.node_tables[0]) == ["x", "y"]


class AllNodes(BaseSampler):
    """Answers every request with the whole graph, seeds first."""

    def __init__(self, dataset):
        self.dataset = dataset

    @property
    def edge_permutation(self):
        return None

    def sample_from_nodes(self, index):
        ends = [graph.topology.coo() for graph in self.dataset.graphs]
        nodes = [torch.arange(n) for n in self.dataset.num_nodes_of]
        if not self.dataset.schema.is_hetero:
            edge = self.dataset.graph.topology.edge_ids.long()
            return SamplerOutput(nodes[0], *ends[0], edge, metadata=(index.input_id, None))
        by_edge_type = self.dataset.schema.by_edge_type
        edge = by_edge_type([graph.topology.edge_ids.long() for graph in self.dataset.graphs])
        return HeteroSamplerOutput(
            self.dataset.schema.by_node_type(nodes), by_edge_type([e[0] for e in ends]),
            by_edge_type([e[1] for e in ends]), edge, metadata=(index.input_id, None),
        )  # fmt: skip

    def sample_from_edges(self, index, neg_sampling=None):
        raise NotImplementedError


def test_pygs_loader_reads_the_stores():
    data = hetero_data()
    dataset = Dataset.from_pyg(data)
    loader = NodeLoader(stores_of(dataset), AllNodes(dataset), "paper", batch_size=30)
    batch = next(iter(loader))
    assert torch.equal(batch["paper"].x, data["paper"].x) and torch.equal(batch["author"].x, data["author"].x)
    e_id = batch[CITES].e_id
    assert torch.equal(batch[CITES].edge_index, data[CITES].edge_index[:, e_id])

    graph = random_graph(40, 200)
    single = graph.to_dataset()
    batch = next(iter(NodeLoader(stores_of(single), AllNodes(single), torch.arange(40), batch_size=40)))
    assert torch.equal(batch.x, graph.x) and torch.equal(batch.edge_index, graph.edge_index[:, batch.e_id])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("layout", ["coo", "csc", "csr"])
def test_a_graph_out_of_another_store(layout, edge_dir):
    data = hetero_data(sort=True)
    dataset = Dataset.from_pyg(data, edge_dir=edge_dir)
    features, edges = stores_of(dataset)
    other = MyGraphStore()
    for edge_type, size in ((WRITES, (20, 30)), (CITES, (30, 30))):
        other.put_edge_index(edges.get_edge_index(edge_type, layout), edge_type, layout, size=size)
    for store in (features, None):
        read = dataset_of_stores(store, other, edge_dir=edge_dir)
        assert set(read.schema.node_types) == {"paper", "author"} and read.schema.edge_types == (WRITES, CITES)
        assert read.num_nodes == {"paper": 30, "author": 20} and read.edge_dir == edge_dir
        for graph, expected in zip(read.graphs, dataset.graphs, strict=True):
            assert torch.equal(_sorted(graph.topology.coo()), _sorted(expected.topology.coo()))
            in_place = graph.topology.edge_ids is None
            if layout != "coo":
                assert in_place == (layout == ("csc" if edge_dir == "in" else "csr")), "used as offered"
            assert graph.csr.num_nodes == expected.csr.num_nodes
    own = dataset_of_stores(features, edges, edge_dir=edge_dir)
    assert own.graphs is dataset.graphs and own.schema == dataset.schema


def _sorted(edges):
    return edges[:, np.lexsort(edges.numpy())]


def test_data_itself_is_a_store():
    graph = random_graph(40, 200)
    data = graph.to_data()
    read = dataset_of_stores(data, data)
    expected = graph.to_dataset()
    assert read.num_nodes == 40 and not read.schema.is_hetero
    assert torch.equal(read.graph.topology.indices, expected.graph.topology.indices)
    assert torch.equal(read.graph.topology.edge_ids, expected.graph.topology.edge_ids)
    hetero = hetero_data()
    assert dataset_of_stores(hetero, hetero).num_nodes == {"paper": 30, "author": 20}
    with pytest.raises(ValueError, match="graph_store has no edges"):
        dataset_of_stores(None, MyGraphStore())
    with pytest.raises(ValueError, match="time_attr = 'when': expected the name of times in the feature store"):
        dataset_of_stores(hetero, hetero, time_attr="when")
    assert isinstance(data, Data)
