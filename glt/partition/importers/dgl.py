"""Imports the partition directories of DGL: a JSON file, and per partition a graph and tables of its nodes and edges.

DGL numbers nodes and edges anew, partition after partition, and inside it type after type: that is the id in
``graph.dgl`` and in GraphBolt's ``fused_csc_sampling_graph.pt``. ``node_map`` and ``edge_map`` of the JSON file say
which range belongs to which partition and type.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import Unpack

from glt._tracebacks import short_traceback
from glt.data.schema import HOMOGENEOUS, Schema
from glt.errors import PartitionError
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import require_graph_name, write_part_config
from glt.partition.format.rows import Array
from glt.partition.importers.foreign_files import DglGraph, read_graph, read_graphbolt, read_tensors
from glt.partition.importers.imported import (
    Imported,
    assemblies,
    first_beyond,
    fitting_strategy,
    integers,
    require_directory,
    scratch_for,
)
from glt.partition.methods.partitioner import GraphArguments


@dataclass(frozen=True, eq=False)
class Ranges:
    """Global ids of DGL, of nodes or of edges: ranges by partition, and inside a partition by type. ``begin``,
    ``sizes`` and ``first``, the id inside its type of the first of each range, are ``[num_parts, num_types]``;
    ``totals`` are the numbers of ids by type, and ``names`` what DGL calls the types in keys of tables.
    """

    names: list[str]
    begin: np.ndarray
    sizes: np.ndarray
    first: np.ndarray
    totals: list[int]

    @classmethod
    def of(cls, names: list[str], by_name: dict[str, list[Any]], num_parts: int) -> Ranges:
        """Checks the ranges of a partition config."""
        ranges = np.empty((num_parts, len(names), 2), np.int64)
        for at, name in enumerate(names):
            given = by_name[name]
            if given and not isinstance(given[0], list):  # before DGL 0.6: only where each range ends
                given = list(zip([0, *given[:-1]], given, strict=True))
            ranges[:, at] = np.array(given, np.int64).reshape(num_parts, 2)
        bounds = ranges.ravel()
        if bounds.size and (bounds[0] != 0 or (np.diff(bounds) < 0).any() or (bounds[2::2] != bounds[1:-1:2]).any()):
            raise ValueError("its ranges do not follow each other")
        sizes = ranges[:, :, 1] - ranges[:, :, 0]
        return cls(names, ranges[:, :, 0], sizes, np.cumsum(sizes, 0) - sizes, sizes.sum(0).tolist())

    def owners(self, type_: int) -> np.ndarray:
        """Partition of each id of a type."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes[:, type_])

    def locate(self, origin: Path, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns partition, type and id inside the type of global ids."""
        beyond = first_beyond(ids, sum(self.totals))
        if beyond is not None:
            raise PartitionError(f"{origin} holds global id {beyond}, which is in no range of the partition config")
        filled = np.flatnonzero(self.sizes)
        at = filled[np.searchsorted(self.begin.ravel()[filled], ids, side="right") - 1]
        part, type_ = np.divmod(at, self.begin.shape[1])
        return part, type_, ids - self.begin.ravel()[at] + self.first.ravel()[at]


@dataclass(frozen=True, eq=False)
class DglConfig:
    """DGL's partition config, the JSON file of a partition directory: types and ids in DGL's order, and of each
    partition its files by kind (``node_feats``, ``edge_feats``, ``part_graph`` or ``part_graph_graphbolt``).
    """

    path: Path
    schema: Schema
    nodes: Ranges
    edges: Ranges
    graph_name: str
    part_method: str
    files: list[dict[str, Path]]

    @classmethod
    def read(cls, path: Path) -> DglConfig:
        """Reads ``path``, which may be a directory with one JSON file."""
        if path.is_dir():
            found = sorted(path.glob("*.json"))
            if len(found) != 1:
                raise PartitionError(
                    f"{path} holds {len(found)} JSON files: expected one; name DGL's partition config itself"
                )
            (path,) = found
        require_directory(path.parent, "DGL's partition_graph")
        try:
            return cls._of(path, json.loads(path.read_bytes()))
        except FileNotFoundError as error:
            raise PartitionError(f"{path} is missing: expected DGL's partition config") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise PartitionError(f"{path} is truncated or altered ({error}): copy the directory again") from error
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise PartitionError(f"{path} is no partition config of DGL ({type(error).__name__}: {error})") from error

    @property
    def num_parts(self) -> int:
        return len(self.files)

    @classmethod
    def _of(cls, path: Path, document: dict[str, Any]) -> DglConfig:
        num_parts = document["num_parts"]
        if type(num_parts) is not int or num_parts < 1:
            raise ValueError(f"num_parts = {num_parts!r}")
        files = [
            {kind: path.parent / name for kind, name in document[f"part-{part}"].items()} for part in range(num_parts)
        ]
        for kind in ("ntypes", "etypes"):
            if sorted(document[kind].values()) != list(range(len(document[kind]))):
                raise ValueError(f"{kind} are not numbered from 0")
        nodes, edges = (sorted(document[kind], key=document[kind].get) for kind in ("ntypes", "etypes"))
        edge_types: list[Any] = [tuple(name.split(":")) for name in edges]
        for name, edge_type in zip(edges, edge_types, strict=True):
            if len(edge_type) != 3:
                raise ValueError(
                    f"edge type {name!r}: expected source:relation:destination; DGL's change_etype tool adds them"
                )
        return cls(
            path,
            HOMOGENEOUS if (len(nodes), len(edges)) == (1, 1) else Schema(tuple(nodes), tuple(edge_types)),
            Ranges.of(nodes, document["node_map"], num_parts),
            Ranges.of(edges, document["edge_map"], num_parts),
            str(document.get("graph_name", path.stem)),
            str(document.get("part_method")),
            files,
        )


def _owned_edges(
    origin: Path, config: DglConfig, part: int, graph: DglGraph
) -> Iterator[tuple[int, np.ndarray | None, np.ndarray, np.ndarray]]:
    """Yields edge type, ids (None where not stored), sources and destinations of the edges that a partition owns, ids
    inside their types, a piece at a time; copies of other partitions' edges are left out."""
    node_ids = _table(origin, graph.ndata, "_ID", graph.num_nodes)
    edge_ids, edge_types = (
        _table(origin, graph.edata, name, graph.num_edges) if name in graph.edata else None for name in ("_ID", "_TYPE")
    )
    for begin in range(0, graph.num_edges, _CHUNK_EDGES):
        src, dst, places = graph.edges(begin, min(begin + _CHUNK_EDGES, graph.num_edges))
        owner, dst_type, dst = config.nodes.locate(origin, _taken(origin, node_ids, dst))
        _, src_type, src = config.nodes.locate(origin, _taken(origin, node_ids, src))
        src, src_type, dst, dst_type, places = (each[owner == part] for each in (src, src_type, dst, dst_type, places))
        ids: np.ndarray | None = None
        if edge_ids is not None:
            _, edge_type, ids = config.edges.locate(origin, _taken(origin, edge_ids, places))
        elif edge_types is not None:
            edge_type = _taken(origin, edge_types, places)
        else:
            edge_type = np.zeros(places.size, np.int64)
        for at, (source, target) in enumerate(config.schema.ends("out")):
            mine = np.flatnonzero(edge_type == at)
            if (src_type[mine] != source).any() or (dst_type[mine] != target).any():
                raise PartitionError(
                    f"{origin} has an edge of type {config.edges.names[at]} between nodes of other types: it is "
                    "damaged, or of another run"
                )
            if mine.size:
                yield at, None if ids is None else ids[mine], src[mine], dst[mine]


def _table(origin: Path, tables: Mapping[str, Array], name: str, num_rows: int) -> np.ndarray:
    if name not in tables:
        raise PartitionError(f"{origin} has no table {name!r}: it is no partition of DGL")
    ids = integers(origin, name, tables[name])
    if ids.size != num_rows:
        raise PartitionError(f"{origin} has {ids.size} rows of {name!r}: expected {num_rows}")
    return ids


def _taken(origin: Path, table: np.ndarray, at: np.ndarray) -> np.ndarray:
    beyond = first_beyond(at, table.size)
    if beyond is not None:
        raise PartitionError(f"{origin} holds local id {beyond}: expected less than {table.size}; it is damaged")
    return table[at].astype(np.int64)


Mapped = Any  # a tensor or array, or a dict of them by type, as DGL's return_mapping gives


def _original_ids(config: DglConfig, name: str, given: Mapped | None, ranges: Ranges) -> list[np.ndarray | None]:
    """Returns DGL's mapping ``name`` (``"orig_nids"``, ``"orig_eids"``), the original id of each node or edge, by type:
    from ``given``, what DGL returned, or the files ``part<i>/<name>.dgl``; None where nothing says it.
    """
    origin = Path(name)
    if given is None:
        paths = [config.path.parent / f"part{part}" / f"{name}.dgl" for part in range(config.num_parts)]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == len(paths):
            return [None] * len(ranges.names)
        if missing:
            raise PartitionError(f"{missing[0]} is missing, but other partitions have theirs: copy it here first")
        pieces, origin = [read_tensors(path) for path in paths], paths[0]
        given = {
            type_: np.concatenate([np.asarray(piece[type_]) for piece in pieces if type_ in piece])
            for type_ in {type_ for piece in pieces for type_ in piece}
        }
    if not isinstance(given, Mapping):
        if len(ranges.names) > 1:
            raise TypeError(f"{name} is a {type(given).__name__}: expected a dict by type, the graph having types")
        given = {ranges.names[0]: given}
    by_name = {":".join(key) if isinstance(key, tuple) else key: value for key, value in given.items()}
    result: list[np.ndarray | None] = []
    for type_, total in zip(ranges.names, ranges.totals, strict=True):
        ids = integers(origin, f"ids of {type_}", by_name.get(type_, np.empty(0, np.int64))).astype(np.int64)
        if ids.size != total or not np.array_equal(np.sort(ids), np.arange(total)):
            raise ValueError(
                f"{name} of {type_} from {origin} has {ids.size} ids: expected each of [0, {total}) once, as DGL's "
                "return_mapping gives"
            )
        result.append(ids)
    return result


_ROLES: Final = ("node_feat", "node_label", "node_time", "edge_feat", "edge_weight", "edge_time")
_USUAL: Final = {"node_feat": "feat", "node_label": "label", "edge_feat": "feat"}
_CHUNK_EDGES: Final = 1 << 20


@short_traceback
def import_dgl(
    part_config: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    tables: Mapping[str, str] | None = None,
    leave_out: Collection[str] = (),
    orig_nids: Mapped | None = None,
    orig_eids: Mapped | None = None,
    renumber_edges: bool = False,
    progress: bool | None = None,
    **graph: Unpack[GraphArguments],
) -> Manifest:
    """Turns what DGL's ``partition_graph`` or its distributed pipeline wrote into a partition directory: same owners.

    DGL numbers nodes and edges anew. With the mappings that it returned (``return_mapping=True``) or stored
    (``part<i>/orig_nids.dgl``, ``orig_eids.dgl``) they get their original ids back, otherwise they keep DGL's ids of
    their type. Copies of other partitions' nodes and edges are dropped; edges belong to their destination (``by_dst``).
    Files are mapped; scratch files beside ``output_dir`` need about the room of the result. The graph keeps its name,
    in a part_config of its own.

    Args:
        part_config: DGL's JSON file, or a directory that holds no other JSON file.
        output_dir: As in :class:`glt.partition.PartitionerBase`.
        tables: Which of DGL's tables becomes which argument of a partitioner: ``node_feat``, ``node_label``,
            ``node_time``, ``edge_feat``, ``edge_weight``, ``edge_time``. Unless said otherwise ``feat`` of nodes and of
            edges are the features, and ``label`` is the label. Masks and all other tables keep their names.
        leave_out: Names of tables not to import.
        orig_nids, orig_eids: DGL's mappings: the original id of each node and edge, a tensor or array, or a dict of
            them by type.
        renumber_edges: Whether edges may get new ids, in the order of the files, where a GraphBolt graph was stored
            without (``store_eids=False``).
        progress: As in :meth:`PartitionerBase.partition`.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what DGL does not store.

    Raises:
        PartitionError: If a file is missing, damaged or disagrees with the others (names it), or ``output_dir`` is not
            empty.
        ValueError: If an argument does not fit.

    Example:
        >>> glt.partition.import_dgl("of-others/dgl_homo/homo.json", "imported")  # written by DGL
        Manifest(2 partitions by AssignedPartitioner, 20 nodes, 60 edges, edge_dir='in', 20 files, 4.3 KB)
    """
    config = DglConfig.read(Path(part_config))
    require_graph_name(config.graph_name)
    fitting_strategy(config.path, "DGL's partitioners", graph.get("edge_assign_strategy"), ["by_dst"])
    for role in tables or ():
        if role not in _ROLES:
            raise ValueError(f"tables names {role!r}: expected one of {', '.join(_ROLES)}")
    with scratch_for(output_dir) as scratch:
        reader = _Reader(config, scratch, leave_out, orig_nids, orig_eids)
        manifest = reader.read(tables or {}, renumber_edges).write(output_dir, progress, graph)
    write_part_config(os.path.realpath(output_dir), config.graph_name, config.part_method)
    return manifest


class _Reader:
    """Reads all partitions of a directory, one after the other."""

    def __init__(
        self, config: DglConfig, scratch: Path, leave_out: Collection[str], nids: Mapped | None, eids: Mapped | None
    ) -> None:
        self._config, self._scratch, self._leave_out = config, scratch, leave_out
        self._nids = _original_ids(config, "orig_nids", nids, config.nodes)
        self._eids = _original_ids(config, "orig_eids", eids, config.edges)

    def read(self, asked: Mapping[str, str], renumber_edges: bool) -> Imported:
        """``asked`` are the tables by role that the user names."""
        config = self._config
        edge_tables = self._tables("edge", config.edges, self._eids)
        edge_indexes, renumbered = self._read_edges(renumber_edges)
        names = sorted({name for tables in edge_tables for name in tables})
        if renumbered and (names or any(ids is not None for ids in self._eids)):
            raise PartitionError(
                f"{config.path}: its GraphBolt graphs have no edge ids, so nothing tells to which edge a row of "
                f"{[*names, 'orig_eids'][0]!r} belongs: partition again with store_eids=True, or leave it out"
            )
        nodes = self._arguments(asked, "node", self._tables("node", config.nodes, self._nids))
        edges = self._arguments(asked, "edge", edge_tables)
        for type_, ids in enumerate(self._nids):
            owner = config.nodes.owners(type_)
            if ids is not None:
                owner[ids] = owner.copy()
            nodes[type_]["owners"] = owner
        for each, edge_index in zip(edges, edge_indexes, strict=True):
            each["edge_index"] = edge_index
        origin = {"imported_from": "dgl", "part_method": config.part_method}
        return Imported(config.schema, config.num_parts, "by_dst", origin, nodes, edges)

    def _read_edges(self, renumber: bool) -> tuple[list[np.ndarray], bool]:
        """Returns ``edge_index`` of each type, and whether a partition's edges have no ids."""
        config, ends = self._config, self._config.schema.ends("out")
        edges = assemblies("edge", config.schema, config.edges.totals, self._scratch, config.nodes.totals)
        filled = np.zeros(len(edges), np.int64)
        renumbered = False
        for part, files in enumerate(config.files):
            if "part_graph" in files:
                origin, read = files["part_graph"], read_graph
            elif "part_graph_graphbolt" in files:
                origin, read = files["part_graph_graphbolt"], read_graphbolt
            else:
                raise PartitionError(f"{config.path} names no graph of partition {part}: expected 'part_graph'")
            graph = read(origin)
            if "_ID" not in graph.edata:
                renumbered = True
                if not renumber or (len(edges) > 1 and "_TYPE" not in graph.edata):
                    raise PartitionError(
                        f"{origin} was stored without edge ids: partition again with store_eids=True, or pass "
                        "renumber_edges=True (--renumber-edges) to number edges in the order of the files"
                    )
            for at, ids, src, dst in _owned_edges(origin, config, part, graph):
                if ids is None:
                    ids = np.arange(filled[at], filled[at] + src.size)
                filled[at] += src.size
                source, target = ends[at]
                rows = {"row": _renamed(self._nids[source], src), "col": _renamed(self._nids[target], dst)}
                edges[at].add(origin, _renamed(self._eids[at], ids), rows)
        for each in edges:
            each.tables(config.path)  # raises where an edge is missing
        return [each.edge_index for each in edges], renumbered

    def _tables(self, kind: str, ranges: Ranges, originals: list) -> list[dict[str, Array]]:
        """Returns the tables of the nodes or edges of each type by DGL's names."""
        found = assemblies(kind, self._config.schema, ranges.totals, self._scratch)
        given: set[int] = set()
        for part, files in enumerate(self._config.files):
            path = files.get(f"{kind}_feats")
            pieces: list[dict[str, Array]] = [{} for _ in ranges.names]
            for key, table in ({} if path is None else read_tensors(path)).items():
                type_, _, name = key.rpartition("/")
                if type_ not in ranges.names:
                    raise PartitionError(f"{path} holds {key!r}: expected <type>/<name> with a type of {ranges.names}")
                if name not in self._leave_out:
                    pieces[ranges.names.index(type_)][name] = table
            for at, tables in enumerate(pieces):
                first, size = int(ranges.first[part, at]), int(ranges.sizes[part, at])
                if path is not None and tables and size:
                    found[at].add(path, _renamed(originals[at], np.arange(first, first + size)), tables)
                    given.add(at)
        return [each.tables(self._config.path) if at in given else {} for at, each in enumerate(found)]

    def _arguments(self, asked: Mapping[str, str], kind: str, tables: list[dict[str, Array]]) -> list[dict[str, Any]]:
        """Returns the arguments that the tables of each type become: those with a role, and attributes."""
        known = {name for each in tables for name in each}
        for role, name in asked.items():
            if role.startswith(kind) and name not in known:
                raise ValueError(
                    f"tables[{role!r}] = {name!r}: {self._config.path} has no such table, only {sorted(known)}"
                )
        roles = {role: name for role, name in {**_USUAL, **asked}.items() if role.startswith(kind)}
        arguments: list[dict[str, Any]] = []
        for each in tables:
            attrs = dict(each)
            given: dict[str, Any] = {role: attrs.pop(name, None) for role, name in roles.items()}
            arguments.append(given | {f"{kind}_attrs": attrs or None})
        return arguments


def _renamed(original: np.ndarray | None, ids: np.ndarray) -> np.ndarray:
    return ids if original is None else original[ids]
