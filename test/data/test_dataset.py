"""Datasets with and without types."""

import pickle

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData
from torch_geometric.sampler import NodeSamplerInput

from glt.data import HOMOGENEOUS, Dataset, Feature, Graph, Schema, Topology
from glt.data.pyg import arrays_of_pyg
from glt.loader import LinkNeighborLoader, NeighborLoader
from glt.sampler import NeighborSampler
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


WRITES = ("author", "writes", "paper")
CITES = ("paper", "cites", "paper")
EDGES = {WRITES: torch.tensor([[0, 2, 1], [3, 0, 3]]), CITES: torch.tensor([[1, 3], [0, 0]])}


def papers(**kwargs):
    return Dataset.from_arrays(
        EDGES,
        {"paper": 5, "author": 3},
        node_features={"paper": np.arange(10, dtype=np.float16).reshape(5, 2)},
        node_labels={"paper": torch.arange(15).view(5, 3)},
        edge_features={CITES: torch.tensor([[1.5], [2.5]], dtype=torch.bfloat16)},
        **kwargs,
    )


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_types_have_their_own_graphs_and_tables(edge_dir):
    dataset = papers(edge_dir=edge_dir)
    assert dataset.schema == Schema(("paper", "author"), (WRITES, CITES))
    assert dataset.num_nodes_of == (5, 3) and dataset.num_nodes == {"paper": 5, "author": 3}
    assert dataset.edge_dir == edge_dir and {g.edge_dir for g in dataset.graphs} == {edge_dir}
    writes, cites = (graph.topology for graph in dataset.graphs)
    assert writes.size == (3, 5) and cites.size == (5, 5)
    assert torch.equal(writes.coo(), EDGES[WRITES][:, writes.edge_ids.long()])
    assert list(dataset.graph) == [WRITES, CITES]
    assert list(dataset.node_features) == list(dataset.node_labels) == ["paper"]
    assert dataset.node_features["paper"][torch.tensor([4])].tolist() == [[8, 9]]
    assert dataset.node_labels["paper"][torch.tensor([1])].tolist() == [[3, 4, 5]], "all columns"
    assert dataset.edge_features[CITES].dtype == torch.bfloat16
    assert [list(t) for t in dataset.node_tables] == [["x", "y"], []]
    assert [list(t) for t in dataset.edge_tables] == [[], ["edge_attr"]]


def test_glts_getters():
    dataset = papers()
    assert dataset.get_graph(CITES) is dataset.graphs[1]
    assert dataset.get_node_feature("author") is None and dataset.get_node_feature("paper") is not None
    assert dataset.get_node_label("paper").shape == (5, 3)
    assert dataset.get_edge_feature(WRITES) is None and len(dataset.get_edge_feature(CITES)) == 2
    assert dataset.get_node_types() == ["paper", "author"] and dataset.get_edge_types() == [WRITES, CITES]
    with pytest.raises(KeyError, match="no edge type is named: expected one of"):
        dataset.get_graph()
    with pytest.raises(KeyError, match=r"'venue' is not in the graph: expected one of \['paper', 'author'\]"):
        dataset.get_node_feature("venue")

    single = Dataset.from_arrays(torch.tensor([[0], [1]]), node_features=torch.zeros(2, 1))
    assert single.schema == HOMOGENEOUS and single.get_node_types() is None and single.get_edge_types() is None
    assert single.get_graph() is single.graph is single.graphs[0]
    assert single.get_node_feature() is single.node_features and single.get_node_label() is None


def test_nodes_are_counted_over_all_edge_types_where_nothing_else_tells():
    dataset = Dataset.from_arrays(EDGES)
    assert dataset.num_nodes == {"author": 3, "paper": 4}
    assert Dataset.from_arrays(EDGES, node_features={"author": torch.zeros(9, 1)}).num_nodes["author"] == 9
    assert Dataset.from_arrays(EDGES, node_labels={"author": torch.zeros(9, 1)}).num_nodes["author"] == 9
    with pytest.raises(ValueError, match=r"node_labels\['author'\] has 2 rows: expected one per node, 3"):
        Dataset.from_arrays(EDGES, node_labels={"author": torch.zeros(2)})


def test_types_without_anything():
    none = torch.empty(2, 0, dtype=torch.int64)
    dataset = Dataset.from_arrays({WRITES: none}, {"venue": 0, "author": 4})
    assert dataset.schema.node_types == ("venue", "author", "paper")
    assert dataset.num_nodes_of == (0, 4, 0)
    assert dataset.graphs[0].num_edges == 0 and dataset.graphs[0].num_nodes == 0
    assert dataset.node_features == {} and dataset.edge_features == {}
    empty = Dataset.from_arrays({}, {"paper": 2})
    assert empty.graph == {} and empty.schema.edge_types == ()
    assert Dataset.from_arrays(none).num_nodes == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("store_dtype", "int8"), ("split_ratio", 0.5), ("device", "cuda"), ("device_group_list", [0])],
)
def test_a_feature_has_its_own_placement(option, value):
    dataset = Dataset.from_arrays(EDGES[CITES])
    with pytest.raises(ValueError, match=f"{option} is given, and node_features is a Feature, which has its own"):
        dataset.init_node_features(Feature(torch.rand(dataset.num_nodes, 2)), **{option: value})


def test_tables_are_stored_by_type():
    dataset = Dataset.from_arrays(EDGES)
    x = {node_type: torch.rand(count, 8) for node_type, count in dataset.num_nodes.items()}
    dataset.init_node_features(x, store_dtype={"paper": "int8"})
    stored = {node_type: each.packing and each.packing.store_dtype for node_type, each in dataset.node_features.items()}
    assert stored == {node_type: "int8" if node_type == "paper" else None for node_type in x}
    dataset.init_edge_features({CITES: torch.rand(2, 8)}, store_dtype={CITES: "float16"})
    assert dataset.edge_features[CITES].packing.store_dtype == "float16"
    nan = x | {"paper": torch.full_like(x["paper"], torch.nan)}
    (other,) = x.keys() - {"paper"}
    for given, store_dtype, error, message in [
        (x, {"venue": "int8"}, KeyError, "store_dtype names node type 'venue': expected one of"),
        ({other: x[other]}, {"paper": "int8"}, ValueError, "store_dtype names 'paper', and node_features has none of"),
        (nan, "int8", ValueError, r"node_features\['paper'\]: tensor\[0\] has nan at position 0"),
        (x | {"paper": Feature(x["paper"])}, "int8", ValueError, r"node_features\['paper'\] is a Feature, which has"),
    ]:
        with pytest.raises(error, match=message):
            dataset.init_node_features(given, store_dtype=store_dtype)
    with pytest.raises(TypeError, match="store_dtype is a dict by type: expected a single value"):
        Dataset.from_arrays(EDGES[CITES]).init_node_features(torch.rand(3, 8), store_dtype={"paper": "int8"})


def test_errors_name_type_and_argument():
    with pytest.raises(IndexError, match=r"'writes'.*edge_index\[1\]\[0\] = 3 is outside \[0, 3\)"):
        Dataset.from_arrays(EDGES, {"paper": 3})
    for arguments, error, message in [
        ({"node_features": torch.zeros(4, 1)}, TypeError, "node_features has type Tensor: expected a dict by node"),
        ({"node_features": {"paper": torch.zeros(2, 1)}, "num_nodes": {"paper": 5}}, ValueError,
         r"node_features\['paper'\] has 2 rows: expected one per node, 5"),
        ({"edge_features": {CITES: torch.zeros(1, 1)}}, ValueError,
         r"edge_features\[\('paper', 'cites', 'paper'\)\] has 1 rows: expected one per edge, 2"),
        ({"edge_features": {("a", "b", "c"): torch.zeros(1, 1)}}, KeyError, "edge_features names edge type"),
        ({"num_nodes": 5}, TypeError, "num_nodes has type int: expected a dict by node type"),
        ({"edge_dir": "up"}, ValueError, "edge_dir = 'up'"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            Dataset.from_arrays(EDGES, **arguments)
    with pytest.raises(TypeError, match=r"edge_types holds 'writes': expected \(source type"):
        Dataset.from_arrays({"writes": EDGES[WRITES]})
    with pytest.raises(TypeError, match="edge_weight is a dict by type: expected a single value"):
        Dataset.from_arrays(EDGES[CITES], edge_weight={CITES: torch.ones(2)})


def test_mapped_tables_are_read_in_place(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8, dtype=np.int16).reshape(4, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    dataset = Dataset.from_arrays({CITES: EDGES[CITES]}, node_features={"paper": mapped})
    assert dataset.node_features["paper"].tensor.data_ptr() == mapped.ctypes.data
    by_path = Dataset.from_arrays(EDGES[CITES], node_features=str(tmp_path / "x.npy"))
    assert by_path.node_features[torch.tensor([3])].tolist() == [[6, 7]]
    (tmp_path / "bad.npy").write_text("no array")
    with pytest.raises(ValueError, match=r"node_features = .*bad.npy' is not a readable .npy file"):
        Dataset.from_arrays(EDGES[CITES], node_features=tmp_path / "bad.npy")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_glts_way_to_fill_a_dataset(dtype):
    dataset = Dataset(edge_dir="out")
    with pytest.raises(ValueError, match="node_features: the dataset has no graph yet; call init_graph first"):
        dataset.init_node_features({"paper": torch.zeros(1, 1)})
    dataset.init_graph({t: e.to(dtype) for t, e in EDGES.items()}, graph_mode="ZERO_COPY")
    dataset.init_node_features({"paper": torch.arange(12.0).view(6, 2)})
    assert dataset.num_nodes == {"author": 3, "paper": 6}, "isolated tail nodes are known by their features"
    assert dataset.get_graph(WRITES).num_neighbor_nodes == 6 and dataset.get_graph(CITES).num_nodes == 6
    assert dataset.get_graph(CITES).csr.num_nodes == 6
    dataset.init_node_labels({"paper": torch.arange(6)})
    dataset.init_edge_features({CITES: torch.zeros(2, 1)})
    assert len(dataset.get_node_label("paper")) == 6 and len(dataset.get_edge_feature(CITES)) == 2
    with pytest.raises(ValueError, match=r"node_labels\['paper'\] has 7 rows: expected one per node, 6"):
        dataset.init_node_labels({"paper": torch.arange(7)})

    single = Dataset()
    single.init_graph(EDGES[CITES].to(dtype))
    single.init_node_features(torch.zeros(4, 1))
    assert single.num_nodes == 4 and single.edge_dir == "in"
    assert repr(single) and repr(dataset)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_graphs_in_compressed_layouts(edge_dir):
    source, target = torch.tensor([0, 0, 2, 3]), torch.tensor([1, 3, 0, 3])
    wanted = Dataset.from_arrays(torch.stack([source, target]), edge_dir=edge_dir).graph.topology
    order = torch.tensor([2, 0, 1, 3])  # by destination
    for layout, edges in [
        ("CSR", (torch.tensor([0, 2, 2, 3, 4]), target)),
        ("CSC", (source[order], torch.tensor([0, 1, 2, 2, 4]))),
    ]:
        dataset = Dataset(edge_dir=edge_dir)
        dataset.init_graph(edges, layout=layout)
        assert torch.equal(dataset.graph.topology.coo(), wanted.coo())
    for edges, layout, message in [
        ((torch.tensor([0, 2]), target), "CSR", r"2 offsets which do not rise from 0 to 4.*\(row offsets"),
        (EDGES[CITES], "csr", "layout = 'csr': expected 'COO', 'CSR' or 'CSC'"),
    ]:
        with pytest.raises(ValueError, match=message):
            Dataset().init_graph(edges, layout=layout)


def test_a_dataset_survives_pickling():
    dataset = pickle.loads(pickle.dumps(papers()))
    assert dataset.schema.edge_types == (WRITES, CITES)
    assert torch.equal(dataset.graphs[0].topology.coo(), papers().graphs[0].topology.coo())
    assert dataset.node_features["paper"][torch.tensor([4])].tolist() == [[8, 9]]


def test_graphs_become_a_dataset_if_they_fit():
    given = papers()
    wrapped = Dataset.of_graphs(given.schema, given.graphs, given.num_nodes_of)
    assert wrapped.num_nodes == given.num_nodes and wrapped.node_features == {}
    for num_nodes_of, edge_dir in ((5, 4), "in"), ((5, 3), "out"):
        with pytest.raises(ValueError, match=r"'writes'.*has edge_dir = 'in' and size \(3, 5\): expected"):
            Dataset.of_graphs(given.schema, given.graphs, num_nodes_of, edge_dir=edge_dir)


def hetero_data():
    data = pytest.importorskip("torch_geometric.data").HeteroData(title="a graph-level attribute")
    data["paper"].x = torch.rand(4, 2)
    data["paper"].year = torch.tensor([1, 2, 3, 4])
    data["paper"].train_mask = torch.tensor([True, False, True, False])
    data["author"].num_nodes = 3
    data[WRITES].edge_index = EDGES[WRITES]
    data[WRITES].weight = torch.tensor([1.0, 2.0, 3.0])
    data[CITES].edge_index = EDGES[CITES].int()
    data[CITES].edge_attr = torch.rand(2, 3, 2)
    data[CITES].edge_label_index = EDGES[CITES]
    return data


def test_from_pyg_takes_what_pyg_indexes_by_node_or_edge():
    data = hetero_data()
    dataset = Dataset.from_pyg(data)
    assert dataset.schema == Schema(("paper", "author"), (WRITES, CITES))
    assert dataset.num_nodes == {"paper": 4, "author": 3}
    assert [sorted(t) for t in dataset.node_tables] == [["train_mask", "x", "year"], []]
    assert [sorted(t) for t in dataset.edge_tables] == [["weight"], ["edge_attr"]]
    assert dataset.node_tables[0]["x"].tensor.data_ptr() == data["paper"].x.data_ptr(), "shared, not copied"
    assert torch.equal(dataset.edge_features[CITES][torch.tensor([1])], data[CITES].edge_attr[1:])
    assert (dataset.time_attr, dataset.time_level) == (None, None)
    arrays = arrays_of_pyg(data, with_tables=False)
    assert arrays.node_tables == [{}, {}] and [t.num_edges for t in arrays.topologies("in")] == [3, 2]


def frame(num_rows):
    frames = pytest.importorskip("torch_frame", reason="no PyTorch Frame here: pip install pytorch-frame")
    kinds = {frames.numerical: torch.arange(2.0 * num_rows).view(num_rows, 2)}
    return frames.TensorFrame(kinds, {frames.numerical: ["a", "b"]})


def relational():
    """A graph as RelBench makes it: nodes have a frame and perhaps a time, and nothing that tells PyG their number."""
    data = HeteroData()
    data["user"].tf = frame(4)
    data["user"].time = torch.arange(4)
    data["item"].tf = frame(6)
    data["item", "f2p_user", "user"].edge_index = torch.tensor([[0, 5, 1], [0, 1, 1]])
    data["user", "rev_f2p_user", "item"].edge_index = torch.tensor([[0, 1], [0, 3]])
    return data


def test_from_pyg_counts_nodes_by_whatever_they_have():
    dataset = Dataset.from_pyg(relational(), time_attr="time")
    assert dataset.num_nodes == {"user": 4, "item": 6} and dataset.time_level == "node"
    assert [list(tables) for tables in dataset.node_tables] == [["tf.numerical", "time"], ["tf.numerical"]]
    index = NodeSamplerInput(None, torch.tensor([1]), torch.tensor([9]), "user")
    out = NeighborSampler(relational(), [2, 2], time_attr="time").sample_from_nodes(index)
    assert sorted(out.node["item"].tolist()) == [1, 5]

    data = relational()
    del data["item"].tf
    data["item"].y = torch.arange(6)
    assert Dataset.from_pyg(data).num_nodes == {"user": 4, "item": 6}
    assert "num_nodes" not in data["item"], "the user's data stays as it is"
    data["item"].class_weight = torch.ones(3)
    with pytest.raises(ValueError, match=r"\['class_weight', 'y'\], .* of nodes alike: 3, 6: set data\['item'\]"):
        Dataset.from_pyg(data)


def test_loaders_give_rows_of_nodes_that_pyg_cannot_count():
    data = HeteroData()
    data["user"].time, data["item"].y = torch.arange(4), torch.arange(6) * 2
    data["item", "to", "user"].edge_index = torch.tensor([[0, 5, 1], [0, 1, 1]])
    batches = list(NeighborLoader(data, [2], input_nodes="user", batch_size=2, random_seed=0))
    assert len(batches) == 2
    links = LinkNeighborLoader(data, [2], edge_label_index=("item", "to", "user"), batch_size=2, random_seed=0)
    for batch in (*batches, *links):
        assert torch.equal(batch["user"].time, batch["user"].n_id)
        assert torch.equal(batch["item"].y, batch["item"].n_id * 2)
    assert "num_nodes" not in data["item"], "the user's data stays as it is"


def test_a_temporal_loader_over_frames():
    data = relational()
    seeds = {"input_nodes": ("user", torch.tensor([1])), "input_time": torch.tensor([9]), "time_attr": "time"}
    (batch,) = NeighborLoader(data, [2, 2], batch_size=1, **seeds)
    for node_type in ("user", "item"):
        assert batch[node_type].tf == data[node_type].tf[batch[node_type].n_id]


def test_what_pyg_has_in_the_last_dimension_for_its_name_is_taken_where_there_is_one_dimension():
    data = ring_graph(10).to_data()
    data.node_index, data.edge_kind_index = torch.arange(10) * 2, torch.arange(data.num_edges) * 3
    data.pair_index = torch.zeros(2, 10)
    dataset = Dataset.from_pyg(data)
    assert torch.equal(dataset.node_tables[0]["node_index"].tensor, data.node_index)
    assert torch.equal(dataset.edge_tables[0]["edge_kind_index"].tensor, data.edge_kind_index)
    assert "pair_index" not in dataset.node_tables[0]


def test_from_pyg_says_what_it_cannot_take():
    data = hetero_data()
    data["paper"].names = ["a", "b", "c", "d"]
    with pytest.raises(TypeError, match="attribute 'names' is a list: a glt Dataset holds tensors and arrays"):
        Dataset.from_pyg(data)
    del data["paper"].names
    for arguments, error, message in [
        ({"weight_attr": "wait"}, KeyError, "weight_attr = 'wait'"),
        ({"time_attr": "when"}, ValueError, "time_attr = 'when': expected the name of a node-level or edge-level"),
    ]:
        with pytest.raises(error, match=message):
            Dataset.from_pyg(data, **arguments)
    data[CITES].year = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="time_attr = 'year' is an attribute of nodes and of edges"):
        Dataset.from_pyg(data, time_attr="year")
    with pytest.raises(TypeError, match="data has type dict: expected a PyG Data or HeteroData"):
        Dataset.from_pyg({})
    data["venue"].names = ["d", "e", "f"]
    with pytest.raises(ValueError, match=r"data\['venue'\] has \['names'\].*set data\['venue'\].num_nodes"):
        Dataset.from_pyg(data)
    del data["venue"].names
    del data[CITES].edge_index
    with pytest.raises(ValueError, match=r"'cites'.*has no edge_index"):
        Dataset.from_pyg(data)
