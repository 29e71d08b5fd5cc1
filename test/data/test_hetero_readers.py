"""Tasks of several types and on links: from files, to PyG."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glt.data import Dataset
from glt.data.tasks import HeteroNodeTask, read_hetero_npz, read_links_npz, with_reverses

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")
WRITES = ("author", "writes", "paper")
REV_WRITES = ("paper", "rev_writes", "author")


def meta(**about):
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def hetero_arrays():
    return {
        "meta": meta(node_types={"paper": {"num_nodes": 3}, "author": {"num_nodes": 2}}),
        "author__writes__paper/edge_index": np.array([[0, 1, 1], [0, 1, 2]], np.int32),
        "paper/y": np.array([1, 0, 1], np.int32),
        "paper/train_idx": np.array([0], np.int32),
        "paper/val_idx": np.array([1], np.int32),
        "paper/test_idx": np.array([2], np.int32),
        "paper/split20_train_idx": np.array([2], np.int32),
        "paper/split20_val_idx": np.array([1], np.int32),
        "paper/split20_test_idx": np.array([0], np.int32),
        "author/x_indptr": np.array([0, 1, 2], np.int32),
        "author/x_indices": np.array([1, 0], np.int32),
        "author/x_data": np.array([5.0, 7.0], np.float32),
        "author/x_shape": np.array([2, 2], np.int32),
    }


def link_arrays():
    return {
        "meta": meta(num_nodes=5),
        "edge_index": np.array([[0, 1, 2, 3], [1, 2, 3, 4]], np.int32),
        "edge_type": np.array([1, 0, 1, 1], np.int32),
        "edge_time": np.array([10, 20, 30, 40]),
        "train_idx": np.array([0, 1], np.int32),
        "val_idx": np.array([2], np.int32),
        "test_idx": np.array([3], np.int32),
    }


def saved(path, arrays):
    np.savez(path, **arrays)
    return path


def test_a_heterogeneous_task_with_reverses(tmp_path):
    path = saved(tmp_path / "toy.npz", hetero_arrays())
    task = read_hetero_npz(path)
    assert (task.name, task.target, task.num_classes) == ("toy", "paper", 2)
    assert task.num_nodes == {"paper": 3, "author": 2} and list(task.edge_index) == [WRITES, REV_WRITES]
    assert task.edge_index[REV_WRITES].tolist() == [[0, 1, 2], [0, 1, 1]]
    assert task.x["author"].tolist() == [[0, 5], [7, 0]] and "paper" not in task.x
    assert task.num_edges == 6
    assert read_hetero_npz(path, "split20").train_idx.tolist() == [2]
    assert list(read_hetero_npz(path, reverse=False).edge_index) == [WRITES]
    data = task.to_pyg()
    assert data["paper"].train_mask.tolist() == [True, False, False] and data["paper"].num_nodes == 3
    dataset = Dataset.from_pyg(data)
    assert dataset.schema == task.schema and dataset.num_nodes == task.num_nodes


def test_a_damaged_heterogeneous_file_is_named(tmp_path):
    for changes, message in [
        ({"paper/y": None}, r"has y for \[\], expected it for one node type"),
        ({"paper/val_idx": None}, "no array 'paper/val_idx'"),
        ({"meta": np.frombuffer(b"{", np.uint8)}, "array 'meta' is no JSON in bytes"),
        ({"meta": np.frombuffer(b"3", np.uint8)}, "array 'meta' holds 3: expected a JSON object"),
        ({"writes/edge_index": np.zeros((2, 0), np.int32)}, "'writes/edge_index' is not named SRC__REL__DST"),
        ({"paper/test_idx": np.array([3])}, r"test_idx holds 3 at position 0, expected ids in \[0, 3\)"),
        ({"author__writes__paper/edge_index": np.array([[0, 2], [0, 0]])}, r"\[0\] holds 2 at position 1"),
        ({"paper/y": np.array([0, 1])}, r"y of paper has 2 rows, expected one per node \(3\)"),
    ]:
        arrays = {name: array for name, array in (hetero_arrays() | changes).items() if array is not None}
        with pytest.raises(ValueError, match=f"read_hetero_npz: .*toy.npz.*{message}"):
            read_hetero_npz(saved(tmp_path / "toy.npz", arrays))
    with pytest.raises(FileNotFoundError, match=r"read_hetero_npz: .*none.npz does not exist"):
        read_hetero_npz(tmp_path / "none.npz")


def test_typed_links_are_grouped_and_their_sets_follow(tmp_path):
    task = read_links_npz(saved(tmp_path / "links.npz", link_arrays()), relations=["asks", "answers"], node_type="user")
    asks, answers = task.schema.edge_types
    assert answers == ("user", "answers", "user") and task.num_nodes == {"user": 5} and task.num_edges == 4
    assert task.edge_index[answers].tolist() == [[0, 2, 3], [1, 3, 4]]
    assert task.links("train")[answers].tolist() == [[0], [1]] and task.links("train")[asks].tolist() == [[1], [2]]
    assert task.links("test")[answers].tolist() == [[3], [4]] and task.links("val")[asks].numel() == 0
    data = task.to_pyg()
    assert len(data.edge_types) == 4 and data[answers].edge_index.tolist() == [[0], [1]]
    assert data["user", "rev_answers", "user"].edge_index.tolist() == [[1], [0]]
    assert data[answers].time.tolist() == [10] and data["user"].num_nodes == 5
    assert task.to_pyg("all")["user", "rev_answers", "user"].time.tolist() == [10, 30, 40]


def test_untyped_links_make_a_homogeneous_task(tmp_path):
    task = read_links_npz(saved(tmp_path / "links.npz", link_arrays()), typed=False)
    data = task.to_pyg()
    assert not task.schema.is_hetero and data.num_nodes == 5
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 2, 0, 1]] and data.edge_time.tolist() == [10, 20, 10, 20]
    assert task.to_pyg("all").edge_index.size(1) == 8
    no_times = {name: array for name, array in link_arrays().items() if name != "edge_time"}
    with pytest.raises(ValueError, match="edges = 'all' would show what is to be predicted"):
        read_links_npz(saved(tmp_path / "links.npz", no_times)).to_pyg("all")


def test_a_damaged_file_of_links_is_named(tmp_path):
    for changes, message in [
        ({"edge_type": np.array([0, 2, 0, 0])}, r"edge_type has 4 elements up to 2, expected one in \[0, 2\)"),
        ({"val_idx": np.array([4])}, r"val_idx holds ids outside \[0, 4\)"),
        ({"meta": meta(num_nodes=4)}, r"edge_index\[1\] of .* holds 4 at position 2"),
        ({"edge_time": np.array([1, 2])}, ""),
    ]:
        path = saved(tmp_path / "links.npz", link_arrays() | changes)
        with pytest.raises(ValueError, match=f"read_links_npz: .*links.npz: .*{message}"):
            read_links_npz(path, relations=["asks", "answers"])


def test_tasks_check_themselves():
    edges = {WRITES: torch.tensor([[0], [0]])}
    none = torch.empty(0, dtype=torch.int64)
    with pytest.raises(KeyError, match="'venue' is not in the graph"):
        HeteroNodeTask("t", {"author": 1, "paper": 1}, edges, {}, "venue", none, none, none, none, 0)
    with pytest.raises(ValueError, match=r"'rev_writes'.* is there already"):
        with_reverses(edges | {REV_WRITES: torch.tensor([[0], [0]])})


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    ("name", "target", "num_nodes", "num_edges", "num_classes", "no_features"),
    [("acm_hetero", "paper", 11_246, 17_426, 3, {"subject"}), ("dblp_hetero", "author", 26_128, 119_783, 4, {"conf"})],
)
def test_real_heterogeneous_graphs(name, target, num_nodes, num_edges, num_classes, no_features):
    task = read_hetero_npz(SHARED / f"{name}.npz")
    assert (task.target, task.num_classes) == (target, num_classes)
    assert (sum(task.num_nodes.values()), task.num_edges) == (num_nodes, 2 * num_edges)
    assert set(task.num_nodes) - set(task.x) == no_features
    dataset = Dataset.from_pyg(task.to_pyg())
    assert [g.num_edges for g in dataset.graphs] == [e.size(1) for e in task.edge_index.values()]


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "num_relations", "sizes"),
    [
        ("wn18rr", 40_943, 93_003, 11, (86_835, 3_034, 3_134)),
        ("mathoverflow", 24_818, 506_550, 3, (354_585, 75_982, 75_983)),
    ],
)
def test_real_links(name, num_nodes, num_edges, num_relations, sizes):
    task = read_links_npz(SHARED / f"{name}.npz")
    assert task.num_nodes == {"node": num_nodes} and task.num_edges == num_edges
    assert len(task.schema.edge_types) == num_relations
    found = tuple(sum(e.size(1) for e in task.links(split).values()) for split in ("train", "val", "test"))
    assert found == sizes
    assert len(task.to_pyg().edge_types) == 2 * num_relations
    assert bool(task.edge_time) == (name == "mathoverflow")
    assert read_links_npz(SHARED / f"{name}.npz", typed=False).num_edges == num_edges
