"""PyG's ``Data`` and ``HeteroData`` as the arguments of a partitioner."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from glt.data.pyg import arrays_of_pyg
from glt.data.schema import Schema

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
