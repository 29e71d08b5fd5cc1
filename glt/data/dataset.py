"""A graph with its features and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from glt.data.arrays import from_array
from glt.data.feature import Feature
from glt.data.graph import Graph
from glt.data.topology import Topology

if TYPE_CHECKING:
    from torch_geometric.data import Data


class Dataset:
    """What a loader samples from: a :class:`Graph`, and optionally node features, node labels and edge features.

    Args:
        graph: The graph.
        node_features: One row per node.
        node_labels: One label (or row of labels) per node, shape ``[num_nodes, ...]``.
        edge_features: One row per edge id.

    Raises:
        TypeError, ValueError: If one of the tables is no CPU tensor, or has not one row per node.
    """

    def __init__(
        self,
        graph: Graph,
        node_features: Feature | Tensor | None = None,
        node_labels: Feature | Tensor | None = None,
        edge_features: Feature | Tensor | None = None,
    ) -> None:
        self.graph = graph
        self.node_features = _feature("node_features", node_features, graph.num_nodes)
        self.node_labels = _feature("node_labels", node_labels, graph.num_nodes)
        self.edge_features = _feature("edge_features", edge_features, None)

    @classmethod
    def from_arrays(
        cls,
        edge_index: Any,
        num_nodes: int | None = None,
        *,
        node_features: Any = None,
        node_labels: Any = None,
        edge_features: Any = None,
        edge_dir: str = "in",
    ) -> Dataset:
        """Builds a dataset from arrays or tensors.

        Args:
            edge_index: Source and destination ids ``[2, E]``.
            num_nodes: Number of nodes. Default: rows of the features, else one more than the largest id.
            node_features, node_labels, edge_features: One row per node or edge.
            edge_dir: ``'in'`` (PyG's: a node's neighbours are the sources of its in-edges) or ``'out'``.

        Raises:
            IndexError: If a node id is outside the graph; names the first.
            TypeError, ValueError: If shapes, dtypes, numbers of rows or ``edge_dir`` do not fit.
        """
        if num_nodes is None and node_features is not None:
            num_nodes = len(node_features)
        topology = Topology(edge_index, num_nodes, layout=layout_of(edge_dir))
        if edge_features is not None and len(edge_features) != topology.num_edges:
            raise ValueError(
                f"edge_features has {len(edge_features)} rows: expected one per edge, {topology.num_edges}"
            )
        return cls(Graph(topology), *(_tensor(t) for t in (node_features, node_labels, edge_features)))

    @classmethod
    def from_pyg(cls, data: Data, *, edge_dir: str = "in") -> Dataset:
        """Builds a dataset from a ``torch_geometric.data.Data``: its ``edge_index``, ``x``, ``y`` and ``edge_attr``."""
        if data.edge_index is None:
            raise ValueError("data has no edge_index: expected a Data with edge_index [2, E]")
        return cls.from_arrays(
            data.edge_index,
            data.num_nodes,
            node_features=data.x,
            node_labels=data.y,
            edge_features=data.edge_attr,
            edge_dir=edge_dir,
        )

    @property
    def num_nodes(self) -> int:
        return self.graph.num_nodes

    @property
    def edge_dir(self) -> str:
        return self.graph.edge_dir

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.graph!r}, node_features={self.node_features!r})"


def layout_of(edge_dir: str) -> str:
    """Returns the layout that expands nodes in this direction."""
    if edge_dir not in ("in", "out"):
        raise ValueError(f"edge_dir = {edge_dir!r}: expected 'in' (PyG's direction) or 'out'")
    return "CSC" if edge_dir == "in" else "CSR"


def _tensor(value: Any) -> Tensor | None:
    return from_array(value) if isinstance(value, np.ndarray) else value


def _feature(name: str, value: Feature | Tensor | None, num_rows: int | None) -> Feature | None:
    if value is None:
        return None
    feature = value if isinstance(value, Feature) else Feature(value)
    if num_rows is not None and len(feature) != num_rows and feature.row_of is None:
        raise ValueError(f"{name} has {len(feature)} rows: expected one per node, {num_rows}")
    return feature
