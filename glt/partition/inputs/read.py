"""Graphs as partitioners take them: from disk, of any kind (:func:`read_graph`), from PyG and from glt's ``Dataset``;
and description files, which say where the tables of a graph are.

A description is JSON, or TOML where Python has ``tomllib`` (3.11). Of a heterogeneous graph::

    [node_types.paper]                       # the order is that of the types
    files = "papers/*.parquet"               # Parquet, CSV, .csv.gz, .tsv: a file, directory, pattern, or list of them
    id = "paper_id"                          # integers 0, 1, ... in any order; default: the number of the row
    feat = ["f0", "f1"]                      # columns side by side, or one column of lists of equal length
    label = "field"
    time = "year"
    keys = "keys/paper"                      # the folder of a glt.data.KeyMap, as glt build writes it
    attrs = ["train_mask"]                   # named tables, of columns of the same names

    [node_types.author]
    num_nodes = 100                          # default: rows of the table; without one, as many as edges need

    [[edge_types]]
    type = ["author", "writes", "paper"]
    files = "writes.csv"
    src = "author"                           # columns of integers, ids of nodes of these types
    dst = "paper"
    feat = { column = "embedding", dtype = "float32" }
    weight = "weight"
    time = "date"
    attrs = { position = "pos", kind = { npy = "kind.npy" } }

In place of a column there may be ``{ npy = "path" }``, a file with a row per node or edge, in place of ``src`` and
``dst`` ``edge_index = { npy = "path" }`` of shape ``[2, num_edges]``. CSV files begin with the names of their columns,
unless ``header = false`` names them ``f0``, ``f1``, ...; ``delimiter`` may be stated. ``dtype`` is NumPy's name of one:
values become that if it can hold them, floats may be rounded. Paths are relative to the description.

A homogeneous graph has ``nodes`` (optional) and ``edges``, one table each, in place of the types::

    {"nodes": {"files": "nodes.parquet", "feat": "x"}, "edges": {"files": "edges/", "src": "from", "dst": "to"}}

Tables are read once, in record batches, into nameless files. Missing values are refused.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from glt._tracebacks import short_traceback
from glt.data.arrays import damaged, load_saved
from glt.data.dataset import Dataset
from glt.data.feature import Feature
from glt.data.frames import frame_classes, is_frame, join_all
from glt.data.keys import KeyMap
from glt.data.pyg import arrays_of_pyg
from glt.data.schema import HOMOGENEOUS, Schema
from glt.data.topology import Topology
from glt.partition.graph_input import GraphInput, arguments_by_type, stated_count
from glt.partition.inputs.arrays import is_npy_directory, read_npy_directory
from glt.partition.inputs.ogb import is_ogb_folder, read_ogb_folder
from glt.partition.inputs.tables import EdgeTable, Field, NodeTable, TableFiles

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


_FILES: Final = ("files", "header", "delimiter")
_NODE: Final = ("num_nodes", "keys", "id", "feat", "label", "time", "attrs", *_FILES)
_EDGE: Final = ("src", "dst", "edge_index", "feat", "weight", "time", "attrs", *_FILES)


def _read_described(
    document: Mapping[str, Any], base: Path, scratch: Path, where: str, outline: bool
) -> dict[str, Any]:
    """Returns the keyword arguments of a partitioner for the graph of a description, called ``where`` in messages,
    whose relative paths begin at ``base``.
    """
    is_hetero = "edge_types" in document or "node_types" in document
    root = _Keys(where, document, ("node_types", "edge_types") if is_hetero else ("nodes", "edges")).given
    if is_hetero:
        of_nodes, of_edges = root.get("node_types", {}), root.get("edge_types", [])
        if not isinstance(of_nodes, Mapping):
            raise ValueError(f"{where}: node_types = {of_nodes!r}: expected an object")
        if not isinstance(of_edges, list):
            raise ValueError(f"{where}: edge_types = {of_edges!r}: expected a list of objects, each with a type")
        node_parts = {t: (f"node_types.{t}", table) for t, table in of_nodes.items()}
        edge_parts = [_edge_part(where, i, table) for i, table in enumerate(of_edges)]
    else:
        if "edges" not in document:
            raise ValueError(f"{where} has no edges: expected edges, or node_types and edge_types")
        node_parts = {HOMOGENEOUS.node_types[0]: ("nodes", root.get("nodes", {}))}
        edge_parts = [(HOMOGENEOUS.edge_types[0], _Keys(f"{where}: edges", root["edges"], _EDGE))]
    for edge_type, keys in edge_parts:
        for end in (edge_type[0], edge_type[2]):
            if end not in node_parts:
                raise ValueError(f"{keys.where}: type ends in {end!r}: expected one of node_types, {list(node_parts)}")
    # All keys are looked at before any table is read.
    nodes = {t: _node_table(_Keys(f"{where}: {key}", table, _NODE), base) for t, (key, table) in node_parts.items()}
    edges = {edge_type: _edge_table(keys, base) for edge_type, keys in edge_parts}
    if len(edges) < len(edge_parts):
        raise ValueError(f"{where}: edge_types has a type twice: {[edge_type for edge_type, _ in edge_parts]}")
    found = {t: table.read(scratch, outline) | _node_keys(node_parts[t], base) for t, table in nodes.items()}
    found_edges = [
        table.read(scratch, outline, any(stated_count(found[end]) is None for end in (src, dst)))
        for (src, _, dst), table in edges.items()
    ]
    schema = Schema(tuple(found), tuple(edges)) if is_hetero else HOMOGENEOUS
    return arguments_by_type(schema, list(found.values()), found_edges)


def _node_keys(part: tuple[str, Any], base: Path) -> dict[str, Any]:
    """The argument of the keys of a node type, if its description names their folder."""
    where, table = part
    given = table.get("keys")
    if given is not None and not isinstance(given, str):
        raise ValueError(f"{where}: keys = {given!r}: expected the folder of a KeyMap")
    return {} if given is None else {"node_keys": KeyMap(base / given)}


def _load(path: Path) -> Any:
    is_json = path.suffix == ".json"
    try:
        parser: Any = json if is_json else importlib.import_module("tomllib")
    except ImportError as error:
        raise ImportError(f"{path}: TOML needs Python 3.11: write the description as JSON") from error
    try:
        document = parser.loads(path.read_bytes() if is_json else path.read_bytes().decode())
    except ValueError as error:
        raise ValueError(f"{path} is no {'JSON' if is_json else 'TOML'}: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} holds {document!r}: expected an object with edges, or with node_types and edge_types")
    return document


def _edge_part(where: str, at: int, table: Any) -> tuple[Any, _Keys]:
    keys = _Keys(f"{where}: edge_types[{at}]", table, ("type", *_EDGE))
    type_ = keys.given.get("type")
    if not isinstance(type_, list) or len(type_) != 3 or not all(isinstance(part, str) for part in type_):
        raise ValueError(f"{keys.where}: type = {type_!r}: expected [source type, relation, destination type]")
    return tuple(type_), keys


def _node_table(keys: _Keys, base: Path) -> NodeTable:
    num_nodes = keys.given.get("num_nodes")
    if num_nodes is not None and (type(num_nodes) is not int or num_nodes < 0):
        raise ValueError(f"{keys.where}: num_nodes = {num_nodes!r}: expected a number")
    fields = keys.fields({"id": "id", "feat": "node_feat", "label": "node_label", "time": "node_time"}, base)
    return NodeTable(keys.where, keys.files(base), fields, num_nodes)


def _edge_table(keys: _Keys, base: Path) -> EdgeTable:
    both = "edge_index" in keys.given
    if both == ("src" in keys.given and "dst" in keys.given):
        raise ValueError(f"{keys.where}: expected either src and dst, or edge_index; it has {sorted(keys.given)}")
    ends = {"edge_index": "edge_index"} if both else {"src": "src", "dst": "dst"}
    tables = {"feat": "edge_feat", "weight": "edge_weight", "time": "edge_time"}
    fields = keys.fields(ends | tables, base)
    if both and fields["edge_index"].path is None:
        raise ValueError(f'{keys.where}: edge_index = {keys.given["edge_index"]!r}: expected {{"npy": "path"}}')
    return EdgeTable(keys.where, keys.files(base), fields)


class _Keys:
    """One table of a description, called ``where`` in messages, with some of the ``allowed`` keys."""

    def __init__(self, where: str, given: Any, allowed: tuple[str, ...]) -> None:
        if not isinstance(given, Mapping):
            raise ValueError(f"{where} = {given!r}: expected an object with some of {', '.join(allowed)}")
        for key in given:
            if key not in allowed:
                raise ValueError(f"{where}: {key} is unknown: expected some of {', '.join(allowed)}")
        self.where, self.given = where, given

    def files(self, base: Path) -> TableFiles | None:
        given, header, delimiter = (self.given.get(key) for key in _FILES)
        if given is None:
            return None
        if not isinstance(given, str) and not (isinstance(given, list) and all(isinstance(f, str) for f in given)):
            raise ValueError(f"{self.where}: files = {given!r}: expected a path, or a list of paths")
        if header is not None and not isinstance(header, bool):
            raise ValueError(f"{self.where}: header = {header!r}: expected true or false")
        if delimiter is not None and not (isinstance(delimiter, str) and len(delimiter) == 1):
            raise ValueError(f"{self.where}: delimiter = {delimiter!r}: expected one character")
        return TableFiles.of(f"{self.where}: files", given, base, header is not False, delimiter)

    def fields(self, names: Mapping[str, str], base: Path) -> dict[Any, Field]:
        """Returns the columns that are given, by what they become; ``names`` has that by key."""
        attrs = self.given.get("attrs", {})
        if isinstance(attrs, list) and all(isinstance(name, str) for name in attrs):
            attrs = {name: name for name in attrs}
        if not isinstance(attrs, Mapping):
            raise ValueError(f"{self.where}: attrs = {attrs!r}: expected names of columns, or columns by name")
        given: dict[Any, tuple[str, Any]] = {
            name: (key, self.given[key]) for key, name in names.items() if key in self.given
        }
        given |= {("attr", name): (f"attrs.{name}", each) for name, each in attrs.items()}
        return {name: _field(f"{self.where}: {key}", each, base) for name, (key, each) in given.items()}


def _field(where: str, given: Any, base: Path) -> Field:
    if isinstance(given, str):
        return Field(where, (given,))
    if isinstance(given, list):
        given = {"columns": given}
    shape = '"column", ["column", ...], {"column": ..., "dtype": ...}, {"columns": ...} or {"npy": "path"}'
    keys = set(given) if isinstance(given, Mapping) else set()
    if keys - {"dtype"} not in ({"column"}, {"columns"}, {"npy"}) or keys == {"npy", "dtype"}:
        raise ValueError(f"{where} = {given!r}: expected {shape}")
    dtype = _dtype(where, given["dtype"]) if "dtype" in keys else None
    if "npy" in keys:
        if not isinstance(given["npy"], str) or not (base / given["npy"]).is_file():
            raise ValueError(f"{where}: npy = {given['npy']!r}: expected the path of an .npy file, from {base}")
        return Field(where, path=base / given["npy"])
    several = "columns" in keys
    columns = given["columns"] if several else [given["column"]]
    if not isinstance(columns, list) or not columns or not all(isinstance(column, str) for column in columns):
        raise ValueError(f"{where} = {given!r}: expected {shape}")
    return Field(where, tuple(columns), several, dtype)


def _dtype(where: str, name: Any) -> np.dtype:
    try:
        dtype = np.dtype(name) if isinstance(name, str) else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc" or dtype.str[0] == ">":
        raise ValueError(f"{where}: dtype = {name!r}: expected a name such as 'float32', 'int64' or 'bool'")
    return dtype


_DESCRIPTIONS: Final = (".json", ".toml")


@short_traceback
def read_graph(
    path: str | os.PathLike[str],
    scratch_dir: str | os.PathLike[str],
    *,
    nodes: Mapping[str, Any] | None = None,
    edges: Mapping[str, Any] | None = None,
    add_inverse_edge: bool | None = None,
    weight_attr: str | None = None,
    time_attr: str | None = None,
    outline: bool = False,
) -> GraphInput:
    """Reads and checks a graph on disk, for any partitioner.

    The result is also a mapping of a partitioner's keyword arguments, such as ``num_nodes`` and ``edge_index``.

    Args:
        path: A directory of ``.npy`` files (``glt.partition.inputs.arrays``), a folder of OGB
            (``glt.partition.inputs.ogb``), a description of tables in ``.json`` or ``.toml``
            (``glt.partition.inputs.read``), a PyG ``Data`` or ``HeteroData`` that ``torch.save`` wrote (``.pt``,
            read without unpickling anything but tensors and PyG's own storages), or a table of edges in Parquet or CSV:
            a file, a directory or a pattern.
        scratch_dir: Directory for tables while they are partitioned: room for their values, on a file system that is
            not memory. Its files have no names: nothing is left there, whatever happens.
        nodes, edges: Of a table of edges: the keys of a description's ``nodes`` and ``edges``; the ``files`` of
            ``edges`` are those of ``path``, and its columns ``src`` and ``dst``, unless said otherwise.
        add_inverse_edge: Of a folder of OGB: whether the reverse of each edge follows it. Default: as OGB does with the
            data set that the folder is named after.
        weight_attr, time_attr: Of a PyG graph: see :func:`glt.partition.graph_arguments`.
        outline: Of tables and descriptions of tables, to look at no more than a forecast needs: rows are counted (of
            Parquet, its metadata is read; of CSV, a column), and arrays are zeros of the right shapes and dtypes that
            take no memory. Ids are read only where the number of nodes is neither stated nor in the
            statistics of Parquet. Other inputs are as without it.

    Raises:
        FileNotFoundError: If there is nothing of the kind.
        ImportError: If pyarrow is needed and not there.
        KeyError, TypeError, ValueError, IndexError: If what is there does not fit; names the file and the place in it,
            or the argument of a partitioner.
        OSError: If it cannot be read, or there is no room in ``scratch_dir``.

    Example:
        >>> os.mkdir("arrays")
        >>> np.save("arrays/edge_index.npy", glt.testing.ring_graph().edge_index.numpy())
        >>> graph = glt.partition.read_graph("arrays", "scratch")
        >>> glt.partition.RandomPartitioner("from-arrays", 2, graph).partition()
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 10 files, 2.7 KB)
    """
    if not os.fspath(path):  # which Path takes for the working directory
        raise ValueError("path is empty: expected a directory or a file; '.' is the working directory")
    path, scratch = Path(path), Path(scratch_dir)
    if path.suffix in (*_DESCRIPTIONS, ".pt") and not path.exists():
        kind = "a PyG graph that torch.save wrote" if path.suffix == ".pt" else "a description of tables"
        raise FileNotFoundError(f"{path} does not exist: expected {kind}; is its path right, seen from {Path.cwd()}?")
    options: dict[str, Any] = {"nodes": nodes, "edges": edges, "add_inverse_edge": add_inverse_edge}
    options |= {"weight_attr": weight_attr, "time_attr": time_attr}

    def refuse_all_but(*names: str) -> None:
        for name, value in options.items():
            if value is not None and name not in names:
                raise ValueError(f"{name} = {value!r} does not apply to {path}: leave it out")

    if path.is_dir() and is_ogb_folder(path):
        refuse_all_but("add_inverse_edge")
        arguments = read_ogb_folder(path, scratch, add_inverse_edge)
    elif path.is_dir() and is_npy_directory(path):
        refuse_all_but()
        arguments = read_npy_directory(path)
    elif path.suffix in _DESCRIPTIONS:
        refuse_all_but()
        arguments = _read_described(_load(path), path.parent, scratch, str(path), outline)
    elif path.suffix == ".pt":
        refuse_all_but("weight_attr", "time_attr")
        arguments = graph_arguments(_load_pyg(path), weight_attr=weight_attr, time_attr=time_attr)
    else:
        refuse_all_but("nodes", "edges")
        table = {"src": "src", "dst": "dst", "files": str(path.absolute()), **(edges or {})}
        document = {"nodes": dict(nodes or {}), "edges": table}
        arguments = _read_described(document, Path.cwd(), scratch, str(path), outline)
    if arguments["num_nodes"] == 0:
        files = str(path) if not nodes or "files" not in nodes else f"{path}, or {nodes['files']!r}"
        raise ValueError(
            f"{files} has no rows, so that there are no nodes: expected some, below the names of columns in CSV; state "
            "num_nodes (--num-nodes) if there are nodes without edges alone"
        )
    return GraphInput.of(**arguments)


def _load_pyg(path: Path) -> Any:
    import torch
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

    # Containers that do nothing when they are made; nothing else in the file is looked up by name, let alone called.
    torch.serialization.add_safe_globals(
        [Data, DataEdgeAttr, DataTensorAttr, HeteroData, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]
    )
    torch.serialization.add_safe_globals(frame_classes())
    expected = "a Data or HeteroData of PyG"
    data = load_saved(path, str(path), expected)
    try:
        if isinstance(data, Data | HeteroData):  # all else is refused where it is taken apart
            _ = [store._parent() for store in data.stores]
            for table in (value for store in data.stores for value in store.values() if is_frame(value)):
                table.validate()
    except Exception as error:  # bytes that named an attribute of it
        raise damaged(str(path), expected, error) from error
    return data


logger = logging.getLogger(__name__)

_ROLES = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}
_NO_TABLES = frozenset({"edge_index", "adj", "adj_t", "num_nodes", "num_edges"})  # what is no table


@short_traceback
def graph_arguments(
    data: Data | HeteroData, *, weight_attr: str | None = None, time_attr: str | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a PyG graph, nothing copied.

    ``x``, ``y`` and ``edge_attr`` become ``node_feat``, ``node_label`` and ``edge_feat``; all other node-level and
    edge-level attributes, as PyG tells them apart, ``node_attrs`` and ``edge_attrs`` under their own names, so that
    batches have them, as those of in-process loaders; TensorFrames too. Others (``edge_label_index`` and its like) stay
    behind; the log (level INFO) names them, at level WARNING those of nodes or edges whose rows are not in the first
    dimension.

    Args:
        data: The graph.
        weight_attr: Name of an edge-level attribute: it becomes ``edge_weight`` too, for weighted sampling. Edge types
            without it are sampled uniformly.
        time_attr: Name of a node-level or edge-level attribute of integers: it becomes ``node_time`` or ``edge_time``
            too, for temporal sampling. Of a node-level one that is called ``time`` batches have the int64 values.

    Raises:
        KeyError, TypeError, ValueError: If ``data`` is no such graph or has no such attribute; names it.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> arguments = glt.partition.graph_arguments(graph.to_data())
        >>> glt.partition.RandomPartitioner("from-pyg", 2, **arguments).partition()
        Manifest(2 partitions by RandomPartitioner, 40 nodes, 80 edges, edge_dir='out', 18 files, 5.7 KB)
    """
    arrays = arrays_of_pyg(data, weight_attr=weight_attr, time_attr=time_attr)
    schema: Schema = arrays.schema
    data_: Any = data  # two classes of one interface
    stores = [data_[t] for t in schema.edge_types] if schema.is_hetero else [data_._store]
    _log_what_stays(data_, set().union(*arrays.node_tables, *arrays.edge_tables))
    node_time = time_attr if arrays.time_level == "node" else None
    nodes = [
        {"num_nodes": count, **_arguments("node", at, tables, schema, node_time)}
        for at, (count, tables) in enumerate(zip(arrays.num_nodes, arrays.node_tables, strict=True))
    ]
    edges = []
    for at, store in enumerate(stores):
        index = store.edge_index
        # A subclass, such as PyG's EdgeIndex, would carry its own ways into arithmetic.
        given = {"edge_index": index.as_subclass(Tensor) if isinstance(index, Tensor) else index}
        given |= {"edge_weight": arrays.edge_weight[at]}
        given |= {} if arrays.time_level == "node" else {"edge_time": arrays.edge_time[at]}
        edges.append(given | _arguments("edge", at, arrays.edge_tables[at], schema))
    return arguments_by_type(schema, nodes, edges)


def _arguments(
    kind: str, at: int, tables: Mapping[str, Any], schema: Schema, time_attr: str | None = None
) -> dict[str, Any]:
    """The arguments that tables of a type become; ``time_attr``: which table is ``node_time`` too."""
    attrs = dict(tables)
    join_all(schema.frames_of(kind, at), attrs)
    given = {role: attrs.pop(name, None) for name, role in _ROLES.items() if role.startswith(kind)}
    if time_attr is not None:
        given["node_time"] = attrs.get(time_attr)
    if time_attr == "time":  # as batches call node_time
        attrs.pop("time", None)
    return {**given, f"{kind}_attrs": attrs or None}


def _log_what_stays(data: Any, taken: set[str]) -> None:
    left = {name for store in data.stores for name in store.keys()} - taken - _NO_TABLES
    rows = {each for store in data.stores for each in left & set(store.keys()) if _has_rows(store, each)}
    if rows:
        logger.warning("left out, the first dimension not being that of the rows: %s", ", ".join(sorted(rows)))
    if left - rows:
        logger.info("left out, being of no node or edge: %s", ", ".join(sorted(left - rows)))


def _has_rows(store: Any, name: str) -> bool:
    """Whether PyG takes an array for one of nodes or edges; ``edge_label_index``, of other edges, is none."""
    if name == "edge_label_index" or not isinstance(store[name], Tensor | np.ndarray):
        return False
    is_of = [getattr(store, f"is_{kind}_attr", None) for kind in ("node", "edge")]
    return any(each is not None and each(name) for each in is_of)


def dataset_arguments(data: Dataset, *, weight_attr: str | None = None) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a :class:`glt.data.Dataset`; only edges are copied.
    Tables become arguments as in :func:`graph_arguments`.
    """
    schema = data.schema
    if not schema.node_types:
        raise ValueError("g is a Dataset without a graph: call its init_graph first")
    names = schema.edge_types if schema.is_hetero else ("g",)
    time_attr = str(data.time_attr) if data.time_level == "node" else None
    nodes = [
        {"num_nodes": count, **_arguments("node", at, _tables(tables), schema, time_attr)}
        for at, (count, tables) in enumerate(zip(data.num_nodes_of, data.node_tables, strict=True))
    ]
    edges = []
    for at, (graph, name, features) in enumerate(zip(data.graphs, names, data.edge_tables, strict=True)):
        tables = _tables(features)
        weight = tables.get(weight_attr) if weight_attr is not None else None
        given = {"edge_index": _in_order(graph.topology, name), "edge_weight": weight}
        timed = graph.topology.by_time if data.time_level == "edge" else None
        given |= {} if timed is None else {"edge_time": _by_id(timed.time, timed.edge_ids)}
        edges.append(given | _arguments("edge", at, tables, schema))
    if weight_attr is not None and all(each["edge_weight"] is None for each in edges):
        raise ValueError(f"weight_attr = {weight_attr!r}: expected the name of a table of edges of g")
    for each, graph, name in zip(edges, data.graphs, names, strict=True):
        if each["edge_weight"] is None and graph.topology.weights is not None:
            raise ValueError(
                f"the edges of {name} have weights, of which a Dataset keeps sums only: name the table that they came "
                "from as weight_attr, or partition the PyG data"
            )
    return arguments_by_type(schema, nodes, edges)


def _tables(tables: dict[str, Feature]) -> dict[str, Tensor]:
    return {name: _rows(name, feature) for name, feature in tables.items()}


def _rows(name: str, feature: Feature) -> Tensor:
    if feature.has_row_per_id:
        return feature.dense()
    if feature.row_of is None:
        raise ValueError(f"{name} of g has the rows of one partition: expected those of all ids")
    return feature.dense()[feature.row_of.to(torch.int64)]


def _in_order(topology: Topology, name: Any) -> Tensor:
    """Sources and destinations ``[2, E]`` by edge id."""
    ids = topology.edge_ids
    if ids is not None and ((len(ids) and int(ids.max()) >= len(ids)) or len(ids.unique()) != len(ids)):
        raise ValueError(
            f"the ids of the edges of {name} are not 0 to {len(ids) - 1}, each once: a partitioner numbers edges by "
            "their positions; leave edge_ids out"
        )
    return _by_id(topology.coo(), ids)


def _by_id(values: Tensor, ids: Tensor | None) -> Tensor:
    return values if ids is None else torch.empty_like(values).index_copy_(-1, ids.to(torch.int64), values)
