"""PyG's ``Data`` and ``HeteroData`` as arrays per type."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from glt.data.arrays import as_rows
from glt.data.frames import Frame, is_frame, split_all
from glt.data.schema import HOMOGENEOUS, NodeType, Schema
from glt.data.topology import Topology, as_times, as_weights, endpoints, layout_of

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


@dataclass
class GraphArrays:
    """A graph as plain arrays, what every source of graphs is brought into: lists with one element per node type or
    edge type, in the order of ``schema``.

    Attributes:
        schema: The types.
        num_nodes: Number of nodes of each type.
        edge_index: Sources and destinations of each edge type, a pair of int32 or int64 arrays ``[E]``.
        edge_ids: Edge ids ``[E]`` of each edge type; None where an id is the position.
        edge_weight, edge_time: Weights and times ``[E]`` of each edge type, or None.
        node_tables, edge_tables: Rows by name, of each type; row i is of id i.
        time_attr: Name of the times, also among the tables where they are the nodes'.
        time_level: ``'node'`` (an edge has the time of its neighbour end), ``'edge'``, or None without times.
    """

    schema: Schema
    num_nodes: list[int]
    edge_index: list[tuple[np.ndarray, np.ndarray]]
    edge_ids: list[Any]
    edge_weight: list[Any]
    edge_time: list[Any]
    node_tables: list[dict[str, Tensor]]
    edge_tables: list[dict[str, Tensor]]
    time_attr: str | None
    time_level: str | None

    @classmethod
    def from_arrays(
        cls,
        edge_index: Any,
        num_nodes: Any = None,
        node_tables: Mapping[str, Any] = MappingProxyType({}),
        edge_tables: Mapping[str, Any] = MappingProxyType({}),
        *,
        edge_ids: Any = None,
        edge_weight: Any = None,
        edge_time: Any = None,
    ) -> GraphArrays:
        """As :meth:`glt.data.Dataset.from_arrays`: single values, or dicts by type where ``edge_index`` is one. The
        table ``time`` of nodes is the times to sample by."""
        level = "node" if node_tables.get("time") is not None else None if edge_time is None else "edge"
        if level == "node" and edge_time is not None:
            raise ValueError("node_time and edge_time are both given: expected the times of one kind")
        schema = HOMOGENEOUS
        if isinstance(edge_index, Mapping):
            schema = Schema(tuple(_node_types(edge_index, num_nodes, *node_tables.values())), tuple(edge_index))
        counts = schema.per_node_type("num_nodes", num_nodes)
        self = cls(
            schema,
            [],
            _per_edge_type(schema, endpoints, schema.per_edge_type("edge_index", edge_index)),
            schema.per_edge_type("edge_ids", edge_ids),
            schema.per_edge_type("edge_weight", edge_weight),
            schema.per_edge_type("edge_time", edge_time),
            _rows(schema, node_tables, schema.node_types, schema.per_node_type),
            _rows(schema, edge_tables, schema.edge_types, schema.per_edge_type),
            None if level is None else "time",
            level,
        )
        self.num_nodes = [self.count_nodes(t, count) for t, count in enumerate(counts)]
        return self

    def count_nodes(self, node_type: int, given: int | None) -> int:
        """Number of nodes of a type: as given, else rows of its features, else what edges and other tables need."""
        if given is not None:
            if given < 0:
                raise ValueError(f"num_nodes = {given}: expected at least 0")
            return int(given)
        tables = self.node_tables[node_type]
        if "x" in tables:
            return len(tables["x"])
        largest = (
            int(end.max(initial=-1))
            for edge_type, ends in zip(self.schema.ends("out"), self.edge_index, strict=True)
            for end_type, end in zip(edge_type, ends, strict=True)
            if end_type == node_type
        )
        return max([*(len(table) for table in tables.values()), max(largest, default=-1) + 1])

    def topologies(self, edge_dir: str) -> list[Topology]:
        """Builds the rows of each edge type; errors of :class:`Topology` also name the edge type."""
        layout, ends_of = layout_of(edge_dir), self.schema.ends("out")
        neighbor = 0 if layout == "CSC" else 1

        def topology(r: int) -> Topology:
            size = self.num_nodes[ends_of[r][0]], self.num_nodes[ends_of[r][1]]
            time = self._edge_time(r, ends_of[r][neighbor], self.edge_index[r][neighbor])
            columns = {"edge_ids": self.edge_ids[r], "edge_weight": self.edge_weight[r], "edge_time": time}
            return Topology(self.edge_index[r], size, layout=layout, **columns)

        return _per_edge_type(self.schema, topology, range(len(self.edge_index)))

    def _edge_time(self, edge_type: int, neighbor_type: int, neighbors: np.ndarray) -> Any:
        if self.time_level != "node" or self.time_attr not in self.node_tables[neighbor_type]:
            return self.edge_time[edge_type]
        num_nodes = self.num_nodes[neighbor_type]
        name = label_of(self.schema, "time", self.schema.node_types[neighbor_type])
        time = as_times(self.node_tables[neighbor_type][self.time_attr], name, num_nodes, "node")
        if len(neighbors) and not 0 <= neighbors.min() <= neighbors.max() < num_nodes:
            return None  # the edges are refused anyway, by a message about ids
        return time[neighbors]


def _node_types(edge_index: Mapping[Any, Any], *by_type: Any) -> Iterable[NodeType]:
    named = [name for value in by_type if isinstance(value, Mapping) for name in value]
    for edge_type in edge_index:
        if isinstance(edge_type, tuple) and len(edge_type) == 3:  # what is no edge type, Schema refuses
            named += [edge_type[0], edge_type[2]]
    return dict.fromkeys(named)


ARGUMENTS = {"x": "node_features", "y": "node_labels", "time": "node_time", "edge_attr": "edge_features"}


def label_of(schema: Schema, table: str, type_: Any) -> str:
    """What errors call a table of a node type or edge type: the argument that it is given as."""
    return ARGUMENTS.get(table, table) + (f"[{type_!r}]" if schema.is_hetero else "")


def _rows(
    schema: Schema, tables: Mapping[str, Any], types: tuple[Any, ...], per_type: Callable[[str, Any], list[Any]]
) -> list[dict[str, Tensor]]:
    """The tables of each type by name."""
    of_type: list[dict[str, Tensor]] = [{} for _ in types]
    for name, table in tables.items():
        for t, rows in enumerate(per_type(ARGUMENTS[name], table)):
            if rows is not None:
                of_type[t][name] = as_rows(rows, label_of(schema, name, types[t]))
    return of_type


def _per_edge_type(schema: Schema, build: Any, values: Iterable[Any]) -> list[Any]:
    """``[build(value) ...]``, where errors name the edge type if there are several."""
    built = []
    for edge_type, value in zip(schema.edge_types, values, strict=True):
        try:
            built.append(build(value))
        except (IndexError, TypeError, ValueError) as error:
            if not schema.is_hetero:
                raise
            raise type(error)(f"edge type {edge_type}: {error}") from error
    return built


# What PyG keeps in an edge store that is the edges themselves.
_TOPOLOGY = ("edge_index", "adj", "adj_t", "num_nodes", "num_edges")


def arrays_of_pyg(
    data: Data | HeteroData, *, weight_attr: str | None = None, time_attr: str | None = None, with_tables: bool = True
) -> GraphArrays:
    """Takes edges, node-level and edge-level attributes as PyG itself tells them apart; graph-level ones, and
    ``edge_label_index`` and its like, are not part of a graph's tables. TensorFrames are taken apart.

    Args:
        weight_attr: Name of an edge-level attribute: the weights. Edge types without it are sampled uniformly.
        time_attr: Name of the times, node-level or edge-level. Types without it are not constrained.
        with_tables: False leaves out all tables but that of the times.

    Raises:
        KeyError, TypeError, ValueError: If no edge type has ``weight_attr``, ``data`` or an attribute is something
            else, there are no edges, or ``time_attr`` is of no level, or of both.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(data, HeteroData):
        data = counted(data)
        schema = Schema(tuple(data.node_types), tuple(data.edge_types))
        node_stores = [data[t] for t in schema.node_types]
        edge_stores = [data[t] for t in schema.edge_types]
    elif isinstance(data, Data):
        schema = HOMOGENEOUS
        node_stores = edge_stores = [data._store]
    else:
        raise TypeError(f"data has type {type(data).__name__}: expected a PyG Data or HeteroData")
    for store in edge_stores:
        if store.get("edge_index") is None:
            where = f"data[{store._key}]" if schema.is_hetero else "data"
            hint = "; turn adj_t into edge_index first" if store.get("adj_t") is not None else ""
            raise ValueError(f"{where} has no edge_index: expected edge_index [2, E]{hint}")

    require_rows(data)
    edges, none = [endpoints(store.edge_index) for store in edge_stores], [None] * len(edge_stores)
    # Without any attribute only edges can tell.
    num_nodes = [store.num_nodes if store._key is None or len(store) else None for store in node_stores]
    node_tables = [_tables(store, store.is_node_attr) if with_tables else {} for store in node_stores]
    edge_tables = [_tables(store, store.is_edge_attr) if with_tables else {} for store in edge_stores]
    frames: list[Frame] = []
    for kind, tables_of in (("node", node_tables), ("edge", edge_tables)):
        for at, tables in enumerate(tables_of):
            tables_of[at], found = split_all(tables, kind, at)
            frames += found
    if frames:
        schema = replace(schema, frames=tuple(frames))
    weight: list[Any] = none if weight_attr is None else [store.get(weight_attr) for store in edge_stores]
    if weight_attr is not None and all(each is None for each in weight):
        raise KeyError(f"weight_attr = {weight_attr!r}: expected the name of an edge-level attribute of data")
    for r, given in enumerate(weight):
        if given is not None:
            where = f"data[{schema.edge_types[r]}]" if schema.is_hetero else "data"
            weight[r] = as_weights(given, len(edges[r][0]), f"{where}.{weight_attr}")
    level = None if time_attr is None else _level_of(time_attr, data, schema, node_stores, edge_stores)
    time = [store.get(time_attr) for store in edge_stores] if level == "edge" else none
    if time_attr is not None and level == "node":
        for store, tables in zip(node_stores, node_tables, strict=True):
            if store.get(time_attr) is not None:
                tables[time_attr] = as_rows(store[time_attr], time_attr)
    arrays = GraphArrays(schema, [], edges, none, weight, time, node_tables, edge_tables, time_attr, level)
    arrays.num_nodes = [arrays.count_nodes(t, given) for t, given in enumerate(num_nodes)]
    return arrays


def require_num_nodes(data: Data) -> None:
    edges = any(data.get(name) is not None for name in ("edge_index", "adj_t", "adj"))
    if not edges and not data._store.can_infer_num_nodes:
        raise ValueError(
            f"data has {sorted(data.keys()) or 'nothing in it'}, which does not tell the number of nodes: expected "
            "edge_index, x or num_nodes; set data.num_nodes"
        )


def require_rows(data: Data | HeteroData) -> None:
    """Raises ValueError unless ``x`` has a row per node: PyG takes another for an attribute of the whole graph."""
    for store in data.node_stores:
        x, num_nodes = store.get("x"), store.get("num_nodes")
        if num_nodes is not None and isinstance(x, Tensor | np.ndarray) and x.ndim and len(x) != num_nodes:
            where = "data" if store._key is None else f"data[{store._key!r}]"
            raise ValueError(f"{where}.x has {len(x)} rows: expected one per node, {where}.num_nodes = {num_nodes}")


def _level_of(name: str, data: Any, schema: Schema, node_stores: list[Any], edge_stores: list[Any]) -> str:
    """Whether the times are an attribute of nodes or of edges."""
    if schema.is_hetero:
        of_nodes, of_edges = (any(name in store for store in stores) for stores in (node_stores, edge_stores))
    else:
        of_nodes = name in data and data.is_node_attr(name)
        of_edges = name in data and data.is_edge_attr(name)
    if of_nodes and of_edges:
        raise ValueError(f"time_attr = {name!r} is an attribute of nodes and of edges: rename one of them")
    if not of_nodes and not of_edges:
        raise ValueError(f"time_attr = {name!r}: expected the name of a node-level or edge-level attribute of data")
    return "node" if of_nodes else "edge"


def counted(data: Any) -> Any:
    """The same, where each node type of a HeteroData that has attributes tells PyG how many nodes it has. PyG finds
    that by a few names, such as ``x``; where there is none, as in RelBench's graphs, all attributes have a row for each
    node."""
    from torch_geometric.data import HeteroData

    missing = {}
    for store in data.node_stores if isinstance(data, HeteroData) else ():
        if len(store) and not store.can_infer_num_nodes:
            counts = {_num_rows(name, value, store) for name, value in store.items()} - {None}
            if len(counts) != 1:
                raise ValueError(
                    f"data[{store._key!r}] has {sorted(store.keys())}, which do not tell the number of nodes"
                    f"{' alike: ' + ', '.join(map(str, sorted(counts))) if counts else ''}: set "
                    f"data[{store._key!r}].num_nodes"
                )
            (missing[store._key],) = counts
    if missing:
        data = copy.copy(data)
        for node_type, count in missing.items():
            data[node_type].num_nodes = count
    return data


def _num_rows(name: str, value: Any, store: Any) -> Any:
    if is_frame(value):
        return int(value.num_rows)
    is_rows = isinstance(value, Tensor | np.ndarray) and value.ndim
    return value.shape[store._parent().__cat_dim__(name, value, store)] if is_rows else None


def _tables(store: Any, belongs: Callable[[str], bool]) -> dict[str, Any]:
    tables = {}
    for name, value in store.items():
        if name in _TOPOLOGY or not belongs(name):
            continue
        if is_frame(value):
            tables[name] = value
            continue
        is_array = isinstance(value, Tensor | np.ndarray)
        # By their name PyG has the nodes of some, such as ``kind_index``, in the last dimension.
        if is_array and store._parent().__cat_dim__(name, value, store) % value.ndim != 0:
            continue
        if not is_array:
            raise TypeError(
                f"attribute {name!r} is a {type(value).__name__}: a glt Dataset holds tensors and arrays; delete "
                "it, or give data itself to the loader"
            )
        tables[name] = as_rows(value, name)
    return tables
