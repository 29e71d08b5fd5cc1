"""Whatever a graph comes from, the partition directory is the same, byte for byte: one run id."""

import csv
import gzip
import importlib.util
import itertools
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from covering import covering
from input_world import CITES, WRITES, assert_same, plain, typed
from partition_world import load_all
from torch_geometric.data import Data, HeteroData

from glt.cli import main
from glt.partition import FennelPartitioner, RandomPartitioner, graph_arguments, read_graph
from glt.partition.inputs.arrays import blank
from glt.partition.inputs.tables import EdgeTable, Field, TableFiles

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def node_columns(arguments):
    feat = arguments["node_feat"]
    return {
        "id": np.arange(len(feat)),
        **{f"f{i}": feat[:, i] for i in range(feat.shape[1])},
        "y": arguments["node_label"],
        **arguments["node_attrs"],
    }


def edge_columns(arguments):
    src, dst = arguments["edge_index"]
    feat = arguments["edge_feat"]
    columns = {"from": src, "to": dst, "g0": feat[:, 0], "g1": feat[:, 1]}
    return columns | {"w": arguments["edge_weight"], "t": arguments["edge_time"], **arguments["edge_attrs"]}


NODES = {"feat": {"columns": ["f0", "f1", "f2"], "dtype": "float32"}, "label": "y", "attrs": ["train_mask", "year"]}
EDGES = {"src": "from", "dst": "to", "feat": ["g0", "g1"], "weight": "w", "time": "t", "attrs": ["kind"]}


def write(path, columns, header=True, delimiter=","):
    """A Parquet or CSV file, by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
        return
    opened = gzip.open(path, "wt", newline="") if path.suffix == ".gz" else open(path, "w", newline="")
    with opened as file:
        writer = csv.writer(file, delimiter=delimiter)
        if header:
            writer.writerow(columns)
        as_text = [[str(v).lower() if isinstance(v, np.bool_) else repr(v.item()) for v in c] for c in columns.values()]
        writer.writerows(zip(*as_text, strict=True))


def pieces(columns, bounds):
    return [{k: v[a:b] for k, v in columns.items()} for a, b in itertools.pairwise(bounds)]


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz", ".tsv"])
def test_tables_of_a_graph_without_types(tmp_path, suffix):
    arguments = plain()
    delimiter = "\t" if suffix == ".tsv" else ","
    write(tmp_path / f"in/nodes{suffix}", node_columns(arguments), delimiter=delimiter)
    for at, piece in enumerate(pieces(edge_columns(arguments), [0, 150, 150, 399, 400])):
        if len(piece["to"]) or suffix == ".parquet":  # text of no row has no types
            write(tmp_path / f"in/edges/below/part-{at}{suffix}", piece, delimiter=delimiter)
    (tmp_path / "in/edges/_SUCCESS").touch()
    nodes = {"files": str(tmp_path / f"in/nodes{suffix}"), **NODES}
    got = assert_same(tmp_path, tmp_path / "in/edges", arguments, nodes=nodes, edges=EDGES)
    assert all(isinstance(got[name], np.memmap) for name in ("edge_index", "node_feat", "edge_weight"))
    # The same by a pattern, from a description of which all paths are relative.
    document = {"nodes": nodes | {"files": f"nodes{suffix}"}, "edges": EDGES | {"files": [f"edges/*/*{suffix}"]}}
    (tmp_path / "in/graph.json").write_text(json.dumps(document))
    assert_same(tmp_path, tmp_path / "in/graph.json", arguments)


def test_rows_of_nodes_may_come_in_any_order_of_ids_and_as_lists(tmp_path):
    arguments = plain()
    order = np.random.default_rng(2).permutation(50)
    columns = {name: values[order] for name, values in node_columns(arguments).items()}
    feat = pa.array([row.tolist() for row in arguments["node_feat"][order]], pa.list_(pa.float32()))
    pq.write_table(pa.table({**{k: pa.array(v) for k, v in columns.items()}, "x": feat}), tmp_path / "n.parquet")
    write(tmp_path / "e.parquet", edge_columns(arguments))
    nodes = NODES | {"files": str(tmp_path / "n.parquet"), "id": "id", "feat": "x"}
    assert_same(tmp_path, tmp_path / "e.parquet", arguments, nodes=nodes, edges=EDGES)


def test_a_table_of_edges_alone_has_as_many_nodes_as_ids_need(tmp_path):
    edges = np.array([[0, 6, 2], [1, 1, 3]])
    write(tmp_path / "e.csv", {"f0": edges[0], "f1": edges[1]}, header=False)
    wanted = {"num_nodes": 7, "edge_index": edges}
    assert_same(tmp_path, tmp_path / "e.csv", wanted, edges={"src": "f0", "dst": "f1", "header": False})
    more = read_graph(
        tmp_path / "e.csv", tmp_path, nodes={"num_nodes": 9}, edges={"src": "f0", "dst": "f1", "header": False}
    )
    assert more["num_nodes"] == 9


DESCRIPTION = """
[node_types.paper]
files = "papers"
feat = ["x0", "x1"]
label = "field"
time = "year"
[node_types."au/thor"]
files = "authors.csv"
attrs = { train_mask = "split" }
[node_types.ghost]
num_nodes = 0
[[edge_types]]
type = ["paper", "cites", "paper"]
edge_index = { npy = "cites.npy" }
attrs = { "p/os" = { npy = "pos.npy" } }
[[edge_types]]
type = ["au/thor", "writes__it", "paper"]
files = "writes.parquet"
src = "a"
dst = "p"
weight = "w"
"""


def test_a_description_of_types(tmp_path):
    tomllib = pytest.importorskip("tomllib")
    arguments = typed()
    paper = {"x0": arguments["node_feat"]["paper"][:, 0], "x1": arguments["node_feat"]["paper"][:, 1]}
    paper |= {"field": arguments["node_label"]["paper"], "year": arguments["node_time"]["paper"]}
    for at, piece in enumerate(pieces(paper, [0, 11, 30])):
        write(tmp_path / f"papers/{at}.parquet", piece)
    write(tmp_path / "authors.csv", {"split": arguments["node_attrs"]["au/thor"]["train_mask"]})
    np.save(tmp_path / "cites.npy", arguments["edge_index"][CITES])
    np.save(tmp_path / "pos.npy", arguments["edge_attrs"][CITES]["p/os"])
    src, dst = arguments["edge_index"][WRITES]
    write(tmp_path / "writes.parquet", {"a": src, "p": dst, "w": arguments["edge_weight"][WRITES]})
    (tmp_path / "graph.toml").write_text(DESCRIPTION)
    (tmp_path / "graph.json").write_text(json.dumps(tomllib.loads(DESCRIPTION)))
    for name in ("graph.toml", "graph.json"):
        assert_same(tmp_path, tmp_path / name, arguments)


def save_all(root, named):
    for name, array in named.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / name, array)


def test_a_directory_of_arrays(tmp_path):
    arguments = plain()
    attrs = {f"node_attr/{name}": table for name, table in arguments["node_attrs"].items()}
    attrs["edge_attr/kind"] = arguments["edge_attrs"]["kind"]
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    save_all(tmp_path / "in", arrays | attrs)
    got = assert_same(tmp_path, tmp_path / "in", arguments)
    assert isinstance(got["node_feat"], np.memmap)


def test_a_directory_of_arrays_of_types(tmp_path):
    arguments = typed()
    names = {CITES: "paper__cites__paper", WRITES: "au%2Fthor__writes%5F%5Fit__paper"}
    save_all(
        tmp_path / "in",
        {
            **{f"edge_index/{names[t]}": ends for t, ends in arguments["edge_index"].items()},
            "node_feat/paper": arguments["node_feat"]["paper"],
            "node_label/paper": arguments["node_label"]["paper"],
            "node_time/paper": arguments["node_time"]["paper"],
            f"edge_weight/{names[WRITES]}": arguments["edge_weight"][WRITES],
            "node_attr/au%2Fthor/train_mask": arguments["node_attrs"]["au/thor"]["train_mask"],
            f"edge_attr/{names[CITES]}/p%2Fos": arguments["edge_attrs"][CITES]["p/os"],
        },
    )
    document = {"num_nodes": arguments["num_nodes"], "edge_types": [list(CITES), list(WRITES)]}
    (tmp_path / "in/graph.json").write_text(json.dumps(document))
    assert_same(tmp_path, tmp_path / "in", arguments)


def test_saved_graphs_of_pyg(tmp_path):
    arguments = plain()
    tables = {name: torch.from_numpy(arguments[name]) for name in ("edge_index", "node_feat", "node_label")}
    data = Data(x=tables["node_feat"], edge_index=tables["edge_index"], y=tables["node_label"])
    for name, table in (arguments["node_attrs"] | arguments["edge_attrs"]).items():
        data[name] = torch.from_numpy(table)
    data.weight = torch.from_numpy(arguments["edge_weight"])
    torch.save(data, tmp_path / "data.pt")
    wanted = graph_arguments(data, weight_attr="weight")
    assert_same(tmp_path, tmp_path / "data.pt", wanted, weight_attr="weight")
    hetero = HeteroData()
    hetero["a"].x = torch.ones(4, 2)
    hetero["a", "to", "a"].edge_index = torch.tensor([[0, 1], [2, 3]])
    torch.save(hetero, tmp_path / "hetero.pt")
    assert_same(tmp_path, tmp_path / "hetero.pt", graph_arguments(hetero))


def shapes(arguments):
    if isinstance(arguments, dict):
        return {name: shapes(value) for name, value in arguments.items()}
    return (arguments.dtype, arguments.shape) if isinstance(arguments, np.ndarray) else arguments


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    root = tmp_path_factory.mktemp("tables")
    arguments = plain(3000, 70_000)  # more rows than a record batch has
    for name, columns in (("nodes", node_columns(arguments)), ("edges", edge_columns(arguments))):
        write(root / f"{name}.parquet", columns)
        write(root / f"{name}.csv", columns)
        (root / f"{name}.csv.gz").write_bytes(gzip.compress((root / f"{name}.csv").read_bytes(), 1))
    return root


def describe(root, kind, typed, counted):
    nodes = {"files": f"nodes.{kind}", "id": "id", **NODES} if counted else {}
    edges = {"files": f"edges.{kind}", **EDGES}
    document = {"nodes": nodes, "edges": edges}
    if typed:
        document = {
            "node_types": {"a": nodes, "b": {"num_nodes": 3000}},
            "edge_types": [{"type": ["a", "to", "b"], **edges}, {"type": ["b", "to", "b"], **edges}],
        }
    path = root / f"{kind}{typed}{counted}.json"
    path.write_text(json.dumps(document))
    return path


@covering(typed=[False, True], counted=[False, True], kind=["parquet", "csv", "csv.gz"])
def test_an_outline_has_the_shapes_dtypes_and_forecast_of_the_graph(tables, tmp_path, kind, counted, typed):
    source = describe(tables, kind, typed, counted)
    whole, outline = (read_graph(source, tmp_path, outline=only) for only in (False, True))
    assert shapes(dict(outline)) == shapes(dict(whole))
    for partitioner in (RandomPartitioner, FennelPartitioner):
        made = [partitioner(tmp_path / "parts", 4, **graph) for graph in (whole, outline)]
        assert made[0].forecast() == made[1].forecast()
    tables_of = [outline["edge_feat"], outline["edge_weight"], outline["edge_time"], outline["edge_attrs"]]
    if not typed:  # what was not read is zero
        assert not any(np.any(t) for t in tables_of[:3])


def test_values_of_tables_are_not_read(tables, tmp_path, capsys, monkeypatch):
    read = []
    batches = TableFiles.batches

    def counted(self, *given):
        for path, first, batch in batches(self, *given):
            read.append(batch.num_rows)
            yield path, first, batch

    monkeypatch.setattr(TableFiles, "batches", counted)
    flags = ["--nodes", str(tables / "nodes.parquet"), "--src", "from", "--dst", "to", "--edge-feat", "g0,g1"]
    command = ["partition", str(tables / "edges.parquet"), "--out", str(tmp_path / "parts"), "--num-parts", "2", *flags]
    assert main([*command, "--dry-run"]) == 0
    assert sum(read) == 3000 + (1 << 16) and list(tmp_path.iterdir()) == []
    forecast = capsys.readouterr().out
    assert forecast.startswith("forecast: 3000 nodes and 70000 edges")
    read.clear()
    assert main([*command, "--node-label", "y", "--balance", "label", "--dry-run"]) == 0  # whose values it needs
    assert sum(read) >= 70_000


def test_the_largest_id_is_that_of_the_statistics_or_else_read(tmp_path):
    ids = {"src": np.array([3, 9, 4]), "dst": np.array([0, 1, 70])}
    columns = {name: pa.array(values) for name, values in ids.items()}
    fields = {name: Field(name, (name,)) for name in ids}
    for name, told in (("told", True), ("untold", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path, write_statistics=told, row_group_size=2)
        files = TableFiles((path,))
        assert [files.largest(end) for end in ids] == ([9, 70] if told else [None, None])
        found = EdgeTable("edges", files, fields).read(tmp_path, outline=True)
        assert found["edge_index"].max(1).tolist() == [9, 70] and found["edge_index"].shape == (2, 3)
        assert (found["edge_index"][:, -1].tolist() == [4, 70]) != told
    pq.write_table(pa.table(columns).slice(0, 0), path)
    assert TableFiles((path,)).largest("src") == -1
    write(tmp_path / "e.csv", ids)
    assert TableFiles((tmp_path / "e.csv",)).largest("src") is None


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("in_npy", [("src",), ("dst",), ("src", "dst")])
def test_an_outline_of_ends_in_npy_files_has_their_largest_ids(tmp_path, in_npy, kind):
    ids = {"src": np.array([3, 9, 4]), "dst": np.array([1, 0, 70])}
    write(tmp_path / f"e.{kind}", ids)
    files = None if len(in_npy) == 2 else TableFiles((tmp_path / f"e.{kind}",))
    for name in in_npy:
        np.save(tmp_path / f"{name}.npy", ids[name])
    fields = {
        name: Field(name, path=tmp_path / f"{name}.npy") if name in in_npy else Field(name, (name,)) for name in ids
    }
    for outline in (True, False):
        found = EdgeTable("edges", files, fields).read(tmp_path, outline=outline)["edge_index"]
        assert found.max(1).tolist() == [9, 70] and found.shape == (2, 3)


def test_rows_of_text_are_counted_also_where_values_have_line_breaks(tmp_path):
    rows = '\n0,1,"a\nb"\r\n\n1,2,\n2,0,c'
    (tmp_path / "a.csv").write_text("src,dst,note" + rows)
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(rows.strip().encode()))
    assert TableFiles((tmp_path / "a.csv",)).num_rows() == 3
    assert TableFiles((tmp_path / "b.csv.gz",), header=False).num_rows() == 3


def test_damaged_files_are_named(tmp_path):
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"src,dst\n" + b"1,2\n" * 99_999)[:-20])
    for name in ("e.parquet", "e.csv.gz"):
        for outline in (True, False):
            with pytest.raises(ValueError, match=f"{name} cannot be read"):
                read_graph(tmp_path / name, tmp_path, outline=outline)


def test_zeros_of_any_size_take_no_memory():
    zeros = blank(np.dtype(np.int64), (1 << 34, 2))  # 256 GiB
    assert zeros.shape == (1 << 34, 2) and zeros.flags.c_contiguous and not zeros[:: 1 << 30].any()
    assert blank(np.dtype(np.float32), (0, 3)).shape == (0, 3)


def test_tables_that_this_process_may_not_open_are_not_damaged(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\n1,2\n")
    pq.write_table(pa.table({"src": [1], "dst": [2]}), tmp_path / "e.parquet")
    (tmp_path / "e.csv.gz").write_bytes(gzip.compress(b"1,2\n"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    found = {}
    for name in ("e.csv", "e.csv.gz", "e.parquet"):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
            TableFiles((tmp_path / name,)).num_rows()
        except Exception as error:
            found[name] = error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for name in ("e.csv", "e.csv.gz", "e.parquet"):
        assert isinstance(found[name], OSError) and "ulimit -n" in str(found[name]), found[name]


def csv_gz(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows(np.asarray(rows).tolist() if isinstance(rows, np.ndarray) else rows)


SPLIT = {"train": [3, 1], "valid": [0], "test": [2, 4, 5]}
MASKS = {f"{name.replace('valid', 'val')}_mask": np.isin(np.arange(6), ids) for name, ids in SPLIT.items()}
COLUMN = np.arange(6)[:, None]


def write_split(folder):
    for name, ids in SPLIT.items():
        csv_gz(folder / f"{name}.csv.gz", np.array(ids)[:, None])


def test_a_folder_of_ogb_in_csv(tmp_path):
    root = tmp_path / "ogbn_products"  # one of those whose edges are followed by their reverses
    edges = np.array([[0, 1], [1, 2], [4, 4]])
    feat = np.random.default_rng(0).random((6, 2)).astype(np.float32)
    csv_gz(root / "raw/edge.csv.gz", edges)
    csv_gz(root / "raw/num-node-list.csv.gz", [[6]])
    csv_gz(root / "raw/num-edge-list.csv.gz", [[3]])
    csv_gz(root / "raw/node-feat.csv.gz", [[repr(float(v)) for v in row] for row in feat])
    csv_gz(root / "raw/node-label.csv.gz", COLUMN)
    csv_gz(root / "raw/node_year.csv.gz", 2000 + COLUMN)
    csv_gz(root / "raw/edge_kind.csv.gz", [[7], [8], [9]])
    write_split(root / "split/sales_ranking")
    wanted = {
        "num_nodes": 6,
        "edge_index": np.array([[0, 1, 1, 2, 4, 4], [1, 0, 2, 1, 4, 4]]),
        "node_feat": feat,
        "node_label": COLUMN,
        "node_attrs": {"node_year": 2000 + COLUMN, **MASKS},
        "edge_attrs": {"edge_kind": np.array([7, 7, 8, 8, 9, 9])[:, None]},
    }
    assert_same(tmp_path, root, wanted)
    once = read_graph(root, tmp_path, add_inverse_edge=False)
    np.testing.assert_array_equal(once["edge_index"], edges.T)
    root.rename(tmp_path / "mine")
    with pytest.raises(ValueError, match="state add_inverse_edge"):
        read_graph(tmp_path / "mine", tmp_path)


# What docs/moving/glt.md says of the package ogb, and the first lines of GLT's tutorial.
WITH_OGB = """
import os
import pickle
import sys

import torch
from ogb.nodeproppred import PygNodePropPredDataset

root = sys.argv[1]
try:
    PygNodePropPredDataset("ogbn-products", root)
except pickle.UnpicklingError as error:
    print("refused:", "weights_only" in str(error))
os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
dataset = PygNodePropPredDataset("ogbn-products", root)
data, split = dataset[0], dataset.get_idx_split()

import glt
from glt.data.tasks import read_ogb
from glt.partition import RandomPartitioner, graph_arguments, read_graph

task = read_ogb("ogbn-products", root)
assert torch.equal(task.edge_index, data.edge_index) and torch.equal(task.x, data.x)
assert torch.equal(task.y, data.y.squeeze())
assert torch.equal(task.train_idx, split["train"]) and torch.equal(task.val_idx, split["valid"])
read = read_graph(os.path.join(root, "ogbn_products"), root)
assert torch.equal(torch.as_tensor(read["edge_index"]), data.edge_index)
assert torch.equal(torch.as_tensor(read["node_feat"]), data.x)
assert torch.equal(torch.as_tensor(read["node_label"]), data.y)
RandomPartitioner(os.path.join(root, "parts"), 2, **graph_arguments(data)).partition()
print("read:", data.num_nodes, data.num_edges)
"""


@pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="needs ogb: pip install ogb")
def test_the_package_ogb_reads_the_same(tmp_path):
    root = tmp_path / "ogbn_products"
    csv_gz(root / "raw/edge.csv.gz", np.array([[0, 1], [1, 2], [4, 5]]))
    csv_gz(root / "raw/num-node-list.csv.gz", [[6]])
    csv_gz(root / "raw/num-edge-list.csv.gz", [[3]])
    csv_gz(root / "raw/node-feat.csv.gz", np.random.default_rng(0).integers(0, 8, (6, 2)) / 8)
    csv_gz(root / "raw/node-label.csv.gz", COLUMN)
    write_split(root / "split/sales_ranking")
    (root / "RELEASE_v1.txt").touch()
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", WITH_OGB, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "refused: True" in done.stdout and "read: 6 6" in done.stdout
    assert len(load_all(tmp_path / "parts")) == 2


def test_a_folder_of_ogb_in_npz(tmp_path):
    raw = tmp_path / "ogbn_papers100M/raw"
    raw.mkdir(parents=True)
    edges = np.array([[0, 1, 5], [1, 2, 0]])
    feat = np.random.default_rng(0).random((6, 2)).astype(np.float16)
    counts = {"num_nodes_list": np.array([6]), "num_edges_list": np.array([3])}
    tables = {"edge_index": np.asfortranarray(edges), "node_feat": feat, "node_year": COLUMN}
    np.savez_compressed(raw / "data.npz", **tables, **counts)
    label = np.array([[0], [np.nan], [2], [1], [1], [0]], np.float32)
    np.savez(raw / "node-label.npz", node_label=label)
    write_split(tmp_path / "ogbn_papers100M/split/time")
    wanted = {"num_nodes": 6, "edge_index": edges, "node_feat": feat, "node_label": label}
    wanted["node_attrs"] = {"node_year": COLUMN, **MASKS}
    assert_same(tmp_path, tmp_path / "ogbn_papers100M", wanted)


def test_a_folder_of_ogb_of_types(tmp_path):
    root = tmp_path / "ogbn_mag"
    csv_gz(root / "raw/num-node-dict.csv.gz", [["paper", "author"], [6, 3]])
    csv_gz(root / "raw/triplet-type-list.csv.gz", [["paper", "cites", "paper"], ["author", "writes", "paper"]])
    cites, writes = np.array([[0, 1], [5, 4]]), np.array([[2, 0], [0, 3], [1, 1]])
    for triplet, edges in (("paper___cites___paper", cites), ("author___writes___paper", writes)):
        csv_gz(root / f"raw/relations/{triplet}/edge.csv.gz", edges)
        csv_gz(root / f"raw/relations/{triplet}/num-edge-list.csv.gz", [[len(edges)]])
        csv_gz(root / f"raw/relations/{triplet}/edge_reltype.csv.gz", np.ones((len(edges), 1), int))
    feat = np.arange(6.0)[:, None] + 0.25
    csv_gz(root / "raw/node-feat/paper/node-feat.csv.gz", feat)
    csv_gz(root / "raw/node-feat/paper/node_year.csv.gz", COLUMN)
    csv_gz(root / "raw/node-label/paper/node-label.csv.gz", COLUMN)
    write_split(root / "split/time/paper")
    edges_of = {("author", "writes", "paper"): writes.T, ("paper", "cites", "paper"): cites.T}
    wanted = {
        "num_nodes": {"author": 3, "paper": 6},
        "edge_index": edges_of,
        "node_feat": {"paper": feat.astype(np.float32)},
        "node_label": {"paper": COLUMN},
        "node_attrs": {"paper": {"node_year": COLUMN, **MASKS}},
        "edge_attrs": {t: {"edge_reltype": np.ones((e.shape[1], 1), int)} for t, e in edges_of.items()},
    }
    assert_same(tmp_path, root, wanted)
    binary = tmp_path / "ogbn_binary/raw"
    binary.mkdir(parents=True)
    np.savez(binary / "num_nodes_dict.npz", author=np.array([3]), paper=np.array([6]))
    joined = {"___".join(t): e for t, e in edges_of.items()}
    np.savez(binary / "edge_index_dict.npz", **joined)
    np.savez(binary / "num_edges_dict.npz", **{t: np.array([e.shape[1]]) for t, e in joined.items()})
    np.savez(binary / "edge_reltype_dict.npz", **{t: np.ones((e.shape[1], 1), int) for t, e in joined.items()})
    np.savez(binary / "node_feat_dict.npz", paper=feat.astype(np.float32))
    np.savez(binary / "node_year_dict.npz", paper=COLUMN)
    np.savez(binary / "node-label.npz", paper=COLUMN)
    (root / "split").rename(tmp_path / "ogbn_binary/split")
    assert_same(tmp_path, binary.parent, wanted)
