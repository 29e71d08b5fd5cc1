"""A message as PyG's ``Data`` or ``HeteroData``.

A tensor of a message is called after the attribute that it becomes and the store that it goes to: ``x/n3`` is ``x`` of
node type 3, ``edge_index/e0`` that of the edges sampled along edge type 0, ``edge_label/l0`` is about seed edges of
that type. Names without a store are about the batch as a whole:
``num_sampled_nodes`` has a row per node type, ``num_sampled_edges`` one per edge type, each with a column per hop.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from glt.data.schema import Schema, reverse_edge_type
from glt.sampler.graph import bidirectional


def collate(
    tensors: dict[str, Tensor], schema: Schema, edge_dir: str, subgraph_type: str, custom_cls: Any = None
) -> Data | HeteroData:
    """Makes a batch of the tensors of a message; nothing is copied, but for bidirectional ones.

    Args:
        tensors: By name.
        schema: Which types there are. All of them are in the batch.
        edge_dir: Along out-edges a batch holds the reverses of edges, under the reverse types.
        subgraph_type: Which edges these are to be; bidirectional ones come as directional ones.
        custom_cls: Class of the batch. Default: PyG's own.
    """
    counts = {
        name: tensors.pop(name).tolist() for name in ("num_sampled_nodes", "num_sampled_edges") if name in tensors
    }
    data: Any = (custom_cls or (HeteroData if schema.is_hetero else Data))()
    stores = _stores(data, schema, edge_dir)
    for path, tensor in tensors.items():
        name, _, place = path.rpartition("/")
        stores[place][name] = tensor
    for i in range(len(schema.node_types)):
        stores[f"n{i}"]["num_nodes"] = len(stores[f"n{i}"]["n_id"])
    for name, by_type in counts.items():
        for i, per_hop in enumerate(by_type):
            stores[f"{'n' if name == 'num_sampled_nodes' else 'e'}{i}"][name] = per_hop
    if subgraph_type == "bidirectional":
        parts = [path.rpartition("/") for path in tensors]  # names may have slashes too
        columns = {name for name, _, place in parts if place.startswith("e")} - {"edge_index"}
        _make_bidirectional(data, columns)
    return data


def _stores(data: Any, schema: Schema, edge_dir: str) -> Any:
    if not schema.is_hetero:
        return dict.fromkeys(("n0", "e0", "l0"), data.stores[0])
    nodes = {f"n{i}": data[node_type] for i, node_type in enumerate(schema.node_types)}
    names = schema.edge_types if edge_dir == "in" else [reverse_edge_type(t) for t in schema.edge_types]
    edges = {f"e{i}": data[edge_type] for i, edge_type in enumerate(names)}
    return _WithLinks({**nodes, **edges}, data, schema)


class _WithLinks(dict[str, Any]):
    """Stores by name; those of seed edges come into being when something is put there."""

    def __init__(self, stores: dict[str, Any], data: HeteroData, schema: Schema) -> None:
        super().__init__(stores)
        self.data, self.schema = data, schema

    def __missing__(self, place: str) -> Any:
        return self.data[self.schema.edge_types[int(place.removeprefix("l"))]]


def _make_bidirectional(data: Any, columns: set[str]) -> None:
    """Adds the reverses of all edges, as PyG does; of edges that it merges, attributes are lost where it loses them."""
    stores = data.stores if isinstance(data, Data) else data.edge_stores
    known = {store._key: store["edge_index"] for store in stores if "edge_index" in store}
    row, col = ({key: ends[i] for key, ends in known.items()} for i in (0, 1))
    position: dict[Any, Any] = {key: torch.arange(ends.shape[1], device=ends.device) for key, ends in known.items()}
    if isinstance(data, Data):
        (key,) = known
        one = bidirectional(SamplerOutput(torch.empty(0), row[key], col[key], position[key], None))
        row, col, position = {key: one.row}, {key: one.col}, {key: one.edge}
    else:
        several = HeteroSamplerOutput({}, row, col, position, None).to_bidirectional()
        row, col, position = several.row, several.col, several.edge or {}
    for store in stores:
        if store._key not in known:
            continue
        store["edge_index"] = torch.stack([row[store._key], col[store._key]])
        kept = position[store._key]
        for name in columns & set(store.keys()):
            if kept is None:
                del store[name]
            else:
                store[name] = store[name][kept]
