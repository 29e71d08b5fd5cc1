"""Imports the partition directories of PyG (``torch_geometric.distributed.Partitioner``)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from glt.data.schema import HOMOGENEOUS, Schema
from glt.errors import PartitionError
from glt.partition.format.files import Array, chunks
from glt.partition.format.manifest import Manifest
from glt.partition.importers.foreign_files import read_torch
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
from glt.partition.methods.partitioner import GraphArguments


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
        return _Reader(root, scratch).read().write(output_dir, progress, graph)


class _Reader:
    """Reads all partitions of a directory, each file once."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self._root = root
        self._num_parts, self._schema = _meta(root / "META.json")
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


def _meta(path: Path) -> tuple[int, Schema]:
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
