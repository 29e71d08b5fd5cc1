"""Imports the partition directories of GLT (graphlearn-torch).

``META`` is a pickle of plain values, books and graphs are files of ``torch.save``, features are pickled chunks that
follow each other (``feats.pkl``, ``ids.pkl``). None of them is executed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
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
    integers,
    require_directory,
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
        imported = _read(root, scratch, renumber_edges, graph.pop("edge_assign_strategy", None))
        return imported.write(output_dir, progress, graph)


def _read(root: Path, scratch: Path, renumber_edges: bool, strategy: str | None) -> Imported:
    num_parts, schema = _meta(root / "META")
    node_types: Sequence[_Type] = schema.node_types if schema.is_hetero else (None,)
    edge_types: Sequence[_Type] = schema.edge_types if schema.is_hetero else (None,)
    parts = [root / f"part{part}" for part in range(num_parts)]
    for part in parts:
        if not part.is_dir():
            raise PartitionError(f"{part} is missing: {root / 'META'} lists {num_parts} partitions; copy it here first")
    owners = [_owners(_under(root, "node_pb", node_type, ".pt"), num_parts) for node_type in node_types]
    reader = _Edges(root, parts, scratch, renumber_edges)
    edges = []
    for at, edge_type in enumerate(edge_types):
        source, _, target = schema.edge_types[at]
        ends = owners[schema.node_index(source)], owners[schema.node_index(target)]
        edges.append(reader.read(edge_type, ends))
    nodes = [
        {"owners": owner, "node_feat": _feat(parts, "node_feat", node_type, len(owner), scratch)}
        for node_type, owner in zip(node_types, owners, strict=True)
    ]
    tables = [
        {
            "edge_index": each.edge_index,
            "edge_feat": _feat(parts, "edge_feat", edge_type, each.num_rows, scratch),
            "edge_weight": given.get("weight"),
        }
        for edge_type, (each, given) in zip(edge_types, edges, strict=True)
    ]
    origin = {"imported_from": "graphlearn_torch"}
    return Imported(schema, num_parts, reader.strategy(strategy), origin, nodes, tables)


def _meta(path: Path) -> tuple[int, Schema]:
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


def _owners(path: Path, num_parts: int) -> np.ndarray:
    book = read_torch(path)
    if isinstance(book, Record) and isinstance(book.state, dict):  # RangePartitionBook: where each partition ends
        ends = integers(path, "partition_bounds", book.state.get("partition_bounds"))
        if ends.size != num_parts or (np.diff(ends, prepend=0) < 0).any():
            raise PartitionError(f"{path} has ranges that end at {ends.tolist()}: expected {num_parts}, ascending")
        return np.repeat(np.arange(num_parts), np.diff(ends, prepend=0))
    return require_owners(path, book, num_parts)


class _Edges:
    """Reads the edges of one type after the other, and finds out which end owns them."""

    def __init__(self, root: Path, parts: Sequence[Path], scratch: Path, renumber: bool) -> None:
        self._root = root
        self._parts = parts
        self._scratch = scratch
        self._renumber = renumber
        self._fits = {"by_src": True, "by_dst": True}

    def read(self, edge_type: _Type, owners: tuple[np.ndarray, np.ndarray]) -> tuple[EdgeAssembly, dict[str, Array]]:
        directories = [_under(part, "graph", edge_type) for part in self._parts]
        whole = _under(self._root, "graph", edge_type)
        if whole.is_dir() and not any(directory.is_dir() for directory in directories):
            directories = [whole]  # graph_caching=True: all partitions in one file, whose order says who owns what
        files = [_EdgeFiles.of(directory) for directory in directories]
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


class _EdgeFiles:
    """The edges in one directory of GLT."""

    def __init__(self, directory: Path, row: np.ndarray, col: np.ndarray, ids: np.ndarray | None, weight: Any) -> None:
        self.directory = directory
        self.row = row
        self.col = col
        self.ids = ids
        self.weight = weight

    @classmethod
    def of(cls, directory: Path) -> _EdgeFiles:
        def ids(name: str) -> np.ndarray:
            path = directory / f"{name}.pt"
            return integers(path, name, read_torch(path))

        has_ids, weight = (directory / "eids.pt").exists(), directory / "weights.pt"
        row, col = ids("rows"), ids("cols")
        if row.size != col.size:
            raise PartitionError(f"{directory} has {row.size} rows and {col.size} cols: expected as many")
        return cls(
            directory, row, col, ids("eids") if has_ids else None, read_torch(weight) if weight.exists() else None
        )


def _all_owned(origin: Path, ids: np.ndarray, owner: np.ndarray, part: int) -> bool:
    owned = True
    for _, chunk in chunks(ids):
        bad = chunk[(chunk < 0) | (chunk >= owner.size)]
        if bad.size:
            raise PartitionError(f"{origin} holds node {bad[0]}: expected ids in [0, {owner.size}), which its book has")
        owned &= bool((owner[chunk] == part).all())
    return owned


def _feat(parts: Sequence[Path], name: str, type_: _Type, num_rows: int, scratch: Path) -> Array | None:
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
