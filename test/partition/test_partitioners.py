"""Partitioners by ids: random, assigned, balanced."""

import logging

import numpy as np
import pytest
import torch
from distributed_run import files_under
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_world import assert_union_is_the_input, hetero_world, load_all

import glt.partition
from glt import _deadlines as deadlines
from glt.partition import (
    AssignedPartitioner,
    FennelPartitioner,
    Manifest,
    PartitionerBase,
    RandomPartitioner,
    load_partition,
)


def run(root, world, num_parts=3, **options):
    manifest = RandomPartitioner(root, num_parts, **world.arguments(), **options).partition()
    return manifest, files_under(root)


@pytest.mark.parametrize("options", [{}, {"balance_ntypes": np.arange(40_000) % 3}])
def test_assignment_is_random_not_by_range_or_stride(tmp_path, options):
    num_nodes, num_parts = 40_000, 4
    edge_index = np.stack([np.arange(num_nodes), np.roll(np.arange(num_nodes), 1)])
    manifest = RandomPartitioner(tmp_path / "parts", num_parts, num_nodes, edge_index, **options).partition()
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
    assert nodes.balanced_labels == () and "labels" not in manifest.summary()
    assert manifest.forecast is nodes.forecast is None  # without hotness


def test_progress_is_drawn_only_when_asked_for(world, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(deadlines, "SHOWN_S", 0.0)
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


def test_public_names_are_listed_in_order():
    assert sorted(glt.partition.__all__) == glt.partition.__all__
    assert all(hasattr(glt.partition, name) for name in glt.partition.__all__)


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
    ("owners", "error", "message"),
    [
        ([0, 1, 1], TypeError, "is list: expected a tensor or array of integers"),
        (np.zeros(3), TypeError, "is float64: expected a tensor or array of integers"),
        (np.zeros(2, int), ValueError, r"has shape \[2\]: expected one owner per node, \[3\]"),
        (np.arange(3), ValueError, r"\[2\] = 2: expected partitions 0 to 1 \(num_parts = 2\)"),
        (-np.arange(3), ValueError, r"\[1\] = -1: expected partitions 0 to 1"),
    ],
)
def test_owners_that_do_not_fit_are_refused_and_leave_nothing(tmp_path, owners, error, message):
    class Bad(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            return owners

    graph = (tmp_path / "parts", 2, 3, np.zeros((2, 1), np.int64))
    with pytest.raises(error, match="what Bad.assign_nodes returned ?" + message):
        Bad(*graph).partition()
    with pytest.raises(error, match="owners ?" + message):
        AssignedPartitioner(*graph, owners=owners)
    assert list(tmp_path.iterdir()) == []


def test_owners_of_a_type_are_named(tmp_path):
    world = hetero_world()
    owners = {name: np.zeros(count, int) for name, count in world["num_nodes"].items() if name != "author"}
    with pytest.raises(TypeError, match="owners is a dict by type"):
        AssignedPartitioner(tmp_path / "parts", 2, 3, NO_EDGES, owners=owners)
    with pytest.raises(TypeError, match=r"owners\['author'\] is NoneType"):
        AssignedPartitioner(tmp_path / "parts", 2, **world, owners=owners)
    with pytest.raises(KeyError, match="nobody"):
        AssignedPartitioner(tmp_path / "parts", 2, **world, owners=owners | {"nobody": np.zeros(1, int)})


NO_EDGES = np.zeros((2, 0), np.int64)


@settings(max_examples=60, deadline=None)
@given(
    num_nodes=st.integers(1, 60),
    num_parts=st.integers(1, 9),
    num_labels=st.integers(1, 6),
    random_seed=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.bool, torch.int8, torch.int64, torch.uint8]),
    num_tables=st.integers(0, 2),
)
def test_random_spreads_every_label_up_to_one_node(
    tmp_path_factory, num_nodes, num_parts, num_labels, random_seed, dtype, num_tables
):
    generator = torch.Generator().manual_seed(random_seed % 2**63)
    tables = [
        torch.randint(-1 if dtype == torch.int8 else 0, num_labels, (num_nodes,), generator=generator).to(dtype)
        for _ in range(num_tables)
    ]
    given = {"random_seed": random_seed, "balance_ntypes": tables[0] if num_tables == 1 else tables or None}
    target = tmp_path_factory.getbasetemp() / "never written"
    partitioner = RandomPartitioner(target, num_parts, num_nodes, NO_EDGES, **given)
    owner = partitioner.assign_nodes(0, num_nodes)
    counts = np.bincount(owner, minlength=num_parts)
    assert counts.max() - counts.min() <= 1
    for combination in set(zip(*(table.tolist() for table in tables), strict=True)):
        has = np.all([table.numpy() == each for table, each in zip(tables, combination, strict=True)], axis=0)
        of_label = np.bincount(owner[has], minlength=num_parts)
        assert of_label.max() - of_label.min() <= 1


@pytest.mark.parametrize("partitioner", [RandomPartitioner, FennelPartitioner])
def test_what_was_achieved_is_stored_reported_and_right(tmp_path, partitioner, caplog):
    generator = np.random.default_rng(0)
    counts = {"paper": 100, "author": 37, "ghost": 0}
    edge_index = {("author", "writes", "paper"): generator.integers(0, [[37], [100]], (2, 300))}
    year, train = generator.integers(2000, 2003, 100), torch.arange(100) < 30
    with caplog.at_level(logging.INFO, "glt.partition"):
        manifest = partitioner(
            tmp_path / "parts", 3, counts, edge_index, balance_ntypes={"paper": [year, train]}
        ).partition()
    assert manifest == Manifest.read(tmp_path / "parts")
    paper, author, ghost = manifest.node_types
    book = np.load(tmp_path / "parts/node_book/paper.npy")
    assert [entry.label for entry in paper.balanced_labels] == [(y, t) for y in (2000, 2001, 2002) for t in (0, 1)]
    for entry in paper.balanced_labels:
        has = (year == entry.label[0]) & (train.numpy() == entry.label[1])
        assert entry.part_num_nodes == tuple(np.bincount(book[has], minlength=3))
        assert entry.num_nodes == has.sum()
        assert entry.balance_ratio == pytest.approx(has.sum() / 3 / max(entry.part_num_nodes))
        assert max(entry.part_num_nodes) <= max(-(-has.sum() // 3), has.sum() * 1.05 / 3)
    # Types are told apart, whether labelled or not.
    assert [(entry.label, entry.part_num_nodes) for entry in author.balanced_labels] == [((), author.part_num_nodes)]
    assert ghost.balanced_labels == ()
    least = min(entry.balance_ratio for entry in (*paper.balanced_labels, *author.balanced_labels))
    assert f"of 7 labels {least:.3f} and of edges" in manifest.summary() and manifest.summary() in caplog.text


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (np.zeros(9, np.int64), ValueError, r"balance_ntypes has shape \[9\]: expected one row per node"),
        (np.zeros(10), TypeError, r"balance_ntypes has dtype float64 and shape \[10\]: expected one integer or bool"),
        (torch.zeros(10, dtype=torch.bfloat16), TypeError, r"balance_ntypes has dtype bfloat16"),
        (np.zeros((10, 2), np.int64), TypeError, r"several tables of labels are a list"),
        ([np.zeros(10, np.int64), np.zeros(10)], TypeError, r"balance_ntypes\[1\] has dtype float64"),
        ({"node": np.zeros(10, np.int64)}, TypeError, r"balance_ntypes is a dict by type"),
        ("label", TypeError, r"balance_ntypes is a str"),
    ],
)
def test_unusable_labels_are_refused(tmp_path, labels, error, message):
    with pytest.raises(error, match=message):
        RandomPartitioner(tmp_path / "parts", 2, 10, NO_EDGES, balance_ntypes=labels)


def test_too_many_labels_are_refused(tmp_path):
    num_nodes = 2**16 + 1
    with pytest.raises(ValueError, match="balance_ntypes has more than 65536 labels"):
        RandomPartitioner(tmp_path / "parts", 2, num_nodes, NO_EDGES, balance_ntypes=np.arange(num_nodes))


def test_a_partitioner_that_does_not_balance_refuses_to_be_asked(tmp_path):
    class Even(PartitionerBase):
        def assign_nodes(self, node_type, num_nodes):
            return np.arange(num_nodes) % self.num_parts

    with pytest.raises(ValueError, match="balance_ntypes is given, but Even does not balance by it"):
        Even(tmp_path / "parts", 2, 10, NO_EDGES, balance_ntypes=True)
    with pytest.raises(ValueError, match="balance_edges is given, but RandomPartitioner does not balance by it"):
        RandomPartitioner(tmp_path / "parts", 2, 10, NO_EDGES, balance_edges=True)
    with pytest.raises(TypeError, match="balance_edges = 1: expected True or False"):
        RandomPartitioner(tmp_path / "parts", 2, 10, NO_EDGES, balance_edges=1)
