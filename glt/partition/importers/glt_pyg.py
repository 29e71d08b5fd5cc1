"""Imports the partition directories of GLT (graphlearn-torch) and of PyG (``torch_geometric.distributed.Partitioner``).

GLT's ``META`` is a pickle of plain values, books and graphs are files of ``torch.save``, features are pickled chunks
that follow each other (``feats.pkl``, ``ids.pkl``). None of them is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.errors import PartitionError
from glt.partition.format.files import Array, chunks
from glt.partition.format.manifest import Manifest
from glt.partition.importers.foreign_files import Record, read_pickles, read_plain, read_torch
from glt.partition.importers.imported import (
    Assembly,
    EdgeAssembly,
    Imported,
    entry,
    integers,
    require_directory,
    require_owned,
    require_owners,
    require_plain_names,
    scratch_for,
)
from glt.partition.methods.partitioner import GraphArguments, checked_strategy

_Type = NodeType | EdgeType | None  # None: of a homogeneous graph, whose files have no directory of their own


def import_glt(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    renumber_edges: bool = False,
    progress: bool = False,
    **graph: Unpack[GraphArguments],
) -> Manifest:
    """Turns what GLT's partitioners wrote into a partition directory: same owners, ids and features.

    Features come chunk by chunk, everything else is mapped; scratch files beside ``output_dir`` need about the room of
    the result. GLT keeps labels and splits elsewhere: pass them as ``node_label`` and the like. Features that GLT
    cached (``cache_feats.pt``) are copies of rows that another partition owns, and are left out.

    Args:
        source: GLT's ``root_dir``, with all its partitions.
        output_dir: As in :class:`glt.partition.PartitionerBase`.
        renumber_edges: Whether edges may get new ids, by their place in the file, where GLT stored none
            (``graph_caching=True`` without edge features).
        progress: Whether to draw a tqdm bar of bytes written.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what GLT does not store.
            ``edge_assign_strategy`` is found from the edges, and needed only where both would do (then ``"by_src"``,
            GLT's default, is taken).

    Raises:
        PartitionError: If ``source`` is no such directory, incomplete or damaged (names the file), or ``output_dir``
            is not empty.
        ValueError: If an argument does not fit.
    """
    root = Path(source)
    require_directory(root, "GLT's partitioner")
    with scratch_for(output_dir) as scratch:
        imported = _read_glt(root, scratch, renumber_edges, graph.pop("edge_assign_strategy", None))
        return imported.write(output_dir, progress, graph)


def _read_glt(root: Path, scratch: Path, renumber_edges: bool, strategy: str | None) -> Imported:
    num_parts, schema = _glt_meta(root / "META")
    node_types: Sequence[_Type] = schema.node_types if schema.is_hetero else (None,)
    edge_types: Sequence[_Type] = schema.edge_types if schema.is_hetero else (None,)
    parts = [root / f"part{part}" for part in range(num_parts)]
    for part in parts:
        if not part.is_dir():
            raise PartitionError(f"{part} is missing: {root / 'META'} lists {num_parts} partitions; copy it here first")
    owners = [_glt_owners(_under(root, "node_pb", node_type, ".pt"), num_parts) for node_type in node_types]
    reader = _GltEdges(root, parts, scratch, renumber_edges)
    edges = []
    for at, edge_type in enumerate(edge_types):
        source, _, target = schema.edge_types[at]
        ends = owners[schema.node_index(source)], owners[schema.node_index(target)]
        edges.append(reader.read(edge_type, ends))
    nodes = [
        {"owners": owner, "node_feat": _glt_feat(parts, "node_feat", node_type, len(owner), scratch)}
        for node_type, owner in zip(node_types, owners, strict=True)
    ]
    tables = [
        {
            "edge_index": each.edge_index,
            "edge_feat": _glt_feat(parts, "edge_feat", edge_type, each.num_rows, scratch),
            "edge_weight": given.get("weight"),
        }
        for edge_type, (each, given) in zip(edge_types, edges, strict=True)
    ]
    origin = {"imported_from": "graphlearn_torch"}
    return Imported(schema, num_parts, reader.strategy(strategy), origin, nodes, tables)


def _glt_meta(path: Path) -> tuple[int, Schema]:
    meta = read_plain(path)
    try:
        num_parts, kind = meta["num_parts"], meta["data_cls"]
        if type(num_parts) is not int or num_parts < 1 or kind not in ("homo", "hetero"):
            raise ValueError(f"num_parts = {num_parts!r}, data_cls = {kind!r}")
        schema = HOMOGENEOUS if kind == "homo" else Schema(tuple(meta["node_types"]), tuple(meta["edge_types"]))
        require_plain_names(schema)
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(f"{path} is not GLT's META ({type(error).__name__}: {error})") from error
    return num_parts, schema


def _under(directory: Path, name: str, type_: _Type, suffix: str = "") -> Path:
    """GLT's path of a kind of data: a directory by type, or without types a single file or directory."""
    if type_ is None:
        return directory / f"{name}{suffix}"
    return directory / name / f"{type_ if isinstance(type_, str) else '__'.join(type_)}{suffix}"


def _glt_owners(path: Path, num_parts: int) -> np.ndarray:
    book = read_torch(path)
    if isinstance(book, Record) and isinstance(book.state, dict):  # RangePartitionBook: where each partition ends
        ends = integers(path, "partition_bounds", book.state.get("partition_bounds"))
        if ends.size != num_parts or (np.diff(ends, prepend=0) < 0).any():
            raise PartitionError(f"{path} has ranges that end at {ends.tolist()}: expected {num_parts}, ascending")
        return np.repeat(np.arange(num_parts), np.diff(ends, prepend=0))
    return require_owners(path, book, num_parts)


class _GltEdges:
    """Reads the edges of one type after the other, and finds out which end owns them."""

    def __init__(self, root: Path, parts: Sequence[Path], scratch: Path, renumber: bool) -> None:
        self._root, self._parts, self._scratch, self._renumber = root, parts, scratch, renumber
        self._fits = {"by_src": True, "by_dst": True}

    def read(self, edge_type: _Type, owners: tuple[np.ndarray, np.ndarray]) -> tuple[EdgeAssembly, dict[str, Array]]:
        directories = [_under(part, "graph", edge_type) for part in self._parts]
        whole = _under(self._root, "graph", edge_type)
        if whole.is_dir() and not any(directory.is_dir() for directory in directories):
            directories = [whole]  # graph_caching=True: all partitions in one file, whose order says who owns what
        files = [_GltEdgeFiles.of(directory) for directory in directories]
        num_edges = sum(each.row.size for each in files)
        num_nodes = owners[0].size, owners[1].size
        edges = EdgeAssembly(edge_type if isinstance(edge_type, tuple) else None, num_edges, num_nodes, self._scratch)
        begin = 0
        for part, each in enumerate(files):
            if each.directory != whole:
                for strategy, ends, owner in (("by_src", each.row, owners[0]), ("by_dst", each.col, owners[1])):
                    self._fits[strategy] &= _all_owned(each.directory, ends, owner, part)
            ids: Any = each.ids
            if ids is None:
                if not self._renumber:
                    raise PartitionError(
                        f"{each.directory} has no eids.pt: GLT stored no ids of these edges; pass renumber_edges=True "
                        "(--renumber-edges) to number them by their place in the file"
                    )
                ids = np.arange(begin, begin + each.row.size)
            begin += each.row.size
            weight = {} if each.weight is None else {"weight": each.weight}
            edges.add(each.directory, ids, {"row": each.row, "col": each.col, **weight})
        return edges, edges.tables(self._root)

    def strategy(self, wanted: str | None) -> str:
        """Returns which end owns the edges; if both would do, what is ``wanted``, or else GLT's default."""
        fitting = [name for name, fits in self._fits.items() if fits]
        if not fitting:
            raise PartitionError(
                f"{self._root} holds edges that belong neither to the partition of their source nor to that of their "
                "destination: its books and graphs are of different runs"
            )
        if wanted is not None and (wanted := checked_strategy(wanted)) not in fitting:
            raise ValueError(f"edge_assign_strategy = {wanted!r}: the edges of {self._root} lie {fitting[0]}")
        return wanted or fitting[0]


@dataclass(frozen=True, eq=False)
class _GltEdgeFiles:
    """The edges in one directory of GLT."""

    directory: Path
    row: np.ndarray
    col: np.ndarray
    ids: np.ndarray | None
    weight: Any

    @classmethod
    def of(cls, directory: Path) -> _GltEdgeFiles:
        def ids(name: str) -> np.ndarray:
            path = directory / f"{name}.pt"
            return integers(path, name, read_torch(path))

        weight = directory / "weights.pt"
        row, col = ids("rows"), ids("cols")
        if row.size != col.size:
            raise PartitionError(f"{directory} has {row.size} rows and {col.size} cols: expected as many")
        edge_ids = ids("eids") if (directory / "eids.pt").exists() else None
        return cls(directory, row, col, edge_ids, read_torch(weight) if weight.exists() else None)


def _all_owned(origin: Path, ids: np.ndarray, owner: np.ndarray, part: int) -> bool:
    owned = True
    for _, chunk in chunks(ids):
        bad = chunk[(chunk < 0) | (chunk >= owner.size)]
        if bad.size:
            raise PartitionError(f"{origin} holds node {bad[0]}: expected ids in [0, {owner.size}), which its book has")
        owned &= bool((owner[chunk] == part).all())
    return owned


def _glt_feat(parts: Sequence[Path], name: str, type_: _Type, num_rows: int, scratch: Path) -> Array | None:
    directories = [directory for part in parts if (directory := _under(part, name, type_)).is_dir()]
    if not directories:
        return None
    what = name.removesuffix("_feat") if type_ is None else f"{name.removesuffix('_feat')} of type {type_}"
    table = Assembly(what, num_rows, scratch)
    for directory in directories:
        feats, ids = directory / "feats.pkl", directory / "ids.pkl"
        if not feats.exists() and not ids.exists():
            continue  # a partition without rows, or with a cache only
        try:
            with closing(read_pickles(feats)) as pieces, closing(read_pickles(ids)) as pieces_of_ids:
                for rows, at in zip(pieces, pieces_of_ids, strict=True):
                    table.add(feats, at, {"feat": rows})
        except ValueError as error:
            if isinstance(error, PartitionError):
                raise
            raise PartitionError(
                f"{feats} and {ids.name} hold different numbers of chunks: expected as many"
            ) from error
    return table.tables(parts[0].parent).get("feat")


def import_pyg(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    progress: bool = False,
    **graph: Unpack[GraphArguments],
) -> Manifest:
    """Turns what PyG's partitioner wrote into a partition directory: same owners, ids and features.

    Files are mapped; scratch files beside ``output_dir`` need about the room of the result. PyG stores features ``x``,
    ``edge_attr`` and times, and keeps labels elsewhere: pass them as ``node_label``. Edges belong to their destination
    (``by_dst``).

    Args:
        source: PyG's ``root``, with all its partitions.
        output_dir: As in :class:`glt.partition.PartitionerBase`.
        progress: Whether to draw a tqdm bar of bytes written.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what PyG does not store.

    Raises:
        PartitionError: If ``source`` is no such directory, incomplete or damaged (names the file), or ``output_dir``
            is not empty.
        ValueError: If an argument does not fit.
    """
    root = Path(source)
    require_directory(root, "torch_geometric.distributed.Partitioner")
    with scratch_for(output_dir) as scratch:
        strategy = graph.pop("edge_assign_strategy", "by_dst")
        if strategy not in ("by_dst", "by_des"):
            raise ValueError(f"edge_assign_strategy = {strategy!r}: the edges of {root} lie by_dst, as PyG puts them")
        return _PygReader(root, scratch).read().write(output_dir, progress, graph)


class _PygReader:
    """Reads all partitions of a directory, each file once."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        self._num_parts, self._schema = _pyg_meta(root / "META.json")
        schema = self._schema
        self._owners = [self._book("node_map", name) for name in schema.node_types]
        num_edges = [self._book("edge_map", "__".join(edge_type)).size for edge_type in schema.edge_types]
        num_nodes = [(self._owners[source].size, self._owners[target].size) for source, target in schema.ends("out")]
        # Edge ids in graph.pt count the edges of all types, one type after the other.
        self._first_edge = np.cumsum([0, *num_edges])
        self._nodes = [
            Assembly(f"node of type {name!r}" if schema.is_hetero else "node", owner.size, scratch)
            for name, owner in zip(schema.node_types, self._owners, strict=True)
        ]
        self._edges = [
            EdgeAssembly(edge_type if schema.is_hetero else None, count, ends, scratch)
            for edge_type, count, ends in zip(schema.edge_types, num_edges, num_nodes, strict=True)
        ]
        self._node_time: list[Array | None] = [None] * len(self._nodes)

    def read(self) -> Imported:
        for part in range(self._num_parts):
            directory = self._root / f"part_{part}"
            if not directory.is_dir():
                raise PartitionError(
                    f"{directory} is missing: META.json lists {self._num_parts} partitions; copy it here first"
                )
            self._read_nodes(directory / "node_feats.pt", part)
            self._read_edges(directory, part)
        nodes, edges = [], []
        for owner, time, each in zip(self._owners, self._node_time, self._nodes, strict=True):
            nodes.append({"owners": owner, "node_feat": each.tables(self._root).get("feat"), "node_time": time})
        for assembly in self._edges:
            tables = assembly.tables(self._root)
            given = {"edge_feat": tables.get("feat"), "edge_time": tables.get("time")}
            edges.append({"edge_index": assembly.edge_index, **given})
        origin = {"imported_from": "torch_geometric.distributed"}
        return Imported(self._schema, self._num_parts, "by_dst", origin, nodes, edges)

    def _book(self, name: str, type_: str) -> np.ndarray:
        path = self._root / name / f"{type_}.pt" if self._schema.is_hetero else self._root / f"{name}.pt"
        return require_owners(path, read_torch(path), self._num_parts)

    def _read_nodes(self, path: Path, part: int) -> None:
        for at, (name, stored) in enumerate(self._by_type(path, self._schema.node_types)):
            ids = integers(path, "node ids", entry(path, stored, "id" if self._schema.is_hetero else "global_id"))
            require_owned(path, self._owners[at], ids, part, f"node of type {name!r}")
            feat = entry(path, stored, "feats", "x")
            self._nodes[at].add(path, ids, {} if feat is None else {"feat": feat})
            if "time" in stored:  # of all nodes, in every partition
                self._node_time[at] = stored["time"]

    def _read_edges(self, directory: Path, part: int) -> None:
        path, feats = directory / "graph.pt", directory / "edge_feats.pt"
        tables = dict(self._by_type(feats, self._schema.edge_types))
        for at, (edge_type, stored) in enumerate(self._by_type(path, self._schema.edge_types)):
            ids = integers(path, "edge_id", entry(path, stored, "edge_id"))
            row, col = (integers(path, name, entry(path, stored, name)) for name in ("row", "col"))
            require_owned(path, self._owners[self._schema.node_index(edge_type[2])], col, part, "destination")
            table, first = tables[edge_type], int(self._first_edge[at])
            given: dict[str, Any] = {"row": row, "col": col}
            if "feats" in table:
                if not _equal(integers(feats, "global_id", entry(feats, table, "global_id")), ids, first):
                    raise PartitionError(f"{feats} has other edges than {path.name}: they are of different runs")
                given["feat"] = entry(feats, table, "feats", "edge_attr")
            if "edge_time" in table:
                given["time"] = table["edge_time"]
            self._edges[at].add(path, ids, given, first)

    def _by_type(self, path: Path, types: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        stored = read_torch(path)
        if not isinstance(stored, Mapping):
            raise PartitionError(f"{path} holds a {type(stored).__name__}: expected a dict")
        by_type = [(each, stored.get(each, {})) for each in types] if self._schema.is_hetero else [(types[0], stored)]
        for each, value in by_type:
            if not isinstance(value, Mapping):
                raise PartitionError(f"{path} holds a {type(value).__name__} for {each}: expected a dict")
        return by_type


def _equal(ids: np.ndarray, others: np.ndarray, first: int) -> bool:
    """Tells whether ``ids`` are ``others`` counted from ``first``."""
    return ids.size == others.size and all(
        np.array_equal(chunk, others[begin : begin + chunk.size] - first) for begin, chunk in chunks(ids)
    )


def _pyg_meta(path: Path) -> tuple[int, Schema]:
    try:
        meta = json.loads(path.read_bytes())
        num_parts = meta["num_parts"]
        if type(num_parts) is not int or num_parts < 1:
            raise ValueError(f"num_parts = {num_parts!r}")
        schema = HOMOGENEOUS
        if meta["is_hetero"]:
            schema = Schema(tuple(meta["node_types"]), tuple(map(tuple, meta["edge_types"])))
            require_plain_names(schema)
    except FileNotFoundError as error:
        raise PartitionError(f"{path} is missing: {path.parent} is no directory of PyG's Partitioner") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(f"{path} is not PyG's META.json ({type(error).__name__}: {error})") from error
    return num_parts, schema
