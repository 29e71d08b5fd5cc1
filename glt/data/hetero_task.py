"""A node classification task on nodes and edges of several types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glt.data.schema import EdgeType, NodeType, Schema
from glt.data.task import check_range

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


@dataclass(frozen=True)
class HeteroNodeTask:
    """A heterogeneous graph of which the nodes of one type are to be classified.

    Attributes:
        name: What to call it in reports.
        num_nodes: Number of nodes of each type; its order is that of the types.
        edge_index: Source and destination of the edges of each type, ``[2, E]`` int64.
        x: Features by node type, ``[N, F]`` float32; some types may have none.
        target: The node type to classify.
        y: Class of each target node, ``[N]`` int64. Negative where unknown; such nodes are in none of the three sets.
        train_idx: Target nodes to learn from, ``[.]`` int64.
        val_idx: Target nodes to choose by, ``[.]`` int64.
        test_idx: Target nodes to report, ``[.]`` int64.
        num_classes: Number of classes.
        node_time: Times by node type, ``[N]`` int64; empty where there are none.

    Raises:
        ValueError: If sizes disagree, or an id or a class is out of range; names the first offender.
    """

    name: str
    num_nodes: dict[NodeType, int]
    edge_index: dict[EdgeType, Tensor]
    x: dict[NodeType, Tensor]
    target: NodeType
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int
    node_time: dict[NodeType, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        schema = self.schema
        schema.node_index(self.target)
        for (source, relation, target), edges in self.edge_index.items():
            name = f"edge_index[{source}, {relation}, {target}]"
            if edges.dim() != 2 or edges.size(0) != 2:
                raise ValueError(f"{self.name}: {name} has shape {list(edges.shape)}, expected [2, num_edges]")
            check_range(self.name, f"{name}[0]", edges[0], self.num_nodes[source])
            check_range(self.name, f"{name}[1]", edges[1], self.num_nodes[target])
        tables = {"y": {self.target: self.y}, "x": self.x, "node_time": self.node_time}
        for name, by_type in tables.items():
            for node_type, rows in by_type.items():
                expected = self.num_nodes[schema.node_types[schema.node_index(node_type)]]
                if len(rows) != expected:
                    raise ValueError(
                        f"{self.name}: {name} of {node_type} has {len(rows)} rows, expected one per node ({expected})"
                    )
        for name in ("train_idx", "val_idx", "test_idx"):
            index = getattr(self, name)
            check_range(self.name, name, index, self.num_nodes[self.target])
            check_range(self.name, f"y[{name}]", self.y[index], self.num_classes)

    @property
    def schema(self) -> Schema:
        """The types, in order."""
        return Schema(tuple(self.num_nodes), tuple(self.edge_index))

    @property
    def num_edges(self) -> int:
        """Number of stored edges of all types."""
        return sum(edges.size(1) for edges in self.edge_index.values())

    def to_pyg(self) -> HeteroData:
        """The same task as PyG's ``HeteroData``: the three sets as masks, times as ``time``."""
        from torch_geometric.data import HeteroData

        data = HeteroData()
        for node_type, num_nodes in self.num_nodes.items():
            data[node_type].num_nodes = num_nodes
            if node_type in self.x:
                data[node_type].x = self.x[node_type]
            if node_type in self.node_time:
                data[node_type].time = self.node_time[node_type]
        data[self.target].y = self.y
        for split in ("train", "val", "test"):
            mask = torch.zeros(self.num_nodes[self.target], dtype=torch.bool)
            mask[getattr(self, f"{split}_idx")] = True
            data[self.target][f"{split}_mask"] = mask
        for edge_type, edges in self.edge_index.items():
            data[edge_type].edge_index = edges
        return data


def with_reverses(edge_index: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
    """Adds to every relation its reverse, ``(source, relation, target)`` to ``(target, rev_relation, source)``, so that
    messages reach all types. Edge ids of a relation are those of its reverse.

    Raises:
        ValueError: If a reverse is there already.
    """
    both = dict(edge_index)
    for edge_type, edges in edge_index.items():
        reverse = reverse_of(edge_type)
        if reverse in both:
            raise ValueError(f"edge type {reverse} is there already: expected relations of one direction")
        both[reverse] = edges.flip(0)
    return both


def reverse_of(edge_type: EdgeType) -> EdgeType:
    """Returns ``(target, rev_relation, source)``."""
    source, relation, target = edge_type
    return target, f"rev_{relation}", source
