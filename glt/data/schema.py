"""The node types and edge types of a graph, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

NodeType = str
EdgeType = tuple[str, str, str]

Value = TypeVar("Value")


@dataclass(frozen=True)
class Schema:
    """Node types and edge types of a graph, in the order of the user's data.

    Inside glt a type is its position here; the position of an edge type is also part of the key of its random draws.
    A homogeneous graph has one type of each (:data:`HOMOGENEOUS`), so that there is one code path for both kinds.

    Attributes:
        node_types: Names of the node types.
        edge_types: ``(source type, relation, destination type)`` of each edge type.
        is_hetero: Whether the user speaks of types: results are then dicts by type, else single objects.

    Raises:
        TypeError: If a type is no string, or an edge type no triple of strings.
        ValueError: If a type is named twice, an edge type ends in an unknown node type, or a graph that is not
            heterogeneous has not exactly one type of each.
    """

    node_types: tuple[NodeType, ...]
    edge_types: tuple[EdgeType, ...]
    is_hetero: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_types", tuple(self.node_types))
        # Triples read from JSON are lists.
        object.__setattr__(self, "edge_types", tuple(_edge_type(t) for t in self.edge_types))
        for node_type in self.node_types:
            if not isinstance(node_type, str):
                raise TypeError(f"node_types holds {node_type!r}: expected names of node types")
        _require_unique("node_types", self.node_types)
        _require_unique("edge_types", self.edge_types)
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

    def ends(self, edge_dir: str) -> tuple[tuple[int, int], ...]:
        """Returns ``(expanded node type, neighbour node type)`` of each edge type, as positions: with ``edge_dir='in'``
        destinations are expanded, their neighbours being sources; with ``'out'`` the reverse."""
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

        Raises:
            TypeError: If it is a dict where the graph is homogeneous, or none where it is not.
            KeyError: If it names a type that there is not.
        """
        return self._per_type(name, value, self.node_types, "node")

    def per_edge_type(self, name: str, value: Any) -> list[Any]:
        """Returns ``value``, a dict by edge type (a single object when homogeneous), as :meth:`per_node_type` does."""
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
    """Names the reverses of an edge type by GLT's rule: with ``rev_`` before the relation, or without it where it is
    there; the same type where both ends are of one node type."""
    source, relation, target = edge_type
    return target, relation if source == target else reverse_relation(relation), source


def reverse_relation(relation: str) -> str:
    return relation.removeprefix("rev_") if relation.startswith("rev_") else f"rev_{relation}"


def _require_unique(name: str, types: tuple[Any, ...]) -> None:
    for at, each in enumerate(types):
        if each in types[:at]:
            raise ValueError(f"{name} holds {each!r} twice: expected each type once")


def _position(kind: str, wanted: Any, types: tuple[Any, ...]) -> int:
    if wanted is None:
        if len(types) != 1:
            raise KeyError(f"no {kind} type is named: expected one of {list(types)}")
        return 0
    if not isinstance(wanted, str | tuple) or wanted not in types:
        raise KeyError(f"{kind} type {wanted!r} is not in the graph: expected one of {list(types)}")
    return types.index(wanted)


HOMOGENEOUS = Schema(("node",), (("node", "to", "node"),), False)  # of a graph without types
