import logging

import numpy as np
import pytest
from partition_world import World, load_all

import glt.partition
from glt.partition import PartitionerBase, RandomPartitioner, load_partition


def contents(root):
    return {path.relative_to(root): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def run(root, world: World, num_parts=3, **options):
    manifest = RandomPartitioner(root, num_parts, **world.arguments(), **options).partition()
    return manifest, contents(root)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
@pytest.mark.parametrize("num_nodes", [1, 7, 20, 1001])
def test_partitions_are_even_up_to_one_node(tmp_path, num_nodes, num_parts):
    edge_index = np.zeros((2, 0), np.int64)
    manifest = RandomPartitioner(tmp_path / "parts", num_parts, num_nodes, edge_index).partition()
    counts = manifest.part_num_nodes
    assert sum(counts) == num_nodes and max(counts) - min(counts) <= 1


def test_assignment_is_random_not_by_range_or_stride(tmp_path):
    num_nodes, num_parts = 40_000, 4
    edge_index = np.stack([np.arange(num_nodes), np.roll(np.arange(num_nodes), 1)])
    manifest = RandomPartitioner(tmp_path / "parts", num_parts, num_nodes, edge_index).partition()
    # Neighbouring ids land in different partitions with probability 3/4; 6 standard deviations: P < 2e-9.
    assert abs(manifest.edge_cut_ratio - 0.75) < 6 * np.sqrt(0.75 * 0.25 / num_nodes)


def test_the_same_seed_gives_the_same_directory_whatever_the_chunk_size(world, tmp_path):
    manifest, files = run(tmp_path / "a", world, random_seed=7)
    for name, chunk_size in [("b", 10000), ("c", 1), ("d", 4)]:
        again, files_again = run(tmp_path / name, world, random_seed=7, chunk_size=chunk_size)
        assert again == manifest and files_again == files


def test_another_seed_and_another_input_give_another_run_id(world, tmp_path):
    runs = {run(tmp_path / f"seed{seed}", world, random_seed=seed)[0].run_id for seed in (0, 1, 2**64 - 1)}
    world.node_feat[3] += 1
    runs.add(run(tmp_path / "feat", world, random_seed=0)[0].run_id)
    assert len(runs) == 4


def test_strategy_decides_the_direction_and_by_des_means_by_dst(world, tmp_path):
    manifest, _ = run(tmp_path / "src", world)
    assert manifest.edge_dir == "out"
    manifest, files = run(tmp_path / "dst", world, edge_assign_strategy="by_dst")
    assert manifest.edge_dir == "in"
    assert run(tmp_path / "des", world, edge_assign_strategy="by_des") == (manifest, files)
    for part in load_all(tmp_path / "dst"):
        for row, node in enumerate(part.nodes[0].ids):
            edges = part.edges[0].edge_ids[part.edges[0].indptr[row] : part.edges[0].indptr[row + 1]]
            assert (world.edge_index[1, edges] == node).all()


def test_the_report_is_returned_stored_and_logged(world, tmp_path, caplog):
    with caplog.at_level(logging.INFO, "glt.partition"):
        manifest, _ = run(tmp_path / "parts", world, num_parts=2)
    assert manifest == load_partition(tmp_path / "parts", 0).manifest
    assert manifest.summary() in caplog.text and str(tmp_path / "parts") in caplog.text
    nodes, edges = manifest.node_types[0], manifest.edge_types[0]
    assert (manifest.num_nodes, manifest.num_edges) == (10, 15)
    assert nodes.balance_ratio == 1.0
    assert edges.balance_ratio == 7.5 / max(manifest.part_num_edges)
    assert edges.remote_bytes_per_edge == edges.edge_cut_ratio * 12
    assert manifest.arguments == {"random_seed": 0} and manifest.strategy == "RandomPartitioner"


def test_progress_is_drawn_only_when_asked_for(world, tmp_path, capfd):
    run(tmp_path / "quiet", world)
    assert capfd.readouterr().err == ""
    RandomPartitioner(tmp_path / "bar", 2, **world.arguments()).partition(progress=True)
    assert "partition" in capfd.readouterr().err


def test_a_partitioner_of_ones_own_overrides_the_assignment_alone(world, tmp_path):
    class ModuloPartitioner(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            return np.arange(num_nodes) % self.num_parts

    manifest = ModuloPartitioner(tmp_path / "parts", 2, **world.arguments()).partition()
    assert manifest.strategy == "ModuloPartitioner" and manifest.arguments == {}
    assert load_partition(tmp_path / "parts", 1).nodes[0].ids.tolist() == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    ("owner", "error", "message"),
    [
        (np.array([0, 1, 2]), ValueError, r"\[2\] = 2: expected partitions 0 to 1"),
        (np.array([0, -1, 1]), ValueError, r"\[1\] = -1: expected"),
        (np.array([0, 1]), ValueError, r" has shape \[2\]: expected one owner per node, \[3\]"),
        (np.array([0.0, 1, 1]), TypeError, " is float64: expected a tensor or array of integers"),
        ([0, 1, 1], TypeError, " is list: expected"),
    ],
)
def test_a_bad_assignment_is_refused_and_leaves_nothing(tmp_path, owner, error, message):
    class Bad(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            return owner

    with pytest.raises(error, match="what Bad.assign_nodes returned" + message):
        Bad(tmp_path / "parts", 2, 3, np.zeros((2, 1), np.int64)).partition()
    assert list(tmp_path.iterdir()) == []


def test_public_names_are_listed_in_order():
    assert sorted(glt.partition.__all__) == glt.partition.__all__
    assert all(hasattr(glt.partition, name) for name in glt.partition.__all__)
