"""PyG's ``Data`` and ``HeteroData`` as arrays per type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from glt.data.arrays import as_rows
from glt.data.edge_index import endpoints
from glt.data.graph_arrays import GraphArrays
from glt.data.schema import HOMOGENEOUS, Schema

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# What PyG keeps in an edge store that is the edges themselves.
_TOPOLOGY = ("edge_index", "adj", "adj_t", "num_nodes", "num_edges")


def arrays_of_pyg(
    data: Data | HeteroData,
    *,
    weight_attr: str | None = None,
    time_attr: str | None = None,
    with_tables: bool = True,
) -> GraphArrays:
    """Takes edges, node-level and edge-level attributes as PyG itself tells them apart.

    Attributes that PyG does not index by node or edge (graph-level ones, and ``edge_label_index`` and its like, which
    run along another dimension) are not part of a graph's tables.

    Args:
        data: The graph.
        weight_attr: Name of an edge-level attribute: the weights. Edge types without it are sampled uniformly.
        time_attr: Name of the times, node-level or edge-level. Types without it are not constrained.
        with_tables: False leaves out all tables but that of the times.

    Raises:
        KeyError: If no edge type has ``weight_attr``.
        TypeError: If ``data`` is something else, or an attribute is neither tensor nor array.
        ValueError: If there are no edges, or ``time_attr`` is of no level, or of both.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, HeteroData):
        schema = Schema(tuple(data.node_types), tuple(data.edge_types))
        node_stores = [data[t] for t in schema.node_types]
        edge_stores = [data[t] for t in schema.edge_types]
    elif isinstance(data, Data):
        schema = HOMOGENEOUS
        node_stores = edge_stores = [data._store]
    else:
        raise TypeError(f"data has type {type(data).__name__}: expected a PyG Data or HeteroData")
    for store in edge_stores:
        if store.get("edge_index") is None:
            where = f"data[{store._key}]" if schema.is_hetero else "data"
            hint = "; turn adj_t into edge_index first" if store.get("adj_t") is not None else ""
            raise ValueError(f"{where} has no edge_index: expected edge_index [2, E]{hint}")

    arrays = GraphArrays(schema, [], [endpoints(store.edge_index) for store in edge_stores])
    for t, store in enumerate(node_stores):
        arrays.num_nodes.append(arrays.count_nodes(t, _num_nodes(store)))
        if with_tables:
            arrays.node_tables[t] = _tables(store, store.is_node_attr)
    if with_tables:
        arrays.edge_tables = [_tables(store, store.is_edge_attr) for store in edge_stores]
    if weight_attr is not None:
        arrays.edge_weight = [store.get(weight_attr) for store in edge_stores]
        if all(weight is None for weight in arrays.edge_weight):
            raise KeyError(f"weight_attr = {weight_attr!r}: expected the name of an edge-level attribute of data")
    if time_attr is not None:
        _take_times(arrays, time_attr, data, node_stores, edge_stores)
    return arrays


def require_num_nodes(data: Data) -> None:
    """Raises ValueError if nothing in ``data`` tells how many nodes there are."""
    edges = any(data.get(name) is not None for name in ("edge_index", "adj_t", "adj"))
    if not edges and not data._store.can_infer_num_nodes:
        raise ValueError(
            f"data has {sorted(data.keys()) or 'nothing in it'}, which does not tell the number of nodes: expected "
            "edge_index, x or num_nodes; set data.num_nodes"
        )


def _take_times(arrays: GraphArrays, name: str, data: Any, node_stores: list[Any], edge_stores: list[Any]) -> None:
    if arrays.schema.is_hetero:
        of_nodes, of_edges = (any(name in store for store in stores) for stores in (node_stores, edge_stores))
    else:
        of_nodes = name in data and data.is_node_attr(name)
        of_edges = name in data and data.is_edge_attr(name)
    if of_nodes and of_edges:
        raise ValueError(f"time_attr = {name!r} is an attribute of nodes and of edges: rename one of them")
    if not of_nodes and not of_edges:
        raise ValueError(f"time_attr = {name!r}: expected the name of a node-level or edge-level attribute of data")
    arrays.time_attr, arrays.time_level = name, "node" if of_nodes else "edge"
    if of_edges:
        arrays.edge_time = [store.get(name) for store in edge_stores]
        return
    for store, tables in zip(node_stores, arrays.node_tables, strict=True):
        if store.get(name) is not None:
            tables[name] = as_rows(store[name], name)


def _num_nodes(store: Any) -> int | None:
    """Number of nodes as PyG knows it; None where only edges can tell."""
    if store._key is None or store.can_infer_num_nodes:
        return store.num_nodes
    if len(store):
        raise ValueError(
            f"data[{store._key!r}] has {sorted(store.keys())}, which do not tell the number of nodes to PyG: set "
            f"data[{store._key!r}].num_nodes"
        )
    return None


def _tables(store: Any, belongs: Callable[[str], bool]) -> dict[str, Tensor]:
    tables = {}
    for name, value in store.items():
        if name in _TOPOLOGY or not belongs(name):
            continue
        is_array = isinstance(value, Tensor | np.ndarray)
        if is_array and store._parent().__cat_dim__(name, value, store) != 0:
            continue
        if not is_array:
            raise TypeError(
                f"attribute {name!r} is a {type(value).__name__}: a glt Dataset holds tensors and arrays; delete "
                "it, or give data itself to the loader"
            )
        tables[name] = as_rows(value, name)
    return tables
