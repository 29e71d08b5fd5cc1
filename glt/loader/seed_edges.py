"""The seed edges of a link loader, where they are left to a glt dataset."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glt.data.dataset import Dataset
from glt.data.schema import EdgeType


def seed_edges(data: Any, edge_label_index: Any) -> Any:
    """Returns the seed edges in a form that PyG's loaders take.

    Args:
        data: What the loader was given. All but a dataset knows its edges itself.
        edge_label_index: Seed edges ``[2, B]``, or None for all edges in the order of their ids; in heterogeneous
            graphs an edge type (two node types where that is clear), or a pair of it and one of those.

    Raises:
        ValueError: If no edge type is named, or none that there is; says which there are.
    """
    if not isinstance(data, Dataset) or isinstance(edge_label_index, Tensor):
        return edge_label_index
    known = list(data.schema.edge_types)
    if not data.schema.is_hetero:
        return _all_edges(data, None) if edge_label_index is None else edge_label_index
    if edge_label_index is None:
        raise ValueError(f"edge_label_index is None: expected an edge type, one of {known}")
    named, edges = (edge_label_index, None) if isinstance(edge_label_index[0], str) else edge_label_index
    fits = [t for t in known if tuple(named) in (t, (t[0], t[2]))]
    if len(fits) != 1:
        raise ValueError(f"edge_label_index names edge type {named!r}: expected one of {known}")
    return fits[0], _all_edges(data, fits[0]) if edges is None else edges


def _all_edges(data: Dataset, edge_type: EdgeType | None) -> Tensor:
    topology = data.get_graph(edge_type).topology
    edges = topology.coo()
    return edges if topology.edge_ids is None else edges[:, topology.edge_ids.argsort(stable=True)]
