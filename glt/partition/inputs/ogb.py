"""OGB's folders, as the package ``ogb`` leaves them: ``<root>/raw`` and ``<root>/split``. The package is not needed.

Four layouts are known, of node and link datasets: CSV and binary (``.npz``) files of homogeneous and of heterogeneous
graphs, as ``ogb.io.read_graph_raw`` reads them. Features, labels and what OGB calls additional files (``node_year``,
``edge_reltype``, ...) come with OGB's dtypes and shapes, the latter as attributes under their names; the split of the
nodes as ``train_mask``, ``val_mask`` and ``test_mask``. Splits of links stay behind, being pickles.
"""

from __future__ import annotations

import csv
import gzip
import logging
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.partition.format.files import chunks
from glt.partition.graph_input import arguments_by_type
from glt.partition.inputs.arrays import CHUNK_BYTES, ScratchRows, npz_members, pair
from glt.partition.inputs.tables import Field, TableFiles, read_fields

logger = logging.getLogger(__name__)

_NODE: Final = HOMOGENEOUS.node_types[0]
_EDGE: Final = HOMOGENEOUS.edge_types[0]

# OGB's own lists (ogb/*propred/master.csv): graphs that are stored without the reverses of their edges, and others.
_INVERSE: Final = dict.fromkeys(("ogbn_proteins", "ogbn_products", "ogbl_ppa", "ogbl_collab", "ogbl_ddi"), True)
_INVERSE.update(dict.fromkeys(("ogbn_arxiv", "ogbn_mag", "ogbn_papers100M", "ogbl_citation2", "ogbl_wikikg2"), False))
_INVERSE.update(dict.fromkeys(("ogbl_biokg", "ogbl_vessel"), False))
_CSV, _HETERO_CSV = "edge.csv.gz", "triplet-type-list.csv.gz"
_BINARY, _HETERO_BINARY = "data.npz", "edge_index_dict.npz"

# The arguments of a partitioner, by type of nodes and by type of edges.
_Found = tuple[dict[str, dict[str, Any]], dict[EdgeType, dict[str, Any]]]


def is_ogb_folder(root: Path) -> bool:
    """Tells whether ``root/raw`` has one of the four layouts."""
    return any((root / "raw" / name).is_file() for name in (_CSV, _HETERO_CSV, _BINARY, _HETERO_BINARY))


def read_ogb_folder(root: Path, scratch: Path, add_inverse_edge: bool | None = None) -> dict[str, Any]:
    """Returns the keyword arguments of a partitioner for the OGB dataset in the folder ``root``, such as
    ``dataset/ogbn_products``; nameless files in ``scratch`` hold what is read.

    ``add_inverse_edge`` says whether edges are followed by their reverses. Default: as OGB does with the dataset that
    the folder is named after; a ValueError where its name does not tell. ImportError if CSV needs pyarrow.
    """
    raw = root / "raw"
    is_csv = (raw / _CSV).is_file() or (raw / _HETERO_CSV).is_file()
    name = root.resolve().name
    if add_inverse_edge is None:
        if is_csv and name not in _INVERSE:
            raise ValueError(
                f"{root} is not named after a dataset of OGB, {', '.join(_INVERSE)}: state add_inverse_edge, whether "
                "edges are to be followed by their reverses"
            )
        add_inverse_edge = is_csv and _INVERSE[name]
    is_hetero = not ((raw / _CSV).is_file() or (raw / _BINARY).is_file())
    read = {(True, False): _csv, (True, True): _hetero_csv, (False, False): _binary, (False, True): _hetero_binary}
    nodes, edges = read[is_csv, is_hetero](raw, scratch)
    for node_type, tables in nodes.items():
        masks = _split_masks(root / "split", node_type if is_hetero else "", tables["num_nodes"])
        tables["node_attrs"] = {**tables.get("node_attrs", {}), **masks} or None
        if "node_label" in tables:
            tables["node_label"] = _labels(tables["node_label"])
    if add_inverse_edge:
        edges = {edge_type: _with_inverse(tables, scratch) for edge_type, tables in edges.items()}
    schema = Schema(tuple(nodes), tuple(edges)) if is_hetero else HOMOGENEOUS
    return arguments_by_type(schema, list(nodes.values()), list(edges.values()))


def _csv(raw: Path, scratch: Path) -> _Found:
    (count,) = _one_graph(raw / "num-node-list.csv.gz", [row[0] for row in _rows(raw / "num-node-list.csv.gz")])
    nodes, edges = _tables(raw, scratch)
    return {_NODE: {"num_nodes": int(count), **nodes}}, {_EDGE: {"edge_index": _edge_index(raw, scratch), **edges}}


def _hetero_csv(raw: Path, scratch: Path) -> _Found:
    types, *counts = _rows(raw / "num-node-dict.csv.gz")
    (per_type,) = _one_graph(raw / "num-node-dict.csv.gz", counts)
    nodes, edges = {}, {}
    for node_type, count in sorted(zip(types, per_type, strict=True)):
        tables, _ = _tables(raw / "node-feat" / node_type, scratch)
        labels, _ = _tables(raw / "node-label" / node_type, scratch)
        nodes[node_type] = {"num_nodes": int(count), **tables}
        if "node_label" in labels:
            nodes[node_type]["node_label"] = labels["node_label"]
    for triplet in sorted(tuple(row) for row in _rows(raw / _HETERO_CSV)):
        src, relation, dst = triplet
        below = raw / "relations" / "___".join(triplet)
        _, tables = _tables(below, scratch)
        edges[src, relation, dst] = {"edge_index": _edge_index(below, scratch), **tables}
    return nodes, edges


def _binary(raw: Path, scratch: Path) -> _Found:
    arrays = npz_members(raw / _BINARY, scratch)
    (count,) = _one_graph(raw / _BINARY, arrays.pop("num_nodes_list").tolist())
    arrays.pop("num_edges_list")
    nodes: dict[str, Any] = {"num_nodes": int(count)}
    edges: dict[str, Any] = {"edge_index": _contiguous(arrays.pop("edge_index"), scratch)}
    for name, array in arrays.items():
        _put(raw / _BINARY, name, array, nodes if name.startswith("node_") else edges)
    if (raw / "node-label.npz").is_file():
        nodes["node_label"] = npz_members(raw / "node-label.npz", scratch)["node_label"]
    return {_NODE: nodes}, {_EDGE: edges}


def _hetero_binary(raw: Path, scratch: Path) -> _Found:
    counts = npz_members(raw / "num_nodes_dict.npz", scratch)
    nodes: dict[str, Any] = {}
    for node_type in sorted(counts):
        (count,) = _one_graph(raw / "num_nodes_dict.npz", counts[node_type].tolist())
        nodes[node_type] = {"num_nodes": int(count)}
    ends = npz_members(raw / _HETERO_BINARY, scratch)
    edges: dict[EdgeType, Any] = {
        _triplet(key): {"edge_index": _contiguous(ends[key], scratch)} for key in sorted(ends, key=_triplet)
    }
    for path in sorted(raw.glob("*.npz")):
        name = path.stem.removesuffix("_dict")
        if path.name in ("num_nodes_dict.npz", "num_edges_dict.npz", _HETERO_BINARY):
            continue
        for key, array in npz_members(path, scratch).items():
            if path.stem == "node-label":
                nodes[key]["node_label"] = array
            else:
                _put(path, name, array, nodes[key] if name.startswith("node_") else edges[_triplet(key)])
    return nodes, edges


def _put(path: Path, name: str, array: np.ndarray, tables: dict[str, Any]) -> None:
    """Puts an array where its name says: features, or an attribute."""
    if not name.startswith(("node_", "edge_")):
        raise ValueError(f"{path} has {name!r}: expected names that begin with node_ or edge_")
    if name in ("node_feat", "edge_feat"):
        tables[name] = array
    else:
        tables.setdefault(f"{name[:4]}_attrs", {})[name] = array


def _edge_index(folder: Path, scratch: Path) -> np.ndarray:
    columns = {name: Field("edge.csv.gz", (column,)) for name, column in (("src", "f0"), ("dst", "f1"))}
    ends = read_fields(TableFiles((folder / _CSV,), header=False), columns, scratch)
    return pair(scratch, ends["src"], ends["dst"])


def _tables(folder: Path, scratch: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all tables of a folder, ``[rows, columns]``, of nodes and of edges: features, labels, and attributes,
    which are OGB's additional files."""
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for path in sorted(folder.glob("*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        if name == "species":  # of ogbn_proteins, which OGB renames so
            name = "node_species"
        if name in ("node-feat", "edge-feat", "node-label"):
            found[name.startswith("edge")][name.replace("-", "_")] = _table(path, scratch)
        elif name.startswith(("node_", "edge_")):
            found[name.startswith("edge")].setdefault(f"{name[:4]}_attrs", {})[name] = _table(path, scratch)
    return found


def _table(path: Path, scratch: Path) -> np.ndarray:
    """Integers where all values are, else float32: OGB's rule. A table of floats shows it in its first rows."""
    files = TableFiles((path,), header=False)
    columns = files.column_names()
    try:
        return read_fields(files, {"": Field(path.name, columns, True, np.dtype(np.int64))}, scratch)[""]
    except ValueError:
        return read_fields(files, {"": Field(path.name, columns, True, np.dtype(np.float32))}, scratch)[""]


def _labels(label: np.ndarray) -> np.ndarray:
    """Classes as int64, unless some are missing (NaN) or are no classes: OGB's rule."""
    if label.dtype.kind == "f":
        flat = label.reshape(-1)
        if not all((piece == np.floor(piece)).all() for _, piece in chunks(flat)):
            return label.astype(np.float32, copy=False)
    return label.astype(np.int64, copy=False)


def _split_masks(split: Path, below: str, num_nodes: int) -> dict[str, np.ndarray]:
    ways = sorted(path for path in split.glob("*") if (path / below / "train.csv.gz").is_file())
    if len(ways) != 1:
        if split.is_dir() and not below:
            logger.info("%s: the split stays behind: %d of them are in CSV files", split, len(ways))
        return {}
    masks = {}
    for name in ("train", "val", "test"):
        path = ways[0] / below / f"{'valid' if name == 'val' else name}.csv.gz"
        ids = np.array([int(row[0]) for row in _rows(path)], np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise ValueError(f"{path} holds nodes from {ids.min()} to {ids.max()}: expected 0 to {num_nodes - 1}")
        masks[f"{name}_mask"] = np.zeros(num_nodes, bool)
        masks[f"{name}_mask"][ids] = True
    return masks


def _with_inverse(tables: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Each edge followed by its reverse, both with the same rows."""
    src, dst = tables["edge_index"]
    ends = []
    for one, other in ((src, dst), (dst, src)):
        rows = ScratchRows(scratch, one.dtype)
        for begin, piece in chunks(one):
            rows.append(np.stack([piece, other[begin : begin + len(piece)]], axis=1).reshape(-1))
        ends.append(rows.array())
    attrs = {name: _twice(table, scratch) for name, table in tables.get("edge_attrs", {}).items()}
    feat = {"edge_feat": _twice(tables["edge_feat"], scratch)} if "edge_feat" in tables else {}
    return {"edge_index": pair(scratch, *ends), **feat, "edge_attrs": attrs or None}


def _twice(table: np.ndarray, scratch: Path) -> np.ndarray:
    rows = ScratchRows(scratch, table.dtype, table.shape[1:])
    step = max(1, CHUNK_BYTES // max(1, table[:1].nbytes))
    for begin in range(0, len(table), step):
        rows.append(np.repeat(table[begin : begin + step], 2, axis=0))
    return rows.array()


def _contiguous(edge_index: np.ndarray, scratch: Path) -> np.ndarray:
    return edge_index if edge_index.flags.c_contiguous else pair(scratch, *edge_index)


def _triplet(key: str) -> EdgeType:
    src, relation, dst = key.split("___")
    return src, relation, dst


def _rows(path: Path) -> list[list[str]]:
    """The rows of a short file."""
    try:
        with gzip.open(path, "rt", newline="") as file:
            return [row for row in csv.reader(file) if row]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _one_graph(path: Path, counts: list[Any]) -> list[Any]:
    """``counts``, a list of one; raises ValueError where it tells of many graphs."""
    if len(counts) != 1:
        raise ValueError(f"{path} tells of {len(counts)} graphs: expected one, of a node or link dataset")
    return counts
