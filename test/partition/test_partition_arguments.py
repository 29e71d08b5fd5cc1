"""Arguments of partitioners that do not fit are named."""

import errno
import re
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from partition_world import by_error

from glt.errors import PartitionError
from glt.partition import Manifest, RandomPartitioner, load_partition

EDGES = np.array([[0, 1, 2], [1, 2, 0]])
FIRST = (1 << 20) + 5  # of those that are wrong, in another piece than the first that is looked at
MANY = np.zeros((2, FIRST + 5), np.int32)
LATE = np.where(np.arange(FIRST + 5) < FIRST, 1, -1)


def nested(layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3), torch.ones(1)], layout=layout)


@by_error(
    ("options", "message"),
    {
        ValueError: [
            ({"num_parts": 0}, "num_parts = 0: expected 1 to 65536, the number of partitions"),
            ({"num_nodes": 0}, "num_nodes = 0: expected 1 to"),
            ({"chunk_size": 0}, "chunk_size = 0"),
            ({"random_seed": -1}, "random_seed = -1: expected 0 to"),
            ({"random_seed": 2**64}, "random_seed = 18446744073709551616"),
            ({"edge_assign_strategy": "by_edge"}, "edge_assign_strategy = 'by_edge': expected 'by_src'"),
            ({"edge_assign_strategy": None}, "edge_assign_strategy = None"),
            ({"device": torch.device("cuda", 99)}, r"device = cuda:99: .*torch.device\('cpu'\)"),
            ({"device": 99}, "device = cuda:99"),
            ({"device": "meta"}, "device = meta"),
            ({"device": "toaster"}, "device = 'toaster'"),
            ({"edge_index": EDGES.T}, r"edge_index has shape \[3, 2\]: expected \[2, num_edges\]; pass"),
            ({"hotness": np.full(3, 1e308)}, r"hotness\[0\] = 1e\+308: .*at most 1e\+30"),
            ({"hotness": np.full(3, np.inf, np.float32)}, r"hotness\[0\] = inf: expected finite"),
            ({"edge_index": EDGES[0]}, r"edge_index has shape \[3\]"),
            ({"node_feat": np.zeros((4, 2))}, r"node_feat has shape \[4, 2\]: expected one row per node"),
            ({"node_label": torch.zeros(2)}, r"node_label has shape \[2\]: expected one row per node"),
            ({"edge_feat": np.zeros(())}, r"edge_feat has shape \[\]: expected one row per edge"),
            (
                {"node_feat": torch.zeros(3, 2, 2, 2, 2)},
                r"node_feat has shape \[3, 2, 2, 2, 2\]: expected at most 4 dim",
            ),
            ({"edge_feat": np.zeros((3, 1, 1, 1, 1))}, r"edge_feat has shape \[3, 1, 1, 1, 1\]: expected at"),
            ({"num_threads": 0}, "num_threads = 0: expected 1 to 1024"),
            ({"sort_memory_bytes": 1000}, "sort_memory_bytes = 1000: expected 1048576 to"),
            ({"edge_weight": np.array([1, np.nan, 1])}, r"edge_weight\[1\] = nan"),
            ({"edge_time": np.zeros(3, int), "node_time": np.zeros(3, int)}, "edge_time and node_time are both"),
            ({"edge_index": MANY, "edge_weight": LATE}, rf"edge_weight\[{FIRST}\] = -1.0"),
        ],
        TypeError: [
            ({"num_parts": 2.0}, r"num_parts = 2\.0: expected an integer"),
            ({"num_parts": True}, "num_parts = True: expected an integer"),
            ({"num_nodes": None}, "num_nodes = None"),
            ({"edge_index": EDGES.tolist()}, "edge_index is a list: expected a dense tensor or array"),
            ({"edge_index": EDGES.astype(float)}, "edge_index is a ndarray of float64"),
            ({"edge_index": torch.from_numpy(EDGES).to(torch.int16)}, "edge_index is a Tensor of torch.int16"),
            ({"edge_index": torch.eye(3).to_sparse()}, "edge_index is a Tensor"),
            ({"edge_index": np.ma.masked_array(EDGES, EDGES > 1)}, "edge_index is a MaskedArray"),
            ({"edge_index": EDGES.view(np.matrix)}, "edge_index is a matrix: expected a plain"),
            ({"node_feat": np.ma.masked_array(EDGES.T, False)}, "node_feat is a MaskedArray: .*filled"),
            ({"hotness": np.ma.masked_array(np.ones(3), False)}, "hotness is a MaskedArray: .*filled"),
            ({"edge_index": {}}, "num_nodes = 3: expected a dict by node type, since edge_index is a dict"),
            ({"node_feat": [1, 2, 3]}, "node_feat is a list: expected a torch.Tensor or a numpy.ndarray"),
            ({"node_feat": {"paper": np.zeros(3)}}, "node_feat is a dict by type: expected a single value"),
            ({"node_feat": np.array(["a", "b", "c"])}, "node_feat has dtype .*expected a dtype that torch has"),
            ({"node_feat": np.array([1, None, 3])}, "node_feat has dtype dtype\\('O'\\)"),
            ({"node_feat": np.zeros(3, ">f4")}, "node_feat has dtype .*native byte order"),
            (
                {"node_feat": torch.zeros(3, 2).to(torch.float8_e8m0fnu)},
                "node_feat has dtype torch.float8_e8m0fnu: expected one of bfloat16, bool, ",
            ),
            ({"node_feat": torch.eye(3).to_sparse()}, "node_feat has layout torch.sparse_coo"),
            ({"node_feat": nested(torch.strided)}, "node_feat is a nested tensor: expected a dense one"),
            ({"node_feat": nested(torch.jagged)}, "node_feat is a nested tensor: expected a dense one"),
            ({"num_threads": 1.5}, r"num_threads = 1\.5"),
            ({"edge_weight": {("a", "to", "a"): np.ones(3)}}, "edge_weight is a dict by type: expected a single value"),
            ({"halo": 1}, "RandomPartitioner has no argument halo: expected those of help"),
            ({"node_feats": 1}, "RandomPartitioner has no argument node_feats: did you mean node_feat?"),
            ({"seed": 1}, "RandomPartitioner has no argument seed: did you mean random_seed?"),
        ],
        IndexError: [
            ({"num_nodes": 2}, r"edge_index\[0\]\[2\] = 2 is outside \[0, 2\): pass num_nodes larger"),
            ({"edge_index": np.array([[0, 1], [-1, 7]])}, r"edge_index\[1\]\[0\] = -1 is outside \[0, 3\)"),
            ({"edge_index": MANY + 77 * (LATE < 0)}, rf"edge_index\[0\]\[{FIRST}\] = 77 is outside \[0, 3\)"),
        ],
    },
)
def test_bad_arguments_are_refused_by_name(tmp_path, options, error, message):
    arguments = {"num_parts": 2, "num_nodes": 3, "edge_index": EDGES, **options}
    with pytest.raises(error, match=message):
        RandomPartitioner(tmp_path / "parts", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_cpu_is_accepted_under_each_of_its_names(tmp_path):
    for device in (torch.device("cpu"), "cpu"):
        with pytest.warns(UserWarning, match=r"^device = .*cpu.* has no effect: .*num_threads says") as warned:
            assert RandomPartitioner(tmp_path / "parts", 2, 3, EDGES, device=device).device == torch.device("cpu")
        assert len(warned) == 1 and warned[0].filename == __file__, "the line of the call"


def test_a_target_that_holds_something_is_refused_and_kept(directory, world):
    before = sorted(directory.rglob("*"))
    told = r"output_dir .*parts is not empty \(it holds '.*'\): .*delete it .*overwrite=True"
    with pytest.raises(PartitionError, match=told):
        RandomPartitioner(directory, 2, **world.arguments())
    assert sorted(directory.rglob("*")) == before


def test_partitions_are_replaced_where_that_is_asked_for_once_the_new_ones_are_whole(tmp_path):
    target = tmp_path / "parts"
    first = RandomPartitioner(target, 2, 3, EDGES).partition()
    (target / "graph.json").write_text('{"num_parts": 2}')  # a part_config
    opened = load_partition(target, 0)

    class Failing(RandomPartitioner):
        def assign_nodes(self, node_type, num_nodes):
            assert Manifest.read(target) == first
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        Failing(target, 3, 3, EDGES, overwrite=True).partition()
    assert Manifest.read(target) == first and (target / "graph.json").exists()

    second = RandomPartitioner(target, 3, 3, EDGES, overwrite=True).partition()
    assert Manifest.read(target) == second and second.num_parts == 3
    assert [path.name for path in tmp_path.iterdir()] == ["parts"] and not (target / "graph.json").exists()
    assert opened.manifest == first and len(opened.nodes[0].book.owners()) == 3, "what is open goes on"
    RandomPartitioner(tmp_path / "new", 2, 3, EDGES, overwrite=True).partition()

    with pytest.raises(TypeError, match="overwrite = 1: expected True or False"):
        RandomPartitioner(target, 2, 3, EDGES, overwrite=1)


def test_nothing_but_partitions_is_replaced(tmp_path):
    target = tmp_path / "parts"
    RandomPartitioner(target, 2, 3, EDGES).partition()
    (target / "label.pt").write_text("mine")
    with pytest.raises(PartitionError, match=r"parts holds 'label.pt', which is not glt's: overwrite=True replaces"):
        RandomPartitioner(target, 2, 3, EDGES, overwrite=True)
    (target / "label.pt").unlink()
    for name in ("results.json", "part1/notes.txt", "part1/node_ids/mine/x.json", "plots/a.npy"):
        (target / name).parent.mkdir(exist_ok=True)
        (target / name).write_text('{"accuracy": 1}')
        with pytest.raises(PartitionError, match=f"parts holds '{name}', which is not glt's: overwrite=True replaces"):
            RandomPartitioner(target, 2, 3, EDGES, overwrite=True)
        (target / name).unlink()
    (target / "manifest.json").unlink()
    with pytest.raises(PartitionError, match=r"parts lacks manifest.json: overwrite=True replaces"):
        RandomPartitioner(target, 2, 3, EDGES, overwrite=True)
    assert (target / "part1").is_dir()


def test_old_partitions_come_back_where_the_new_ones_cannot_take_their_place(tmp_path, monkeypatch):
    target, rename = tmp_path / "parts", Path.rename
    first = RandomPartitioner(target, 2, 3, EDGES).partition()

    def fail_once(path, other):
        if ".tmp-" in path.name:
            monkeypatch.setattr(Path, "rename", rename)
            raise OSError(errno.EIO, "broken", str(path))
        return rename(path, other)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(OSError, match="broken"):
        RandomPartitioner(target, 3, 3, EDGES, overwrite=True).partition()
    assert Manifest.read(target) == first and [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_an_empty_target_and_missing_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    RandomPartitioner(tmp_path / "empty", 2, 3, EDGES).partition()
    RandomPartitioner(str(tmp_path / "a" / "b"), 2, 3, EDGES).partition()
    assert (tmp_path / "empty" / "manifest.json").exists() and (tmp_path / "a" / "b" / "manifest.json").exists()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_is_followed(tmp_path, dangling):
    if not dangling:
        (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    RandomPartitioner(tmp_path / "link", 2, 3, EDGES).partition()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "manifest.json").exists()
    assert load_partition(tmp_path / "link", 0).manifest.num_nodes == 3


def test_a_mount_point_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("os.path.ismount", lambda path: path == tmp_path / "volume")  # mounting needs root
    with pytest.raises(PartitionError, match=r"output_dir .*volume is a mount point, .*choose one inside"):
        RandomPartitioner(tmp_path / "volume", 2, 3, EDGES)
    RandomPartitioner(tmp_path / "volume" / "partitions", 2, 3, EDGES).partition()


def test_a_target_filled_while_the_run_lasts_is_refused_and_kept(tmp_path):
    class Meddled(RandomPartitioner):
        def assign_nodes(self, node_type, num_nodes):
            (tmp_path / "parts").mkdir()
            (tmp_path / "parts" / "mine").write_text("mine")
            return super().assign_nodes(node_type, num_nodes)

    with pytest.raises(PartitionError, match="not empty"):
        Meddled(tmp_path / "parts", 2, 3, EDGES).partition()
    assert [path.name for path in tmp_path.rglob("*")] == ["parts", "mine"]


@pytest.mark.parametrize("name", ["node_feat", "edge_index"])
def test_a_run_that_cannot_write_names_the_file_and_leaves_nothing(tmp_path, name):
    arguments = {"num_nodes": 3, "edge_index": EDGES, "node_feat": np.zeros((3, 2))}
    large = {"node_feat": np.zeros((3, 40_000)), "edge_index": np.zeros((2, 40_000), np.int32)}
    partitioner = RandomPartitioner(tmp_path / "parts", 1, **arguments | {name: large[name]})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as info:
            partitioner.partition()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert info.value.filename.endswith({"node_feat": "node_feat/node.npy", "edge_index": "indices.npy"}[name])
    assert list(tmp_path.iterdir()) == []


NODES = {"user": 3, "item": 4}
BUYS, LIKES = ("user", "buys", "item"), ("item", "like", "item")
TYPED_EDGES = {BUYS: np.array([[0, 1, 2], [1, 2, 3]]), LIKES: np.array([[3, 3], [0, 1]])}
WHERE = re.escape(f"[{BUYS!r}]")


@by_error(
    ("options", "message"),
    {
        TypeError: [
            ({"num_nodes": 7}, "num_nodes = 7: expected a dict by node type, since edge_index is a dict"),
            ({"edge_index": TYPED_EDGES[BUYS]}, "edge_index is a ndarray: expected a dict by edge type, since num_nod"),
            ({"num_nodes": {"user": 3.0, "item": 4}}, r"num_nodes\['user'\] = 3.0: expected an integer"),
            ({"num_nodes": {3: 3, "item": 4}}, "node_types holds 3: expected names of node types"),
            ({"edge_index": {"buys": TYPED_EDGES[BUYS]}}, "edge_types holds 'buys': expected .source type, relation"),
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
            ({"edge_index": {("user", "", "item"): TYPED_EDGES[BUYS]}}, "edge type .'user', '', 'item'. has an empty"),
            ({"num_nodes": {**NODES, "ä" * 50: 1}}, "needs a file name of 304 bytes .*expected at most 255"),
            (
                {"edge_index": {("user", "x" * 252, "item"): TYPED_EDGES[BUYS]}},
                "needs a file name of 268 bytes .*shorter name",
            ),
            ({"edge_index": {BUYS: TYPED_EDGES[BUYS].T}}, rf"edge_index{WHERE} has shape \[3, 2\]: expected \[2, num"),
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
        RandomPartitioner(tmp_path / "parts", 2, **{"num_nodes": NODES, "edge_index": TYPED_EDGES, **options})
    assert list(tmp_path.iterdir()) == []


def test_what_a_partitioner_of_ones_own_hands_on_is_refused_too(tmp_path):
    class Mine(RandomPartitioner):
        def __init__(self, *args, weight_scale=1.0, **kwargs):
            super().__init__(*args, weight_scale=weight_scale, **kwargs)

    with pytest.raises(TypeError, match="Mine has no argument weight_scale"):
        Mine(tmp_path / "parts", 2, 4, torch.zeros(2, 0, dtype=torch.int64))
