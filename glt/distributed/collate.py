"""A message as PyG's ``Data`` or ``HeteroData``.

A tensor of a message is called after the attribute that it becomes and the store that it goes to: ``x/n3`` is ``x`` of
node type 3, ``edge_index/e0`` that of edge type 0. Names without a store are about the batch as a whole.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from glt.data.schema import Schema


def collate(tensors: dict[str, Tensor], schema: Schema) -> Data | HeteroData:
    """Makes a batch of the tensors of a message; nothing is copied.

    Args:
        tensors: By name; ``num_sampled_nodes`` (a row per node type) and ``num_sampled_edges`` (a row per edge type)
            among them, each with a column per hop.
        schema: Which types there are. All of them are in the batch.
    """
    counts = {name: tensors.pop(name).tolist() for name in ("num_sampled_nodes", "num_sampled_edges")}
    data: Any = HeteroData() if schema.is_hetero else Data()
    stores = _stores(data, schema)
    for path, tensor in tensors.items():
        name, _, store = path.rpartition("/")
        stores[store][name] = tensor
    for place, name in (("n", "num_sampled_nodes"), ("e", "num_sampled_edges")):
        for i, per_hop in enumerate(counts[name]):
            stores[f"{place}{i}"][name] = per_hop
    for i in range(len(schema.node_types)):
        stores[f"n{i}"]["num_nodes"] = len(stores[f"n{i}"]["n_id"])
    return data


def _stores(data: Any, schema: Schema) -> dict[str, Any]:
    if not schema.is_hetero:
        return {"n0": data.stores[0], "e0": data.stores[0]}
    nodes = {f"n{i}": data[node_type] for i, node_type in enumerate(schema.node_types)}
    return nodes | {f"e{i}": data[edge_type] for i, edge_type in enumerate(schema.edge_types)}
