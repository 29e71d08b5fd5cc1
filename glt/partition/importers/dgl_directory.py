"""Imports the partition directories of DGL: a JSON file, and per partition a graph and tables of its nodes and edges.

DGL numbers nodes and edges anew, partition after partition, and inside it type after type: that is the id in
``graph.dgl`` and in GraphBolt's ``fused_csc_sampling_graph.pt``. ``node_map`` and ``edge_map`` of the JSON file say
which range belongs to which partition and type.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from typing_extensions import Unpack

from glt.data.schema import EdgeType
from glt.errors import PartitionError
from glt.partition.importers.assembly import Assembly, EdgeAssembly
from glt.partition.importers.dgl_config import DglConfig
from glt.partition.importers.dgl_edges import OwnedEdges
from glt.partition.importers.dgl_file import read_graph, read_tensors
from glt.partition.importers.dgl_graphbolt import read_graphbolt
from glt.partition.importers.dgl_mappings import Mapped, read_mapping
from glt.partition.importers.dgl_ranges import Ranges
from glt.partition.importers.imported import Imported, scratch_for
from glt.partition.manifest import Manifest
from glt.partition.part_config import require_graph_name, write_part_config
from glt.partition.partitioner import GraphArguments
from glt.partition.rows import Array

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
    in a part_config of its own (:mod:`glt.partition.part_config`).

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
        edges, renumbered = self._read_edges(renumber_edges)
        if renumbered and (edge_tables or any(ids is not None for ids in self._eids)):
            raise PartitionError(
                f"{config.path}: its GraphBolt graphs have no edge ids, so nothing tells to which edge a row of "
                f"{[*edge_tables, 'orig_eids'][0]!r} belongs: partition again with store_eids=True, or leave it out"
            )
        node_tables = self._tables("node_feats", config.node_names, config.nodes, self._nids)
        owners: list[Array] = []
        for type_, ids in enumerate(self._nids):
            owner = config.nodes.owners(type_)
            if ids is not None:
                owner[ids] = owner.copy()
            owners.append(owner)
        return Imported(
            config.schema,
            config.num_parts,
            "by_dst",
            {"imported_from": "dgl", "part_method": config.part_method},
            owners=owners,
            edge_index=[each.edge_index for each in edges],
            node_tables=self._roles(roles, asked, _NODE_ROLES, node_tables),
            edge_tables=self._roles(roles, asked, _EDGE_ROLES, edge_tables),
            node_attrs=node_tables,
            edge_attrs=edge_tables,
        )

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
                        {
                            "row": _original_ids(self._nids[source], src),
                            "col": _original_ids(self._nids[target], dst),
                        },
                    )
        for each in edges:
            each.tables(config.path)  # raises where an edge is missing
        return edges, renumbered

    def _tables(self, kind: str, names: list[str], ranges: Ranges, originals: list) -> dict[str, list[Array | None]]:
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
        by_name: dict[str, list[Array | None]] = {}
        for at in sorted(given):
            for name, table in found[at].tables(self._config.path).items():
                by_name.setdefault(name, [None] * len(names))[at] = table
        return by_name

    def _roles(
        self,
        roles: Mapping[str, str],
        asked: frozenset[str],
        mine: tuple[str, ...],
        tables: dict[str, list[Array | None]],
    ) -> dict[str, list[Array | None]]:
        """Takes the tables that have a role out of ``tables``."""
        for role in mine:
            if role in asked and roles[role] not in tables:
                raise ValueError(
                    f"tables[{role!r}] = {roles[role]!r}: {self._config.path} has no such table, only {sorted(tables)}"
                )
        return {role: tables.pop(roles[role]) for role in mine if roles.get(role) in tables}


def _original_ids(original: np.ndarray | None, ids: np.ndarray) -> np.ndarray:
    return ids if original is None else original[ids]
