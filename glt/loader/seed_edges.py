"""The seed edges of a link loader, checked where they are given; those left to a glt dataset come from it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.arrays import require_data
from glt.data.dataset import Dataset
from glt.data.schema import EdgeType


def seed_edges(data: Any, edge_label_index: Any) -> Any:
    """Returns the seed edges in a form that PyG's loaders take.

    Args:
        data: What the loader was given.
        edge_label_index: Seed edges ``[2, B]``, or None for all edges in the order of their ids; in heterogeneous
            graphs an edge type (two node types where that is clear), or a pair of it and one of those.

    Raises:
        TypeError: If the ends are no integers.
        ValueError: If the seed edges are not ``[2, B]``, or no edge type is named, or none that there is; says which
            there are.
    """
    if isinstance(data, Data) or (isinstance(data, Dataset) and not data.schema.is_hetero):
        if edge_label_index is None:
            return _all_edges(data, None) if isinstance(data, Dataset) else None
        parts = edge_label_index if isinstance(edge_label_index, tuple | list) else ()
        if _is_type(parts) or (len(parts) and _is_type(parts[0])):
            raise ValueError("edge_label_index names an edge type, but the graph has none: expected [2, B] alone")
        return checked_ends(edge_label_index)
    known: list[EdgeType] | None = None  # stores tell
    if isinstance(data, HeteroData):
        known = data.edge_types
    elif isinstance(data, Dataset):
        known = list(data.schema.edge_types)
    expected = "an edge type, or a pair of it and [2, B]" + ("" if known is None else f"; the types are {known}")
    if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) == 0:
        given = "None" if edge_label_index is None else f"a {type(edge_label_index).__name__} without an edge type"
        raise ValueError(f"edge_label_index is {given}: expected {expected}")
    alone = _is_type(edge_label_index)
    if not alone and len(edge_label_index) != 2:
        raise ValueError(f"edge_label_index has {len(edge_label_index)} elements: expected {expected}")
    named, edges = (edge_label_index, None) if alone else edge_label_index
    if not (_is_type(named) or (named is None and known is None)):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected {expected}")
    if edges is not None:
        edges = checked_ends(edges)
    if known is None:
        return edge_label_index if edges is None else (named, edges)
    fits = [t for t in known if tuple(named) in (t, (t[0], t[2]))]
    if len(fits) != 1 and (isinstance(data, Dataset) or edges is None):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected one of {known}")
    if isinstance(data, Dataset):
        return fits[0], _all_edges(data, fits[0]) if edges is None else edges
    return named, edges


def checked_ends(edges: Any) -> Tensor:
    """Returns ends ``[2, B]`` as a tensor; refuses other shapes, and what would be cut off to integers silently."""
    edges = edges if isinstance(edges, Tensor) else torch.as_tensor(edges)
    require_data(edges, "edge_label_index")
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"edge_label_index has shape {list(edges.shape)}: expected [2, B]")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        if edges.numel():
            raise TypeError(f"edge_label_index has dtype {edges.dtype}: expected integer ids")
        edges = edges.to(torch.int64)
    return edges


def _is_type(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) in (2, 3) and all(isinstance(part, str) for part in value)


def _all_edges(data: Dataset, edge_type: EdgeType | None) -> Tensor:
    topology = data.get_graph(edge_type).topology
    edges = topology.coo()
    return edges if topology.edge_ids is None else edges[:, topology.edge_ids.argsort(stable=True)]
