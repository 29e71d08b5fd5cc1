"""Readers of graphs."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from glt.data import Dataset
from glt.data.synthetic import synthetic_graph
from glt.data.tasks import HeteroNodeTask, read_hetero_npz, read_links_npz, read_npz, read_ogb, read_pyg, with_reverses

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is absent")


def path_graph():
    """Four nodes in a row, two classes, as the arrays of the plain layout."""
    return {
        "edge_index": np.array([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]], np.int32),
        "x": np.array([[0, 0, 1], [2, 0, 0], [0, 0, 0], [3, 4, 0]], np.float32),
        "y": np.array([0, 1, 0, 1], np.int32),
        "train_idx": np.array([0, 1], np.int32),
        "val_idx": np.array([2], np.int32),
        "test_idx": np.array([3], np.int32),
    }


def write(tmp_path, arrays):
    path = tmp_path / "path.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_npz_with_dense_features(tmp_path):
    arrays = path_graph()
    task = read_npz(write(tmp_path, arrays))
    assert (task.name, task.num_nodes, task.num_edges, task.num_features, task.num_classes) == ("path", 4, 6, 3, 2)
    for field in ("edge_index", "y", "train_idx", "val_idx", "test_idx"):
        assert getattr(task, field).dtype == torch.int64
        assert getattr(task, field).tolist() == arrays[field].tolist()
    assert task.x.tolist() == arrays["x"].tolist() and task.x.dtype == torch.float32


def test_npz_with_sparse_features_and_another_split(tmp_path):
    arrays = path_graph()
    dense = arrays.pop("x")
    arrays |= {
        "x_indptr": np.array([0, 1, 2, 2, 5]),
        "x_indices": np.array([2, 0, 0, 1, 0]),
        "x_data": np.array([1.0, 2, 1, 4, 2]),  # the last row lists column 0 twice: the values add up
        "x_shape": np.array([4, 3]),
        **{f"split20_{name}_idx": np.array([ids]) for name, ids in (("train", 3), ("val", 1), ("test", 0))},
    }
    task = read_npz(write(tmp_path, arrays), split="split20")
    assert task.x.tolist() == dense.tolist()
    assert (task.train_idx.tolist(), task.val_idx.tolist(), task.test_idx.tolist()) == ([3], [1], [0])


@pytest.mark.parametrize("key", ["edge_index", "x", "y", "train_idx", "val_idx", "test_idx"])
def test_a_missing_array_is_named_with_its_file(tmp_path, key):
    arrays = path_graph()
    del arrays[key]
    with pytest.raises(ValueError, match=rf"path\.npz: it has no array '{key}'; it has \["):
        read_npz(write(tmp_path, arrays))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("edge_index", np.array([[0], [4]]), r"edge_index\[1\] holds 4 at position 0, expected ids in \[0, 4\)"),
        ("edge_index", np.array([0, 1]), r"edge_index has shape \[2\]"),
        ("x", np.zeros((3, 2), np.float32), r"x has 3 rows, expected one per node \(4\)"),
        ("train_idx", np.array([0, -1]), r"train_idx holds -1 at position 1"),
        ("y", np.array([0, -1, 0, 1]), r"y\[train_idx\] holds -1 at position 1"),
        ("y", np.array(["a"], object), r"array 'y' cannot be read: Object arrays"),
    ],
)
def test_wrong_contents_are_named_with_their_file(tmp_path, key, value, message):
    with pytest.raises(ValueError, match=rf"path\.npz: .*{message}"):
        read_npz(write(tmp_path, path_graph() | {key: value}))


def test_sparse_features_that_do_not_fit_together(tmp_path):
    arrays = path_graph()
    del arrays["x"]
    sparse = {"x_indptr": np.array([0, 1, 1, 1, 1]), "x_data": np.ones(1), "x_shape": np.array([4, 3])}
    with pytest.raises(ValueError, match="do not describe a CSR matrix"):
        read_npz(write(tmp_path, arrays | sparse | {"x_indices": np.array([0, 1])}))
    with pytest.raises(ValueError, match=r"x_indices spans \[3, 3\], x_shape has 3 columns"):
        read_npz(write(tmp_path, arrays | sparse | {"x_indices": np.array([3])}))


def test_missing_foreign_and_damaged_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz does not exist"):
        read_npz(tmp_path / "nowhere.npz")
    (tmp_path / "text.npz").write_text("edges")
    with pytest.raises(ValueError, match=r"text\.npz: it is not a readable \.npz file"):
        read_npz(tmp_path / "text.npz")
    path = write(tmp_path, path_graph() | {"x": np.random.default_rng(0).random((4, 500))})
    content = bytearray(path.read_bytes())
    at = content.index(b"x.npy") + 2_000
    content[at : at + 50] = bytes(50)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"path\.npz: array 'x' cannot be read"):
        read_npz(path)


def test_pyg_data_round_trip():
    task = synthetic_graph(100, num_classes=3)
    back = read_pyg(task.to_pyg(), name="synthetic")
    assert torch.equal(back.edge_index, task.edge_index) and torch.equal(back.x, task.x) and torch.equal(back.y, task.y)
    assert torch.equal(back.val_idx, task.val_idx.sort().values)
    assert (back.name, back.num_nodes, back.num_classes) == ("synthetic", 100, 3)


def test_pyg_data_that_is_no_task():
    data = synthetic_graph(100, num_classes=3).to_pyg()
    several = data.clone()
    several.val_mask = torch.zeros(100, 10, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"data\.val_mask is torch.bool of shape \[100, 10\]"):
        read_pyg(several)
    multilabel = data.clone()
    multilabel.y = torch.zeros(100, 4)
    with pytest.raises(ValueError, match=r"data\.y is torch.float32 of shape \[100, 4\]"):
        read_pyg(multilabel)
    del data.train_mask
    with pytest.raises(ValueError, match=r"data\.train_mask is missing"):
        read_pyg(data)


def test_unknown_classes_are_allowed_where_nothing_reads_them():
    task = synthetic_graph(100, num_classes=3)
    y = task.y.clone()
    y[task.train_idx[0]] = -1
    with pytest.raises(ValueError, match=r"y\[train_idx\] holds -1 at position 0"):
        replace(task, y=y)
    replace(task, y=y, train_idx=task.train_idx[1:])


@pytest.fixture
def fake_ogb(monkeypatch):
    """A module with the face of ogb.nodeproppred, checked by hand against ogb 1.3.6."""

    class NodePropPredDataset:
        labels = np.array([[0.0], [np.nan], [1.0]])

        def __init__(self, name, root):
            if name != "ogbn-toy":
                raise OSError("<urlopen error [Errno -2] Name or service not known>")
            assert os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] == "1", "ogb could not read its own cache"

        def get_idx_split(self):
            return {"train": np.array([0]), "valid": np.array([2]), "test": np.array([], np.int64)}

        def __getitem__(self, index):
            graph = {"edge_index": np.array([[0, 1], [1, 2]]), "node_feat": np.ones((3, 2), np.float32), "num_nodes": 3}
            return graph, self.labels

    module = ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = NodePropPredDataset
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    return NodePropPredDataset


def test_ogb(fake_ogb, tmp_path):
    task = read_ogb("ogbn-toy", tmp_path)
    assert task.edge_index.tolist() == [[0, 1], [1, 2]]
    assert task.y.tolist() == [0, -1, 1] and task.num_classes == 2
    assert (task.train_idx.tolist(), task.val_idx.tolist(), task.test_idx.tolist()) == ([0], [2], [])
    assert read_ogb("ogbn-toy", tmp_path, undirected=True).edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" not in os.environ


def test_ogb_without_network_package_or_a_fitting_task(fake_ogb, tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"ogbn-other is not in .* and could not be downloaded"):
        read_ogb("ogbn-other", tmp_path)
    monkeypatch.setattr(fake_ogb, "labels", np.zeros((3, 112)))
    with pytest.raises(ValueError, match=r"ogbn-toy is not a single-label task .* labels of shape \[3, 112\]"):
        read_ogb("ogbn-toy", tmp_path)
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(ImportError, match=r"pip install ogb"):
        read_ogb("ogbn-toy", tmp_path)


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "num_features", "num_classes"),
    [
        ("cora", 2_708, 10_556, 1_433, 7),
        ("amazon_computers", 13_752, 491_722, 767, 10),
        ("tolokers", 11_758, 1_038_000, 10, 2),
    ],
)
def test_real_graphs_have_their_published_sizes(name, num_nodes, num_edges, num_features, num_classes):
    task = read_npz(SHARED / f"{name}.npz")
    assert (task.num_nodes, task.num_edges) == (num_nodes, num_edges)
    assert (task.num_features, task.num_classes) == (num_features, num_classes)


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
        ({"val_idx": np.array([4])}, r"val_idx holds 4 at position 0, expected ids in \[0, 4\)"),
        ({"meta": meta(num_nodes=4)}, r"edge_index of .*\[1\] holds 4 at position 2"),
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
