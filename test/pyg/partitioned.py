"""PyG's data as partition directories, as a user would write them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from glt.partition import RandomPartitioner

_NO_EDGES = torch.empty(2, 0, dtype=torch.int64)


@dataclass(frozen=True)
class Partitioned:
    """A partition directory.

    Attributes:
        path: Where it is.
        names: By store, what the batches' attributes are called in the data: a partition holds one table of edge
            features, ``edge_attr``, and one of node times, ``time``, whatever the data calls them.
    """

    path: Path
    names: dict[Any, dict[str, str]] = field(default_factory=dict)


class Partitions:
    """Partition directories of data, written when a loader first asks for one.

    Args:
        root: Where to.
        num_parts: Number of partitions.
    """

    def __init__(self, root: Path, num_parts: int) -> None:
        self.root, self.num_parts = root, num_parts
        self._numbers = itertools.count()
        self._made: dict[Any, tuple[Any, Partitioned]] = {}

    def of(
        self, data: Data | HeteroData, time_attr: str | None, weight_attr: str | None, seed_edges: Any = None
    ) -> Partitioned:
        """Returns the directory of ``data``; the same one for as long as no tensor of it changes.

        Args:
            data: The graph.
            time_attr, weight_attr: Attributes to sample by.
            seed_edges: The type of a loader's seed edges, which a directory names even if the graph has none of them.
        """
        tensors = [
            (store._key, name, id(value), getattr(value, "_version", None))
            for store in data.stores
            for name, value in store.items()
        ]
        key = (id(data), *tensors, time_attr, weight_attr, seed_edges)
        if key not in self._made:
            made = _write(
                self.root / str(next(self._numbers)), self.num_parts, data, time_attr, weight_attr, seed_edges
            )
            self._made[key] = data, made  # the data is kept, so that no other gets its id
        return self._made[key][1]

    def forget(self) -> None:
        """Lets go of the data."""
        self._made.clear()


def _write(
    path: Path, num_parts: int, data: Any, time_attr: str | None, weight_attr: str | None, seed_edges: Any
) -> Partitioned:
    hetero = isinstance(data, HeteroData)
    result = Partitioned(path)
    nodes = {store._key: store for store in data.node_stores}
    edges: dict[Any, Any] = {store._key: store for store in data.edge_stores}
    if hetero and seed_edges is not None:
        edges.setdefault(seed_edges, {})
    tables: dict[str, dict[Any, Any]] = {
        name: {} for name in ("node_feat", "node_label", "node_time", "edge_feat", "edge_weight", "edge_time")
    }
    for key, store in nodes.items():
        names = {"x": "node_feat", "y": "node_label", time_attr: "node_time"}
        for name, table in names.items():
            if name is not None and name in store and store.is_node_attr(name):
                tables[table][key] = store[name]
        if key in tables["node_time"]:
            result.names.setdefault(key, {})["time"] = str(time_attr)
    for key, store in edges.items():
        given = [name for name in store if name != "edge_index" and store.is_edge_attr(name)] if len(store) else []
        for name, table in ((weight_attr, "edge_weight"), (time_attr, "edge_time")):
            if name in given:
                tables[table][key] = store[name]
        # One table of features: edge_attr, else the only attribute there is.
        feature = "edge_attr" if "edge_attr" in given else given[0] if len(given) == 1 else None
        if feature is not None:
            tables["edge_feat"][key] = store[feature]
            result.names.setdefault(key, {})["edge_attr"] = feature
    edge_index = {key: store.get("edge_index", _NO_EDGES) for key, store in edges.items()}
    num_nodes = {key: store.num_nodes for key, store in nodes.items()}

    def by_type(table: dict[Any, Any]) -> Any:
        return (table or None) if hetero else next(iter(table.values()), None)

    RandomPartitioner(
        path, num_parts, by_type(num_nodes), by_type(edge_index),
        **{name: by_type(table) for name, table in tables.items()}, edge_assign_strategy="by_dst",
    ).partition()  # fmt: skip
    return result
