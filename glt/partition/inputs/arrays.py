"""Directories of ``.npy`` files, which are mapped; and ``.npz`` files, unpacked into scratch files.

Of a homogeneous graph::

    edge_index.npy                              [2, num_edges], int32 or int64
    node_feat.npy, node_label.npy, node_time.npy        optional, one row per node
    edge_feat.npy, edge_weight.npy, edge_time.npy       optional, one row per edge
    node_attr/<name>.npy, edge_attr/<name>.npy          optional, named tables
    graph.json                                          optional

Of a heterogeneous one there is a directory in place of each file, with a file per type: ``edge_index/<type>.npy``,
``node_feat/<type>.npy`` and so on, and ``node_attr/<type>/<name>.npy``. Types and names are written as in a partition
directory (:mod:`glt.partition.format.layout`).

``graph.json`` may say what files do not: ``{"num_nodes": 100}``, of a heterogeneous graph ``{"num_nodes": {"paper":
100}, "edge_types": [["paper", "cites", "paper"]]}``, whose orders are those of the types. Default: types in the order
of their file names, as many nodes as their tables have rows, without tables as many as the largest id needs.

Arrays that are too large for memory while they are read are appended to nameless files (:class:`ScratchRows`), then
mapped.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import tempfile
import weakref
import zipfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from glt.data.arrays import BAD_HEADER, map_npy
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.partition.format.files import scratch_array
from glt.partition.format.rows import chunks
from glt.partition.graph_input import arguments_by_type

_TABLES: Final = ("edge_feat", "edge_index", "edge_time", "edge_weight", "node_feat", "node_label", "node_time")


def is_npy_directory(root: Path) -> bool:
    return (root / "edge_index.npy").is_file() or (root / "edge_index").is_dir()


def read_npy_directory(root: Path) -> dict[str, Any]:
    """Returns the keyword arguments of a partitioner for the graph in ``root``."""
    is_hetero = (root / "edge_index").is_dir()
    counts, edge_types = _graph_json(root, is_hetero)
    nodes, edges = _files(root, is_hetero)
    edge_types = edge_types or [edge_type for edge_type, tables in edges.items() if "edge_index" in tables]
    for edge_type, tables in edges.items():
        if edge_type not in edge_types:
            where = root / next(iter(tables)).removesuffix("s")
            raise ValueError(f"{where} has {edge_type!r}, which graph.json does not list among the types")
    for edge_type in edge_types:
        if "edge_index" not in edges.get(edge_type, {}):
            raise ValueError(f"{root} has no edge_index of {edge_type!r}")
    ends = {end for edge_type in edge_types for end in (edge_type[0], edge_type[2])}
    node_types = [*counts, *sorted((nodes.keys() | ends) - counts.keys())]
    schema = Schema(tuple(node_types), tuple(edge_types)) if is_hetero else HOMOGENEOUS
    of_nodes = [{"num_nodes": counts.get(node_type), **nodes.get(node_type, {})} for node_type in node_types]
    return arguments_by_type(schema, of_nodes, [edges[edge_type] for edge_type in edge_types])


def _files(root: Path, is_hetero: bool) -> tuple[dict[NodeType, dict[str, Any]], dict[EdgeType, dict[str, Any]]]:
    """Maps all files: tables by type and by the name of their argument."""
    nodes: dict[NodeType, dict[str, Any]] = {}
    edges: dict[EdgeType, dict[str, Any]] = {}
    for path in sorted(root.rglob("*.npy")):
        kind, *rest = path.relative_to(root).with_suffix("").parts
        is_attr = kind in ("node_attr", "edge_attr")
        if not (is_attr or kind in _TABLES) or len(rest) != is_attr + is_hetero:
            of = "/<type>" if is_hetero else ""
            raise ValueError(
                f"{path} is of no known name: expected {', '.join(_TABLES)}, each {of}.npy, or "
                f"node_attr{of}/<name>.npy or edge_attr{of}/<name>.npy"
            )
        of_kind: dict[Any, dict[str, Any]] = nodes if kind.startswith("node") else edges
        tables = of_kind.setdefault(_type(kind, rest if is_hetero else [], path), {})
        if is_attr:
            tables.setdefault(f"{kind}s", {})[unquote(rest[-1])] = map_npy(path)
        else:
            tables[kind] = map_npy(path)
    return nodes, edges


def _type(kind: str, rest: list[str], path: Path) -> Any:
    if not rest:
        return HOMOGENEOUS.node_types[0] if kind.startswith("node") else HOMOGENEOUS.edge_types[0]
    if kind.startswith("node"):
        return unquote(rest[0])
    parts = tuple(unquote(part) for part in rest[0].split("__"))
    if len(parts) != 3:
        raise ValueError(f"{path} is of no edge type: expected <source>__<relation>__<destination>")
    return parts


def _graph_json(root: Path, is_hetero: bool) -> tuple[dict[NodeType, int], list[EdgeType]]:
    path = root / "graph.json"
    if not path.exists():
        return {}, []
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    allowed = {"num_nodes", "edge_types"} if is_hetero else {"num_nodes"}
    if not isinstance(document, dict) or not document.keys() <= allowed:
        raise ValueError(f"{path} holds {document!r}: expected an object with {' and '.join(sorted(allowed))}")
    counts = document.get("num_nodes", {})
    if not is_hetero and counts != {}:
        counts = {HOMOGENEOUS.node_types[0]: counts}
    if not isinstance(counts, dict) or not all(type(count) is int for count in counts.values()):
        raise ValueError(f"{path}: num_nodes = {document['num_nodes']!r}: expected a number, or numbers by node type")
    edge_types = document.get("edge_types", [])
    if not isinstance(edge_types, list) or not all(
        isinstance(t, list) and len(t) == 3 and all(isinstance(part, str) for part in t) for t in edge_types
    ):
        raise ValueError(f"{path}: edge_types = {edge_types!r}: expected [[source, relation, destination], ...]")
    return counts, [tuple(t) for t in edge_types]


def npz_members(path: Path, scratch: Path) -> dict[str, np.ndarray]:
    """Returns all arrays of the file by name, mapped; nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _member(archive, name, scratch) for name in archive.namelist()}
    except (zipfile.BadZipFile, *BAD_HEADER) as error:
        raise ValueError(f"{path} is not a readable .npz file of plain arrays: {error}") from error


def _member(archive: zipfile.ZipFile, name: str, scratch: Path) -> np.ndarray:
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
        if dtype.kind not in "biufc":
            raise ValueError(f"{name} holds {dtype}: expected numbers")
        rows = ScratchRows(scratch, dtype)
        step = _CHUNK_BYTES // dtype.itemsize * dtype.itemsize
        while piece := file.read(step):
            rows.append(np.frombuffer(piece, dtype))  # an uneven last piece raises
    flat = rows.array()
    if flat.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{name} holds {flat.size} values: expected {list(shape)}")
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)


_CHUNK_BYTES = 16 << 20
_MAP_NORESERVE = 0x4000  # Linux; Python's mmap does not name it everywhere


class ScratchRows:
    """Rows of ``dtype`` and ``row_shape`` that arrive in pieces, in a nameless file in ``directory``: the kernel frees
    it with the last reference, even after SIGKILL, and may drop its pages from memory at any time.
    """

    def __init__(self, directory: Path, dtype: np.dtype, row_shape: tuple[int, ...] = ()) -> None:
        self.directory, self.dtype, self.row_shape = directory, dtype, row_shape
        self._file = tempfile.TemporaryFile(dir=directory, prefix="glt-")
        weakref.finalize(self, self._file.close)  # where reading ends in an error
        self._num_rows = 0

    def append(self, rows: np.ndarray) -> None:
        assert rows.dtype == self.dtype and rows.shape[1:] == self.row_shape
        if rows.size:
            self._file.write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        self._num_rows += len(rows)

    def array(self) -> np.ndarray:
        """Returns ``[rows, *row_shape]``, mapped; nothing can be added after that."""
        shape = (self._num_rows, *self.row_shape)
        with self._file:
            self._file.flush()
            if os.fstat(self._file.fileno()).st_size == 0:
                return np.empty(shape, self.dtype)
            return np.memmap(self._file, self.dtype, mode="c", shape=shape)


def blank(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Returns zeros of any size: they take no memory until they are written, for reading them finds the kernel's one
    page of zeros.
    """
    num_bytes = dtype.itemsize * math.prod(shape)
    if num_bytes == 0:
        return np.zeros(shape, dtype)
    room = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return np.frombuffer(room, dtype).reshape(shape)


def pair(directory: Path, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Returns ``[2, num_edges]``, mapped, of two arrays of ids ``[num_edges]``."""
    out = scratch_array(directory, 2 * len(src), pair_dtype(src, dst)).reshape(2, -1)
    out[0], out[1] = src, dst
    return out


def pair_dtype(src: np.ndarray, dst: np.ndarray) -> np.dtype:
    """Returns the dtype of :func:`pair`."""
    narrow = all(np.can_cast(ids.dtype, np.int32) for ids in (src, dst))
    return np.dtype(np.int32 if narrow else np.int64)


def by_id(directory: Path, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns ``out`` with ``out[ids] = rows``, mapped, for ``ids`` that are a permutation."""
    out = scratch_array(directory, rows.size, rows.dtype).reshape(rows.shape)
    for begin, piece in chunks(ids):
        out[piece] = rows[begin : begin + len(piece)]
    return out
