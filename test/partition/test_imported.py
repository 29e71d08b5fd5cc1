"""What an importer has found becomes a partition directory, named tables of types included."""

import numpy as np
from partition_world import assert_union_is_the_input, load_all

from glt.data.schema import Schema
from glt.partition.importers.imported import Imported


def test_named_tables_of_types_keep_their_types(tmp_path):
    edge_type = ("a", "to", "b")
    edges, mask, kind = np.array([[0, 1], [2, 0]]), np.array([True, False, True]), np.arange(2)
    nodes = [
        {"owners": np.array([0, 1]), "node_attrs": {"year": np.arange(2)}},
        {"owners": np.array([1, 0, 1]), "node_attrs": {"train_mask": mask, "year": np.arange(3)}},
    ]
    edge = {"edge_index": edges, "edge_attrs": {"kind": kind}}
    imported = Imported(Schema(("a", "b"), (edge_type,)), 2, "by_dst", {}, nodes, [edge])
    imported.write(tmp_path / "out", False, {})
    named = {
        "node_attrs": {"a": {"year": np.arange(2)}, "b": {"train_mask": mask, "year": np.arange(3)}},
        "edge_attrs": {edge_type: {"kind": kind}},
    }
    assert_union_is_the_input(load_all(tmp_path / "out"), {"a": 2, "b": 3}, {edge_type: edges}, **named)
