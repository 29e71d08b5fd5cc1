"""A dataset behind PyG's ``FeatureStore`` and ``GraphStore``, and any PyG ``GraphStore`` as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import EdgeAttr, FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeLayout

from glt.data.arrays import as_rows
from glt.data.dataset import Dataset, Graph
from glt.data.feature import Feature
from glt.data.schema import HOMOGENEOUS, Schema
from glt.data.topology import Topology, as_times, coo_of, layout_of


class DatasetFeatureStore(FeatureStore):
    """Looks up rows of a :class:`~glt.data.Dataset` for PyG's loaders.

    Groups are node types and edge types; a homogeneous dataset has one, None, with the tables of nodes and of edges, as
    PyG's ``Data``. ``get_all_tensor_attrs`` does not list its tables of edges, since PyG's loaders index every table
    there by node. Tables that are put or removed come and go in this store only, never in the dataset, whose tables are
    shared. Raises ValueError if a table has no row for some ids, as in a partition.
    """

    def __init__(self, dataset: Dataset, num_threads: int = 1) -> None:
        super().__init__()
        schema = dataset.schema
        self.num_threads = num_threads
        self._node_groups: list[Any] = list(schema.node_types) if schema.is_hetero else [None]
        self._num_rows: dict[Any, int] = dict(zip(self._node_groups, dataset.num_nodes_of, strict=True))
        self._tables: dict[Any, dict[str, Feature]] = {
            group: dict(tables) for group, tables in zip(self._node_groups, dataset.node_tables, strict=True)
        }
        self._edge_names: set[str] = set()
        if schema.is_hetero:
            self._tables |= {t: dict(tables) for t, tables in schema.by_edge_type(dataset.edge_tables).items()}
        elif dataset.edge_tables:
            self._edge_names = set(dataset.edge_tables[0])
            self._tables[None] = {**dataset.edge_tables[0], **self._tables[None]}
        for group, tables in self._tables.items():
            for name, feature in tables.items():
                if not feature.has_row_per_id:
                    raise ValueError(f"table {name!r} of {group!r} has rows for some ids only: expected one per id")

    def _find(self, attr: TensorAttr) -> Feature | None:
        group = tuple(attr.group_name) if isinstance(attr.group_name, list) else attr.group_name
        if group not in self._tables:
            raise KeyError(f"group {group!r} is not in the dataset: expected one of {list(self._tables)}")
        return self._tables[group].get(attr.attr_name)

    def _get_tensor(self, attr: TensorAttr) -> Tensor:
        feature = self._find(attr)
        if feature is None:
            names = list(self._tables[attr.group_name])
            raise KeyError(f"{attr.group_name!r} has no table {attr.attr_name!r}: expected one of {names}")
        index = attr.index
        if index is None:
            return feature.dense()
        if isinstance(index, slice | int | np.integer):
            if feature.packing is None:
                return feature.tensor[index]
            rows = feature.gather(torch.arange(len(feature))[index].view(-1))
            return rows if isinstance(index, slice) else rows[0]
        return feature.gather(index, num_threads=self.num_threads)

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        feature = self._find(attr)
        if feature is None:
            return None
        return tuple(feature.shape) if attr.index is None else tuple(self._get_tensor(attr).shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        return [
            self._tensor_attr_cls(group, name)
            for group, tables in self._tables.items()
            for name in tables
            if group is not None or name not in self._edge_names
        ]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        self._find(attr)  # refuses groups that there are not
        if attr.index is not None:
            raise ValueError(
                f"index of {attr.attr_name!r} is given: expected a whole table with index=None, since tables may be "
                "mapped files and memory of the user, which are not written to"
            )
        feature = Feature(as_rows(tensor, attr.attr_name))
        expected = self._num_rows.get(attr.group_name)
        of_nodes = expected is not None and attr.attr_name not in self._edge_names
        if of_nodes and len(feature) != expected:
            raise ValueError(f"{attr.attr_name} has {len(feature)} rows: expected one per node, {expected}")
        self._tables[attr.group_name][attr.attr_name] = feature
        return True

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        found = self._find(attr) is not None
        self._tables[attr.group_name].pop(attr.attr_name, None)
        return found

    def __len__(self) -> int:
        return sum(len(tables) for tables in self._tables.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} tables)"


class DatasetGraphStore(GraphStore):
    """Serves the edges of a :class:`~glt.data.Dataset` in every layout of PyG: ``'coo'``, ``'csc'`` and ``'csr'``. They
    are shared where the layout is the dataset's own and ids are int64; other layouts are made on request.

    Positions are edge ids, which index edge features. ``get_all_edge_attrs`` announces the compressed layout only where
    the edges came sorted, so that it has that order too. Raises ValueError if edge ids are not the numbers from 0 on,
    or the dataset is of a partition.
    """

    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        for edge_type, graph in zip(dataset.schema.edge_types, dataset.graphs, strict=True):
            ids = graph.topology.edge_ids
            in_order = ids is None and graph.topology.first_edge_id == 0
            if not in_order and not _is_permutation(graph.topology.all_edge_ids()):
                raise ValueError(
                    f"edge ids of {edge_type} are not 0 to {graph.num_edges - 1}, each once: PyG's stores know no "
                    "others"
                )
        self.dataset = dataset

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        attrs = []
        for edge_type, graph in zip(self._edge_types(), self.dataset.graphs, strict=True):
            topology = graph.topology
            layouts, ids = [EdgeLayout.COO], topology.edge_ids
            if ids is None or bool((ids == torch.arange(len(ids))).all()):
                layouts.insert(0, EdgeLayout(topology.layout.lower()))
            attrs += [EdgeAttr(edge_type, layout, size=topology.size) for layout in layouts]
        return attrs

    def _edge_types(self) -> list[Any]:
        return list(self.dataset.schema.edge_types) if self.dataset.schema.is_hetero else [None]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[Tensor, Tensor] | None:
        edge_type = tuple(edge_attr.edge_type) if isinstance(edge_attr.edge_type, list) else edge_attr.edge_type
        if edge_type not in self._edge_types():
            return None
        topology = self.dataset.graphs[self._edge_types().index(edge_type)].topology
        if edge_attr.layout == EdgeLayout.COO and not edge_attr.is_sorted:
            source, target = _by_edge_id(topology)
            return source, target
        layout = "CSR" if edge_attr.layout == EdgeLayout.CSR else "CSC"
        if topology.layout != layout:
            topology = Topology(_by_edge_id(topology), topology.size, layout=layout)
        if edge_attr.layout == EdgeLayout.COO:
            source, target = topology.coo()
            return source, target
        indices = topology.indices.to(torch.int64)
        return (topology.indptr, indices) if layout == "CSR" else (indices, topology.indptr)

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise _fixed(edge_attr, "put")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise _fixed(edge_attr, "removed")


def _fixed(edge_attr: EdgeAttr, verb: str) -> ValueError:
    what = f"edges of type {edge_attr.edge_type} cannot be {verb}"
    return ValueError(f"{what}: the graph of a glt Dataset is fixed; build another one with Dataset.from_arrays")


def _is_permutation(ids: Tensor) -> bool:
    return len(ids) == 0 or (int(ids.max()) == len(ids) - 1 and bool((torch.bincount(ids) == 1).all()))


def _by_edge_id(topology: Topology) -> Tensor:
    ends = topology.coo()
    if topology.edge_ids is None:
        return ends
    by_id = torch.empty_like(ends)
    by_id[:, topology.edge_ids.to(torch.int64)] = ends
    return by_id


def dataset_of_stores(
    feature_store: FeatureStore | None, graph_store: GraphStore, *, edge_dir: str = "in", time_attr: str | None = None
) -> Dataset:
    """Reads the edges of a graph store into a :class:`Dataset`; features stay where they are, but for times of nodes.

    Edges that the store offers in the layout of ``edge_dir`` (``'csc'`` for ``'in'``) are used in place; others are
    sorted once, from ``'coo'`` where it is offered. The id of an edge is its position in the layout that was read. Of
    times named ``time_attr``, those in groups of node types are of nodes, those of edge types of edges; of a
    homogeneous graph those named ``'time'`` are the nodes', others the edges', as in PyG. Raises IndexError if an id is
    outside the graph, ValueError if the store has no edges, or ``time_attr`` is not in the feature store or of both
    levels.
    """
    if isinstance(graph_store, DatasetGraphStore):
        own = graph_store.dataset
        if own.edge_dir == edge_dir and time_attr in (None, own.time_attr):
            name, level = own.time_attr, own.time_level
            times = [tables.get(name or "") for tables in own.node_tables]
            options: dict[str, Any] = {"time_attr": name, "time_level": level, "node_time": times}
            return Dataset.of_graphs(own.schema, own.graphs, own.num_nodes_of, edge_dir=edge_dir, **options)
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
    counts = _num_nodes(schema, topologies, offers, feature_store, tensor_attrs)
    level, times = _times(feature_store, tensor_attrs, schema, time_attr)
    graphs = []
    for r, (topology, (source, target)) in enumerate(zip(topologies, schema.ends("out"), strict=True)):
        topology = topology.widened((counts[source], counts[target]))
        if level is not None:
            neighbor = source if edge_dir == "in" else target
            topology = _timed(topology, level, times[neighbor if level == "node" else r])
        graphs.append(Graph(topology))
    options = {"time_attr": time_attr, "time_level": level, "node_time": times if level == "node" else None}
    return Dataset.of_graphs(schema, graphs, counts, edge_dir=edge_dir, **options)


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
        size = (len(indptr) - 1, num_neighbors) if layout == "CSR" else (num_neighbors, len(indptr) - 1)
        return Topology.from_rows(indptr.long().contiguous(), indices.contiguous(), layout=layout, num_nodes=size)
    ends = coo_of((first, second), attr.layout.name)
    num_sources, num_targets = (int(end.max()) + 1 if len(end) else 0 for end in ends)
    return Topology(ends, (num_sources, num_targets), layout=layout)


def _num_nodes(
    schema: Schema, topologies: list[Topology], offers: list[dict], store: Any, tensor_attrs: Sequence[Any]
) -> list[int]:
    """Of each type, as many as the edges need or as the first table has: of nodes without edges only features know."""
    counts = [0] * len(schema.node_types)
    for attr in tensor_attrs:
        group = attr.group_name if schema.is_hetero else schema.node_types[0]
        if group in schema.node_types and not counts[schema.node_index(group)]:
            size = store.get_tensor_size(_whole(attr))
            counts[schema.node_index(group)] = int(size[0]) if size else 0
    for ends, topology, offer in zip(schema.ends("out"), topologies, offers, strict=True):
        for size in (topology.size, *(attr.size for attr in offer.values() if attr.size is not None)):
            for end, num_nodes in zip(ends, size, strict=True):
                counts[end] = max(counts[end], num_nodes or 0)
    return counts


def _times(
    store: FeatureStore | None, tensor_attrs: Sequence[Any], schema: Schema, name: str | None
) -> tuple[str | None, list[Any]]:
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
    if time is None:
        return topology
    if level == "node":
        values = as_times(time, "node_time", topology.num_neighbor_nodes, "node")[topology.indices.numpy()]
    else:
        values = as_times(time, "edge_time", topology.num_edges)
        if topology.edge_ids is not None:
            values = values[topology.edge_ids.numpy()]
    return topology.with_times(values)
