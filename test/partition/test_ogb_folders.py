"""Whatever layout OGB left a dataset in, the partition directory is that of its arrays: one run id."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from input_world import assert_same, run_id

from glt.partition import read_graph

pytest.importorskip("pyarrow")


def csv_gz(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        csv.writer(file).writerows(np.asarray(rows).tolist() if isinstance(rows, np.ndarray) else rows)


def mask(num_nodes: int, ids: Any) -> np.ndarray:
    found = np.zeros(num_nodes, bool)
    found[ids] = True
    return found


SPLIT = {"train": [3, 1], "valid": [0], "test": [2, 4, 5]}
MASKS = {f"{'val' if name == 'valid' else name}_mask": mask(6, ids) for name, ids in SPLIT.items()}


def test_a_folder_of_ogb_in_csv(tmp_path):
    root = tmp_path / "ogbn_products"  # one of those whose edges are followed by their reverses
    edges = np.array([[0, 1], [1, 2], [4, 4]])
    feat = np.random.default_rng(0).random((6, 2)).astype(np.float32)
    csv_gz(root / "raw/edge.csv.gz", edges)
    csv_gz(root / "raw/num-node-list.csv.gz", [[6]])
    csv_gz(root / "raw/num-edge-list.csv.gz", [[3]])
    csv_gz(root / "raw/node-feat.csv.gz", [[repr(float(v)) for v in row] for row in feat])
    csv_gz(root / "raw/node-label.csv.gz", np.arange(6)[:, None])
    csv_gz(root / "raw/node_year.csv.gz", np.arange(2000, 2006)[:, None])
    csv_gz(root / "raw/edge_kind.csv.gz", [[7], [8], [9]])
    for name, ids in SPLIT.items():
        csv_gz(root / f"split/sales_ranking/{name}.csv.gz", np.array(ids)[:, None])
    wanted = {
        "num_nodes": 6,
        "edge_index": np.array([[0, 1, 1, 2, 4, 4], [1, 0, 2, 1, 4, 4]]),
        "node_feat": feat,
        "node_label": np.arange(6)[:, None],
        "node_attrs": {"node_year": np.arange(2000, 2006)[:, None], **MASKS},
        "edge_attrs": {"edge_kind": np.array([7, 7, 8, 8, 9, 9])[:, None]},
    }
    assert_same(tmp_path, root, wanted)
    once = read_graph(root, tmp_path, add_inverse_edge=False)
    np.testing.assert_array_equal(once["edge_index"], edges.T)
    root.rename(tmp_path / "mine")
    with pytest.raises(ValueError, match="state add_inverse_edge"):
        read_graph(tmp_path / "mine", tmp_path)


def test_a_folder_of_ogb_in_npz(tmp_path):
    raw = tmp_path / "ogbn_papers100M/raw"
    raw.mkdir(parents=True)
    edges = np.array([[0, 1, 5], [1, 2, 0]])
    feat = np.random.default_rng(0).random((6, 2)).astype(np.float16)
    np.savez_compressed(
        raw / "data.npz",
        edge_index=np.asfortranarray(edges),
        node_feat=feat,
        node_year=np.arange(6)[:, None],
        num_nodes_list=np.array([6]),
        num_edges_list=np.array([3]),
    )
    label = np.array([[0], [np.nan], [2], [1], [1], [0]], np.float32)
    np.savez(raw / "node-label.npz", node_label=label)
    for name, ids in SPLIT.items():
        csv_gz(tmp_path / f"ogbn_papers100M/split/time/{name}.csv.gz", np.array(ids)[:, None])
    wanted = {"num_nodes": 6, "edge_index": edges, "node_feat": feat, "node_label": label}
    wanted["node_attrs"] = {"node_year": np.arange(6)[:, None], **MASKS}
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
    csv_gz(root / "raw/node-feat/paper/node_year.csv.gz", np.arange(6)[:, None])
    csv_gz(root / "raw/node-label/paper/node-label.csv.gz", np.arange(6)[:, None])
    for name, ids in SPLIT.items():
        csv_gz(root / f"split/time/paper/{name}.csv.gz", np.array(ids)[:, None])
    edges_of = {("author", "writes", "paper"): writes.T, ("paper", "cites", "paper"): cites.T}
    wanted = {
        "num_nodes": {"author": 3, "paper": 6},
        "edge_index": edges_of,
        "node_feat": {"paper": feat.astype(np.float32)},
        "node_label": {"paper": np.arange(6)[:, None]},
        "node_attrs": {"paper": {"node_year": np.arange(6)[:, None], **MASKS}},
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
    np.savez(binary / "node_year_dict.npz", paper=np.arange(6)[:, None])
    np.savez(binary / "node-label.npz", paper=np.arange(6)[:, None])
    (root / "split").rename(tmp_path / "ogbn_binary/split")
    assert run_id(tmp_path / "out/b", read_graph(binary.parent, tmp_path)) == run_id(tmp_path / "out/w", wanted)
