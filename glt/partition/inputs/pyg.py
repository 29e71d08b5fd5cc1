"""PyG's ``Data`` and ``HeteroData``, and glt's ``Dataset``, as the arguments of a partitioner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt.data.dataset import Dataset
from glt.data.feature import Feature
from glt.data.pyg import arrays_of_pyg
from glt.data.schema import Schema
from glt.data.topology import Topology
from glt.partition.graph_input import arguments_by_type

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


logger = logging.getLogger(__name__)

_ROLES = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}
_EDGES = frozenset({"edge_index", "adj", "adj_t", "num_nodes", "num_edges"})  # what is no table


def graph_arguments(
    data: Data | HeteroData, *, weight_attr: str | None = None, time_attr: str | None = None
) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a PyG graph, nothing copied::

        RandomPartitioner("parts", num_parts=2, **graph_arguments(data, weight_attr="edge_weight")).partition()

    ``x``, ``y`` and ``edge_attr`` become ``node_feat``, ``node_label`` and ``edge_feat``; all other node-level and
    edge-level attributes, as PyG tells them apart, ``node_attrs`` and ``edge_attrs`` under their own names. Others
    (``edge_label_index`` and its like) stay behind; the log (level INFO) names them.

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
    stores = [data_[t] for t in schema.edge_types] if schema.is_hetero else [data_._store]
    _log_what_stays(data_, set().union(*arrays.node_tables, *arrays.edge_tables))
    nodes = [
        {"num_nodes": count, **_arguments("node", tables, time_attr if arrays.time_level == "node" else None)}
        for count, tables in zip(arrays.num_nodes, arrays.node_tables, strict=True)
    ]
    edges = []
    for at, store in enumerate(stores):
        index = store.edge_index
        # A subclass, such as PyG's EdgeIndex, would carry its own ways into arithmetic.
        given = {"edge_index": index.as_subclass(Tensor) if isinstance(index, Tensor) else index}
        given |= {"edge_weight": arrays.edge_weight[at]}
        given |= {} if arrays.time_level == "node" else {"edge_time": arrays.edge_time[at]}
        edges.append(given | _arguments("edge", arrays.edge_tables[at]))
    return arguments_by_type(schema, nodes, edges)


def _arguments(kind: str, tables: Mapping[str, Any], time_attr: str | None = None) -> dict[str, Any]:
    """The arguments that tables of a type become; ``time_attr``: which table is ``node_time`` too."""
    attrs = dict(tables)
    given = {role: attrs.pop(name, None) for name, role in _ROLES.items() if role.startswith(kind)}
    if time_attr is not None:
        given["node_time"] = attrs.get(time_attr)
    if time_attr == "time":  # as batches call node_time
        attrs.pop("time", None)
    return {**given, f"{kind}_attrs": attrs or None}


def _log_what_stays(data: Any, taken: set[str]) -> None:
    left = sorted({name for store in data.stores for name in store.keys()} - taken - _EDGES)
    if left:
        logger.info("left out, being of no node or edge: %s", ", ".join(left))


def dataset_arguments(data: Dataset, *, weight_attr: str | None = None) -> dict[str, Any]:
    """Returns the keyword arguments of any partitioner that carry a :class:`glt.data.Dataset`; only edges are copied.

    Tables become arguments as in :func:`graph_arguments`.

    Raises:
        ValueError: If it has no graph; if ids of edges are not the numbers of the edges; if it draws by weights that no
            table has (it keeps only sums of them); or if features are scaled int8.
    """
    schema = data.schema
    if not schema.node_types:
        raise ValueError("g is a Dataset without a graph: call its init_graph first")
    names = schema.edge_types if schema.is_hetero else ("g",)
    time_attr = str(data.time_attr) if data.time_level == "node" else None
    nodes = [
        {"num_nodes": count, **_arguments("node", _tables(tables), time_attr)}
        for count, tables in zip(data.num_nodes_of, data.node_tables, strict=True)
    ]
    edges = []
    for graph, name, features in zip(data.graphs, names, data.edge_tables, strict=True):
        tables = _tables(features)
        weight = tables.get(weight_attr) if weight_attr is not None else None
        given = {"edge_index": _in_order(graph.topology, name), "edge_weight": weight}
        given |= {"edge_time": _times(graph.topology)} if data.time_level == "edge" else {}
        edges.append(given | _arguments("edge", tables))
    if weight_attr is not None and all(each["edge_weight"] is None for each in edges):
        raise ValueError(f"weight_attr = {weight_attr!r}: expected the name of a table of edges of g")
    for each, graph, name in zip(edges, data.graphs, names, strict=True):
        if each["edge_weight"] is None and graph.topology.weights is not None:
            raise ValueError(
                f"the edges of {name} have weights, of which a Dataset keeps sums only: name the table that they came "
                "from as weight_attr, or partition the PyG data"
            )
    return arguments_by_type(schema, nodes, edges)


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
