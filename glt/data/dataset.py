"""Graphs of all edge types with their features and labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt.data.arrays import as_rows
from glt.data.feature import Feature
from glt.data.graph import Graph
from glt.data.pyg import GraphArrays
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.data.topology import Topology, coo_of, layout_of

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


class Dataset:
    """What a loader samples from: a :class:`Graph` per edge type, and tables of rows per node type and edge type.

    A homogeneous dataset is one with a single type of each; only its face differs: there ``graph``, ``node_features``
    and so on are single objects, here dicts by type.

    Args:
        graph: A homogeneous graph. None: :meth:`init_graph` is to follow. For several types see :meth:`from_arrays`.
        node_features: One row per node.
        node_labels: One label, or row of labels, per node ``[num_nodes, ...]``.
        edge_features: One row per edge id.
        edge_dir: Direction of :meth:`init_graph`, ``'in'`` (PyG's) or ``'out'``; where there is a graph, its own.

    Attributes:
        schema: The types; their positions index the tuples below.
        num_nodes_of: Number of nodes of each node type.
        graphs: Graph of each edge type, all of the same direction.
        node_tables: Tables of each node type by name: ``x``, ``y``, ``time``, and others that the source had.
        edge_tables: Tables of each edge type by name: ``edge_attr``, and others that the source had.
        time_attr: Name of the times that temporal sampling obeys, or None.
        time_level: Whether they are times of a ``'node'`` or of an ``'edge'``; None without times.

    Raises:
        TypeError, ValueError: If one of the tables is no CPU tensor, or has not one row per node.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        node_features: Feature | Tensor | None = None,
        node_labels: Feature | Tensor | None = None,
        edge_features: Feature | Tensor | None = None,
        *,
        edge_dir: str | None = None,
    ) -> None:
        self.time_attr: str | None = None
        self.time_level: str | None = None
        tables = {"x": node_features, "y": node_labels, "edge_attr": edge_features}
        if graph is None:
            if any(table is not None for table in tables.values()):
                raise ValueError("graph is None, but there are features or labels: pass the graph too")
            layout_of(edge_dir or "in")  # refuses what is no direction
            self._set(Schema((), ()), edge_dir or "in", (), [])
            return
        if edge_dir not in (None, graph.edge_dir):
            raise ValueError(f"edge_dir = {edge_dir!r}, but the graph has {graph.edge_dir!r}: leave edge_dir out")
        if graph.num_nodes != graph.num_neighbor_nodes:
            raise ValueError(f"graph is of two node types, {graph!r}: use Dataset.from_arrays with dicts by type")
        self._set(HOMOGENEOUS, graph.edge_dir, (graph,), [graph.num_nodes])
        for name, table in tables.items():
            self._put("edge" if name == "edge_attr" else "node", name, [table])

    @classmethod
    def from_arrays(
        cls,
        edge_index: Any,
        num_nodes: Any = None,
        *,
        node_features: Any = None,
        node_labels: Any = None,
        node_time: Any = None,
        edge_features: Any = None,
        edge_ids: Any = None,
        edge_weight: Any = None,
        edge_time: Any = None,
        edge_dir: str = "in",
    ) -> Dataset:
        """Builds a dataset from arrays or tensors; every argument is a dict by type where ``edge_index`` is.

        Tables may be memory-mapped arrays or paths of ``.npy`` files: they are read in place.

        Args:
            edge_index: Source and destination ids ``[2, E]``, each counted within its node type.
            num_nodes: Number of nodes. Default: rows of the features, else one more than the largest id.
            node_features, node_labels: One row per node.
            node_time: Time of each node, integers: an edge then has the time of its neighbour end.
            edge_features: One row per edge id.
            edge_ids: Ids of the edges ``[E]``. Default: positions.
            edge_weight: Weights ``[E]``, finite and at least 0, for draws proportional to weight; see
                :class:`Topology` for their range.
            edge_time: Times ``[E]``, integers; not together with ``node_time``.
            edge_dir: ``'in'`` (PyG's: a node's neighbours are the sources of its in-edges) or ``'out'``.

        Raises:
            IndexError: If a node id is outside the graph; names the first.
            KeyError: If a dict names a type that there is not.
            TypeError, ValueError: If shapes, dtypes, numbers of rows or ``edge_dir`` do not fit.
        """
        arrays = GraphArrays.from_arrays(
            edge_index,
            num_nodes,
            node_tables={"x": node_features, "y": node_labels},
            edge_tables={"edge_attr": edge_features},
            edge_ids=edge_ids,
            edge_weight=edge_weight,
            edge_time=edge_time,
            node_time=node_time,
        )
        return cls._of(arrays, edge_dir)

    @classmethod
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        edge_dir: str = "in",
        weight_attr: str | None = None,
        time_attr: str | None = None,
    ) -> Dataset:
        """Builds a dataset from a PyG ``Data`` or ``HeteroData``, with all its node-level and edge-level attributes.

        Args:
            data: The graph; see :func:`glt.data.pyg.arrays_of_pyg`, also for the errors.
            edge_dir: As in :meth:`from_arrays`.
            weight_attr: Name of the edge-level attribute to weight draws by.
            time_attr: Name of the node-level or edge-level attribute to sample by time.
        """
        from glt.data.pyg import arrays_of_pyg  # torch_geometric takes a second to import: not before it is there

        return cls._of(arrays_of_pyg(data, weight_attr=weight_attr, time_attr=time_attr), edge_dir)

    @classmethod
    def of_graphs(
        cls,
        schema: Schema,
        graphs: Sequence[Graph],
        num_nodes_of: Sequence[int],
        *,
        edge_dir: str = "in",
        time_attr: str | None = None,
        time_level: str | None = None,
        node_time: Sequence[Any] | None = None,
    ) -> Dataset:
        """Wraps graphs, one per edge type and all of one direction; see the attributes. Its only tables are those of
        ``node_time``: times of each node type, or None, named ``time_attr``.

        Raises:
            ValueError: If a graph is of another direction, or its numbers of nodes are not those of its ends.
        """
        self = cls(edge_dir=edge_dir)
        self._set(schema, edge_dir, tuple(graphs), num_nodes_of)
        for edge_type, ends, graph in zip(schema.edge_types, schema.ends("out"), self.graphs, strict=True):
            expected = tuple(self.num_nodes_of[end] for end in ends)
            if graph.edge_dir != edge_dir or graph.topology.size != expected:
                raise ValueError(
                    f"the graph of {edge_type} has edge_dir = {graph.edge_dir!r} and size {graph.topology.size}: "
                    f"expected {edge_dir!r} and {expected}"
                )
        self.time_attr, self.time_level = time_attr, time_level
        if node_time is not None and time_attr is not None:
            self._put("node", time_attr, list(node_time))
        return self

    @classmethod
    def _of(cls, arrays: GraphArrays, edge_dir: str) -> Dataset:
        graphs = [Graph(topology) for topology in arrays.topologies(edge_dir)]
        self = cls.of_graphs(
            arrays.schema,
            graphs,
            arrays.num_nodes,
            edge_dir=edge_dir,
            time_attr=arrays.time_attr,
            time_level=arrays.time_level,
        )
        for level, tables in (("node", arrays.node_tables), ("edge", arrays.edge_tables)):
            for name in dict.fromkeys(name for each in tables for name in each):
                self._put(level, name, [each.get(name) for each in tables])
        return self

    def _set(self, schema: Schema, edge_dir: str, graphs: tuple[Graph, ...], num_nodes_of: Sequence[int]) -> None:
        self.schema, self.edge_dir, self.graphs = schema, edge_dir, graphs
        self.num_nodes_of: tuple[int, ...] = tuple(num_nodes_of)
        self.node_tables: tuple[dict[str, Feature], ...] = tuple({} for _ in schema.node_types)
        self.edge_tables: tuple[dict[str, Feature], ...] = tuple({} for _ in schema.edge_types)

    def _put(self, level: str, name: str, tables: list[Any]) -> None:
        label = _LABELS.get(name, name)
        for t, table in enumerate(tables):
            if table is None:
                continue
            where = ""
            if self.schema.is_hetero:
                where = f"[{(self.schema.node_types if level == 'node' else self.schema.edge_types)[t]!r}]"
            feature = table if isinstance(table, Feature) else Feature(as_rows(table, label + where))
            expected = self.num_nodes_of[t] if level == "node" else _num_edge_rows(self.graphs[t].topology)
            if feature.has_row_per_id and len(feature) != expected and (level == "node" or len(feature) < expected):
                raise ValueError(f"{label}{where} has {len(feature)} rows: expected one per {level}, {expected}")
            (self.node_tables if level == "node" else self.edge_tables)[t][name] = feature

    # What GLT's scripts call, in GLT's order: the graph first.

    def init_graph(
        self,
        edge_index: Any,
        edge_ids: Any = None,
        edge_weights: Any = None,
        layout: Any = "COO",
        graph_mode: str = "CPU",
        device: torch.device | int | str | None = None,
        *,
        num_nodes: Any = None,
        edge_times: Any = None,
    ) -> None:
        """Builds the graph, or the graphs of all edge types where ``edge_index`` is a dict; drops what was there.

        Args:
            edge_index, layout: ``[2, E]`` for ``'COO'``; the pair (row offsets, destinations) for ``'CSR'``, (sources,
                column offsets) for ``'CSC'``; of all edge types.
            edge_ids, edge_weights, edge_times: One per edge ``[E]``.
            graph_mode, device: See :class:`Graph`.
            num_nodes: Number of nodes. Default: one more than the largest id, or more where :meth:`init_node_features`
                brings more rows.
        """
        if isinstance(edge_index, Mapping):
            edge_index = {edge_type: coo_of(edges, layout) for edge_type, edges in edge_index.items()}
        else:
            edge_index = coo_of(edge_index, layout)
        arrays = GraphArrays.from_arrays(
            edge_index,
            num_nodes,
            node_tables={},
            edge_tables={},
            edge_ids=edge_ids,
            edge_weight=edge_weights,
            edge_time=edge_times,
        )
        graphs = tuple(Graph(t, graph_mode, device) for t in arrays.topologies(self.edge_dir))
        self._set(arrays.schema, self.edge_dir, graphs, arrays.num_nodes)
        self.time_attr, self.time_level = arrays.time_attr, arrays.time_level

    def with_mode(self, graph_mode: str, device: Any = None) -> Dataset:
        """Returns a dataset of the same edges and tables for samplers elsewhere; arguments and errors are those of
        :class:`Graph`."""
        other = copy.copy(self)
        other.graphs = tuple(Graph(graph.topology, graph_mode, device) for graph in self.graphs)
        return other

    def init_node_features(self, node_feature_data: Any, **placement: Any) -> None:
        """Sets the features of the nodes: one row per node, or such tables by node type, as tensors, arrays or
        :class:`Feature`.

        Args:
            node_feature_data: The table, or tables by type.
            placement: ``split_ratio``, ``device``, ``device_group_list``: see :class:`Feature`.
        """
        self._init("node", "x", node_feature_data, placement)

    def init_node_labels(self, node_label_data: Any) -> None:
        """Sets the labels of the nodes, one row per node, or such tables by node type."""
        self._init("node", "y", node_label_data)

    def init_edge_features(self, edge_feature_data: Any, **placement: Any) -> None:
        """Sets the features of the edges, one row per edge id, or such tables by edge type; see
        :meth:`init_node_features`."""
        self._init("edge", "edge_attr", edge_feature_data, placement)

    def _init(self, level: str, name: str, value: Any, placement: Mapping[str, Any] = MappingProxyType({})) -> None:
        label = _LABELS[name]
        if not self.schema.node_types:
            raise ValueError(f"{label}: the dataset has no graph yet; call init_graph first")
        by_type = self.schema.per_node_type if level == "node" else self.schema.per_edge_type
        given = by_type(label, value)
        tables = [t if t is None or isinstance(t, Feature) else Feature(as_rows(t, label), **placement) for t in given]
        if level == "node":
            pairs = zip(given, tables, strict=True)
            self._widen([None if t is None or isinstance(g, Feature) else len(t) for g, t in pairs])
        self._put(level, name, tables)

    def _widen(self, num_rows: list[int | None]) -> None:
        """Makes room for nodes that only ``num_rows`` tell of; not where other tables have counted them already."""
        counts = [
            max(count, rows) if rows is not None and not tables else count
            for count, rows, tables in zip(self.num_nodes_of, num_rows, self.node_tables, strict=True)
        ]
        if counts == list(self.num_nodes_of):
            return
        ends = self.schema.ends("out")
        self.graphs = tuple(
            Graph(graph.topology.widened((counts[source], counts[target])), graph.mode, graph.device)
            for graph, (source, target) in zip(self.graphs, ends, strict=True)
        )
        self.num_nodes_of = tuple(counts)

    def get_graph(self, edge_type: EdgeType | None = None) -> Graph:
        """Returns the graph of an edge type; the type may be left out where there is one only."""
        return self.graphs[self.schema.edge_index(edge_type)]

    def get_node_feature(self, node_type: NodeType | None = None) -> Feature | None:
        """Returns the features of a node type; None where it has none."""
        return self.node_tables[self.schema.node_index(node_type)].get("x")

    def get_node_label(self, node_type: NodeType | None = None) -> Feature | None:
        """Returns the labels of a node type; None where it has none."""
        return self.node_tables[self.schema.node_index(node_type)].get("y")

    def get_edge_feature(self, edge_type: EdgeType | None = None) -> Feature | None:
        """Returns the features of an edge type; None where it has none."""
        return self.edge_tables[self.schema.edge_index(edge_type)].get("edge_attr")

    def get_node_types(self) -> list[NodeType] | None:
        """Returns the node types; None for a homogeneous graph."""
        return list(self.schema.node_types) if self.schema.is_hetero else None

    def get_edge_types(self) -> list[EdgeType] | None:
        """Returns the edge types; None for a homogeneous graph."""
        return list(self.schema.edge_types) if self.schema.is_hetero else None

    # The face: single objects, or dicts by type.

    @property
    def graph(self) -> Any:
        """The :class:`Graph`, or graphs by edge type."""
        return self.schema.by_edge_type(self.graphs) if self.schema.is_hetero else self.graphs[0]

    @property
    def num_nodes(self) -> Any:
        """Number of nodes, or numbers by node type."""
        return self.schema.by_node_type(self.num_nodes_of) if self.schema.is_hetero else self.num_nodes_of[0]

    @property
    def node_features(self) -> Any:
        """The :class:`Feature` or None; of a heterogeneous graph a dict of the node types that have one."""
        return self._face(self.schema.node_types, self.node_tables, "x")

    @property
    def node_labels(self) -> Any:
        """As :attr:`node_features`."""
        return self._face(self.schema.node_types, self.node_tables, "y")

    @property
    def edge_features(self) -> Any:
        """As :attr:`node_features`, by edge type."""
        return self._face(self.schema.edge_types, self.edge_tables, "edge_attr")

    def _face(self, types: tuple[Any, ...], tables: tuple[dict[str, Feature], ...], name: str) -> Any:
        if not self.schema.is_hetero:
            return tables[0].get(name)
        return {each: table[name] for each, table in zip(types, tables, strict=True) if name in table}

    def __repr__(self) -> str:
        if not self.schema.is_hetero:
            return f"{type(self).__name__}({self.graph!r}, node_features={self.node_features!r})"
        edges = {"__".join(t): graph.num_edges for t, graph in self.graph.items()}
        return f"{type(self).__name__}(num_nodes={self.num_nodes}, num_edges={edges}, edge_dir={self.edge_dir!r})"


_LABELS = {"x": "node_features", "y": "node_labels", "edge_attr": "edge_features"}


def _num_edge_rows(topology: Topology) -> int:
    if topology.edge_ids is None or topology.book is not None:
        return topology.num_edges
    return int(topology.edge_ids.max()) + 1 if topology.num_edges else 0
