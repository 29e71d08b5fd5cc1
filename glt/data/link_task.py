"""A link prediction task: which edges will there be?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from glt.data.hetero_task import reverse_of
from glt.data.schema import EdgeType, NodeType, Schema
from glt.data.task import check_range

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


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
            if edges.dim() != 2 or edges.size(0) != 2:
                raise ValueError(
                    f"{self.name}: edge_index of {label} has shape {list(edges.shape)}, expected [2, num_edges]"
                )
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
