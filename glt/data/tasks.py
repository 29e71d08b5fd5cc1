"""Learning tasks on graphs: classify nodes, of one type or several, or predict links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from glt.data.schema import EdgeType, NodeType, Schema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


# A node classification task: what every reader returns and every trainer takes.


@dataclass(frozen=True)
class NodeTask:
    """A homogeneous graph whose nodes are to be classified.

    Attributes:
        name: What to call it in reports.
        num_nodes: Number of nodes ``N``.
        edge_index: Source and destination of each edge, ``[2, E]`` int64. Undirected graphs store both directions.
        x: Features, ``[N, F]`` float32.
        y: Class of each node, ``[N]`` int64. Negative where unknown; such nodes are in none of the three sets.
        train_idx, val_idx, test_idx: Node ids to learn from, to choose by and to report, ``[.]`` int64.
        num_classes: Number of classes.

    Raises:
        ValueError: If sizes disagree, or an id or a class is out of range; names the first offender.
    """

    name: str
    num_nodes: int
    edge_index: Tensor
    x: Tensor
    y: Tensor
    train_idx: Tensor
    val_idx: Tensor
    test_idx: Tensor
    num_classes: int

    def __post_init__(self) -> None:
        _check_shape(self.name, "edge_index", self.edge_index)
        check_range(self.name, "edge_index", self.edge_index.reshape(-1), self.num_nodes)
        for part in ("x", "y"):
            rows = len(getattr(self, part))
            if rows != self.num_nodes:
                raise ValueError(f"{self.name}: {part} has {rows} rows, expected one per node ({self.num_nodes})")
        for part in ("train_idx", "val_idx", "test_idx"):
            index = getattr(self, part)
            check_range(self.name, part, index, self.num_nodes)
            check_range(self.name, f"y[{part}]", self.y[index], self.num_classes)

    @property
    def num_edges(self) -> int:
        """Number of stored edges: an undirected one counts twice."""
        return self.edge_index.size(1)

    @property
    def num_features(self) -> int:
        return self.x.size(1)

    def to_pyg(self) -> Data:
        """The same task as PyG's ``Data``, the three sets as ``train_mask``, ``val_mask`` and ``test_mask``."""
        from torch_geometric.data import Data

        return Data(x=self.x, edge_index=self.edge_index, y=self.y, **_masks(self, self.num_nodes))


def _masks(task: NodeTask | HeteroNodeTask, num_nodes: int) -> dict[str, Tensor]:
    masks = {}
    for split in ("train", "val", "test"):
        masks[f"{split}_mask"] = mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[getattr(task, f"{split}_idx")] = True
    return masks


def _check_shape(task: str, name: str, edges: Tensor) -> None:
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"{task}: {name} has shape {list(edges.shape)}, expected [2, num_edges]")


def check_range(task: str, name: str, values: Tensor, end: int) -> None:
    """Raises ValueError, naming the first, unless all values are in ``[0, end)``."""
    if values.numel() == 0 or (int(values.min()) >= 0 and int(values.max()) < end):
        return
    at = int(((values < 0) | (values >= end)).nonzero()[0])
    raise ValueError(f"{task}: {name} holds {int(values[at])} at position {at}, expected ids in [0, {end})")


# A node classification task on nodes and edges of several types.


@dataclass(frozen=True)
class HeteroNodeTask:
    """A heterogeneous graph of which the nodes of one type are to be classified.

    Attributes:
        name, num_classes: As of :class:`NodeTask`.
        num_nodes: Number of nodes of each type; its order is that of the types.
        edge_index: Source and destination of the edges of each type, ``[2, E]`` int64.
        x: Features by node type, ``[N, F]`` float32; some types may have none.
        target: The node type to classify.
        y, train_idx, val_idx, test_idx: As of :class:`NodeTask`, of the target nodes.
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
            _check_shape(self.name, name, edges)
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
        for name, mask in _masks(self, self.num_nodes[self.target]).items():
            data[self.target][name] = mask
        for edge_type, edges in self.edge_index.items():
            data[edge_type].edge_index = edges
        return data


def with_reverses(edge_index: Mapping[EdgeType, Tensor]) -> dict[EdgeType, Tensor]:
    """Adds to every relation its reverse, ``(target, rev_relation, source)``, with equal edge ids, so that messages
    reach all types; raises ValueError if one is there already."""
    both = dict(edge_index)
    for edge_type, edges in edge_index.items():
        reverse = reverse_of(edge_type)
        if reverse in both:
            raise ValueError(f"edge type {reverse} is there already: expected relations of one direction")
        both[reverse] = edges.flip(0)
    return both


def reverse_of(edge_type: EdgeType) -> EdgeType:
    source, relation, target = edge_type
    return target, f"rev_{relation}", source


@dataclass(frozen=True)
class LinkTask:
    """A directed graph whose edges are split into those to learn from, to choose by and to report.

    Attributes:
        name: What to call it in reports.
        schema: The types, one of each in a homogeneous graph.
        num_nodes: Number of nodes of each type.
        edge_index: Source and destination of the edges of each type, all three sets together, ``[2, E]`` int64.
        train_idx, val_idx, test_idx: Positions in ``edge_index`` by edge type, ``[.]`` int64.
        edge_time: Times by edge type, ``[E]`` int64; empty where there are none.

    Raises:
        ValueError: If sizes disagree or an id is out of range; names the first offender.
    """

    name: str
    schema: Schema
    num_nodes: dict[NodeType, int]
    edge_index: dict[EdgeType, Tensor]
    train_idx: dict[EdgeType, Tensor]
    val_idx: dict[EdgeType, Tensor]
    test_idx: dict[EdgeType, Tensor]
    edge_time: dict[EdgeType, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for edge_type in self.schema.edge_types:
            edges, label = self.edge_index[edge_type], "__".join(edge_type)
            _check_shape(self.name, f"edge_index of {label}", edges)
            for end in (0, 1):
                count = self.num_nodes[edge_type[2 * end]]
                check_range(self.name, f"edge_index[{end}] of {label}", edges[end], count)
            if edge_type in self.edge_time and len(self.edge_time[edge_type]) != edges.size(1):
                raise ValueError(f"{self.name}: edge_time of {label} has not one time per edge ({edges.size(1)})")
            for name in ("train_idx", "val_idx", "test_idx"):
                check_range(self.name, f"{name} of {label}", getattr(self, name)[edge_type], edges.size(1))

    def links(self, split: Literal["train", "val", "test"]) -> dict[EdgeType, Tensor]:
        """The edges of a set, ``[2, .]`` by edge type: what to predict."""
        index: dict[EdgeType, Tensor] = getattr(self, f"{split}_idx")
        return {edge_type: edges[:, index[edge_type]] for edge_type, edges in self.edge_index.items()}

    @property
    def num_edges(self) -> int:
        """Number of edges of all types and sets, each counted once."""
        return sum(edges.size(1) for edges in self.edge_index.values())

    def to_pyg(self, edges: Literal["train", "all"] = "train") -> Data | HeteroData:
        """The graph to pass messages on, with both directions: ``rev_...`` relations in a ``HeteroData``, in a ``Data``
        the reversed edges behind the others. Times are the edges' ``time``.

        Args:
            edges: ``'train'`` leaves out what is to be predicted; ``'all'`` is for sampling by time, which hides it.

        Raises:
            ValueError: If ``edges`` is something else, or ``'all'`` where there are no times to hide by.
        """
        from torch_geometric.data import Data, HeteroData

        if edges not in ("train", "all"):
            raise ValueError(f"{self.name}: edges = {edges!r}, expected 'train' or 'all'")
        if edges == "all" and not self.edge_time:
            raise ValueError(f"{self.name}: edges = 'all' would show what is to be predicted: there are no edge times")
        data = HeteroData() if self.schema.is_hetero else Data(num_nodes=next(iter(self.num_nodes.values())))
        if self.schema.is_hetero:
            for node_type, num_nodes in self.num_nodes.items():
                data[node_type].num_nodes = num_nodes
        for edge_type in self.schema.edge_types:
            kept = slice(None) if edges == "all" else self.train_idx[edge_type]
            edge_index, time = self.edge_index[edge_type][:, kept], self.edge_time.get(edge_type)
            time = None if time is None else time[kept]
            if self.schema.is_hetero:
                data[edge_type].edge_index, data[reverse_of(edge_type)].edge_index = edge_index, edge_index.flip(0)
                if time is not None:
                    data[edge_type].time = data[reverse_of(edge_type)].time = time
            else:
                data.edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
                if time is not None:
                    data.edge_time = torch.cat([time, time])
        return data
