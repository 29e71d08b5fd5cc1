"""A node classification task: what every reader returns and every trainer takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class NodeTask:
    """A homogeneous graph whose nodes are to be classified.

    Attributes:
        name: What to call it in reports.
        num_nodes: Number of nodes ``N``.
        edge_index: Source and destination of each edge, ``[2, E]`` int64. Undirected graphs store both directions.
        x: Features, ``[N, F]`` float32.
        y: Class of each node, ``[N]`` int64. Negative where unknown; such nodes are in none of the three sets.
        train_idx: Node ids to learn from, ``[.]`` int64.
        val_idx: Node ids to choose by, ``[.]`` int64.
        test_idx: Node ids to report, ``[.]`` int64.
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
        if self.edge_index.dim() != 2 or self.edge_index.size(0) != 2:
            raise ValueError(
                f"{self.name}: edge_index has shape {list(self.edge_index.shape)}, expected [2, num_edges]"
            )
        check_range(self.name, "edge_index", self.edge_index.reshape(-1), self.num_nodes)
        for field in ("x", "y"):
            rows = len(getattr(self, field))
            if rows != self.num_nodes:
                raise ValueError(f"{self.name}: {field} has {rows} rows, expected one per node ({self.num_nodes})")
        for field in ("train_idx", "val_idx", "test_idx"):
            index = getattr(self, field)
            check_range(self.name, field, index, self.num_nodes)
            check_range(self.name, f"y[{field}]", self.y[index], self.num_classes)

    @property
    def num_edges(self) -> int:
        """Number of stored edges: an undirected one counts twice."""
        return self.edge_index.size(1)

    @property
    def num_features(self) -> int:
        """Number of features per node."""
        return self.x.size(1)

    def to_pyg(self) -> Data:
        """The same task as PyG's ``Data``, the three sets as ``train_mask``, ``val_mask`` and ``test_mask``."""
        from torch_geometric.data import Data

        masks = {}
        for split in ("train", "val", "test"):
            mask = torch.zeros(self.num_nodes, dtype=torch.bool)
            mask[getattr(self, f"{split}_idx")] = True
            masks[f"{split}_mask"] = mask
        return Data(x=self.x, edge_index=self.edge_index, y=self.y, **masks)


def check_range(task: str, name: str, values: Tensor, end: int) -> None:
    """Refuses values outside ``[0, end)`` and names the first."""
    if values.numel() == 0 or (int(values.min()) >= 0 and int(values.max()) < end):
        return
    at = int(((values < 0) | (values >= end)).nonzero()[0])
    raise ValueError(f"{task}: {name} holds {int(values[at])} at position {at}, expected ids in [0, {end})")
