"""Dicts by type that do not fit, weights and times that cannot be, and damaged files of any type, are named."""

import re
import shutil

import numpy as np
import pytest
import torch
from partition_world import by_error, hetero_world

from glt.errors import PartitionError
from glt.partition import Manifest, RandomPartitioner, load_partition

NODES = {"user": 3, "item": 4}
BUYS, LIKES = ("user", "buys", "item"), ("item", "like", "item")
EDGES = {BUYS: np.array([[0, 1, 2], [1, 2, 3]]), LIKES: np.array([[3, 3], [0, 1]])}
WHERE = re.escape(f"[{BUYS!r}]")


@by_error(
    ("options", "message"),
    {
        TypeError: [
            ({"num_nodes": 7}, "num_nodes = 7: expected a dict by node type, since edge_index is a dict"),
            ({"edge_index": EDGES[BUYS]}, "edge_index is a ndarray: expected a dict by edge type, since num_nod"),
            ({"num_nodes": {"user": 3.0, "item": 4}}, r"num_nodes\['user'\] = 3.0: expected an integer"),
            ({"num_nodes": {3: 3, "item": 4}}, "node_types holds 3: expected names of node types"),
            ({"edge_index": {"buys": EDGES[BUYS]}}, "edge_types holds 'buys': expected .source type, relation"),
            ({"edge_index": {BUYS: None}}, f"edge_index{WHERE} is a NoneType"),
            ({"node_feat": np.zeros(3)}, "node_feat has type ndarray: expected a dict by node type"),
            ({"node_label": {"item": [1]}}, r"node_label\['item'\] is a list"),
            ({"edge_weight": {BUYS: np.ones(3, complex)}}, f"edge_weight{WHERE} has dtype torch.complex128: .*"),
            ({"edge_weight": {BUYS: [1, 2, 3]}}, f"edge_weight{WHERE} is a list: expected a torch.Tensor or"),
            ({"edge_time": {BUYS: np.zeros(3)}}, f"edge_time{WHERE} has dtype torch.float64: expected int"),
            ({"node_time": {"item": None, "user": "now"}}, r"node_time\['user'\] is a str"),
        ],
        ValueError: [
            ({"num_nodes": {}, "edge_index": {}}, "num_nodes = {}: expected the number of nodes of at least"),
            ({"num_nodes": {"user": 3}}, r"edge type .*buys.* ends in node type 'item', which is not among"),
            ({"num_nodes": {"user": -1, "item": 4}}, r"num_nodes\['user'\] = -1: expected 0 to"),
            ({"num_nodes": {**NODES, "": 2}}, "node type '' has an empty name"),
            ({"edge_index": {("user", "", "item"): EDGES[BUYS]}}, "edge type .'user', '', 'item'. has an empty"),
            ({"num_nodes": {**NODES, "ä" * 50: 1}}, "needs a file name of 304 bytes .*expected at most 255"),
            (
                {"edge_index": {("user", "x" * 252, "item"): EDGES[BUYS]}},
                "needs a file name of 268 bytes .*shorter name",
            ),
            ({"edge_index": {BUYS: EDGES[BUYS].T}}, rf"edge_index{WHERE} has shape \[3, 2\]: expected \[2, num"),
            ({"node_feat": {"user": np.zeros(4)}}, r"node_feat\['user'\] has shape \[4\]: expected one row per"),
            ({"edge_feat": {BUYS: np.zeros(2)}}, rf"edge_feat{WHERE} has shape \[2\]"),
            ({"edge_weight": {BUYS: np.zeros(2)}}, rf"edge_weight{WHERE} has shape \[2\]: expected one row per"),
            ({"edge_weight": {BUYS: np.zeros((3, 2))}}, rf"edge_weight{WHERE} has .* expected one number per"),
            (
                {"edge_weight": {BUYS: np.array([1, 2**53 + 2, 1])}},
                rf"edge_weight{WHERE}\[1\] = {2**53 + 2}: expected weights that a double holds",
            ),
            ({"edge_weight": {BUYS: np.array([1, 1, -1])}}, rf"edge_weight{WHERE}\[2\] = -1.0"),
            ({"edge_weight": {BUYS: np.array([1, -2.0, 1])}}, rf"edge_weight{WHERE}\[1\] = -2.0: expected fin"),
            ({"edge_weight": {BUYS: torch.tensor([0, 1, torch.nan])}}, rf"edge_weight{WHERE}\[2\] = nan"),
            ({"edge_weight": {BUYS: np.array([np.inf, 1, 1])}}, rf"edge_weight{WHERE}\[0\] = inf"),
            ({"edge_time": {BUYS: np.zeros(4, int)}}, rf"edge_time{WHERE} has shape \[4\]: expected one row per"),
            ({"node_time": {"item": torch.zeros(3).long()}}, r"node_time\['item'\] has shape \[3\]: expected on"),
            (
                {"edge_time": {LIKES: np.zeros(2, int)}, "node_time": {"user": np.zeros(3, int)}},
                "edge_time and node_time are both given: expected one of them",
            ),
        ],
        IndexError: [
            (
                {"num_nodes": {"user": 3, "item": 3}},
                rf"edge_index{WHERE}\[1\]\[2\] = 3 is outside \[0, 3\): pass num_nodes\['item'\] larger than every id",
            )
        ],
        KeyError: [
            ({"node_feat": {"users": np.zeros(3)}}, "node_feat names node type 'users': expected one of"),
            ({"edge_feat": {("user", "x", "item"): np.zeros(3)}}, "edge_feat names edge type .*expected one of"),
            ({"edge_weight": {"user": np.zeros(3)}}, "edge_weight names edge type 'user'"),
        ],
    },
)
def test_bad_arguments_are_refused_by_name_and_type(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        RandomPartitioner(tmp_path / "parts", 2, **{"num_nodes": NODES, "edge_index": EDGES, **options})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"edge_weight": np.array([1, np.nan, 1])}, ValueError, r"edge_weight\[1\] = nan"),
        ({"edge_weight": {BUYS: np.ones(3)}}, TypeError, "edge_weight is a dict by type: expected a single value"),
        (
            {"edge_time": np.zeros(3, int), "node_time": np.zeros(4, int)},
            ValueError,
            "edge_time and node_time are both",
        ),
    ],
)
def test_a_homogeneous_graph_is_spoken_of_without_types(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        RandomPartitioner(tmp_path / "parts", 2, 4, EDGES[BUYS], **options)


def test_the_first_of_many_bad_weights_is_named(tmp_path):
    weight = np.ones((1 << 20) + 10)
    weight[-4:] = -1
    with pytest.raises(ValueError, match=rf"edge_weight\[{(1 << 20) + 6}\] = -1.0"):
        RandomPartitioner(tmp_path / "parts", 2, 1, np.zeros((2, weight.size), np.int64), edge_weight=weight)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("hetero") / "parts"
    RandomPartitioner(root, 2, **hetero_world("node")).partition()
    return root


def test_the_list_of_files_is_whole(whole):
    on_disk = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    assert on_disk == {*Manifest.read(whole).files, "manifest.json"}
    # Five types of nodes: book, row, ids; features of two, labels of two, times of two. Six types of edges: three
    # arrays each, two more with weights (two of them), three more with times (four); features (two);
    # book, row (four); seven named tables.
    assert sum(not path.startswith("part1") for path in on_disk) == 15 + 6 + 18 + 4 + 12 + 2 + 8 + 7 + 1
    assert "part0/graph/paper__in__gr%C3%B6%C3%9Fe%5F%5Fx/by_time/time.npy" in on_disk


def test_any_file_of_any_type_that_is_missing_truncated_or_altered_is_named(whole, tmp_path):
    root = tmp_path / "parts"
    shutil.copytree(whole, root)
    for name in Manifest.read(whole).files:
        if name.startswith("part1"):
            continue
        path, data = root / name, (whole / name).read_bytes()
        path.unlink()
        with pytest.raises(PartitionError, match=re.escape(f"{path} is missing")):
            load_partition(root, 0, verify=False)
        path.write_bytes(data[:-1])
        with pytest.raises(PartitionError, match=re.escape(f"{path} has {len(data) - 1} bytes")):
            load_partition(root, 0, verify=False)
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(PartitionError, match=re.escape(f"{path} was altered or comes from another run")):
            load_partition(root, 0)
        path.write_bytes(data)
    load_partition(root, 0)


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch):
    from glt.partition.format.files import NpyWriter

    close, calls = NpyWriter.close, []

    def full(self):
        calls.append(self)
        if len(calls) == 20:
            raise OSError(28, "No space left on device")
        return close(self)

    monkeypatch.setattr(NpyWriter, "close", full)
    with pytest.raises(OSError, match="No space left"):
        RandomPartitioner(tmp_path / "parts", 2, **hetero_world()).partition()
    assert list(tmp_path.iterdir()) == []
