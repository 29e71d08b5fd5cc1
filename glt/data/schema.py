"""What ids mean: the types of nodes and edges of a graph, and which partition owns each id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from glt import _core
from glt._reprs import says
from glt.data.arrays import NativeView, Packed, from_array
from glt.data.frames import Frame

NodeType = str
EdgeType = tuple[str, str, str]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Schema:
    """Node types and edge types of a graph, in the order of the user's data.

    Inside glt a type is its position here; the position of an edge type is also part of the key of its random draws. A
    homogeneous graph has one type of each (:data:`HOMOGENEOUS`).

    Attributes:
        node_types: Names of the node types.
        edge_types: ``(source type, relation, destination type)`` of each edge type.
        is_hetero: Whether the user speaks of types: results are then dicts by type, else single objects.
        frames: Tables that together are a TensorFrame of batches.

    Raises:
        TypeError, ValueError: If a type is malformed, named twice, or ends in an unknown node type, or a graph that is
            not heterogeneous has not exactly one type of each.

    Example:
        >>> schema = glt.data.Schema(("user", "item"), (("user", "buys", "item"),))
        >>> schema.node_index("item")
        1
    """

    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    is_hetero: bool = True
    frames: tuple[Frame, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_types", tuple(self.node_types))
        # Triples read from JSON are lists.
        object.__setattr__(self, "edge_types", tuple(_edge_type(t) for t in self.edge_types))
        frames = tuple(each if isinstance(each, Frame) else Frame(**each) for each in self.frames)
        object.__setattr__(self, "frames", frames)
        for node_type in self.node_types:
            if not isinstance(node_type, str):
                raise TypeError(f"node_types holds {node_type!r}: expected names of node types")
        for name, types in (("node_types", self.node_types), ("edge_types", self.edge_types)):
            for at, each in enumerate(types):
                if each in types[:at]:
                    raise ValueError(f"{name} holds {each!r} twice: expected each type once")
        for edge_type in self.edge_types:
            for end in (edge_type[0], edge_type[2]):
                if end not in self.node_types:
                    raise ValueError(
                        f"edge type {edge_type} ends in node type {end!r}, which is not among the node types "
                        f"{list(self.node_types)}: add it to them"
                    )
        if not self.is_hetero and (len(self.node_types), len(self.edge_types)) != (1, 1):
            raise ValueError(
                f"a homogeneous schema has {len(self.node_types)} node types and {len(self.edge_types)} edge types: "
                "expected one of each, or is_hetero=True"
            )

    def frames_of(self, level: str, at: int) -> list[Frame]:
        """The frames of the type of nodes or edges at a position."""
        return [each for each in self.frames if (each.level, each.type_index) == (level, at)]

    def ends(self, edge_dir: str) -> tuple[tuple[int, int], ...]:
        """Returns ``(expanded node type, neighbour node type)`` of each edge type, as positions: with ``'in'``
        destinations are expanded, with ``'out'`` sources."""
        check_edge_dir(edge_dir)
        pairs = [(self.node_index(source), self.node_index(target)) for source, _, target in self.edge_types]
        return tuple((target, source) if edge_dir == "in" else (source, target) for source, target in pairs)

    def node_index(self, node_type: NodeType | None) -> int:
        """Position of a node type; None stands for the only one. Raises KeyError naming those there are."""
        return _position("node", node_type, self.node_types)

    def edge_index(self, edge_type: EdgeType | None) -> int:
        """Position of an edge type; None stands for the only one. Raises KeyError naming those there are."""
        return _position("edge", tuple(edge_type) if isinstance(edge_type, list) else edge_type, self.edge_types)

    def by_node_type(self, values: Iterable[Value]) -> dict[NodeType, Value]:
        return dict(zip(self.node_types, values, strict=True))

    def by_edge_type(self, values: Iterable[Value]) -> dict[EdgeType, Value]:
        return dict(zip(self.edge_types, values, strict=True))

    def per_node_type(self, name: str, value: Any) -> list[Any]:
        """Returns ``value``, a dict by node type (a single object when homogeneous), as a list; None where absent.
        Raises TypeError if it is not of that form, KeyError if it names an unknown type."""
        return self._per_type(name, value, self.node_types, "node")

    def per_edge_type(self, name: str, value: Any) -> list[Any]:
        """As :meth:`per_node_type`, by edge type."""
        return self._per_type(name, value, self.edge_types, "edge")

    def _per_type(self, name: str, value: Any, types: tuple[Any, ...], kind: str) -> list[Any]:
        if value is None:
            return [None] * len(types)
        if not self.is_hetero:
            if isinstance(value, Mapping):
                raise TypeError(f"{name} is a dict by type: expected a single value, the graph being homogeneous")
            return [value]
        if not isinstance(value, Mapping):
            raise TypeError(
                f"{name} has type {type(value).__name__}: expected a dict by {kind} type, the graph being heterogeneous"
            )
        values: list[Any] = [None] * len(types)
        for key, each in value.items():
            if key not in types:
                raise KeyError(f"{name} names {kind} type {key!r}: expected one of {list(types)}")
            values[types.index(key)] = each
        return values


def _edge_type(value: Any) -> EdgeType:
    parts = tuple(value) if isinstance(value, tuple | list) else ()
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"edge_types holds {value!r}: expected (source type, relation, destination type)")
    return parts[0], parts[1], parts[2]


def check_edge_dir(edge_dir: str) -> None:
    if edge_dir not in ("in", "out"):
        raise ValueError(f"edge_dir = {edge_dir!r}: expected 'in' (PyG's direction) or 'out'")


def reverse_edge_type(edge_type: EdgeType) -> EdgeType:
    """Names the reverses of an edge type by GLT's rule: ``rev_`` before the relation, or taken from it; the same type
    where both ends are of one node type."""
    source, relation, target = edge_type
    return target, relation if source == target else reverse_relation(relation), source


def reverse_relation(relation: str) -> str:
    return relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}"


def _position(kind: str, wanted: Any, types: tuple[Any, ...]) -> int:
    if wanted is None:
        if len(types) != 1:
            raise KeyError(f"no {kind} type is named: expected one of {list(types)}")
        return 0
    if not isinstance(wanted, str | tuple) or wanted not in types:
        raise KeyError(f"{kind} type {wanted!r} is not in the graph: expected one of {list(types)}")
    return types.index(wanted)


HOMOGENEOUS = Schema(("node",), (("node", "to", "node"),), False)  # of a graph without types


class PartitionBook:
    """Owners and rows of all ids of one type of nodes or edges; made by :meth:`of_arrays` or :meth:`of_ranges`.

    A graph whose ids were left alone needs two arrays, 5 to 8 bytes per id. In a relabelled one each partition owns a
    range of ids, rows count from its beginning, and ``num_parts + 1`` numbers suffice.

    Attributes:
        num_ids, num_parts: Of all partitions.
        owner, row_of: Owner of each id ``[num_ids]``, uint8, uint16 or uint32, and its row in the owner's arrays,
            uint32; None with ranges.
        offset: With ranges, partition ``p`` owns the ids ``offset[p]`` to ``offset[p + 1] - 1``, int64; else None.

    Example:
        >>> book = glt.partition.load_partition("parts", 0).nodes[0].book
        >>> book
        PartitionBook(arrays, num_ids=40, num_parts=2)
        >>> book.owner[:4]
        tensor([0, 1, 1, 0], dtype=torch.uint8)
    """

    owner: Tensor | None = None
    row_of: Tensor | None = None
    offset: Tensor | None = None
    num_ids: int
    num_parts: int

    @classmethod
    def of_arrays(cls, owner: Any, row_of: Any, num_parts: int) -> PartitionBook:
        """Wraps the owner and the row of each id, without copying; raises TypeError or ValueError if dtypes or sizes do
        not fit. Owners are checked when they are met."""
        self = cls.__new__(cls)
        self.owner, self.row_of = _tensor(owner), _tensor(row_of)
        if self.row_of.dtype != torch.uint32 or self.row_of.shape != self.owner.shape:
            raise ValueError(
                f"row_of is {self.row_of.dtype} {list(self.row_of.shape)}: expected uint32, one row per owner, "
                f"{list(self.owner.shape)}"
            )
        self._open(num_parts)
        return self

    @classmethod
    def of_ranges(cls, offset: Any) -> PartitionBook:
        """Takes the offsets ``[num_parts + 1]``; raises TypeError or ValueError if they are not integers from 0 that
        never fall."""
        self = cls.__new__(cls)
        self.offset = _tensor(np.asarray(offset, np.int64) if isinstance(offset, list | tuple) else offset)
        self._open()
        return self

    def _open(self, num_parts: int = 0) -> None:
        self._view = NativeView((self.owner, self.offset), partial(_native_book, self.owner, self.offset, num_parts))
        self.num_ids, self.num_parts = self.native.num_ids, self.native.num_parts

    @property
    def native(self) -> _core.Book:
        return self._view.get()

    @property
    def has_ranges(self) -> bool:
        return self.offset is not None

    def first_id(self, part: int) -> int:
        """The id of a partition's first row where it owns a range; 0 where ``row_of`` maps ids to rows."""
        return 0 if self.offset is None else int(self.offset[part])

    def group(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Groups ids ``[n]``, int64, by owner, keeping their order. Returns the ids by owner, where each stood
        (uint32), and the bounds of the groups ``[num_parts + 1]``. Raises IndexError, naming the first bad id."""
        return _core.group_by_owner(self.native, ids)

    def owners(self, ids: np.ndarray | None = None) -> np.ndarray:
        """The owner of each of these ids, or of all, ``[n]`` int64; raises IndexError naming the first bad id."""
        if ids is not None:
            return _core.find_owners(self.native, np.ascontiguousarray(ids, np.int64))
        if self.offset is not None:
            return np.repeat(np.arange(self.num_parts), np.diff(self.offset.numpy()))
        assert self.owner is not None
        return self.owner.numpy().astype(np.int64)

    def rows(self, ids: np.ndarray | None = None) -> np.ndarray:
        """The row of each of these ids, or of all, in the arrays of its owner, ``[n]`` int64; errors as of
        :meth:`owners`."""
        ids = np.arange(self.num_ids) if ids is None else np.ascontiguousarray(ids, np.int64)
        owner = self.owners(ids)  # names a bad id
        if self.offset is not None:
            return ids - self.offset.numpy()[owner]
        assert self.row_of is not None
        return self.row_of.numpy()[ids].astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        arrays = {name: Packed.of(getattr(self, name)) for name in ("owner", "row_of", "offset")}
        return {**arrays, "num_parts": self.num_parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.owner, self.row_of, self.offset = (Packed.open(state[name]) for name in ("owner", "row_of", "offset"))
        self._open(state["num_parts"])

    @says
    def __repr__(self) -> str:
        kind = "ranges" if self.has_ranges else "arrays"
        return f"{kind}, num_ids={self.num_ids}, num_parts={self.num_parts}"


def _native_book(owner: Tensor | None, offset: Tensor | None, num_parts: int) -> _core.Book:
    if offset is not None:
        return _core.Book.of_ranges(offset.numpy())
    assert owner is not None
    return _core.Book(owner.numpy(), num_parts)


def _tensor(array: Any) -> Tensor:
    return array if isinstance(array, Tensor) else from_array(array)
