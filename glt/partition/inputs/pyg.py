"""PyG's ``Data`` and ``HeteroData`` as the arguments of a partitioner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt.data.dataset import Dataset
from glt.data.feature import Feature
from glt.data.pyg import arrays_of_pyg
from glt.data.schema import Schema
from glt.data.topology import Topology

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


logger = logging.getLogger(__name__)

_EDGES = frozenset({"edge_index", "adj", "adj_t", "num_nodes", "num_edges"})  # what is no table


def graph_arguments(
    data: Data | HeteroData, *, weight_attr: str | None = None, time_attr: str | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a PyG graph, nothing copied::

        RandomPartitioner("parts", num_parts=2, **graph_arguments(data, weight_attr="edge_weight")).partition()

    ``x``, ``y`` and ``edge_attr`` become ``node_feat``, ``node_label`` and ``edge_feat``; all other node-level and
    edge-level attributes, as PyG tells them apart, ``node_attrs`` and ``edge_attrs`` under their own names: batches of
    the distributed loaders then have the attributes that those of :class:`glt.loader.NeighborLoader` have. Attributes
    of the graph as a whole, and those that PyG does not index by node or edge (``edge_label_index`` and its like), stay
    behind; the log (level INFO) names them.

    Args:
        data: The graph.
        weight_attr: Name of an edge-level attribute: it becomes ``edge_weight`` too, for weighted sampling. Edge types
            without it are sampled uniformly.
        time_attr: Name of a node-level or edge-level attribute of integers: it becomes ``node_time`` or ``edge_time``
            too, for temporal sampling. Of a node-level one that is called ``time`` batches have the int64 values.

    Raises:
        KeyError, TypeError, ValueError: If ``data`` is no such graph or has no such attribute; names it.
    """
    arrays = arrays_of_pyg(data, weight_attr=weight_attr, time_attr=time_attr)
    schema: Schema = arrays.schema
    data_: Any = data  # two classes of one interface
    edge_stores = [data_[t] for t in schema.edge_types] if schema.is_hetero else [data_._store]
    edges = [store.edge_index for store in edge_stores]
    nodes = [dict(tables) for tables in arrays.node_tables]
    links = [dict(tables) for tables in arrays.edge_tables]
    taken = [*nodes, *links]
    _log_what_stays(data_, set().union(*taken))
    arguments: dict[str, Any] = {
        "num_nodes": schema.by_node_type(arrays.num_nodes) if schema.is_hetero else arrays.num_nodes[0],
        # A subclass, such as PyG's EdgeIndex, would carry its own ways into arithmetic.
        "edge_index": _per_edge_type(schema, [e.as_subclass(Tensor) if isinstance(e, Tensor) else e for e in edges]),
        "node_feat": _per_node_type(schema, [tables.pop("x", None) for tables in nodes]),
        "node_label": _per_node_type(schema, [tables.pop("y", None) for tables in nodes]),
        "edge_feat": _per_edge_type(schema, [tables.pop("edge_attr", None) for tables in links]),
        "edge_weight": _per_edge_type(schema, arrays.edge_weight),
    }
    if arrays.time_level == "node":
        arguments["node_time"] = _per_node_type(schema, [tables.get(str(time_attr)) for tables in nodes])
        for tables in nodes:
            if time_attr == "time":  # as batches call node_time
                tables.pop("time", None)
    else:
        arguments["edge_time"] = _per_edge_type(schema, arrays.edge_time)
    arguments["node_attrs"] = _per_node_type(schema, [tables or None for tables in nodes])
    arguments["edge_attrs"] = _per_edge_type(schema, [tables or None for tables in links])
    return {name: value for name, value in arguments.items() if value is not None}


def _per_node_type(schema: Schema, values: Sequence[Any]) -> Any:
    return _face(schema.node_types, values) if schema.is_hetero else values[0]


def _per_edge_type(schema: Schema, values: Sequence[Any]) -> Any:
    return _face(schema.edge_types, values) if schema.is_hetero else values[0]


def _face(types: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any] | None:
    return {type_: value for type_, value in zip(types, values, strict=True) if value is not None} or None


def _log_what_stays(data: Any, taken: set[str]) -> None:
    left = sorted({name for store in data.stores for name in store.keys()} - taken - _EDGES)
    if left:
        logger.info("left out, being of no node or edge: %s", ", ".join(left))


# A glt ``Dataset`` as the arguments of a partitioner.


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
        "edge_index": _by_type(
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
    arguments["edge_weight"] = _by_type(schema, "edge", weights)
    if data.time_level == "node":
        arguments["node_time"] = _by_type(schema, "node", [tables.get(str(data.time_attr)) for tables in nodes])
        for tables in nodes:
            if data.time_attr == "time":  # as batches call node_time
                tables.pop("time", None)
    elif data.time_level == "edge":
        arguments["edge_time"] = _by_type(schema, "edge", [_times(graph.topology) for graph in data.graphs])
    for kind, of_types in (("node", nodes), ("edge", edges)):
        for name, role in _ROLES.items():
            if role.startswith(kind):
                arguments[role] = _by_type(schema, kind, [tables.pop(name, None) for tables in of_types])
        arguments[f"{kind}_attrs"] = _by_type(schema, kind, [tables or None for tables in of_types])
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


def _by_type(schema: Any, kind: str, values: list[Any]) -> Any:
    if not schema.is_hetero:
        return values[0]
    types = schema.node_types if kind == "node" else schema.edge_types
    return {each: value for each, value in zip(types, values, strict=True) if value is not None} or None
