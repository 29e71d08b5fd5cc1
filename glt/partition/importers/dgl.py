"""Imports the partition directories of DGL: a JSON file, and per partition a graph and tables of its nodes and edges.

DGL numbers nodes and edges anew, partition after partition, and inside it type after type: that is the id in
``graph.dgl`` and in GraphBolt's ``fused_csc_sampling_graph.pt``. ``node_map`` and ``edge_map`` of the JSON file say
which range belongs to which partition and type.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from typing_extensions import Unpack

from glt.data.schema import HOMOGENEOUS, EdgeType, Schema
from glt.errors import PartitionError
from glt.partition.format.files import Array
from glt.partition.format.manifest import Manifest
from glt.partition.format.part_config import require_graph_name, write_part_config
from glt.partition.importers.foreign_files import DglGraph, read_graph, read_graphbolt, read_tensors
from glt.partition.importers.imported import Assembly, EdgeAssembly, Imported, integers, require_directory, scratch_for
from glt.partition.methods.partitioner import GraphArguments

# The ids that DGL gives to nodes and edges: ranges by partition, and inside a partition by type.


@dataclass(frozen=True, eq=False)
class Ranges:
    """Global ids of DGL, of nodes or of edges: ranges by partition, and inside a partition by type.

    Attributes:
        begin, end: ``[num_parts, num_types]``, the ranges.
        first: ``[num_parts, num_types]``, id inside its type of the first of each range.
    """

    begin: np.ndarray
    end: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, ranges: np.ndarray) -> Ranges:
        """Checks ``ranges [num_types, num_parts, 2]``."""
        begin, end = ranges[:, :, 0].T, ranges[:, :, 1].T
        flat = np.stack([begin.ravel(), end.ravel()], 1).ravel()
        if flat.size and (flat[0] != 0 or (np.diff(flat) < 0).any() or (begin.ravel()[1:] != end.ravel()[:-1]).any()):
            raise ValueError("its ranges do not follow each other")
        sizes = end - begin
        return cls(begin, end, np.cumsum(sizes, 0) - sizes)

    @property
    def sizes(self) -> np.ndarray:
        return self.end - self.begin

    @property
    def totals(self) -> list[int]:
        """Number of ids of each type."""
        return self.sizes.sum(0).tolist()

    def owners(self, type_: int) -> np.ndarray:
        """Partition of each id of a type."""
        return np.repeat(np.arange(self.begin.shape[0]), self.sizes[:, type_])

    def locate(self, origin: Path, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns partition, type and id inside the type of global ids."""
        bad = np.flatnonzero((ids < 0) | (ids >= (self.end.max() if self.end.size else 0)))
        if bad.size:
            raise PartitionError(
                f"{origin} holds global id {ids[bad[0]]}, which is in no range of the partition config"
            )
        filled = np.flatnonzero(self.sizes.ravel())
        at = filled[np.searchsorted(self.begin.ravel()[filled], ids, side="right") - 1]
        part, type_ = np.divmod(at, self.begin.shape[1])
        return part, type_, ids - self.begin.ravel()[at] + self.first.ravel()[at]


# DGL's partition config: the JSON file of a partition directory.


@dataclass(frozen=True, eq=False)
class DglConfig:
    """DGL's partition config: the JSON file of a partition directory.

    Attributes:
        path: The file.
        schema: The types, in DGL's order.
        nodes, edges: Their ids.
        node_names, edge_names: What DGL calls the types in keys of tables.
        graph_name: What the graph is called.
        part_method: How nodes were assigned.
        files: Of each partition, its files by kind: ``node_feats``, ``edge_feats``, ``part_graph`` or
            ``part_graph_graphbolt``.
    """

    path: Path
    schema: Schema
    nodes: Ranges
    edges: Ranges
    node_names: list[str]
    edge_names: list[str]
    graph_name: str
    part_method: str
    files: list[dict[str, Path]]

    @classmethod
    def read(cls, path: Path) -> DglConfig:
        """Reads ``path``, which may be a directory with one JSON file.

        Raises:
            PartitionError: If it is missing, or no such file.
        """
        path = _config_path(path)
        document = _document(path)
        try:
            return cls._of(path, document)
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
        nodes, edges = _names(document, "ntypes"), _names(document, "etypes")
        edge_types = tuple(_edge_type(name) for name in edges)
        return cls(
            path,
            HOMOGENEOUS if (len(nodes), len(edges)) == (1, 1) else Schema(tuple(nodes), edge_types),
            _ranges([document["node_map"][name] for name in nodes], num_parts),
            _ranges([document["edge_map"][name] for name in edges], num_parts),
            nodes,
            edges,
            str(document.get("graph_name", path.stem)),
            str(document.get("part_method")),
            files,
        )


def _names(document: dict[str, Any], kind: str) -> list[str]:
    numbers = document[kind]
    if sorted(numbers.values()) != list(range(len(numbers))):
        raise ValueError(f"{kind} are not numbered from 0")
    return sorted(numbers, key=numbers.get)


def _ranges(by_type: list[list[Any]], num_parts: int) -> Ranges:
    ranges = np.empty((len(by_type), num_parts, 2), np.int64)
    for at, given in enumerate(by_type):
        if given and not isinstance(given[0], list):  # before DGL 0.6: only where each range ends
            given = list(zip([0, *given[:-1]], given, strict=True))
        ranges[at] = np.array(given, np.int64).reshape(num_parts, 2)
    return Ranges.of(ranges)


def _edge_type(name: str) -> EdgeType:
    parts = name.split(":")
    if len(parts) != 3:
        raise ValueError(f"edge type {name!r}: expected source:relation:destination; DGL's change_etype tool adds them")
    source, relation, target = parts
    return source, relation, target


def _config_path(path: Path) -> Path:
    if not path.is_dir():
        require_directory(path.parent, "DGL's partition_graph")
        return path
    found = sorted(path.glob("*.json"))
    if len(found) != 1:
        raise PartitionError(f"{path} holds {len(found)} JSON files: expected one; name DGL's partition config itself")
    return found[0]


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise PartitionError(f"{path} is missing: expected DGL's partition config") from error
    except ValueError as error:
        raise PartitionError(f"{path} is truncated or altered ({error}): copy the directory again") from error
    if not isinstance(document, dict):
        raise PartitionError(f"{path} is no partition config of DGL: expected a JSON object")
    return document


# The edges that a partition of DGL owns, with ids inside their types.


class OwnedEdges:
    """The edges that a partition owns, copies of other partitions' edges left out.

    ``edge_ids`` are DGL's ids of all edges of the graph, and ``edge_types`` positions of their types; None where not
    stored.
    """

    def __init__(self, origin: Path, config: DglConfig, part: int, graph: DglGraph) -> None:
        self._origin = origin
        self._config = config
        self._part = part
        self._edges = graph.edges
        self._node_ids = _table(origin, graph.ndata, "_ID", graph.num_nodes)
        self.edge_ids = _table(origin, graph.edata, "_ID", graph.num_edges) if "_ID" in graph.edata else None
        self.edge_types = _table(origin, graph.edata, "_TYPE", graph.num_edges) if "_TYPE" in graph.edata else None

    def read(self, begin: int, end: int) -> Iterator[tuple[int, np.ndarray | None, np.ndarray, np.ndarray]]:
        """Yields edge type, ids (None where not stored), sources and destinations of owned edges, ids inside their
        types."""
        origin, nodes = self._origin, self._config.nodes
        src, dst, places = self._edges(begin, end)
        owner, dst_type, dst = nodes.locate(origin, _taken(origin, self._node_ids, dst))
        _, src_type, src = nodes.locate(origin, _taken(origin, self._node_ids, src))
        inner = owner == self._part
        src, src_type, dst, dst_type, places = (each[inner] for each in (src, src_type, dst, dst_type, places))
        ids: np.ndarray | None = None
        if self.edge_ids is not None:
            _, edge_type, ids = self._config.edges.locate(origin, _taken(origin, self.edge_ids, places))
        elif self.edge_types is not None:
            edge_type = _taken(origin, self.edge_types, places)
        else:
            edge_type = np.zeros(places.size, np.int64)
        for at, (source, target) in enumerate(self._config.schema.ends("out")):
            mine = np.flatnonzero(edge_type == at)
            if (src_type[mine] != source).any() or (dst_type[mine] != target).any():
                raise PartitionError(
                    f"{origin} has an edge of type {self._config.edge_names[at]} between nodes of other types: it is "
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
    bad = np.flatnonzero((at < 0) | (at >= table.size))
    if bad.size:
        raise PartitionError(f"{origin} holds local id {at[bad[0]]}: expected less than {table.size}; it is damaged")
    return table[at].astype(np.int64)


# DGL's mappings: the original id of each node or edge, which DGL numbers anew.


Mapped = Any  # a tensor or array, or a dict of them by type, as DGL's return_mapping gives


def read_mapping(
    config: DglConfig, name: str, given: Mapped | None, types: list[str], ranges: Ranges
) -> list[np.ndarray | None]:
    """Returns DGL's mapping, the original id of each node or edge, by type; None where nothing says it.

    Args:
        config: The directory, whose ``part<i>/<name>.dgl`` are read if ``given`` is None.
        name: ``"orig_nids"`` or ``"orig_eids"``.
        given: What DGL returned, or None.
        types: What DGL calls the types.
        ranges: The ids that DGL gave.

    Raises:
        PartitionError: If only some partitions have the file, or one is damaged.
        TypeError, ValueError: If ``given`` is no mapping of these ids.
    """
    origin = Path(name)
    if given is None:
        paths = [config.path.parent / f"part{part}" / f"{name}.dgl" for part in range(config.num_parts)]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == len(paths):
            return [None] * len(types)
        if missing:
            raise PartitionError(f"{missing[0]} is missing, but other partitions have theirs: copy it here first")
        given, origin = _joined([read_tensors(path) for path in paths]), paths[0]
    if not isinstance(given, Mapping):
        if len(types) > 1:
            raise TypeError(f"{name} is a {type(given).__name__}: expected a dict by type, the graph having types")
        given = {types[0]: given}
    by_name = {":".join(key) if isinstance(key, tuple) else key: value for key, value in given.items()}
    result: list[np.ndarray | None] = []
    for type_, total in zip(types, ranges.totals, strict=True):
        ids = integers(origin, f"ids of {type_}", by_name.get(type_, np.empty(0, np.int64))).astype(np.int64)
        if ids.size != total or not np.array_equal(np.sort(ids), np.arange(total)):
            raise ValueError(
                f"{name} of {type_} from {origin} has {ids.size} ids: expected each of [0, {total}) once, as DGL's "
                "return_mapping gives"
            )
        result.append(ids)
    return result


def _joined(pieces: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    types = {type_ for piece in pieces for type_ in piece}
    return {type_: np.concatenate([np.asarray(piece[type_]) for piece in pieces if type_ in piece]) for type_ in types}


_NODE_ROLES: Final = ("node_feat", "node_label", "node_time")
_EDGE_ROLES: Final = ("edge_feat", "edge_weight", "edge_time")
_USUAL: Final = {"node_feat": "feat", "node_label": "label", "edge_feat": "feat"}
_CHUNK_EDGES: Final = 1 << 20


def import_dgl(
    part_config: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    tables: Mapping[str, str] | None = None,
    leave_out: Collection[str] = (),
    orig_nids: Mapped | None = None,
    orig_eids: Mapped | None = None,
    renumber_edges: bool = False,
    progress: bool = False,
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
        progress: Whether to draw a tqdm bar of bytes written.
        graph: Arguments of :class:`glt.partition.PartitionerBase` for what DGL does not store.

    Raises:
        PartitionError: If a file is missing, damaged or disagrees with the others (names it), or ``output_dir`` is not
            empty.
        ValueError: If an argument does not fit.
    """
    config = DglConfig.read(Path(part_config))
    require_graph_name(config.graph_name)
    strategy = graph.pop("edge_assign_strategy", "by_dst")
    if strategy not in ("by_dst", "by_des"):
        raise ValueError(
            f"edge_assign_strategy = {strategy!r}: the edges of {config.path} lie by_dst, as DGL puts them"
        )
    roles = {**_USUAL, **(tables or {})}
    for role in roles:
        if role not in (*_NODE_ROLES, *_EDGE_ROLES):
            raise ValueError(f"tables names {role!r}: expected one of {', '.join((*_NODE_ROLES, *_EDGE_ROLES))}")
    with scratch_for(output_dir) as scratch:
        reader = _Reader(config, scratch, frozenset(leave_out))
        imported = reader.read(roles, frozenset(tables or ()), orig_nids, orig_eids, renumber_edges)
        manifest = imported.write(output_dir, progress, graph)
    write_part_config(os.path.realpath(output_dir), config.graph_name, config.part_method)
    return manifest


class _Reader:
    """Reads all partitions of a directory, one after the other."""

    def __init__(self, config: DglConfig, scratch: Path, leave_out: frozenset[str]) -> None:
        self._config = config
        self._scratch = scratch
        self._leave_out = leave_out
        self._nids: list[np.ndarray | None] = []
        self._eids: list[np.ndarray | None] = []

    def read(
        self,
        roles: Mapping[str, str],
        asked: frozenset[str],
        orig_nids: Mapped | None,
        orig_eids: Mapped | None,
        renumber_edges: bool,
    ) -> Imported:
        config = self._config
        self._nids = read_mapping(config, "orig_nids", orig_nids, config.node_names, config.nodes)
        self._eids = read_mapping(config, "orig_eids", orig_eids, config.edge_names, config.edges)
        edge_tables = self._tables("edge_feats", config.edge_names, config.edges, self._eids)
        assemblies, renumbered = self._read_edges(renumber_edges)
        names = sorted({name for tables in edge_tables for name in tables})
        if renumbered and (names or any(ids is not None for ids in self._eids)):
            raise PartitionError(
                f"{config.path}: its GraphBolt graphs have no edge ids, so nothing tells to which edge a row of "
                f"{[*names, 'orig_eids'][0]!r} belongs: partition again with store_eids=True, or leave it out"
            )
        node_tables = self._tables("node_feats", config.node_names, config.nodes, self._nids)
        nodes = self._arguments(roles, asked, "node", node_tables)
        edges = self._arguments(roles, asked, "edge", edge_tables)
        for type_, ids in enumerate(self._nids):
            owner = config.nodes.owners(type_)
            if ids is not None:
                owner[ids] = owner.copy()
            nodes[type_]["owners"] = owner
        for each, assembly in zip(edges, assemblies, strict=True):
            each["edge_index"] = assembly.edge_index
        origin = {"imported_from": "dgl", "part_method": config.part_method}
        return Imported(config.schema, config.num_parts, "by_dst", origin, nodes, edges)

    def _read_edges(self, renumber: bool) -> tuple[list[EdgeAssembly], bool]:
        config = self._config
        types: Sequence[EdgeType | None] = config.schema.edge_types if config.schema.is_hetero else (None,)
        num_nodes = [
            (config.nodes.totals[source], config.nodes.totals[target]) for source, target in config.schema.ends("out")
        ]
        edges = [
            EdgeAssembly(edge_type, count, ends, self._scratch)
            for edge_type, count, ends in zip(types, config.edges.totals, num_nodes, strict=True)
        ]
        filled = np.zeros(len(edges), np.int64)
        renumbered = False
        for part, files in enumerate(config.files):
            if "part_graph" in files:
                origin = files["part_graph"]
                graph = read_graph(origin)
            elif "part_graph_graphbolt" in files:
                origin = files["part_graph_graphbolt"]
                graph = read_graphbolt(origin)
            else:
                raise PartitionError(f"{config.path} names no graph of partition {part}: expected 'part_graph'")
            owned = OwnedEdges(origin, config, part, graph)
            if owned.edge_ids is None:
                renumbered = True
                if not renumber or (len(edges) > 1 and owned.edge_types is None):
                    raise PartitionError(
                        f"{origin} was stored without edge ids: partition again with store_eids=True, or pass "
                        "renumber_edges=True (--renumber-edges) to number edges in the order of the files"
                    )
            for begin in range(0, graph.num_edges, _CHUNK_EDGES):
                for at, ids, src, dst in owned.read(begin, min(begin + _CHUNK_EDGES, graph.num_edges)):
                    if ids is None:
                        ids = np.arange(filled[at], filled[at] + src.size)
                    filled[at] += src.size
                    source, target = config.schema.ends("out")[at]
                    edges[at].add(
                        origin,
                        _original_ids(self._eids[at], ids),
                        {"row": _original_ids(self._nids[source], src), "col": _original_ids(self._nids[target], dst)},
                    )
        for each in edges:
            each.tables(config.path)  # raises where an edge is missing
        return edges, renumbered

    def _tables(self, kind: str, names: list[str], ranges: Ranges, originals: list) -> list[dict[str, Array]]:
        """Returns the tables of each type by DGL's names."""
        what = kind.removesuffix("_feats")
        found = [
            Assembly(f"{what} of type {name}" if self._config.schema.is_hetero else what, total, self._scratch)
            for name, total in zip(names, ranges.totals, strict=True)
        ]
        given: set[int] = set()
        for part, files in enumerate(self._config.files):
            if kind not in files:
                continue
            path = files[kind]
            pieces: list[dict[str, Array]] = [{} for _ in names]
            for key, table in read_tensors(path).items():
                type_, _, name = key.rpartition("/")
                if type_ not in names:
                    raise PartitionError(f"{path} holds {key!r}: expected <type>/<name> with a type of {names}")
                if name not in self._leave_out:
                    pieces[names.index(type_)][name] = table
            for at, tables in enumerate(pieces):
                first, size = int(ranges.first[part, at]), int(ranges.sizes[part, at])
                if tables and size:
                    found[at].add(path, _original_ids(originals[at], np.arange(first, first + size)), tables)
                    given.add(at)
        return [each.tables(self._config.path) if at in given else {} for at, each in enumerate(found)]

    def _arguments(
        self, roles: Mapping[str, str], asked: frozenset[str], kind: str, tables: list[dict[str, Array]]
    ) -> list[dict[str, Any]]:
        """Returns the arguments that the tables of each type become: those with a role, and attributes."""
        known = {name for each in tables for name in each}
        mine = {role: name for role, name in roles.items() if role.startswith(kind)}
        for role, name in mine.items():
            if role in asked and name not in known:
                raise ValueError(
                    f"tables[{role!r}] = {name!r}: {self._config.path} has no such table, only {sorted(known)}"
                )
        arguments: list[dict[str, Any]] = []
        for each in tables:
            attrs = dict(each)
            given: dict[str, Any] = {role: attrs.pop(name, None) for role, name in mine.items()}
            arguments.append(given | {f"{kind}_attrs": attrs or None})
        return arguments


def _original_ids(original: np.ndarray | None, ids: np.ndarray) -> np.ndarray:
    return ids if original is None else original[ids]
