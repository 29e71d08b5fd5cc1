"""Graphs placed for sampling, and datasets: the graphs of all edge types with their features and labels."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glt import _core
from glt._reprs import says, size_of, typed
from glt._tracebacks import short_traceback
from glt.data.arrays import as_rows
from glt.data.device import (
    Accelerator,
    accelerator_of,
    is_accelerator,
    missing_for_cuda,
    require_accelerator,
)
from glt.data.feature import Feature, checked_hotness
from glt.data.keys import KeyMaps
from glt.data.pyg import ARGUMENTS, GraphArrays, label_of
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.data.topology import Topology, coo_of, layout_of

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

    from glt.data.device_topology import DeviceTopology


_MODES = ("CPU", "ZERO_COPY", "CUDA")


@short_traceback
class Graph:
    """A :class:`Topology` placed for sampling.

    The edges stay in host memory in every mode, where CPU samplers read them in place. The mode says where samplers on
    a GPU find them, once one asks (:meth:`placed`); each process places them for itself, and processes that share the
    memory pin the same pages.

    Args:
        topology: The edges.
        mode: ``'CPU'``: nowhere. ``'ZERO_COPY'``: columns in pinned host memory, row offsets on the GPU; without a GPU
            the same as ``'CPU'``. ``'CUDA'``: all in device memory; needs a GPU. Of a graph that would take more than
            three quarters of what is free there, the rows that are read most; the others in pinned host memory.
        device: The GPU of the samplers: ``'cuda'``, ``'cuda:0'`` or a number; ``'host'`` runs their kernels on the
            host, for tests. Default: torch's current one.
        hotness: How often each node is expanded, in any unit ``[num_nodes]``, as of
            :meth:`glt.sampler.NeighborSampler.sample_prob`: which rows are read most. Default: those of nodes with
            many edges.

    Raises:
        TypeError, ValueError: If the mode or device is unknown or not available here; says what is missing.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> glt.data.Graph(glt.data.Topology(graph.edge_index, layout="CSC"))
        Graph(Topology(40 nodes, 80 edges, CSC, 968 B), mode='CPU')
    """

    topology: Topology
    device: torch.device | int | str | None

    def __init__(
        self,
        topology: Topology,
        mode: str = "CPU",
        device: torch.device | int | str | None = None,
        *,
        hotness: Tensor | None = None,
    ) -> None:
        if mode not in _MODES:
            raise ValueError(f"mode = {mode!r}: expected one of {_MODES}")
        missing = missing_for_cuda() if mode == "CUDA" and device is None else None
        if missing is not None:
            raise ValueError(f"mode = 'CUDA': {missing}. Or use 'CPU' or 'ZERO_COPY', which need no GPU")
        if mode == "CPU" and is_accelerator(device, "device"):
            raise ValueError(f"device = {device!r}: mode = 'CPU' is not for GPUs; use 'ZERO_COPY' or 'CUDA'")
        if accelerator_of(device, "device") is None and device is not None and mode == "CUDA":
            raise ValueError(f"device = {device!r}: mode = 'CUDA' is for a GPU, such as 'cuda:0'")
        self.topology, self.mode, self.device = topology, mode, device
        self.hotness: Tensor | None = checked_hotness(hotness, topology.num_nodes)
        self._start()

    def _start(self) -> None:
        self._placed: dict[Accelerator, DeviceTopology] = {}
        self._lock = threading.Lock()

    def placed(
        self, device: Accelerator | torch.device | int | str | None = None, room: int | None = None
    ) -> DeviceTopology:
        """Returns the edges as samplers on a GPU, by default the graph's, read them; places them there the first time,
        and again when torch has moved their memory. ``room``: the bytes of device memory that they may take, by default
        three quarters of what is free.

        Raises:
            RuntimeError, torch.OutOfMemoryError: If the columns cannot be pinned, or the GPU has no room.
            ValueError: If there is no such GPU, or the mode is ``'CPU'``.
        """
        if self.mode == "CPU":
            raise ValueError("mode = 'CPU': the edges are for CPU samplers; use mode 'ZERO_COPY' or 'CUDA' for a GPU")
        from glt.data.device_topology import DeviceTopology  # processes without a GPU do without

        wanted = self.device if device is None and is_accelerator(self.device, "device") else device
        place = require_accelerator("cuda" if wanted is None else wanted, "device")
        with self._lock:
            if place in self._placed and self._placed[place].has_moved:
                self._placed.pop(place).close()
            if place not in self._placed:
                self._placed[place] = DeviceTopology(
                    self.topology, place.device, self.mode, hotness=self.hotness, room=room
                )
            return self._placed[place]

    def widened(self, num_nodes: tuple[int, int]) -> Graph:
        """The same edges of so many sources and destinations, in the same place; itself if it has as many."""
        topology, hotness = self.topology.widened(num_nodes), self.hotness
        if topology is self.topology:
            return self
        if hotness is not None:
            hotness = torch.cat([hotness, hotness.new_zeros(topology.num_nodes - len(hotness))])
        return Graph(topology, self.mode, self.device, hotness=hotness)

    def close(self) -> None:
        """Gives back device memory and unpins the columns, until they are asked for again."""
        with self._lock:
            placed, self._placed = self._placed, {}
        for each in placed.values():
            each.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("topology", "mode", "device", "hotness")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    @property
    def csr(self) -> _core.Csr:
        return self.topology.csr

    @property
    def csr_by_time(self) -> _core.Csr:
        return self.topology.csr_by_time

    @property
    def num_nodes(self) -> int:
        """Number of nodes that can be expanded."""
        return self.topology.num_nodes

    @property
    def num_neighbor_nodes(self) -> int:
        return self.topology.num_neighbor_nodes

    @property
    def num_edges(self) -> int:
        return self.topology.num_edges

    @property
    def edge_dir(self) -> str:
        return self.topology.edge_dir

    @says
    def __repr__(self) -> str:
        at = "" if self.device is None else f" on {self.device}"
        return f"{self.topology!r}, mode={self.mode!r}{at}"


def placed_together(
    graphs: Sequence[Graph], device: Accelerator | torch.device | int | str | None, num_sharers: int = 1
) -> None:
    """Places the graphs of all edge types on a GPU, unless they are there: each may take as much of the room for graphs
    as it has of their bytes. ``num_sharers`` processes have a part of the room each."""
    from glt.data.device_topology import num_bytes, room_for_graphs

    place = require_accelerator("cuda" if device is None else device, "device")
    room = room_for_graphs(place.device)
    sizes = [num_bytes(graph.topology) for graph in graphs]
    for graph, size in zip(graphs, sizes, strict=True):
        graph.placed(place, None if room is None else room // num_sharers * size // max(sum(sizes), 1))


@short_traceback
class Dataset:
    """What a loader samples from: a :class:`Graph` per edge type, and tables of rows per node type and edge type. A
    homogeneous dataset is one with a single type of each; there ``graph``, ``node_features`` and so on are single
    objects, here dicts by type.

    Args:
        graph: A homogeneous graph. None: :meth:`init_graph` is to follow. For several types see :meth:`from_arrays`.
        node_features, node_labels: One row, or label, per node ``[num_nodes, ...]``.
        edge_features: One row per edge id.
        edge_dir: Direction of :meth:`init_graph`, ``'in'`` (PyG's) or ``'out'``; where there is a graph, its own.

    Attributes:
        schema: The types; their positions index the tuples below.
        num_nodes_of: Number of nodes of each node type.
        graphs: Graph of each edge type, all of the same direction.
        node_tables: Tables of each node type by name: ``x``, ``y``, ``time``, and others that the source had.
        edge_tables: Tables of each edge type by name: ``edge_attr``, and others that the source had.
        ids: The users' keys of nodes, by node type, where there are some: :class:`KeyMaps`.
        time_attr: Name of the times that temporal sampling obeys, or None.
        time_level: Whether they are times of a ``'node'`` or of an ``'edge'``; None without times.

    Raises:
        TypeError, ValueError: If one of the tables is no CPU tensor, or has not one row per node.

    Example:
        >>> graph = glt.testing.ring_graph()
        >>> dataset = glt.Dataset.from_arrays(graph.edge_index, node_features=graph.x, node_labels=graph.y)
        >>> dataset
        Dataset(40 nodes, 80 edges, tables: x, y, edge_dir='in', 1.9 KB)
        >>> dataset.node_features.gather(torch.tensor([3, 7]))
        tensor([[3., 3., 3., 3.],
                [7., 7., 7., 7.]])
    """

    schema: Schema
    edge_dir: str
    graphs: tuple[Graph, ...]

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
        self.ids: KeyMaps = KeyMaps({})
        tables = {"x": node_features, "y": node_labels, "edge_attr": edge_features}
        if graph is None:
            if any(table is not None for table in tables.values()):
                raise ValueError("graph is None, but there are features or labels: pass the graph too")
            layout_of(edge_dir or "in")  # refuses what is no direction
            self._set(Schema((), ()), edge_dir or "in", (), [])
            return
        if not isinstance(graph, Graph):
            raise TypeError(f"graph is a {type(graph).__name__}: expected a Graph; of several types use from_arrays")
        if edge_dir not in (None, graph.edge_dir):
            raise ValueError(f"edge_dir = {edge_dir!r}, but the graph has {graph.edge_dir!r}: leave edge_dir out")
        if graph.num_nodes != graph.num_neighbor_nodes:
            raise ValueError(f"graph is of two node types, {graph!r}: use Dataset.from_arrays with dicts by type")
        self._set(HOMOGENEOUS, graph.edge_dir, (graph,), [graph.num_nodes])
        for name, table in tables.items():
            self._put("edge" if name == "edge_attr" else "node", name, [table])

    @classmethod
    @short_traceback
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
        node_keys: Any = None,
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
            node_keys: :class:`KeyMap` s of the nodes' keys.

        Raises:
            IndexError: If a node id is outside the graph; names the first.
            KeyError: If a dict names a type that there is not.
            TypeError, ValueError: If shapes, dtypes, numbers of rows or ``edge_dir`` do not fit.
        """
        nodes, edges = {"x": node_features, "y": node_labels, "time": node_time}, {"edge_attr": edge_features}
        of_edges = {"edge_ids": edge_ids, "edge_weight": edge_weight, "edge_time": edge_time}
        found = cls._of(GraphArrays.from_arrays(edge_index, num_nodes, nodes, edges, **of_edges), edge_dir)
        keys = dict(zip(found.schema.node_types, found.schema.per_node_type("node_keys", node_keys), strict=True))
        for (node_type, each), count in zip(keys.items(), found.num_nodes_of, strict=True):
            if each is not None and len(each) != count:
                raise ValueError(f"node_keys of {node_type!r} has {len(each)} keys: expected one per node, {count}")
        found.ids = KeyMaps({node_type: each for node_type, each in keys.items() if each is not None})
        return found

    @classmethod
    @short_traceback
    def from_pyg(
        cls,
        data: Data | HeteroData,
        *,
        edge_dir: str = "in",
        weight_attr: str | None = None,
        time_attr: str | None = None,
    ) -> Dataset:
        """Builds a dataset from a PyG ``Data`` or ``HeteroData``, with all its node-level and edge-level attributes
        whose first dimension is that of the nodes or edges, and TensorFrames.

        ``weight_attr`` names the edge-level attribute to weight draws by, ``time_attr`` the node-level or edge-level
        one to sample by time; an unusable one is a TypeError or ValueError that names it.
        """
        from glt.data.pyg import arrays_of_pyg  # torch_geometric takes a second to import: not before it is there

        return cls._of(arrays_of_pyg(data, weight_attr=weight_attr, time_attr=time_attr), edge_dir)

    @classmethod
    @short_traceback
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
        """Wraps graphs, one per edge type and all of one direction. The only tables are those of ``node_time``: times
        of each node type, or None, named ``time_attr``. Raises ValueError if a graph is of another direction, or its
        numbers of nodes are not those of its ends."""
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
        self = cls.of_graphs(arrays.schema, graphs, arrays.num_nodes, edge_dir=edge_dir)
        self.time_attr, self.time_level = arrays.time_attr, arrays.time_level
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
        of_nodes = level == "node"
        types: tuple[Any, ...] = self.schema.node_types if of_nodes else self.schema.edge_types
        for t, table in enumerate(tables):
            if table is None:
                continue
            label = label_of(self.schema, name, types[t])
            feature = table if isinstance(table, Feature) else Feature(as_rows(table, label))
            if of_nodes:
                expected = self.num_nodes_of[t]
            else:
                topology = self.graphs[t].topology
                expected = topology.num_edges if topology.book is not None else topology.num_edge_ids
            if feature.has_row_per_id and len(feature) != expected and (of_nodes or len(feature) < expected):
                raise ValueError(f"{label} has {len(feature)} rows: expected one per {level}, {expected}")
            (self.node_tables if of_nodes else self.edge_tables)[t][name] = feature

    # What GLT's scripts call, in GLT's order: the graph first.

    @short_traceback
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
            edge_index, num_nodes, edge_ids=edge_ids, edge_weight=edge_weights, edge_time=edge_times
        )
        graphs = tuple(Graph(t, graph_mode, device) for t in arrays.topologies(self.edge_dir))
        self._set(arrays.schema, self.edge_dir, graphs, arrays.num_nodes)
        self.time_attr, self.time_level = arrays.time_attr, arrays.time_level

    @short_traceback
    def with_mode(self, graph_mode: str, device: Any = None) -> Dataset:
        """Returns a dataset of the same edges and tables with graphs of another mode; see :class:`Graph`."""
        other = copy.copy(self)
        other.graphs = tuple(Graph(g.topology, graph_mode, device, hotness=g.hotness) for g in self.graphs)
        return other

    @short_traceback
    def init_node_features(self, node_feature_data: Any, **placement: Any) -> None:
        """Sets the features of the nodes: one row per node, or such tables by node type, as tensors, arrays or
        :class:`Feature`. ``placement``: ``store_dtype``, ``split_ratio``, ``device``, ``device_group_list`` of
        :class:`Feature`; not beside one that is made already. ``store_dtype`` may be a dict by type: tables of types
        that it leaves out stay as they are."""
        self._init("node", "x", node_feature_data, placement)

    @short_traceback
    def init_node_labels(self, node_label_data: Any) -> None:
        self._init("node", "y", node_label_data, {})

    @short_traceback
    def init_edge_features(self, edge_feature_data: Any, **placement: Any) -> None:
        """Sets the features of the edges, one row per edge id; ``placement``, ``store_dtype`` among it, as of
        :meth:`init_node_features`."""
        self._init("edge", "edge_attr", edge_feature_data, placement)

    def _init(self, level: str, name: str, value: Any, placement: dict[str, Any]) -> None:
        label = ARGUMENTS[name]
        if not self.schema.node_types:
            raise ValueError(f"{label}: the dataset has no graph yet; call init_graph first")
        of_nodes = level == "node"
        by_type = self.schema.per_node_type if of_nodes else self.schema.per_edge_type
        given = by_type(label, value)
        stored = placement.pop("store_dtype", None)
        stored_of = by_type("store_dtype", stored) if isinstance(stored, Mapping) else [stored] * len(given)
        types: tuple[Any, ...] = self.schema.node_types if of_nodes else self.schema.edge_types
        if isinstance(stored, Mapping):
            for type_ in [each for each in stored if given[types.index(each)] is None]:
                raise ValueError(f"store_dtype names {type_!r}, and {label} has none of that type: leave it out")
        tables = [
            self._feature(label_of(self.schema, name, type_), table, placement | {"store_dtype": each})
            for type_, table, each in zip(types, given, stored_of, strict=True)
        ]
        if of_nodes:
            self._widen([0 if t is None or t is g else len(t) for g, t in zip(given, tables, strict=True)])
        self._put(level, name, tables)

    def _feature(self, label: str, table: Any, placement: dict[str, Any]) -> Feature | None:
        if table is None:
            return None
        if isinstance(table, Feature):
            for name in [name for name, value in placement.items() if value is not None]:
                raise ValueError(f"{name} is given, and {label} is a Feature, which has its own: leave {name} out")
            return table
        rows = as_rows(table, label)
        try:
            return Feature(rows, **placement)
        except (TypeError, ValueError) as error:
            if not self.schema.is_hetero:
                raise
            raise type(error)(f"{label}: {error}") from error  # whose table it is

    def _widen(self, num_rows: list[int]) -> None:
        """Adds the nodes without edges that only these rows tell of, unless other tables tell otherwise."""
        by_type = zip(self.num_nodes_of, num_rows, self.node_tables, strict=True)
        counts = tuple(count if tables else max(count, rows) for count, rows, tables in by_type)
        if counts == self.num_nodes_of:
            return
        self.graphs = tuple(
            graph.widened((counts[source], counts[target]))
            for graph, (source, target) in zip(self.graphs, self.schema.ends("out"), strict=True)
        )
        self.num_nodes_of = counts

    def get_graph(self, edge_type: EdgeType | None = None) -> Graph:
        return self.graphs[self.schema.edge_index(edge_type)]

    def get_node_feature(self, node_type: NodeType | None = None) -> Feature | None:
        return self.node_tables[self.schema.node_index(node_type)].get("x")

    def get_node_label(self, node_type: NodeType | None = None) -> Feature | None:
        return self.node_tables[self.schema.node_index(node_type)].get("y")

    def get_edge_feature(self, edge_type: EdgeType | None = None) -> Feature | None:
        return self.edge_tables[self.schema.edge_index(edge_type)].get("edge_attr")

    def get_node_types(self) -> list[NodeType] | None:
        """The node types; None for a homogeneous graph."""
        return list(self.schema.node_types) if self.schema.is_hetero else None

    def get_edge_types(self) -> list[EdgeType] | None:
        """The edge types; None for a homogeneous graph."""
        return list(self.schema.edge_types) if self.schema.is_hetero else None

    # The face: single objects, or dicts by type where the graph is heterogeneous.

    @property
    def graph(self) -> Any:
        return self.schema.by_edge_type(self.graphs) if self.schema.is_hetero else self.graphs[0]

    @property
    def num_nodes(self) -> Any:
        return self.schema.by_node_type(self.num_nodes_of) if self.schema.is_hetero else self.num_nodes_of[0]

    @property
    def node_features(self) -> Any:
        """The :class:`Feature` or None; of a heterogeneous graph a dict of the node types that have one."""
        return self._face(self.schema.node_types, self.node_tables, "x")

    @property
    def node_labels(self) -> Any:
        return self._face(self.schema.node_types, self.node_tables, "y")

    @property
    def edge_features(self) -> Any:
        return self._face(self.schema.edge_types, self.edge_tables, "edge_attr")

    def _face(self, types: tuple[Any, ...], tables: tuple[dict[str, Feature], ...], name: str) -> Any:
        if not self.schema.is_hetero:
            return tables[0].get(name)
        return {each: table[name] for each, table in zip(types, tables, strict=True) if name in table}

    @says
    def __repr__(self) -> str:
        if not self.graphs:
            return "empty"
        nodes = typed(sum(self.num_nodes_of), "nodes", len(self.schema.node_types))
        edges = typed(sum(graph.num_edges for graph in self.graphs), "edges", len(self.schema.edge_types))
        tables = [*self.node_tables, *self.edge_tables]
        names = ", ".join(dict.fromkeys(name for each in tables for name in each)) or "no tables"
        memory = [array for graph in self.graphs for array in graph.topology.arrays]
        memory += [feature.tensor for each in tables for feature in each.values()]
        modes = "".join(f", mode={mode!r}" for mode in {graph.mode for graph in self.graphs} - {"CPU"})
        return f"{nodes}, {edges}, tables: {names}, edge_dir={self.edge_dir!r}{modes}, {size_of(memory)}"
