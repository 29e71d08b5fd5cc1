"""Imports the partition directories of GLT (graphlearn-torch) and of PyG (``torch_geometric.distributed.Partitioner``).

GLT's ``META`` is a pickle of plain values, books and graphs are files of ``torch.save``, features are pickled chunks
that follow each other (``feats.pkl``, ``ids.pkl``). None of them is executed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from glt._tracebacks import short_traceback
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.errors import PartitionError
from glt.partition.format.manifest import Manifest
from glt.partition.format.rows import Array, chunks
from glt.partition.importers.foreign_files import Record, read_pickles, read_torch
from glt.partition.importers.imported import (
    Assembly,
    Imported,
    assemblies,
    first_beyond,
    fitting_strategy,
    integers,
    require_directory,
    scratch_for,
)
from glt.partition.methods.partitioner import GraphArguments

_Type = NodeType | EdgeType | None  # None: of a homogeneous graph, whose files have no directory of their own


@short_traceback
def import_glt(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    renumber_edges: bool = False,
    progress: bool | None = None,
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
        progress: As in :meth:`PartitionerBase.partition`.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what GLT does not store.
            ``edge_assign_strategy`` is found from the edges, and needed only where both would do (then ``"by_src"``,
            GLT's default, is taken).

    Raises:
        PartitionError: If ``source`` is no such directory, incomplete or damaged (names the file), or ``output_dir``
            is not empty.
        ValueError: If an argument does not fit.

    Example:
        >>> glt.partition.import_glt("of-others/glt_frequency", "imported")  # written by graphlearn_torch
        Manifest(2 partitions by AssignedPartitioner, 20 nodes, 60 edges, edge_dir='in', 16 files, 3.6 KB)
    """
    root = Path(source)
    require_directory(root, "GLT's partitioner")
    with scratch_for(output_dir) as scratch:
        strategy = graph.pop("edge_assign_strategy", None)
        return _GltReader(root, scratch, renumber_edges).read(strategy).write(output_dir, progress, graph)


class _GltReader:
    """Reads all partitions of a directory, one type after the other, and finds out which end owns the edges."""

    def __init__(self, root: Path, scratch: Path, renumber: bool) -> None:
        self._root, self._scratch, self._renumber = root, scratch, renumber
        self._schema, self._parts = _opened(
            root / "META",
            "GLT",
            lambda path: next(read_pickles(path), None),
            lambda meta: {"homo": False, "hetero": True}[meta["data_cls"]],
            "part",
        )
        self._fits = {"by_src": True, "by_dst": True}

    def read(self, wanted: str | None) -> Imported:
        schema = self._schema
        node_types: tuple[_Type, ...] = schema.node_types if schema.is_hetero else (None,)
        edge_types: tuple[_Type, ...] = schema.edge_types if schema.is_hetero else (None,)
        owners = [self._book(node_type) for node_type in node_types]
        edges = [
            self._edges(edge_type, owners[source], owners[target])
            for edge_type, (source, target) in zip(edge_types, schema.ends("out"), strict=True)
        ]
        nodes = [
            {"owners": owner, "node_feat": self._feat("node", node_type, len(owner))}
            for node_type, owner in zip(node_types, owners, strict=True)
        ]
        fitting = [name for name, fits in self._fits.items() if fits]
        if not fitting:
            raise PartitionError(
                f"{self._root} holds edges that belong neither to the partition of their source nor to that of their "
                "destination: its books and graphs are of different runs"
            )
        strategy = fitting_strategy(self._root, "GLT's partitioners", wanted, fitting)
        return Imported(schema, len(self._parts), strategy, {"imported_from": "graphlearn_torch"}, nodes, edges)

    def _book(self, node_type: _Type) -> np.ndarray:
        path, num_parts = _under(self._root, "node_pb", node_type, ".pt"), len(self._parts)
        book = read_torch(path)
        if not (isinstance(book, Record) and isinstance(book.state, dict)):
            return _owners(path, book, num_parts)
        ends = integers(path, "partition_bounds", book.state.get("partition_bounds"))  # of a RangePartitionBook
        if ends.size != num_parts or (np.diff(ends, prepend=0) < 0).any():
            raise PartitionError(f"{path} has ranges that end at {ends.tolist()}: expected {num_parts}, ascending")
        return np.repeat(np.arange(num_parts), np.diff(ends, prepend=0))

    def _edges(self, edge_type: _Type, src_owner: np.ndarray, dst_owner: np.ndarray) -> dict[str, Any]:
        directories = [_under(part, "graph", edge_type) for part in self._parts]
        whole = _under(self._root, "graph", edge_type)
        if whole.is_dir() and not any(directory.is_dir() for directory in directories):
            directories = [whole]  # graph_caching=True: all partitions in one file, whose order says who owns what
        files = [_glt_edges(directory) for directory in directories]
        num_edges = sum(each["row"].size for each in files)
        table = Assembly("edge", edge_type, num_edges, self._scratch, (src_owner.size, dst_owner.size))
        begin = 0
        for part, (directory, each) in enumerate(zip(directories, files, strict=True)):
            if directory != whole:
                for strategy, end, owner in (("by_src", "row", src_owner), ("by_dst", "col", dst_owner)):
                    self._fits[strategy] &= _first_foreign(directory, "node", each[end], owner, part) is None
            size = each["row"].size
            ids = each.pop("ids", None)
            if ids is None:
                if not self._renumber:
                    raise PartitionError(
                        f"{directory} has no eids.pt: GLT stored no ids of these edges; pass renumber_edges=True "
                        "(--renumber-edges) to number them by their place in the file"
                    )
                ids = np.arange(begin, begin + size)
            begin += size
            table.add(directory, ids, each)
        weight, feat = table.tables(self._root).get("weight"), self._feat("edge", edge_type, num_edges)
        return {"edge_index": table.edge_index, "edge_weight": weight, "edge_feat": feat}

    def _feat(self, kind: str, type_: _Type, num_rows: int) -> Array | None:
        directories = [path for part in self._parts if (path := _under(part, f"{kind}_feat", type_)).is_dir()]
        if not directories:
            return None
        table = Assembly(kind, type_, num_rows, self._scratch)
        for directory in directories:
            feats, ids = directory / "feats.pkl", directory / "ids.pkl"
            if not feats.exists() and not ids.exists():
                continue  # a partition without rows, or with a cache only
            try:
                with closing(read_pickles(feats)) as pieces, closing(read_pickles(ids)) as pieces_of_ids:
                    for rows, at in zip(pieces, pieces_of_ids, strict=True):
                        table.add(feats, at, {"feat": rows})
            except PartitionError:
                raise
            except ValueError as error:
                raise PartitionError(
                    f"{feats} and {ids.name} hold different numbers of chunks: expected as many"
                ) from error
        return table.tables(self._root).get("feat")


def _glt_edges(directory: Path) -> dict[str, Any]:
    """The edges in a directory of GLT: ``row`` and ``col``, and ``ids`` and ``weight`` where they are stored."""
    paths = {name: directory / f"{file}.pt" for name, file in (("row", "rows"), ("col", "cols"), ("ids", "eids"))}
    found = {
        name: integers(path, path.stem, read_torch(path))
        for name, path in paths.items()
        if name != "ids" or path.exists()
    }
    weight = directory / "weights.pt"
    return found | ({"weight": read_torch(weight)} if weight.exists() else {})


def _under(directory: Path, name: str, type_: _Type, suffix: str = "") -> Path:
    """GLT's path of a kind of data: a directory by type, or without types a single file or directory."""
    if type_ is None:
        return directory / f"{name}{suffix}"
    return directory / name / f"{type_ if isinstance(type_, str) else '__'.join(type_)}{suffix}"


@short_traceback
def import_pyg(
    source: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    progress: bool | None = None,
    **graph: Unpack[GraphArguments],
) -> Manifest:
    """Turns what PyG's partitioner wrote into a partition directory: same owners, ids and features.

    Files are mapped; scratch files beside ``output_dir`` need about the room of the result. PyG stores features ``x``,
    ``edge_attr`` and times, and keeps labels elsewhere: pass them as ``node_label``. Edges belong to their destination
    (``by_dst``).

    Args:
        source: PyG's ``root``, with all its partitions.
        output_dir: As in :class:`glt.partition.PartitionerBase`.
        progress: As in :meth:`PartitionerBase.partition`.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what PyG does not store.

    Raises:
        PartitionError: If ``source`` is no such directory, incomplete or damaged (names the file), or ``output_dir``
            is not empty.
        ValueError: If an argument does not fit.

    Example:
        >>> glt.partition.import_pyg("of-others/pyg", "imported")  # written by torch_geometric.distributed.Partitioner
        Manifest(2 partitions by AssignedPartitioner, 40 nodes, 80 edges, edge_dir='in', 16 files, 5.1 KB)
    """
    root = Path(source)
    require_directory(root, "torch_geometric.distributed.Partitioner")
    strategy = fitting_strategy(root, "PyG's Partitioner", graph.pop("edge_assign_strategy", None), ["by_dst"])
    with scratch_for(output_dir) as scratch:
        return _PygReader(root, scratch).read(strategy).write(output_dir, progress, graph)


class _PygReader:
    """Reads all partitions of a directory, each file once."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        schema, self._parts = _opened(
            root / "META.json",
            "PyG",
            lambda path: json.loads(path.read_bytes()),
            lambda meta: meta["is_hetero"],
            "part_",
        )
        self._schema = schema
        self._owners = [self._book("node_map", name) for name in schema.node_types]
        num_edges = [self._book("edge_map", "__".join(edge_type)).size for edge_type in schema.edge_types]
        # Edge ids in graph.pt count the edges of all types, one type after the other.
        self._first_edge = np.cumsum([0, *num_edges])
        num_nodes = [owner.size for owner in self._owners]
        self._nodes = assemblies("node", schema, num_nodes, scratch)
        self._edges = assemblies("edge", schema, num_edges, scratch, num_nodes)
        self._node_time: list[Array | None] = [None] * len(self._nodes)

    def read(self, strategy: str) -> Imported:
        for part, directory in enumerate(self._parts):
            self._read_nodes(directory / "node_feats.pt", part)
            self._read_edges(directory, part)
        nodes, edges = [], []
        for owner, time, each in zip(self._owners, self._node_time, self._nodes, strict=True):
            nodes.append({"owners": owner, "node_feat": each.tables(self._root).get("feat"), "node_time": time})
        for each in self._edges:
            tables = each.tables(self._root)
            given = {"edge_feat": tables.get("feat"), "edge_time": tables.get("time")}
            edges.append({"edge_index": each.edge_index, **given})
        origin = {"imported_from": "torch_geometric.distributed"}
        return Imported(self._schema, len(self._parts), strategy, origin, nodes, edges)

    def _book(self, name: str, type_: str) -> np.ndarray:
        path = self._root / name / f"{type_}.pt" if self._schema.is_hetero else self._root / f"{name}.pt"
        return _owners(path, read_torch(path), len(self._parts))

    def _read_nodes(self, path: Path, part: int) -> None:
        for at, (name, stored) in enumerate(self._by_type(path, self._schema.node_types)):
            ids = integers(path, "node ids", _entry(path, stored, "id" if self._schema.is_hetero else "global_id"))
            _require_owned(path, f"node of type {name!r}", ids, self._owners[at], part)
            feat = _entry(path, stored, "feats", "x")
            self._nodes[at].add(path, ids, {} if feat is None else {"feat": feat})
            if "time" in stored:  # of all nodes, in every partition
                self._node_time[at] = stored["time"]

    def _read_edges(self, directory: Path, part: int) -> None:
        path, feats = directory / "graph.pt", directory / "edge_feats.pt"
        tables = dict(self._by_type(feats, self._schema.edge_types))
        for number, (edge_type, stored) in enumerate(self._by_type(path, self._schema.edge_types)):
            ids, row, col = (integers(path, name, _entry(path, stored, name)) for name in ("edge_id", "row", "col"))
            _require_owned(path, "destination", col, self._owners[self._schema.node_index(edge_type[2])], part)
            table, first = tables[edge_type], int(self._first_edge[number])
            given: dict[str, Any] = {"row": row, "col": col}
            if "feats" in table:
                others = integers(feats, "global_id", _entry(feats, table, "global_id"))
                same = (np.array_equal(chunk, ids[at : at + chunk.size] - first) for at, chunk in chunks(others))
                if others.size != ids.size or not all(same):
                    raise PartitionError(f"{feats} has other edges than {path.name}: they are of different runs")
                given["feat"] = _entry(feats, table, "feats", "edge_attr")
            if "edge_time" in table:
                given["time"] = table["edge_time"]
            self._edges[number].add(path, ids, given, first)

    def _by_type(self, path: Path, types: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        stored = read_torch(path)
        by_type = stored if self._schema.is_hetero else {types[0]: stored}
        found = [by_type.get(each, {}) for each in types] if isinstance(by_type, Mapping) else [by_type]
        for each in found:
            if not isinstance(each, Mapping):
                raise PartitionError(f"{path} holds a {type(each).__name__}: expected a dict")
        return list(zip(types, found, strict=True))


def _opened(
    path: Path,
    library: str,
    read: Callable[[Path], Any],
    is_hetero: Callable[[Any], bool],
    prefix: str,
) -> tuple[Schema, list[Path]]:
    """Returns the types that the file ``path`` of a library describes, and the directories of the partitions, which
    are called ``prefix`` and their number."""
    try:
        meta = read(path)
        num_parts, schema = meta["num_parts"], HOMOGENEOUS
        if type(num_parts) is not int or num_parts < 1:
            raise ValueError(f"num_parts = {num_parts!r}")
        if is_hetero(meta):
            schema = Schema(tuple(meta["node_types"]), tuple(map(tuple, meta["edge_types"])))
        for name in (*schema.node_types, *chain(*schema.edge_types)):
            if "/" in name or name in ("", ".", ".."):
                raise ValueError(f"type {name!r} names no file")
    except PartitionError:
        raise
    except FileNotFoundError as error:
        raise PartitionError(f"{path} is missing: {path.parent} is no directory of {library}'s partitioner") from error
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(f"{path} is not {library}'s {path.name} ({type(error).__name__}: {error})") from error
    parts = [path.with_name(f"{prefix}{part}") for part in range(num_parts)]
    for part in parts:
        if not part.is_dir():
            raise PartitionError(f"{part} is missing: {path} lists {num_parts} partitions; copy it here first")
    return schema, parts


def _owners(path: Path, book: object, num_parts: int) -> np.ndarray:
    """Returns a book, the partition of each node; a PartitionError names ``path`` where it is none."""
    owner = integers(path, "owners", book)
    beyond = first_beyond(owner, num_parts)
    if beyond is not None:
        raise PartitionError(f"{path} names partition {beyond}: expected 0 to {num_parts - 1}; it is damaged")
    return owner


def _entry(path: Path, stored: object, *keys: str) -> Any:
    """Returns what dicts within dicts of a file hold under ``keys``; a PartitionError names ``path`` and the key."""
    for key in keys:
        if not isinstance(stored, Mapping) or key not in stored:
            raise PartitionError(f"{path} has no {key!r} where its library puts it: it is damaged, or another file")
        stored = stored[key]
    return stored


def _first_foreign(origin: Path, what: str, ids: np.ndarray, owner: np.ndarray, part: int) -> int | None:
    """Returns the first of the nodes ``ids`` that belongs to another partition, if one does; a PartitionError names one
    that is not in the book."""
    beyond = first_beyond(ids, owner.size)
    if beyond is not None:
        raise PartitionError(f"{origin} holds {what} {beyond}: expected ids in [0, {owner.size}), which its book has")
    return next((int(foreign[0]) for _, chunk in chunks(ids) if (foreign := chunk[owner[chunk] != part]).size), None)


def _require_owned(origin: Path, what: str, ids: np.ndarray, owner: np.ndarray, part: int) -> None:
    foreign = _first_foreign(origin, what, ids, owner, part)
    if foreign is not None:
        raise PartitionError(
            f"{origin} holds {what} {foreign} of partition {owner[foreign]}: expected those of partition {part}; the "
            "directory is of another run, or altered"
        )
