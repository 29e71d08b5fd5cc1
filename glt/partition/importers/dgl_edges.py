"""The edges that a partition of DGL owns, with ids inside their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from glt.errors import PartitionError
from glt.partition.importers.assembly import integers
from glt.partition.importers.dgl_config import DglConfig
from glt.partition.importers.dgl_file import DglGraph
from glt.partition.rows import Array


class OwnedEdges:
    """The edges of one partition's graph, copies of other partitions' edges left out.

    Attributes:
        edge_ids: DGL's ids of all edges of the graph; None where not stored.
        edge_types: Positions of their types; None where not stored.
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
        """Yields edge type, ids (None where not stored), sources and destinations of the edges that the partition owns:
        those with its destinations. The others are copies."""
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
