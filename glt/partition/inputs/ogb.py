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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from glt._checks import is_of_machine, naming_the_limit
from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.partition.format.files import scratch_array
from glt.partition.format.rows import chunks
from glt.partition.graph_input import arguments_by_type
from glt.partition.inputs.arrays import npz_members, pair
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
    nodes, edges = (_csv if is_csv else _binary)(raw, is_hetero, scratch)
    for node_type, tables in nodes.items():
        masks = _split_masks(root / "split", node_type if is_hetero else "", tables["num_nodes"])
        tables["node_attrs"] = {**tables.get("node_attrs", {}), **masks} or None
        if "node_label" in tables:
            tables["node_label"] = _labels(tables["node_label"])
    if add_inverse_edge:
        edges = {edge_type: _with_inverse(tables, scratch) for edge_type, tables in edges.items()}
    schema = Schema(tuple(nodes), tuple(edges)) if is_hetero else HOMOGENEOUS
    return arguments_by_type(schema, list(nodes.values()), list(edges.values()))


def _csv(raw: Path, is_hetero: bool, scratch: Path) -> _Found:
    counts = raw / ("num-node-dict.csv.gz" if is_hetero else "num-node-list.csv.gz")
    if is_hetero:
        types, *rows = _rows(counts)
        num_nodes = dict(sorted(zip(types, _only(counts, rows), strict=True)))
        triplets = sorted(_triplet("___".join(row)) for row in _rows(raw / _HETERO_CSV))
        node_folders = {t: [raw / "node-feat" / t, raw / "node-label" / t] for t in num_nodes}
        edge_folders = {triplet: raw / "relations" / "___".join(triplet) for triplet in triplets}
    else:
        num_nodes = {_NODE: _only(counts, _rows(counts))[0]}
        node_folders, edge_folders = {_NODE: [raw]}, {_EDGE: raw}
    nodes = {
        t: {"num_nodes": int(num_nodes[t]), **_tables(folders, "node", scratch)} for t, folders in node_folders.items()
    }
    edges = {
        t: {"edge_index": _edge_index(folder, scratch), **_tables([folder], "edge", scratch)}
        for t, folder in edge_folders.items()
    }
    return nodes, edges


def _binary(raw: Path, is_hetero: bool, scratch: Path) -> _Found:
    # By name and by type: of a homogeneous graph a file has arrays by name, else there is a file for each name.
    arrays: dict[str, dict[str, np.ndarray]] = {}
    if is_hetero:
        needed = [raw / "num_nodes_dict.npz", raw / _HETERO_BINARY]
        for path in dict.fromkeys([*needed, *sorted(raw.glob("*.npz"))]):
            arrays[path.stem.removesuffix("_dict").replace("-", "_")] = npz_members(path, scratch)
        counts = arrays.pop("num_nodes")
        arrays.pop("num_edges", None)
    else:
        needed = [raw / _BINARY]
        for path in (*needed, *raw.glob("node-label.npz")):
            arrays |= {name: {"": array} for name, array in npz_members(path, scratch).items()}
        counts, _ = arrays.pop("num_nodes_list"), arrays.pop("num_edges_list")
    ends = arrays.pop("edge_index")
    nodes = {t: {"num_nodes": int(_only(needed[0], counts[t].tolist()))} for t in sorted(counts)}
    edges = {t: {"edge_index": _contiguous(ends[t], scratch)} for t in sorted(ends, key=_triplet)}
    for name, by_type in arrays.items():
        if not name.startswith(("node_", "edge_")):
            of = raw / f"{name}_dict.npz" if is_hetero else needed[0]
            raise ValueError(f"{of} has {name!r}: expected names that begin with node_ or edge_")
        for t, array in by_type.items():
            _put(nodes[t] if name.startswith("node_") else edges[t], name, array)
    return {t or _NODE: tables for t, tables in nodes.items()}, {_triplet(t): tables for t, tables in edges.items()}


def _put(tables: dict[str, Any], name: str, array: np.ndarray) -> None:
    """Puts an array where its name says: features, labels, or an attribute, which OGB's additional files are."""
    if name in ("node_feat", "edge_feat", "node_label"):
        tables[name] = array
    else:
        tables.setdefault(f"{name[:4]}_attrs", {})[name] = array


def _edge_index(folder: Path, scratch: Path) -> np.ndarray:
    columns = {name: Field("edge.csv.gz", (column,)) for name, column in (("src", "f0"), ("dst", "f1"))}
    ends = read_fields(TableFiles((folder / _CSV,), header=False), columns, scratch)
    return pair(scratch, ends["src"], ends["dst"])


def _tables(folders: Sequence[Path], kind: str, scratch: Path) -> dict[str, Any]:
    """Returns all tables of nodes or edges in some folders, ``[rows, columns]``."""
    found: dict[str, Any] = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.csv.gz")):
        name = path.name.removesuffix(".csv.gz")
        if name == "species":  # of ogbn_proteins, which OGB renames so
            name = "node_species"
        if name in ("node-feat", "edge-feat", "node-label"):
            name = name.replace("-", "_")
        if name.startswith(f"{kind}_"):
            _put(found, name, _table(path, scratch))
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
    edge_index = scratch_array(scratch, 4 * len(src), tables["edge_index"].dtype).reshape(2, -1)
    for row, one, other in ((edge_index[0], src, dst), (edge_index[1], dst, src)):
        row[::2], row[1::2] = one, other
    attrs = {name: _twice(table, scratch) for name, table in tables.get("edge_attrs", {}).items()}
    feat = {"edge_feat": _twice(tables["edge_feat"], scratch)} if "edge_feat" in tables else {}
    return {"edge_index": edge_index, **feat, "edge_attrs": attrs or None}


def _twice(table: np.ndarray, scratch: Path) -> np.ndarray:
    rows = scratch_array(scratch, 2 * table.size, table.dtype).reshape(2 * len(table), *table.shape[1:])
    rows[::2] = table
    rows[1::2] = table
    return rows


def _contiguous(edge_index: np.ndarray, scratch: Path) -> np.ndarray:
    return edge_index if edge_index.flags.c_contiguous else pair(scratch, *edge_index)


def _triplet(key: str) -> EdgeType:
    if not key:
        return _EDGE
    src, relation, dst = key.split("___")
    return src, relation, dst


def _rows(path: Path) -> list[list[str]]:
    """The rows of a short file."""
    try:
        with naming_the_limit(path), gzip.open(path, "rt", newline="") as file:
            return [row for row in csv.reader(file) if row]
    except (OSError, EOFError, UnicodeDecodeError) as error:
        if is_of_machine(error):
            raise
        raise ValueError(f"{path} cannot be read: {error}") from error


def _only(path: Path, counts: Sequence[Any]) -> Any:
    """What a list of one holds; raises ValueError where it tells of many graphs."""
    if len(counts) != 1:
        raise ValueError(f"{path} tells of {len(counts)} graphs: expected one, of a node or link dataset")
    return counts[0]
