"""Graphs out of any PyG ``GraphStore``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from glt.data.dataset import Dataset
from glt.data.edge_index import coo_of
from glt.data.edge_times import TimedEdges, as_times
from glt.data.graph import Graph
from glt.data.graph_store import DatasetGraphStore
from glt.data.schema import HOMOGENEOUS, Schema
from glt.data.topology import Topology, layout_of


def dataset_of_stores(
    feature_store: FeatureStore | None,
    graph_store: GraphStore,
    *,
    edge_dir: str = "in",
    time_attr: str | None = None,
) -> Dataset:
    """Reads the edges of a graph store into a :class:`Dataset`; features stay where they are, but for times of nodes.

    Edges that the store offers in the layout of ``edge_dir`` (``'csc'`` for ``'in'``) are used in place; others are
    sorted once, from ``'coo'`` where it is offered. The id of an edge is its position in the layout that was read.

    Args:
        feature_store: Tells numbers of nodes where the graph store does not, and holds the times.
        graph_store: The edges, of one type named None, or of types ``(source, relation, destination)``.
        edge_dir: ``'in'`` or ``'out'``.
        time_attr: Name of the times in the feature store: of nodes where its groups are node types, of edges where they
            are edge types; of a homogeneous graph those named ``'time'`` are the nodes', others the edges', as in PyG.

    Raises:
        IndexError: If an id is outside the graph; names the first.
        ValueError: If the store has no edges, or ``time_attr`` is not in the feature store or of both levels.
    """
    if isinstance(graph_store, DatasetGraphStore):
        own = graph_store.dataset
        if own.edge_dir == edge_dir and time_attr in (None, own.time_attr):
            times = [tables.get(own.time_attr or "") for tables in own.node_tables]
            return Dataset.of_graphs(
                own.schema, own.graphs, own.num_nodes_of, edge_dir=edge_dir, time_attr=own.time_attr,
                time_level=own.time_level, node_time=times,
            )  # fmt: skip
    attrs = graph_store.get_all_edge_attrs()
    if not attrs:
        raise ValueError("graph_store has no edges: expected at least one edge type")
    is_hetero = all(attr.edge_type is not None for attr in attrs)
    tensor_attrs = [] if feature_store is None else feature_store.get_all_tensor_attrs()
    schema = _schema(attrs, tensor_attrs) if is_hetero else HOMOGENEOUS
    offers: list[dict[EdgeLayout, EdgeAttr]] = [{} for _ in schema.edge_types]
    for attr in attrs:
        offers[schema.edge_index(attr.edge_type) if is_hetero else 0].setdefault(attr.layout, attr)

    topologies = [_read(graph_store, offer, layout_of(edge_dir)) for offer in offers]
    counts = [
        max(_num_nodes(schema, t, topologies, offers), _num_rows(feature_store, tensor_attrs, schema, t))
        for t in range(len(schema.node_types))
    ]
    level, times = _times(feature_store, tensor_attrs, schema, time_attr)
    graphs = []
    for r, (topology, (source, target)) in enumerate(zip(topologies, schema.ends("out"), strict=True)):
        topology = topology.widened((counts[source], counts[target]))
        if level is not None:
            neighbor = source if edge_dir == "in" else target
            topology = _timed(topology, level, times[neighbor if level == "node" else r])
        graphs.append(Graph(topology))
    return Dataset.of_graphs(
        schema, graphs, counts, edge_dir=edge_dir, time_attr=time_attr, time_level=level,
        node_time=times if level == "node" else None,
    )  # fmt: skip


def _schema(attrs: Sequence[EdgeAttr], tensor_attrs: Sequence[Any]) -> Schema:
    edge_types = dict.fromkeys(tuple(attr.edge_type) for attr in attrs)
    groups = [attr.group_name for attr in tensor_attrs if isinstance(attr.group_name, str)]
    ends = [end for edge_type in edge_types for end in (edge_type[0], edge_type[2])]
    return Schema(tuple(dict.fromkeys(groups + ends)), tuple(edge_types))


def _read(store: GraphStore, offer: dict[EdgeLayout, EdgeAttr], layout: str) -> Topology:
    wanted = EdgeLayout(layout.lower())
    attr = offer.get(wanted) or offer.get(EdgeLayout.COO) or next(iter(offer.values()))
    first, second = store.get_edge_index(attr)
    if attr.layout == wanted:
        indptr, indices = (first, second) if layout == "CSR" else (second, first)
        num_neighbors = int(indices.max()) + 1 if len(indices) else 0
        size = (len(indptr) - 1, num_neighbors)
        return Topology.from_rows(
            indptr.long().contiguous(), indices.contiguous(), layout=layout,
            num_nodes=size if layout == "CSR" else size[::-1],
        )  # fmt: skip
    ends = coo_of((first, second), attr.layout.name)
    num_sources, num_targets = (int(end.max()) + 1 if len(end) else 0 for end in ends)
    return Topology(ends, (num_sources, num_targets), layout=layout)


def _num_nodes(schema: Schema, node_type: int, topologies: list[Topology], offers: list[dict]) -> int:
    """The largest number of nodes that the edge types know of."""
    counts = [0]
    for ends, topology, offer in zip(schema.ends("out"), topologies, offers, strict=True):
        sizes = [topology.size, *(attr.size for attr in offer.values() if attr.size is not None)]
        counts += [size[end] or 0 for end in (0, 1) if ends[end] == node_type for size in sizes]
    return max(counts)


def _num_rows(store: FeatureStore | None, tensor_attrs: Sequence[Any], schema: Schema, node_type: int) -> int:
    """Rows of the first table of the node type: of nodes without edges only features know."""
    for attr in tensor_attrs:
        if store is not None and (not schema.is_hetero or attr.group_name == schema.node_types[node_type]):
            size = store.get_tensor_size(_whole(attr))
            if size:
                return int(size[0])
    return 0


def _times(
    store: FeatureStore | None, tensor_attrs: Sequence[Any], schema: Schema, name: str | None
) -> tuple[str | None, list[Any]]:
    """Level of the times, and the times by type of that level."""
    if name is None:
        return None, []
    attrs = [_whole(attr) for attr in tensor_attrs if attr.attr_name == name]
    if store is not None and not schema.is_hetero:
        attrs = attrs or [_whole(store._tensor_attr_cls(attr_name=name))]  # tables of edges need not be listed
    if store is None or not attrs:
        raise ValueError(f"time_attr = {name!r}: expected the name of times in the feature store")
    of_nodes = [isinstance(attr.group_name, str) for attr in attrs] if schema.is_hetero else [name == "time"]
    if any(of_nodes) and not all(of_nodes):
        raise ValueError(f"time_attr = {name!r} is in groups of nodes and of edges: rename one of them")
    position: Callable[[Any], int] = schema.node_index if of_nodes[0] else schema.edge_index
    times = [None] * len(schema.node_types if of_nodes[0] else schema.edge_types)
    for attr in attrs:  # groups of a homogeneous graph may have any name
        times[position(attr.group_name) if schema.is_hetero else 0] = store.get_tensor(attr)
    return "node" if of_nodes[0] else "edge", times


def _whole(attr: TensorAttr) -> TensorAttr:
    """The attribute of all rows, in the group None if in none."""
    attr = copy(attr)
    attr.index = None
    if not attr.is_set("group_name"):
        attr.group_name = None
    return attr


def _timed(topology: Topology, level: str, time: Any) -> Topology:
    """The same rows with times, which are of neighbour nodes or of edge ids."""
    if time is None:
        return topology
    if level == "node":
        values = as_times(time, "node_time", topology.num_neighbor_nodes, "node")[topology.indices.numpy()]
    else:
        values = as_times(time, "edge_time", topology.num_edges)
        if topology.edge_ids is not None:
            values = values[topology.edge_ids.numpy()]
    by_time = TimedEdges.build(topology.indptr, topology.indices, topology.edge_ids, values)
    return Topology.from_rows(
        topology.indptr, topology.indices, topology.edge_ids, layout=topology.layout, num_nodes=topology.size,
        weights=topology.weights, by_time=by_time, trusted=True,
    )  # fmt: skip
