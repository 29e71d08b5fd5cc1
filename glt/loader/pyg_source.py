"""glt's datasets as PyG's data, whose attributes a batch takes its rows from."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Data, HeteroData

from glt.data.dataset import Dataset
from glt.data.graph import Graph
from glt.data.pyg import require_num_nodes


def as_pyg(data: Any) -> Any:
    """Returns ``data`` as PyG's loaders take it: a dataset becomes a ``Data`` or ``HeteroData`` that shares its tables.

    Raises:
        TypeError: If it is a bare graph.
        ValueError: If it is a dataset that samples along out-edges, or has features with ``row_of``, or a ``Data`` that
            does not tell how many nodes it has.
    """
    if isinstance(data, Graph):
        raise TypeError("data is a glt Graph: loaders take a Dataset, wrap it: glt.data.Dataset(graph)")
    if isinstance(data, Data):
        require_num_nodes(data)
    if not isinstance(data, Dataset):
        return data
    if data.edge_dir != "in":
        raise ValueError("data samples along out-edges: this loader is PyG's, build the dataset with edge_dir='in'")
    schema = data.schema
    out = HeteroData() if schema.is_hetero else Data()
    for node_type, num_nodes, tables in zip(schema.node_types, data.num_nodes_of, data.node_tables, strict=True):
        store = out[node_type] if schema.is_hetero else out
        store.num_nodes = num_nodes
        _put(store, tables)
    for edge_type, tables in zip(schema.edge_types, data.edge_tables, strict=True):
        _put(out[edge_type] if schema.is_hetero else out, tables)
    return out


def _put(store: Any, tables: Any) -> None:
    for name, feature in tables.items():
        if not feature.has_row_per_id:
            raise ValueError(f"{name} is a Feature with row_of, as partitions have: this loader needs one row per id")
        store[name] = feature.tensor
