"""What a reader has found of a graph, on its way to a partitioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glt.data.schema import EdgeType, NodeType
from glt.partition.arguments import chunks


@dataclass
class FoundNodes:
    """The nodes of one type; ``num_nodes`` None: as many as there are rows, or as edges need."""

    num_nodes: int | None = None
    feat: Any = None
    label: Any = None
    time: Any = None
    attrs: dict[str, Any] = field(default_factory=dict)

    def size(self) -> int | None:
        """How many there are: as stated, else as the first table has rows; None: as edges need."""
        if self.num_nodes is not None:
            return self.num_nodes
        tables = (self.feat, self.label, self.time, *self.attrs.values())
        return next((len(table) for table in tables if table is not None), None)


@dataclass
class FoundEdges:
    """The edges of one type."""

    edge_index: np.ndarray
    feat: Any = None
    weight: Any = None
    time: Any = None
    attrs: dict[str, Any] = field(default_factory=dict)


def arguments_of(
    nodes: Mapping[NodeType, FoundNodes], edges: Mapping[EdgeType, FoundEdges], is_hetero: bool
) -> dict[str, Any]:
    """Returns the keyword arguments of a partitioner.

    Args:
        nodes, edges: By type, in order; of a homogeneous graph one of each.
        is_hetero: Whether arguments are dicts by type.
    """

    def of(found: Mapping[Any, Any], name: str) -> Any:
        values = {type_: getattr(each, name) for type_, each in found.items()}
        given = {t: v for t, v in values.items() if v is not None and (name != "attrs" or v)}
        return given if is_hetero else next(iter(given.values()), None)

    counts = {node_type: _num_nodes(node_type, each, edges) for node_type, each in nodes.items()}
    arguments = {
        "num_nodes": counts if is_hetero else next(iter(counts.values())),
        "edge_index": of(edges, "edge_index") if is_hetero or edges else np.empty((2, 0), np.int64),
        "node_feat": of(nodes, "feat"),
        "node_label": of(nodes, "label"),
        "node_time": of(nodes, "time"),
        "node_attrs": of(nodes, "attrs"),
        "edge_feat": of(edges, "feat"),
        "edge_weight": of(edges, "weight"),
        "edge_time": of(edges, "time"),
        "edge_attrs": of(edges, "attrs"),
    }
    always = ("num_nodes", "edge_index")
    return {name: value for name, value in arguments.items() if name in always or not _is_nothing(value)}


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and not value)


def _num_nodes(node_type: NodeType, nodes: FoundNodes, edges: Mapping[EdgeType, FoundEdges]) -> int:
    size = nodes.size()
    if size is not None:
        return size
    largest = -1
    for (src, _, dst), each in edges.items():
        for end, ids in zip((src, dst), each.edge_index, strict=True):
            if end == node_type:
                largest = max([largest, *(int(piece.max()) for _, piece in chunks(ids))])
    return largest + 1
