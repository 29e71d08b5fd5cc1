"""A graph as readers return it and partitioners take it: checked once, one entry per type, nothing copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from glt._checks import check_path, integer
from glt._reprs import says, typed
from glt.data.arrays import require_data
from glt.data.frames import Frame, split_all
from glt.data.keys import KeyMap
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema
from glt.partition.format.layout import require_name_fits
from glt.partition.format.rows import Rows, as_torch_dtype, chunks, require_plain

NODE_TABLES: Final = ("node_feat", "node_label", "node_time", "node_attrs")
EDGE_TABLES: Final = ("edge_feat", "edge_weight", "edge_time", "edge_attrs")

# Names of a batch that attributes may not have: features and labels, and what a loader puts there itself.
RESERVED: Final = frozenset(
    (
        *("x", "y", "edge_attr", "edge_index", "n_id", "e_id", "batch", "batch_size", "input_id", "mapping", "stats"),
        *("num_nodes", "num_edges", "num_sampled_nodes", "num_sampled_edges", "seed_time", "edge_label"),
        *("edge_label_index", "edge_label_time", "src_index", "dst_pos_index", "dst_neg_index"),
        *("y_positive", "y_negative"),
    )
)
_ARGUMENTS: Final = {"x": "node_feat", "y": "node_label", "edge_attr": "edge_feat"}


@dataclass(frozen=True, eq=False)
class NodeInput:
    """The nodes of one type; of a slice of the graph, tables and times ``[num_nodes]`` are of the nodes in it."""

    node_type: NodeType
    num_nodes: int
    feat: Rows | None
    label: Rows | None
    time: np.ndarray | None
    attrs: dict[str, Rows]
    keys: KeyMap | None = None

    feat_name: ClassVar[str] = "x"  # in batches

    @property
    def named(self) -> dict[str, Rows]:
        """Features and attributes by their names in batches."""
        return ({} if self.feat is None else {self.feat_name: self.feat}) | self.attrs

    @property
    def tables(self) -> list[Rows]:
        return [rows for rows in (self.feat, self.label, *self.attrs.values()) if rows is not None]


@dataclass(frozen=True, eq=False)
class EdgeInput:
    """The edges of one type. An edge belongs to its expanded end; the other end is the neighbour.

    ``expanded`` and ``neighbor`` are positions of the node types of the ends, and ``index [2, num_edges]`` has these
    ends in this order; ``weight`` is float32 or float64, ``neighbor_time`` that of all nodes of the neighbour's type.
    ``edge_ids`` are ids below ``id_bound`` where these are some of the edges; otherwise positions are ids.
    """

    edge_type: EdgeType
    expanded: int
    neighbor: int
    index: np.ndarray
    feat: Rows | None
    weight: np.ndarray | None
    time: np.ndarray | None
    neighbor_time: np.ndarray | None
    attrs: dict[str, Rows]
    edge_ids: np.ndarray | None = None
    id_bound: int = 0

    feat_name: ClassVar[str] = "edge_attr"

    @property
    def named(self) -> dict[str, Rows]:
        """As :attr:`NodeInput.named`."""
        return ({} if self.feat is None else {self.feat_name: self.feat}) | self.attrs

    @property
    def row_ids(self) -> np.ndarray:
        return self.index[0]

    @property
    def col_ids(self) -> np.ndarray:
        return self.index[1]

    @property
    def num_edges(self) -> int:
        return self.index.shape[1]

    @property
    def num_ids(self) -> int:
        """Number of edges of the whole graph."""
        return self.num_edges if self.edge_ids is None else self.id_bound

    @property
    def tables(self) -> list[Rows]:
        return [rows for rows in (self.feat, *self.attrs.values()) if rows is not None]

    @property
    def has_time(self) -> bool:
        return self.time is not None or self.neighbor_time is not None


@dataclass(frozen=True, eq=False)
class GraphInput(Mapping[str, Any]):
    """A graph whose arguments are checked; a homogeneous one has one type of nodes and one of edges.

    Partitioners take it in place of ``num_nodes``, ``edge_index`` and tables. It is also the mapping of these keyword
    arguments, as they were given (``arguments``): ``graph["edge_index"]``, ``**graph``. In a partitioner these are
    gone, whose copies share no tensors. ``edge_dir`` is ``"out"`` when edges belong to their source; see
    :meth:`expanding`.
    """

    schema: Schema
    nodes: tuple[NodeInput, ...]
    edges: tuple[EdgeInput, ...]
    edge_dir: str = "out"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    __hash__ = object.__hash__
    __eq__ = object.__eq__  # elements are arrays

    @says
    def __repr__(self) -> str:
        counts = (
            typed(sum(each.num_nodes for each in self.nodes), "nodes", len(self.nodes)),
            typed(sum(each.num_edges for each in self.edges), "edges", len(self.edges)),
        )
        tables = (name for name in NODE_TABLES + EDGE_TABLES if name in self.arguments)
        return ", ".join([*counts, f"edge_dir={self.edge_dir!r}", *tables])

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)

    @classmethod
    def of(
        cls,
        num_nodes: int | Mapping[NodeType, int],
        edge_index: Any,
        *,
        num_rows: Sequence[int] | None = None,
        node_keys: Any = None,
        **tables: Any,
    ) -> GraphInput:
        """Checks the arguments of a partitioner.

        Args:
            num_nodes, edge_index: A number and a tensor or array ``[2, num_edges]``, or dicts of them by type.
            num_rows: Rows of node tables, by node type, of a slice of the graph; else ``num_nodes``.
            node_keys: A :class:`KeyMap` or its folder, or a dict of them by type.
            tables: Those of ``NODE_TABLES`` and ``EDGE_TABLES`` that there are.
        """
        given = dict.fromkeys(NODE_TABLES + EDGE_TABLES) | tables
        if given["edge_time"] is not None and given["node_time"] is not None:
            raise ValueError(
                "edge_time and node_time are both given: expected one of them, for the time of an edge is its own or "
                "that of its neighbour; leave one out"
            )
        schema = _schema(num_nodes, edge_index)
        counts = list(num_nodes.values()) if isinstance(num_nodes, Mapping) else [num_nodes]
        indexes = list(edge_index.values()) if schema.is_hetero else [edge_index]
        keys = schema.per_node_type("node_keys", node_keys)
        of_nodes, of_edges = (_tables_by_type(schema, names, given) for names in (NODE_TABLES, EDGE_TABLES))
        schema = replace(schema, frames=(*_split_frames("node", of_nodes), *_split_frames("edge", of_edges)))
        nodes = tuple(
            _nodes(schema, at, counts[at], None if num_rows is None else num_rows[at], keys[at], each)
            for at, each in enumerate(of_nodes)
        )
        edges = tuple(_edges(schema, at, nodes, indexes[at], each) for at, each in enumerate(of_edges))
        if not schema.is_hetero and (both := sorted(nodes[0].attrs.keys() & edges[0].attrs.keys())):
            raise ValueError(
                f"node_attrs and edge_attrs both name {both[0]!r}, but a batch of a homogeneous graph has one "
                "attribute of a name: rename one of them"
            )
        if given["node_time"] is not None and any("time" in each.attrs for each in nodes):
            raise ValueError(
                "node_attrs names 'time', but node_time is given, which batches have as 'time': leave it out"
            )
        arguments = {name: value for name, value in (tables | {"node_keys": node_keys}).items() if value is not None}
        return cls(schema, nodes, edges, arguments={"num_nodes": num_nodes, "edge_index": edge_index} | arguments)

    def expanding(self, edge_dir: str) -> GraphInput:
        """Returns the graph with edges that belong to their sources (``"out"``) or destinations (``"in"``), and
        without :attr:`arguments`."""
        edges = []
        for each, (expanded, neighbor) in zip(self.edges, self.schema.ends(edge_dir), strict=True):
            index = each.index if edge_dir == self.edge_dir else each.index[::-1]
            time = self.nodes[neighbor].time
            edges.append(replace(each, expanded=expanded, neighbor=neighbor, index=index, neighbor_time=time))
        return replace(self, edges=tuple(edges), edge_dir=edge_dir, arguments={})

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(each.num_nodes for each in self.nodes)

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(each.num_edges for each in self.edges)

    @property
    def time_level(self) -> str | None:
        """Whose times edges have: ``"edge"`` (their own), ``"node"`` (that of their neighbour) or None."""
        if any(edges.time is not None for edges in self.edges):
            return "edge"
        return "node" if any(nodes.time is not None for nodes in self.nodes) else None

    def tables(self) -> Iterator[tuple[str, Rows | np.ndarray]]:
        """Yields all that the graph consists of, and the arguments that it came as."""
        inputs: tuple[NodeInput | EdgeInput, ...] = (*self.nodes, *self.edges)
        for each in inputs:
            kind, type_ = ("node", each.node_type) if isinstance(each, NodeInput) else ("edge", each.edge_type)
            of_type = f"[{type_!r}]" if self.schema.is_hetero else ""
            for name in ("index", "feat", "label", "weight", "time"):
                table = vars(each).get(name)
                if table is not None:
                    yield f"{kind}_{name}{of_type}", table
            for name, rows in each.attrs.items():
                yield f"{kind}_attrs{of_type}[{name!r}]", rows


def arguments_by_type(
    schema: Schema, nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the keyword arguments of a partitioner, given those of each type: dicts by type where there are types.

    What is None is left out. A node type without ``num_nodes`` has as many nodes as its tables have rows; without
    tables, as many as its largest id needs.
    """
    counts = [_count(schema, at, each, edges) for at, each in enumerate(nodes)]
    arguments: dict[str, Any] = {
        "num_nodes": schema.by_node_type(counts) if schema.is_hetero else counts[0],
        "edge_index": {} if schema.is_hetero else np.empty((2, 0), np.int64),
    }
    types: tuple[Any, ...]
    for types, tables in ((schema.node_types, nodes), (schema.edge_types, edges)):
        for name in dict.fromkeys(name for each in tables for name in each if name != "num_nodes"):
            values = {type_: each.get(name) for type_, each in zip(types, tables, strict=False)}
            found = {type_: value for type_, value in values.items() if value is not None}
            if found:
                arguments[name] = found if schema.is_hetero else found[types[0]]
    return arguments


def stated_count(nodes: Mapping[str, Any]) -> int | None:
    """Returns ``num_nodes`` of the arguments of a node type, or how many rows its first table has; else None."""
    if nodes.get("num_nodes") is not None:
        return nodes["num_nodes"]
    tables = [nodes.get(name) for name in NODE_TABLES[:3]] + list((nodes.get("node_attrs") or {}).values())
    return next((len(table) for table in tables if table is not None), None)


def _count(schema: Schema, at: int, nodes: Mapping[str, Any], edges: Sequence[Mapping[str, Any]]) -> int:
    stated = stated_count(nodes)
    if stated is not None:
        return stated
    largest = -1
    for ends, each in zip(schema.ends("out"), edges, strict=True):
        for end, ids in zip(ends, each["edge_index"], strict=True):
            if end == at:
                largest = max([largest, *(int(piece.max()) for _, piece in chunks(ids))])
    return largest + 1


def require_in_place(name: str, array: np.ndarray) -> None:
    """Raises RuntimeError if torch has moved the memory of a tensor that ``array`` is a view of: it does so when it
    sends the tensor to another process, and in ``share_memory_()`` (see :class:`glt.data.arrays.NativeView`)."""
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


def _tables_by_type(schema: Schema, names: Sequence[str], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the tables of each type, by the names of the arguments that they came in."""
    per_type = schema.per_node_type if names is NODE_TABLES else schema.per_edge_type
    columns = {
        # Without types, a dict of attributes is by name.
        name: [given[name]] if name.endswith("_attrs") and not schema.is_hetero else per_type(name, given[name])
        for name in names
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _split_frames(level: str, tables: Sequence[dict[str, Any]]) -> Iterator[Frame]:
    """Takes the TensorFrames among the named tables of each type apart."""
    for at, each in enumerate(tables):
        attrs = each[f"{level}_attrs"]
        if isinstance(attrs, Mapping):
            each[f"{level}_attrs"], frames = split_all(attrs, level, at)
            yield from frames


def _nodes(
    schema: Schema, at: int, count: object, num_rows: int | None, keys: Any, tables: Mapping[str, Any]
) -> NodeInput:
    of_type = f"[{schema.node_types[at]!r}]" if schema.is_hetero else ""
    # Rows are numbered in 32 bits. No partition owns a node of a graph without any, so one type alone has at least one.
    num_nodes = integer(f"num_nodes{of_type}", count, 0 if of_type else 1, 2**32 - 1, "the number of nodes")
    rows = num_nodes if num_rows is None else num_rows
    feat, label, time, attrs = (tables[name] for name in NODE_TABLES)
    return NodeInput(
        schema.node_types[at],
        num_nodes,
        feat=_rows(f"node_feat{of_type}", feat, rows, "node"),
        label=_rows(f"node_label{of_type}", label, rows, "node"),
        time=_time(f"node_time{of_type}", time, rows, "node"),
        attrs=_attrs(f"node_attrs{of_type}", attrs, rows, "node"),
        keys=_keys(f"node_keys{of_type}", keys, num_nodes),
    )


def _keys(name: str, given: Any, num_nodes: int) -> KeyMap | None:
    if given is None:
        return None
    if not isinstance(given, KeyMap):
        check_path(name, given, "the folder of a KeyMap")
    keys = given if isinstance(given, KeyMap) else KeyMap(given)
    if len(keys) != num_nodes:
        raise ValueError(f"{name} has {len(keys)} keys: expected one per node, {num_nodes}")
    return keys


def _edges(schema: Schema, at: int, nodes: Sequence[NodeInput], index: object, tables: Mapping[str, Any]) -> EdgeInput:
    of_type = f"[{schema.edge_types[at]!r}]" if schema.is_hetero else ""
    expanded, neighbor = schema.ends("out")[at]
    checked = _edge_index(f"edge_index{of_type}", index, [nodes[expanded], nodes[neighbor]], schema.is_hetero)
    num_edges = checked.shape[1]
    feat, weight, time, attrs = (tables[name] for name in EDGE_TABLES)
    return EdgeInput(
        schema.edge_types[at],
        expanded,
        neighbor,
        checked,
        feat=_rows(f"edge_feat{of_type}", feat, num_edges, "edge"),
        weight=None if weight is None else _edge_weight(f"edge_weight{of_type}", weight, num_edges),
        time=_time(f"edge_time{of_type}", time, num_edges, "edge"),
        neighbor_time=nodes[neighbor].time,
        attrs=_attrs(f"edge_attrs{of_type}", attrs, num_edges, "edge"),
    )


def _rows(name: str, value: object, num_rows: int, what: str) -> Rows | None:
    return None if value is None else Rows.of(name, value, num_rows, what)


def _attrs(name: str, given: Any, num_rows: int, what: str) -> dict[str, Rows]:
    """Returns the named tables of a type, in the order of their names."""
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} is a {type(given).__name__}: expected a dict from names to arrays")
    for key in given:
        if not isinstance(key, str):
            raise TypeError(f"{name} has the key {key!r}: expected the name of an attribute")
        if key in RESERVED:
            hint = (
                f"pass it as {_ARGUMENTS[key]}" if key in _ARGUMENTS else "rename it; a loader gives that name itself"
            )
            raise ValueError(f"{name} names {key!r}: {hint}")
        if "\n" in key:
            raise ValueError(f"{name} names {key!r}: expected a name without line breaks; rename it")
        require_name_fits(f"{name} key", key)
    return {key: Rows.of(f"{name}[{key!r}]", given[key], num_rows, what) for key in sorted(given)}


def _edge_index(name: str, value: object, ends: Sequence[NodeInput], is_hetero: bool) -> np.ndarray:
    """Returns ``edge_index [2, num_edges]`` as an array with both rows contiguous, a copy only where they are not."""
    require_data(value, name)
    if isinstance(value, Tensor) and value.layout == torch.strided:
        value = value.detach().cpu().numpy() if value.dtype in (torch.int32, torch.int64) else value
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int32, np.int64):
        got = getattr(value, "dtype", None)
        raise TypeError(
            f"{name} is a {type(value).__name__}{f' of {got}' if got is not None else ''}: expected a dense tensor "
            "or array of int32 or int64, shape [2, num_edges]; convert it first"
        )
    require_plain(name, value)
    if value.ndim != 2 or value.shape[0] != 2:
        hint = f"; pass {name}.T" if value.ndim == 2 and value.shape[1] == 2 else ""
        raise ValueError(f"{name} has shape {list(value.shape)}: expected [2, num_edges]{hint}")
    if value.strides[1] != value.itemsize and value.shape[1] > 1:
        value = np.ascontiguousarray(value)
    for i, nodes in enumerate(ends):
        bound = f"num_nodes[{nodes.node_type!r}]" if is_hetero else "num_nodes"
        for begin, ids in chunks(value[i]):
            if ids.min() >= 0 and ids.max() < nodes.num_nodes:
                continue
            at = int(np.flatnonzero((ids < 0) | (ids >= nodes.num_nodes))[0])
            raise IndexError(
                f"{name}[{i}][{begin + at}] = {ids[at]} is outside [0, {nodes.num_nodes}): pass {bound} larger than "
                "every id, or drop the edge"
            )
    return value


def _edge_weight(name: str, value: object, num_edges: int) -> np.ndarray:
    """Returns the weights as float32 or float64: those dtypes without a copy, others without a loss."""
    weight, torch_dtype = _column(name, value, num_edges, "edge")
    dtype = getattr(torch, torch_dtype)
    if dtype.is_complex:
        raise TypeError(f"{name} has dtype {dtype}: expected real numbers")
    exact = weight
    if dtype not in (torch.float32, torch.float64):
        wide = not dtype.is_floating_point and dtype.itemsize > 2
        tensor = torch.as_tensor(as_torch_dtype(weight, torch_dtype))
        exact = tensor.to(torch.float64 if wide else torch.float32).numpy()
    bad = first_where(exact, lambda piece: ~((piece >= 0) & (piece < np.inf)))
    if bad is not None:
        raise ValueError(
            f"{name}[{bad}] = {exact[bad]}: expected finite weights of at least 0; a weight of 0 keeps an edge out "
            "while others remain"
        )
    large = first_where(exact, lambda piece: piece > 2**53) if weight.dtype.kind in "iu" else None
    if large is not None:
        raise ValueError(
            f"{name}[{large}] = {weight[large]}: expected weights that a double holds exactly, up to 2**53; scale them "
            "down"
        )
    return exact


def first_where(array: np.ndarray, condition: Callable[[np.ndarray], np.ndarray]) -> int | None:
    """Returns the position of the first element of which ``condition``, called with a piece at a time, is true."""
    found = (begin + np.flatnonzero(condition(piece)) for begin, piece in chunks(array))
    return next((int(positions[0]) for positions in found if positions.size), None)


def _time(name: str, value: object, num_rows: int, what: str) -> np.ndarray | None:
    if value is None:
        return None
    times, torch_dtype = _column(name, value, num_rows, what)
    dtype = getattr(torch, torch_dtype)
    if dtype.is_floating_point or dtype.is_complex or dtype in (torch.bool, torch.uint64):
        raise TypeError(f"{name} has dtype {dtype}: expected integers, such as seconds; convert it to int64")
    return times


def _column(name: str, value: object, num_rows: int, what: str) -> tuple[np.ndarray, str]:
    rows = Rows.of(name, value, num_rows, what)
    if rows.row_shape not in ((), (1,)):
        raise ValueError(f"{name} has shape {list(rows.array.shape)}: expected one number per {what}, [{num_rows}]")
    return rows.given.reshape(num_rows), rows.torch_dtype
