"""A glt ``Dataset`` as the arguments of a partitioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glt.data.dataset import Dataset
from glt.data.feature import Feature
from glt.data.topology import Topology

_ROLES = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}


def dataset_arguments(data: Dataset, *, weight_attr: str | None = None) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a :class:`glt.data.Dataset`.

    Features, labels and times are not copied, edges are. ``x``, ``y`` and ``edge_attr`` become ``node_feat``,
    ``node_label`` and ``edge_feat``, other tables ``node_attrs`` and ``edge_attrs``.

    Args:
        data: The graph.
        weight_attr: Name of a table of edges: it becomes ``edge_weight`` too.

    Raises:
        ValueError: If it has no graph; if ids of edges are not the numbers of the edges; if it draws by weights that
            no table has (it keeps only sums of them); or if features are scaled int8.
    """
    schema = data.schema
    if not schema.node_types:
        raise ValueError("g is a Dataset without a graph: call its init_graph first")
    names = schema.edge_types if schema.is_hetero else ("g",)
    nodes = [_tables(tables) for tables in data.node_tables]
    edges = [_tables(tables) for tables in data.edge_tables]
    arguments: dict[str, Any] = {
        "num_nodes": data.num_nodes,
        "edge_index": _face(
            schema, "edge", [_in_order(g.topology, n) for g, n in zip(data.graphs, names, strict=True)]
        ),
    }
    weights = [tables.get(weight_attr) for tables in edges] if weight_attr is not None else [None] * len(edges)
    if weight_attr is not None and all(weight is None for weight in weights):
        raise ValueError(f"weight_attr = {weight_attr!r}: expected the name of a table of edges of g")
    for weight, graph, name in zip(weights, data.graphs, names, strict=True):
        if weight is None and graph.topology.weights is not None:
            raise ValueError(
                f"the edges of {name} have weights, of which a Dataset keeps sums only: name the table that they came "
                "from as weight_attr, or partition the PyG data"
            )
    arguments["edge_weight"] = _face(schema, "edge", weights)
    if data.time_level == "node":
        arguments["node_time"] = _face(schema, "node", [tables.get(str(data.time_attr)) for tables in nodes])
        for tables in nodes:
            if data.time_attr == "time":  # as batches call node_time
                tables.pop("time", None)
    elif data.time_level == "edge":
        arguments["edge_time"] = _face(schema, "edge", [_times(graph.topology) for graph in data.graphs])
    for kind, of_types in (("node", nodes), ("edge", edges)):
        for name, role in _ROLES.items():
            if role.startswith(kind):
                arguments[role] = _face(schema, kind, [tables.pop(name, None) for tables in of_types])
        arguments[f"{kind}_attrs"] = _face(schema, kind, [tables or None for tables in of_types])
    return {name: value for name, value in arguments.items() if value is not None}


def _tables(tables: dict[str, Feature]) -> dict[str, Tensor]:
    return {name: _rows(name, feature) for name, feature in tables.items()}


def _rows(name: str, feature: Feature) -> Tensor:
    if feature.scale is not None:
        raise ValueError(f"{name} of g is int8 with a scale, which partitions do not keep: give the rows widened")
    if feature.has_row_per_id:
        return feature.tensor
    if feature.row_of is None:
        raise ValueError(f"{name} of g has the rows of one partition: expected those of all ids")
    return feature.tensor[feature.row_of.to(torch.int64)]


def _in_order(topology: Topology, name: Any) -> Tensor:
    """Sources and destinations ``[2, E]`` by edge id."""
    edges = topology.coo()
    if topology.edge_ids is None:
        return edges
    ids = topology.edge_ids.to(torch.int64)
    if (len(ids) and int(ids.max()) >= len(ids)) or len(ids.unique()) != len(ids):
        raise ValueError(
            f"the ids of the edges of {name} are not 0 to {len(ids) - 1}, each once: a partitioner numbers edges by "
            "their positions; leave edge_ids out"
        )
    return torch.empty_like(edges).index_copy_(1, ids, edges)


def _times(topology: Topology) -> Tensor | None:
    timed = topology.by_time
    if timed is None:
        return None
    positions = torch.arange(len(timed.time)) if timed.edge_ids is None else timed.edge_ids.to(torch.int64)
    return torch.empty_like(timed.time).index_copy_(0, positions, timed.time)


def _face(schema: Any, kind: str, values: list[Any]) -> Any:
    if not schema.is_hetero:
        return values[0]
    types = schema.node_types if kind == "node" else schema.edge_types
    return {each: value for each, value in zip(types, values, strict=True) if value is not None} or None
