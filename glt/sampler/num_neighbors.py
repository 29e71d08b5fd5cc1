"""Fan-outs in every form that PyG takes, as one tuple of counts per edge type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from glt.data.schema import EdgeType, Schema

MAX_HOPS = 255
MAX_DRAWS = 1 << 20
"""Draws with replacement per node and hop: they take memory for all of them, however few edges the node has."""


def per_edge_type(num_neighbors: Any, schema: Schema, replace: bool = False) -> tuple[tuple[int, ...], ...]:
    """Returns the counts of each edge type, hop by hop, in the schema's order.

    Args:
        num_neighbors: A list, tuple, or one-dimensional tensor or array with one count per hop, for all edge types; a
            dict of such by edge type (``(src, rel, dst)``, ``(src, dst)`` or ``'src__rel__dst'``); or PyG's
            ``NumNeighbors``. -1 takes all edges, 0 none. Without hops, a batch is its seeds.
        schema: The edge types there are.
        replace: Whether to draw with replacement, which bounds the counts.

    Raises:
        TypeError, ValueError: Naming the element, its value and what was expected.
    """
    counts = _by_edge_type(num_neighbors, schema)
    for edge_type, each in zip(schema.edge_types, counts, strict=True):
        for hop, count in enumerate(each):
            if replace and count > MAX_DRAWS:
                along = f" of {edge_type}" if schema.is_hetero else ""
                raise ValueError(
                    f"num_neighbors[{hop}]{along} = {count} and replace = True: that many edges would be drawn for "
                    f"every node; expected at most {MAX_DRAWS}, or -1, which takes each edge once"
                )
    return counts


def _by_edge_type(num_neighbors: Any, schema: Schema) -> tuple[tuple[int, ...], ...]:
    values, default = num_neighbors, None
    if hasattr(values, "values") and hasattr(values, "default"):  # NumNeighbors, without importing PyG
        values, default = num_neighbors.values, num_neighbors.default
    if not isinstance(values, Mapping):
        return (_counts("num_neighbors", values),) * len(schema.edge_types)
    given = {_edge_type(key): _counts(f"num_neighbors[{key!r}]", value) for key, value in values.items()}
    unknown = [t for t in given if t not in schema.edge_types]
    if not given and not schema.is_hetero:
        raise ValueError(f"num_neighbors = {num_neighbors!r}: expected a list with one count per hop")
    if unknown or not schema.is_hetero:
        raise ValueError(
            f"num_neighbors names edge type {(unknown or list(given))[0]}: Not all edge types specified in "
            f"'num_neighbors' exist in the graph, which has {_known(schema)}"
        )
    rest = None if default is None else _counts("num_neighbors.default", default)
    missing = [t for t in schema.edge_types if t not in given]
    if missing and rest is None:
        raise ValueError(
            f"num_neighbors: Missing number of neighbors for edge type '{missing[0]}'; expected a list for each of "
            f"{_known(schema)}, or NumNeighbors(values, default)"
        )
    counts = tuple(given.get(t) or rest or () for t in schema.edge_types)
    by_hops = {len(c): t for c, t in zip(counts, schema.edge_types, strict=True)}
    if len(by_hops) > 1:
        raise ValueError(
            "num_neighbors: Number of hops must be the same across all edge types, but there are "
            + " and ".join(f"{hops} of {edge_type}" for hops, edge_type in by_hops.items())
        )
    return counts


def _counts(name: str, counts: Any) -> tuple[int, ...]:
    if isinstance(counts, Tensor | np.ndarray) and counts.ndim == 1:
        counts = counts.tolist()
    if isinstance(counts, str | int) or not isinstance(counts, Sequence):
        raise TypeError(f"{name} = {counts!r}: expected a list with one count per hop")
    if len(counts) > MAX_HOPS:
        raise ValueError(f"{name} has {len(counts)} hops: expected at most {MAX_HOPS}")
    for hop, count in enumerate(counts):
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name}[{hop}] = {count!r}: expected an integer")
        if not -1 <= count < 2**31:
            raise ValueError(f"{name}[{hop}] = {count}: expected -1 (all), 0 (none) or a count below 2^31")
    return tuple(int(count) for count in counts)


def _edge_type(key: Any) -> EdgeType:
    parts = tuple(key.split("__")) if isinstance(key, str) else tuple(key) if isinstance(key, tuple | list) else ()
    if len(parts) == 2:
        parts = (parts[0], "to", parts[1])  # PyG's default relation
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"num_neighbors names {key!r}: expected an edge type, (source type, relation, target type)")
    return parts[0], parts[1], parts[2]


def _known(schema: Schema) -> str:
    return str(list(schema.edge_types)) if schema.is_hetero else "no types: expected a list with one count per hop"
