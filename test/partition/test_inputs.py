"""Whatever a graph comes from, the partition directory is the same, byte for byte: one run id."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from input_world import CITES, WRITES, assert_same, plain, run_id, typed
from torch_geometric.data import Data, HeteroData

from glt.partition import graph_arguments, read_graph

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def node_columns(arguments: dict[str, Any]) -> dict[str, Any]:
    feat = arguments["node_feat"]
    return {
        "id": np.arange(len(feat)),
        **{f"f{i}": feat[:, i] for i in range(feat.shape[1])},
        "y": arguments["node_label"],
        **arguments["node_attrs"],
    }


def edge_columns(arguments: dict[str, Any]) -> dict[str, Any]:
    src, dst = arguments["edge_index"]
    feat = arguments["edge_feat"]
    columns = {"from": src, "to": dst, "g0": feat[:, 0], "g1": feat[:, 1]}
    return columns | {"w": arguments["edge_weight"], "t": arguments["edge_time"], **arguments["edge_attrs"]}


NODES = {"feat": {"columns": ["f0", "f1", "f2"], "dtype": "float32"}, "label": "y", "attrs": ["train_mask", "year"]}
EDGES = {"src": "from", "dst": "to", "feat": ["g0", "g1"], "weight": "w", "time": "t", "attrs": ["kind"]}


def write(path: Path, columns: dict[str, Any], header: bool = True, delimiter: str = ",") -> None:
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


def pieces(columns: dict[str, Any], bounds: list[int]) -> list[dict[str, Any]]:
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
    assert run_id(tmp_path / "out/described", read_graph(tmp_path / "in/graph.json", tmp_path)) == run_id(
        tmp_path / "out/again", arguments
    )


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


@pytest.mark.parametrize("kind", ["json", "toml"])
def test_a_description_of_types(tmp_path, kind):
    if kind == "toml":
        pytest.importorskip("tomllib")
    arguments = typed()
    paper = {"x0": arguments["node_feat"]["paper"][:, 0], "x1": arguments["node_feat"]["paper"][:, 1]}
    paper |= {"field": arguments["node_label"]["paper"], "year": arguments["node_time"]["paper"]}
    write(tmp_path / "papers/0.parquet", {k: v[:11] for k, v in paper.items()})
    write(tmp_path / "papers/1.parquet", {k: v[11:] for k, v in paper.items()})
    write(tmp_path / "authors.csv", {"split": arguments["node_attrs"]["au/thor"]["train_mask"]})
    np.save(tmp_path / "cites.npy", arguments["edge_index"][CITES])
    np.save(tmp_path / "pos.npy", arguments["edge_attrs"][CITES]["p/os"])
    src, dst = arguments["edge_index"][WRITES]
    write(tmp_path / "writes.parquet", {"a": src, "p": dst, "w": arguments["edge_weight"][WRITES]})
    if kind == "json":
        document = {
            "node_types": {
                "paper": {"files": "papers", "feat": ["x0", "x1"], "label": "field", "time": "year"},
                "au/thor": {"files": "authors.csv", "attrs": {"train_mask": "split"}},
                "ghost": {"num_nodes": 0},
            },
            "edge_types": [
                {"type": list(CITES), "edge_index": {"npy": "cites.npy"}, "attrs": {"p/os": {"npy": "pos.npy"}}},
                {"type": list(WRITES), "files": "writes.parquet", "src": "a", "dst": "p", "weight": "w"},
            ],
        }
        text = json.dumps(document)
    else:
        text = """
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
    (tmp_path / f"graph.{kind}").write_text(text)
    assert_same(tmp_path, tmp_path / f"graph.{kind}", arguments)


def save_all(root: Path, named: dict[str, Any]) -> None:
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
    out = tmp_path / "hetero"
    assert run_id(out / "1", read_graph(tmp_path / "hetero.pt", tmp_path)) == run_id(out / "2", graph_arguments(hetero))
