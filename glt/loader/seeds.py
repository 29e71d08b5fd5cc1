"""Seeds of local and distributed loaders, checked when they are given: not when their batch comes up."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glt.data.arrays import as_ids, as_tensor, ids_in_place, is_mask, require_in_range
from glt.data.keys import KeyMaps
from glt.data.schema import HOMOGENEOUS, EdgeType, NodeType, Schema


def require_per_seed(name: str, given: Any, num_seeds: int) -> None:
    rows = len(given) if getattr(given, "ndim", 1) else 0
    if rows != num_seeds:
        raise ValueError(f"{name} has {rows} elements: expected one per seed, {num_seeds}")


def checked_input_id(input_id: Any, num_seeds: int) -> Tensor:
    """One id per seed ``[num_seeds]``, int64; raises TypeError or ValueError."""
    if not isinstance(input_id, np.ndarray) or input_id.dtype.kind not in "iu":
        input_id = as_tensor("input_id", input_id, f"one id per seed, [{num_seeds}]")
    ids = as_ids(input_id, "input_id")
    require_per_seed("input_id", ids, num_seeds)
    return ids


# Seed nodes: ids, a mask, or all nodes, of one node type.


_TEXT_IDS = (
    "expected integer ids, or a bool mask; number the nodes first, as their rows of features: {name: i for i, name in "
    "enumerate(names)}; a graph that glt build made of tables knows its keys"
)


def is_text(given: Any) -> bool:
    """Whether seeds are the users' keys: texts, or an array of objects."""
    if getattr(getattr(given, "dtype", None), "kind", "") in ("U", "S", "O") or type(given).__module__ == "pyarrow.lib":
        return True
    return isinstance(given, Sequence) and len(given) > 0 and isinstance(given[0], str)


def _is_keys(given: Any, keys: Any) -> bool:
    """Whether these are keys, and no ids: texts, or as many columns as the key has."""
    num_columns = len(keys.columns)
    is_columns = num_columns > 1 and isinstance(given, tuple | list) and len(given) == num_columns
    return is_text(given) or (is_columns and all(hasattr(each, "__len__") for each in given))


def ids_of_keys(input_nodes: Any, ids: KeyMaps) -> Any:
    """Seeds with ids where they are keys of a graph that has keys, such as ``("account", ["ann", "bob"])``."""
    untyped = HOMOGENEOUS.node_types[0]
    node_type, given = (None, input_nodes) if untyped in ids else split_node_type(input_nodes)
    at = untyped if node_type is None else node_type
    if isinstance(input_nodes, str) or at not in ids or not _is_keys(given, ids[at]):
        return input_nodes
    found = ids[at].lookup(given)
    return found if node_type is None else (node_type, found)


def links_of_keys(edge_label_index: Any, ids: KeyMaps) -> Any:
    """Seed edges with ids where their ends are keys, such as ``(edge type, (["ann", "bob"], ["carl", "ann"]))``."""
    is_typed = isinstance(edge_label_index, tuple | list) and len(edge_label_index) == 2
    is_typed = is_typed and HOMOGENEOUS.node_types[0] not in ids and is_edge_type(edge_label_index[0])
    named, ends = edge_label_index if is_typed else (HOMOGENEOUS.edge_types[0], edge_label_index)
    if not isinstance(ends, tuple | list) or len(ends) != 2:
        return edge_label_index
    found, is_found = list(ends), False
    for i, at in enumerate((named[0], named[-1])):
        if at in ids and _is_keys(ends[i], ids[at]):
            found[i], is_found = ids[at].lookup(ends[i]), True
    if not is_found or any(is_text(each) for each in found):
        return edge_label_index
    edges = torch.stack([torch.as_tensor(each) for each in found])
    return (named, edges) if is_typed else edges


def split_node_type(input_nodes: Any) -> tuple[NodeType | None, Any]:
    """Returns the node type that seeds name, or None, and the seeds, None standing for all nodes."""
    if isinstance(input_nodes, str):
        return input_nodes, None
    if isinstance(input_nodes, tuple | list) and len(input_nodes) == 2 and isinstance(input_nodes[0], str):
        return input_nodes[0], input_nodes[1]
    return None, input_nodes


def checked_nodes(
    input_nodes: Any, schema: Schema, num_nodes_of: Sequence[int], name: str = "input_nodes"
) -> tuple[int, dict[str, Tensor]]:
    """Checks the seeds of a trainer: ids, or a mask over all nodes of the type; of a heterogeneous graph ``(type,
    ids)``, or a type alone, which stands for all its nodes. Errors call them ``name``.

    Returns the position of the node type, and columns ``node``, int64, and for a mask ``input_id``, the same: like PyG,
    batches then tell node ids in place of positions. Raises IndexError, TypeError or ValueError.
    """
    node_type, given = split_node_type(input_nodes)
    if node_type is None and given is None:
        raise TypeError(f"{name} = None: expected the seeds of this trainer, ids or a bool mask over all nodes")
    if (node_type is not None) != schema.is_hetero:
        expected = f"(type, ids) with one of {list(schema.node_types)}" if schema.is_hetero else "ids without a type"
        raise ValueError(f"{name} has {'no type' if node_type is None else f'type {node_type!r}'}: {expected}")
    if node_type is not None and node_type not in schema.node_types:
        raise ValueError(f"{name} is of type {node_type!r}: expected one of {list(schema.node_types)}")
    index = schema.node_index(node_type)
    num_nodes = num_nodes_of[index]
    if given is None:
        return index, {"node": torch.arange(num_nodes)}
    if not isinstance(given, np.ndarray) or given.dtype in (bool, np.uint8):
        given = as_tensor(name, given, "ids, or a bool mask over all nodes")
    seeds = as_ids(given, name, num_nodes)
    require_nodes(seeds, num_nodes, f" of type {node_type!r}" if schema.is_hetero else "", name)
    return index, {"node": seeds, "input_id": seeds} if is_mask(given, num_nodes) else {"node": seeds}


def require_nodes(seeds: Tensor, num_nodes: int, of_type: str = "", name: str = "input_nodes") -> None:
    require_in_range(name, seeds, num_nodes, f" (num_nodes{of_type} = {num_nodes})")


def nodes_for_pyg(input_nodes: Any, schema: Schema | None, input_id: Any = None) -> Any:
    """Returns seeds as PyG's loaders take them, with ids as a tensor: PyG reads masks that are none as ids 0 and 1, and
    cuts off fractions. ``schema`` is None where it is not known. Raises TypeError or ValueError."""
    node_type, given = split_node_type(input_nodes)
    if schema is not None and schema.is_hetero:
        if node_type is None:
            raise ValueError(
                f"input_nodes is {'None' if input_nodes is None else 'without a node type'}: expected one of the node "
                f"types {list(schema.node_types)}, or a pair of one and the seeds"
            )
        if node_type not in schema.node_types:
            raise ValueError(f"input_nodes is of type {node_type!r}: expected one of {list(schema.node_types)}")
    elif node_type is not None and isinstance(given, str):  # two texts
        raise TypeError(f"input_nodes = {input_nodes!r}: {_TEXT_IDS}")
    elif schema is not None and node_type is not None:
        raise ValueError(f"input_nodes = {input_nodes!r} names a node type, but the graph has none: expected ids alone")
    if given is None:
        return node_type  # a type and None: all nodes, also of stores
    if is_text(given):
        raise TypeError(f"input_nodes = {reprlib.repr(given)}: {_TEXT_IDS}")
    nodes = as_tensor("input_nodes", given, "integer ids, or a bool mask")
    if nodes.numel() == 0 and nodes.is_floating_point():
        nodes = nodes.to(torch.int64)
    num_seeds = len(ids_in_place(nodes, "input_nodes"))
    if input_id is not None:
        require_per_seed("input_id", input_id, num_seeds)
    return nodes if node_type is None else (node_type, nodes)


# Seed edges: ids of both ends, or all edges, of one edge type.


def split_edge_type(edge_label_index: Any, known: Sequence[EdgeType] | None) -> tuple[Any, Any]:
    """Returns the edge type that seed edges of a heterogeneous graph name, and the edges, None standing for all. Raises
    ValueError, saying which types there are, if none is named; where they are not ``known``, a pair may name none."""
    expected = "an edge type, or a pair of it and [2, B]" + ("" if known is None else f"; the types are {list(known)}")
    if not isinstance(edge_label_index, tuple | list) or len(edge_label_index) == 0:
        given = "None" if edge_label_index is None else f"a {type(edge_label_index).__name__}"
        raise ValueError(f"edge_label_index has no edge type, but is {given}: expected {expected}")
    if is_edge_type(edge_label_index):
        return edge_label_index, None
    if len(edge_label_index) != 2:
        raise ValueError(f"edge_label_index has {len(edge_label_index)} elements: expected {expected}")
    named, edges = edge_label_index
    if not (is_edge_type(named) or (named is None and known is None)):
        raise ValueError(f"edge_label_index names edge type {named!r}: expected {expected}")
    return named, edges


def is_edge_type(value: Any) -> bool:
    """Whether it has the form of an edge type; two node types stand for the only edge type between them."""
    return isinstance(value, tuple | list) and len(value) in (2, 3) and all(isinstance(part, str) for part in value)


def matching_types(named: Any, known: Sequence[EdgeType]) -> list[EdgeType]:
    return [each for each in known if tuple(named) in (each, (each[0], each[2]))]


def checked_edges(edges: Any, expected: str = "integer ids, [2, B]", name: str = "edge_label_index") -> Tensor:
    """Returns seed edges as a tensor of integers ``[2, B]``; raises TypeError or ValueError, which call them ``name``:
    fractions would be cut off."""
    edges = as_tensor(name, edges, expected)
    if edges.dim() != 2 or edges.size(0) != 2:
        raise ValueError(f"{name} has shape {list(edges.shape)}: expected [2, B]")
    if edges.is_floating_point() or edges.is_complex() or edges.dtype == torch.bool:
        if edges.numel():
            raise TypeError(f"{name} has dtype {edges.dtype}: expected integer ids")
        edges = edges.to(torch.int64)
    return edges
