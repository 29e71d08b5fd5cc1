"""Nodes of each label are spread over the partitions, and the manifest says how evenly."""

import hashlib
import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glt.errors import PartitionError
from glt.partition import FennelPartitioner, Manifest, PartitionerBase, RandomPartitioner

NO_EDGES = np.zeros((2, 0), np.int64)


@settings(max_examples=60, deadline=None)
@given(
    num_nodes=st.integers(1, 60),
    num_parts=st.integers(1, 9),
    num_labels=st.integers(1, 6),
    random_seed=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from([torch.bool, torch.int8, torch.int64, torch.uint8]),
    num_tables=st.integers(1, 2),
)
def test_random_spreads_every_label_up_to_one_node(
    tmp_path_factory, num_nodes, num_parts, num_labels, random_seed, dtype, num_tables
):
    generator = torch.Generator().manual_seed(random_seed % 2**63)
    tables = [
        torch.randint(-1 if dtype == torch.int8 else 0, num_labels, (num_nodes,), generator=generator).to(dtype)
        for _ in range(num_tables)
    ]
    partitioner = RandomPartitioner(
        tmp_path_factory.getbasetemp() / "never written",
        num_parts,
        num_nodes,
        NO_EDGES,
        random_seed=random_seed,
        balance_ntypes=tables if num_tables > 1 else tables[0],
    )
    owner = partitioner.assign_nodes(0, num_nodes)
    counts = np.bincount(owner, minlength=num_parts)
    assert counts.max() - counts.min() <= 1
    for combination in set(zip(*(table.tolist() for table in tables), strict=True)):
        has = np.all([table.numpy() == each for table, each in zip(tables, combination, strict=True)], axis=0)
        of_label = np.bincount(owner[has], minlength=num_parts)
        assert of_label.max() - of_label.min() <= 1


def test_balanced_assignment_is_still_random(tmp_path):
    num_nodes = 20_000
    label = np.arange(num_nodes) % 3
    edge_index = np.stack([np.arange(num_nodes), np.roll(np.arange(num_nodes), 1)])
    manifest = RandomPartitioner(tmp_path / "parts", 4, num_nodes, edge_index, balance_ntypes=label).partition()
    # As without labels: 6 standard deviations, P < 2e-9.
    assert abs(manifest.edge_cut_ratio - 0.75) < 6 * np.sqrt(0.75 * 0.25 / num_nodes)


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


def test_without_labels_nothing_is_said_of_them(tmp_path):
    manifest = RandomPartitioner(tmp_path / "parts", 2, 10, NO_EDGES).partition()
    assert manifest.node_types[0].balanced_labels == () and "labels" not in manifest.summary()


def test_a_manifest_with_other_fields_of_labels_is_refused(tmp_path):
    RandomPartitioner(tmp_path / "parts", 2, 10, NO_EDGES, balance_ntypes=np.arange(10) % 2).partition()
    path = tmp_path / "parts/manifest.json"
    document = json.loads(path.read_text())
    document["node_types"][0]["balanced_labels"][0]["colour"] = "red"
    content = {key: value for key, value in document.items() if key != "run_id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    document["run_id"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    path.write_text(json.dumps(document, indent=1) + "\n")
    with pytest.raises(PartitionError, match=r"does not follow version 3 of the format.*colour"):
        Manifest.read(tmp_path / "parts")


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
