import numpy as np
import pytest
import torch
from partition_world import assert_union_is_the_input, hetero_world, load_all

from glt.partition import AssignedPartitioner


def test_owners_are_kept_and_the_union_is_the_input(world, tmp_path):
    owners = torch.tensor([2, 0, 0, 2, 2, 0, 0, 2, 2, 2])
    arguments = world.arguments()
    manifest = AssignedPartitioner(
        tmp_path / "parts", 3, **arguments, owners=owners, origin={"by": "hand"}, edge_assign_strategy="by_dst"
    ).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **arguments)
    np.testing.assert_array_equal(parts[0].nodes[0].book.owners(), owners)
    assert manifest.part_num_nodes == (4, 0, 6)
    assert manifest.arguments["by"] == "hand" and len(manifest.arguments["owners_digest"]) == 32


def test_owners_by_type_and_types_without_nodes_need_none(tmp_path):
    world = hetero_world()
    owners = {name: np.arange(count) % 2 for name, count in world["num_nodes"].items() if count}
    AssignedPartitioner(tmp_path / "parts", 2, **world, owners=owners).partition()
    parts = load_all(tmp_path / "parts")
    assert_union_is_the_input(parts, **world)
    np.testing.assert_array_equal(parts[0].nodes[0].book.owners(), owners["paper"])


def test_the_same_owners_give_the_same_run(world, tmp_path):
    runs = {
        AssignedPartitioner(tmp_path / str(at), 2, **world.arguments(), owners=owners).partition().run_id
        for at, owners in enumerate([np.arange(10) % 2, torch.arange(10).int() % 2, (np.arange(10) % 2).astype("u1")])
    }
    assert len(runs) == 1


@pytest.mark.parametrize(
    "owners, error, message",
    [
        (None, TypeError, "owners is NoneType: expected a tensor or array of integers"),
        (np.zeros(10), TypeError, "owners is float64: expected"),
        (np.zeros(9, int), ValueError, r"owners has shape \[9\]: expected one owner per node, \[10\]"),
        (np.arange(10), ValueError, r"owners\[2\] = 2: expected partitions 0 to 1 \(num_parts = 2\)"),
        (-np.arange(10), ValueError, r"owners\[1\] = -1: expected partitions 0 to 1"),
        ({"node": np.zeros(10, int)}, TypeError, "owners is a dict by type"),
    ],
)
def test_owners_that_do_not_fit_are_refused(world, tmp_path, owners, error, message):
    with pytest.raises(error, match=message):
        AssignedPartitioner(tmp_path / "parts", 2, **world.arguments(), owners=owners)


def test_owners_of_a_type_are_named(tmp_path):
    world = hetero_world()
    owners = {name: np.zeros(count, int) for name, count in world["num_nodes"].items() if name != "author"}
    with pytest.raises(TypeError, match=r"owners\['author'\] is NoneType"):
        AssignedPartitioner(tmp_path / "parts", 2, **world, owners=owners)
    with pytest.raises(KeyError, match="nobody"):
        AssignedPartitioner(tmp_path / "parts", 2, **world, owners=owners | {"nobody": np.zeros(1, int)})
