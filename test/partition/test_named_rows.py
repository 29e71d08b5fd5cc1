"""Named tables travel with a partition: masks and whatever else has a name."""

import numpy as np
import pytest
import torch
from partition_world import assert_union_is_the_input, load_all
from torch_geometric.data import Data, HeteroData

from glt.partition import Manifest, RandomPartitioner, graph_arguments
from glt.partition.format import layout

EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.mark.parametrize("strategy", ["by_src", "by_dst"])
def test_named_tables_come_back_and_are_listed(world, tmp_path, strategy):
    named = {
        "node_attrs": {"train_mask": np.arange(10) % 2 == 0, "p/q__r ü": torch.arange(20).view(10, 2).bfloat16()},
        "edge_attrs": {"time": np.arange(15, dtype=np.int32)},
    }
    given = world.arguments() | {"edge_feat": None} | named  # the book of edges is there without features
    RandomPartitioner(tmp_path / "parts", 3, **given, edge_assign_strategy=strategy, chunk_size=4).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **given)
    (nodes,), (edges,) = parts[0].manifest.node_types, parts[0].manifest.edge_types
    assert {name: (entry.dtype, entry.shape) for name, entry in nodes.attrs.items()} == {
        "train_mask": ("bool", ()),
        "p/q__r ü": ("bfloat16", (2,)),
    }
    assert edges.attrs["time"].dtype == "int32" and edges.has_rows
    assert layout.attr(1, "node_attr", "node", "p/q__r ü") == "part1/node_attr/node/p%2Fq%5F%5Fr%20%C3%BC.npy"
    assert (tmp_path / "parts" / layout.attr(1, "node_attr", "node", "p/q__r ü")).exists()


def test_the_order_of_names_is_nobodys_business(tmp_path):
    tables = {"b": np.arange(4), "a": np.ones(4)}
    runs = [
        RandomPartitioner(tmp_path / str(i), 2, 4, EDGES, node_attrs=each, edge_attrs={"c": tables["a"]}).partition()
        for i, each in enumerate((tables, dict(reversed(tables.items()))))
    ]
    assert runs[0].run_id == runs[1].run_id == Manifest.read(tmp_path / "0").run_id


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"node_attrs": {"x": np.ones(4)}}, ValueError, "node_attrs names 'x': pass it as node_feat"),
        ({"edge_attrs": {"edge_attr": np.ones(4)}}, ValueError, "pass it as edge_feat"),
        ({"node_attrs": {"n_id": np.ones(4)}}, ValueError, "a loader gives that name itself"),
        ({"node_attrs": {"a\nb": np.ones(4)}}, ValueError, "without line breaks"),
        ({"node_attrs": {"": np.ones(4)}}, ValueError, "empty name"),
        ({"node_attrs": {"ü" * 50: np.ones(4)}}, ValueError, "needs a file name of 304 bytes"),
        ({"node_attrs": {3: np.ones(4)}}, TypeError, "has the key 3"),
        ({"node_attrs": np.ones(4)}, TypeError, "node_attrs is a ndarray: expected a dict"),
        ({"node_attrs": {"m": [1, 2]}}, TypeError, r"node_attrs\['m'\] is a list"),
        ({"edge_attrs": {"m": np.ones(3)}}, ValueError, r"edge_attrs\['m'\] has shape \[3\]: .* 4 rows"),
        ({"node_attrs": {"m": np.ones(4)}, "edge_attrs": {"m": np.ones(4)}}, ValueError, "both name 'm'"),
        ({"node_attrs": {"time": np.ones(4)}, "node_time": np.arange(4)}, ValueError, "names 'time', but node_time"),
    ],
)
def test_what_cannot_be_an_attribute_is_refused(tmp_path, given, error, words):
    with pytest.raises(error, match=words):
        RandomPartitioner(tmp_path / "parts", 2, 4, EDGES, **given)


def test_attributes_of_types_are_refused_by_type(tmp_path):
    edges = {("a", "to", "a"): EDGES}
    with pytest.raises(KeyError, match="node_attrs names node type 'b'"):
        RandomPartitioner(tmp_path / "parts", 2, {"a": 4}, edges, node_attrs={"b": {"m": np.ones(4)}})
    with pytest.raises(TypeError, match=r"node_attrs\['a'\] is a ndarray"):
        RandomPartitioner(tmp_path / "parts", 2, {"a": 4}, edges, node_attrs={"a": np.ones(4)})


def test_a_graph_of_pyg_is_the_same_run_as_its_arrays(world, tmp_path):
    weight, mask = torch.arange(15.0), torch.arange(10) % 3 == 0
    data = Data(
        x=torch.from_numpy(world.node_feat),
        edge_index=torch.from_numpy(world.edge_index),
        name="a graph",
        edge_attr=torch.from_numpy(world.edge_feat),
        y=torch.from_numpy(world.node_label),
        edge_weight=weight,
        train_mask=mask,
        seen=np.arange(10),
        edge_label_index=torch.zeros(2, 3, dtype=torch.int64),
    )
    one = RandomPartitioner(tmp_path / "1", 2, **graph_arguments(data, weight_attr="edge_weight", time_attr="seen"))
    named = {
        "node_attrs": {"train_mask": mask, "seen": np.arange(10)},
        "edge_attrs": {"edge_weight": weight},
        "edge_weight": weight,
        "node_time": np.arange(10),
    }
    two = RandomPartitioner(tmp_path / "2", 2, **world.arguments(), **named)
    assert one.partition().run_id == two.partition().run_id


def test_types_of_pyg_keep_their_order_and_their_gaps(tmp_path):
    data = HeteroData()
    data["b"].x = torch.ones(3, 2)
    data["a"].num_nodes = 2
    data["b"].train_mask = torch.tensor([True, False, True])
    data["b", "to", "a"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["b", "to", "a"].time = torch.tensor([3, 4])
    data["a", "of", "b"].edge_index = torch.tensor([[1], [1]])
    given = graph_arguments(data, time_attr="time")
    assert list(given["num_nodes"].items()) == [("b", 3), ("a", 2)]
    assert list(given["edge_index"]) == [("b", "to", "a"), ("a", "of", "b")]
    assert given["node_attrs"].keys() == {"b"} and given["edge_attrs"].keys() == {("b", "to", "a")}
    assert given["edge_time"].keys() == {("b", "to", "a")} and "node_label" not in given
    RandomPartitioner(tmp_path / "parts", 2, **given).partition()


def test_what_stays_behind_is_said(caplog):
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2, name="g", edge_label_index=torch.zeros(2, 3))
    with caplog.at_level("INFO"):
        graph_arguments(data)
    assert "left out, being of no node or edge: edge_label_index, name" in caplog.text
