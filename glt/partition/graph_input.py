"""A graph as a partitioner is given it: checked, one entry per type, nothing copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from torch import Tensor

from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.partition import arguments
from glt.partition.format import layout
from glt.partition.format.files import Rows
from glt.partition.format.layout import require_name_fits

# Arrays that a partitioner reads in the memory of tensors that it was given.


def require_in_place(name: str, array: np.ndarray) -> None:
    """Raises RuntimeError if torch has moved the memory of an array away. It does so, in place, with a tensor that is
    sent to another process, and by ``share_memory_()``, and frees where it was (see
    :class:`glt.data.arrays.NativeView`). What was copied from a tensor stays, and is fine.

    Args:
        name: The argument that the array came as, for messages.
        array: A NumPy view of a tensor, or any other array.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if not isinstance(base, Tensor) or array.size == 0:
        return
    memory = base.untyped_storage()
    if not memory.data_ptr() <= array.ctypes.data < memory.data_ptr() + memory.nbytes():
        raise RuntimeError(
            f"{name} has moved since the partitioner was made: it was sent to another process, or share_memory_() was "
            f"called, which frees the memory that it had. Make the partitioner after that, or of {name}.clone()"
        )


# Tables of nodes and edges beyond features, labels and times: masks, splits, and whatever else has a name.


# What features and labels are called in a batch, and what a loader puts there itself.
RESERVED: Final = frozenset(
    {
        "x",
        "y",
        "edge_attr",
        "edge_index",
        "n_id",
        "e_id",
        "batch",
        "batch_size",
        "input_id",
        "mapping",
        "num_nodes",
        "num_edges",
        "num_sampled_nodes",
        "num_sampled_edges",
        "seed_time",
        "edge_label",
        "edge_label_index",
        "edge_label_time",
        "src_index",
        "dst_pos_index",
        "dst_neg_index",
        "stats",
    }
)
_ARGUMENTS: Final = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}


def named_rows(argument: str, value: Any, schema: Schema, counts: list[int], kind: str) -> list[dict[str, Rows]]:
    """Returns the named tables of each type, in the order of their names.

    Args:
        argument: ``"node_attrs"`` or ``"edge_attrs"``, for messages.
        value: A dict from names to tensors or arrays; of a heterogeneous graph a dict by type of such dicts; or None.
        schema: The types.
        counts: Rows expected, by type.
        kind: ``"node"`` or ``"edge"``.

    Raises:
        TypeError: If it is no such dict, or a table no tensor or array.
        KeyError: If it names a type that there is not.
        ValueError: If a name cannot be one, or a table has not one row per node or edge.
    """
    types: tuple[Any, ...] = schema.node_types if kind == "node" else schema.edge_types
    if schema.is_hetero:
        per_type = schema.per_node_type if kind == "node" else schema.per_edge_type
        given = per_type(argument, value)
    else:
        given = [value]
    tables = []
    for type_, count, named in zip(types, counts, given, strict=True):
        of_type = f"{argument}[{type_!r}]" if schema.is_hetero else argument
        if named is not None and not isinstance(named, Mapping):
            raise TypeError(f"{of_type} is a {type(named).__name__}: expected a dict from names to arrays")
        named = dict(named or {})
        for name in named:
            _require_name(of_type, name)
        tables.append({name: Rows.of(f"{of_type}[{name!r}]", named[name], count, kind) for name in sorted(named)})
    return tables


def require_distinct(node_tables: list[dict[str, Rows]], edge_tables: list[dict[str, Rows]], schema: Schema) -> None:
    """Raises ValueError if nodes and edges of a homogeneous graph, which share a store in a batch, share a name."""
    both = [] if schema.is_hetero else sorted(node_tables[0].keys() & edge_tables[0].keys())
    if both:
        raise ValueError(
            f"node_attrs and edge_attrs both name {both[0]!r}, but a batch of a homogeneous graph has one attribute "
            "of a name: rename one of them"
        )


def _require_name(of_type: str, name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{of_type} has the key {name!r}: expected the name of an attribute")
    if name in RESERVED:
        hint = f"pass it as {_ARGUMENTS[name]}" if name in _ARGUMENTS else "rename it; a loader gives that name itself"
        raise ValueError(f"{of_type} names {name!r}: {hint}")
    if "\n" in name:
        raise ValueError(f"{of_type} names {name!r}: expected a name without line breaks; rename it")
    layout.require_name_fits(f"{of_type} key", name)


@dataclass(frozen=True, eq=False)
class NodeInput:
    """The nodes of one type.

    Attributes:
        node_type: Their type.
        num_nodes: How many.
        feat, label: One row per node, if given; of a slice of the graph, of the nodes in it.
        time: ``[num_nodes]`` integers, if given; likewise.
        attrs: Named tables, one row per node; likewise.
    """

    node_type: NodeType
    num_nodes: int
    feat: Rows | None
    label: Rows | None
    time: np.ndarray | None
    attrs: dict[str, Rows] = field(default_factory=dict)

    @property
    def tables(self) -> list[Rows]:
        """All tables that there are."""
        return [rows for rows in (self.feat, self.label, *self.attrs.values()) if rows is not None]


@dataclass(frozen=True, eq=False)
class EdgeInput:
    """The edges of one type. An edge belongs to its expanded end; the other end is the neighbour.

    Attributes:
        edge_type: Their type.
        expanded, neighbor: Positions of the node types of the two ends.
        edge_index: ``[2, num_edges]`` int32 or int64, sources and destinations.
        row_ids, col_ids: Of these, the expanded ends and the neighbours.
        feat: One row per edge, if given.
        weight: ``[num_edges]`` float32 or float64, if given.
        time: ``[num_edges]`` integers, if given.
        neighbor_time: Times of the neighbour's type, if given; an edge has the time of its neighbour.
        attrs: Named tables, one row per edge.
        edge_ids: ``[num_edges]`` ids, where these are some of the edges; otherwise positions are ids.
        id_bound: What ``edge_ids`` are below.
    """

    edge_type: EdgeType
    expanded: int
    neighbor: int
    edge_index: np.ndarray
    row_ids: np.ndarray
    col_ids: np.ndarray
    feat: Rows | None
    weight: np.ndarray | None
    time: np.ndarray | None
    neighbor_time: np.ndarray | None
    attrs: dict[str, Rows] = field(default_factory=dict)
    edge_ids: np.ndarray | None = None
    id_bound: int = 0

    @property
    def num_ids(self) -> int:
        """How many edges there are, all together."""
        return self.num_edges if self.edge_ids is None else self.id_bound

    @property
    def tables(self) -> list[Rows]:
        """All tables that there are."""
        return [rows for rows in (self.feat, *self.attrs.values()) if rows is not None]

    @property
    def num_edges(self) -> int:
        return self.row_ids.size

    @property
    def has_time(self) -> bool:
        return self.time is not None or self.neighbor_time is not None

    def time_source(self, indices: np.ndarray, edge_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns a table of times and, for edges given by neighbour and by id, their positions in it."""
        if self.time is not None:
            return self.time, edge_ids
        assert self.neighbor_time is not None
        return self.neighbor_time, indices


@dataclass(frozen=True, eq=False)
class GraphInput:
    """A whole graph; a homogeneous one has one type of nodes and one of edges.

    Attributes:
        schema: The types, in the user's order.
        edge_dir: ``"out"`` when edges belong to their source, ``"in"`` when they belong to their destination.
        nodes: By position of the node type.
        edges: By position of the edge type.
        time_level: Whose times the edges have: ``"edge"`` (their own), ``"node"`` (that of their neighbour) or None.
    """

    schema: Schema
    edge_dir: str
    nodes: tuple[NodeInput, ...]
    edges: tuple[EdgeInput, ...]

    @property
    def time_level(self) -> str | None:
        if any(edges.time is not None for edges in self.edges):
            return "edge"
        return "node" if any(nodes.time is not None for nodes in self.nodes) else None

    def arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields all arrays of the graph, and the arguments that they came as."""
        for nodes in self.nodes:
            of_nodes = {"node_feat": nodes.feat, "node_label": nodes.label}
            attrs = {f"node_attrs[{name!r}]": rows for name, rows in nodes.attrs.items()}
            yield from _arrays({**of_nodes, **attrs}, node_time=nodes.time)
        for edges in self.edges:
            attrs = {f"edge_attrs[{name!r}]": rows for name, rows in edges.attrs.items()}
            yield from _arrays(
                {"edge_feat": edges.feat, **attrs},
                edge_index=edges.edge_index,
                edge_weight=edges.weight,
                edge_time=edges.time,
            )

    @classmethod
    def of(
        cls,
        edge_dir: str,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: Any,
        node_feat: Any,
        edge_feat: Any,
        node_label: Any,
        edge_weight: Any,
        edge_time: Any,
        node_time: Any,
        node_attrs: Any = None,
        edge_attrs: Any = None,
        num_rows: list[int] | None = None,
    ) -> GraphInput:
        """Checks the arguments of a partitioner, which are tensors or arrays, or dicts of them by type.

        ``num_rows`` says how many rows node tables have, by type, where they are those of a slice of the graph; else
        they have ``num_nodes``.

        Raises:
            TypeError, ValueError: If an argument is unusable; names it, its type and value and what was expected.
            KeyError: If a dict names a type that there is not.
            IndexError: If a node id is out of range; names the first.
        """
        if edge_time is not None and node_time is not None:
            raise ValueError(
                "edge_time and node_time are both given: expected one of them, for the time of an edge is its own or "
                "that of its neighbour; leave one out"
            )
        schema = _schema(num_nodes, edge_index)
        counts = list(num_nodes.values()) if isinstance(num_nodes, Mapping) else [num_nodes]
        indexes = list(edge_index.values()) if schema.is_hetero else [edge_index]
        feats, labels, times = (
            schema.per_node_type(name, value)
            for name, value in (("node_feat", node_feat), ("node_label", node_label), ("node_time", node_time))
        )
        # No partition owns a node of a graph without any, so one type alone needs at least one.
        low = 0 if schema.is_hetero else 1
        rows: list[Any] = counts if num_rows is None else list(num_rows)
        nodes = tuple(
            _nodes(schema, at, low, *given)
            for at, given in enumerate(zip(counts, rows, feats, labels, times, strict=True))
        )
        feats, weights, times = (
            schema.per_edge_type(name, value)
            for name, value in (("edge_feat", edge_feat), ("edge_weight", edge_weight), ("edge_time", edge_time))
        )
        edges = tuple(
            _edges(schema, edge_dir, nodes, at, *given)
            for at, given in enumerate(zip(indexes, feats, weights, times, strict=True))
        )
        of_nodes = named_rows("node_attrs", node_attrs, schema, rows, "node")
        of_edges = named_rows("edge_attrs", edge_attrs, schema, [each.num_edges for each in edges], "edge")
        require_distinct(of_nodes, of_edges, schema)
        if node_time is not None and any("time" in named for named in of_nodes):
            raise ValueError(
                "node_attrs names 'time', but node_time is given, which batches have as 'time': leave it out"
            )
        nodes = tuple(replace(each, attrs=named) for each, named in zip(nodes, of_nodes, strict=True))
        edges = tuple(replace(each, attrs=named) for each, named in zip(edges, of_edges, strict=True))
        return cls(schema, edge_dir, nodes, edges)


def _schema(num_nodes: object, edge_index: object) -> Schema:
    if isinstance(num_nodes, Mapping) != isinstance(edge_index, Mapping):
        if isinstance(edge_index, Mapping):
            raise TypeError(f"num_nodes = {num_nodes!r}: expected a dict by node type, since edge_index is a dict")
        raise TypeError(
            f"edge_index is a {type(edge_index).__name__}: expected a dict by edge type, since num_nodes is a dict"
        )
    if not isinstance(num_nodes, Mapping) or not isinstance(edge_index, Mapping):
        return HOMOGENEOUS
    if not num_nodes:
        raise ValueError("num_nodes = {}: expected the number of nodes of at least one type")
    schema = Schema(tuple(num_nodes), tuple(edge_index))
    for node_type in schema.node_types:
        require_name_fits("node type", node_type)
    for edge_type in schema.edge_types:
        require_name_fits("edge type", edge_type)
    return schema


def _nodes(
    schema: Schema, at: int, low: int, count: object, rows: int, feat: object, label: object, time: object
) -> NodeInput:
    node_type = schema.node_types[at]
    of_type = f"[{node_type!r}]" if schema.is_hetero else ""
    # Rows are numbered in 32 bits.
    num_nodes = arguments.integer(f"num_nodes{of_type}", count, low, 2**32 - 1, "the number of nodes")
    return NodeInput(
        node_type,
        num_nodes,
        feat=None if feat is None else Rows.of(f"node_feat{of_type}", feat, rows, "node"),
        label=None if label is None else Rows.of(f"node_label{of_type}", label, rows, "node"),
        time=None if time is None else arguments.time(f"node_time{of_type}", time, rows, "node"),
    )


def _edges(
    schema: Schema,
    edge_dir: str,
    nodes: tuple[NodeInput, ...],
    at: int,
    index: object,
    feat: object,
    weight: object,
    time: object,
) -> EdgeInput:
    edge_type = schema.edge_types[at]
    of_type = f"[{edge_type!r}]" if schema.is_hetero else ""
    expanded, neighbor = schema.ends(edge_dir)[at]
    src, dst = (
        (f"num_nodes[{node.node_type!r}]" if schema.is_hetero else "num_nodes", node.num_nodes)
        for node in (nodes[schema.node_index(edge_type[0])], nodes[schema.node_index(edge_type[2])])
    )
    edges = arguments.edge_index(f"edge_index{of_type}", index, (src, dst))
    num_edges = edges.shape[1]
    row_ids, col_ids = edges if edge_dir == "out" else edges[::-1]
    return EdgeInput(
        edge_type,
        expanded,
        neighbor,
        edges,
        row_ids,
        col_ids,
        feat=None if feat is None else Rows.of(f"edge_feat{of_type}", feat, num_edges, "edge"),
        weight=None if weight is None else arguments.edge_weight(f"edge_weight{of_type}", weight, num_edges),
        time=None if time is None else arguments.time(f"edge_time{of_type}", time, num_edges, "edge"),
        neighbor_time=nodes[neighbor].time,
    )


def _arrays(tables: dict[str, Rows | None], **columns: np.ndarray | None) -> Iterator[tuple[str, np.ndarray]]:
    yield from ((name, rows.array) for name, rows in tables.items() if rows is not None)
    yield from ((name, column) for name, column in columns.items() if column is not None)
