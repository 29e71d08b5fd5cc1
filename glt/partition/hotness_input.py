"""How hot each node is for each partition, in the forms that users have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from glt.data.arrays import require_data
from glt.data.schema import Schema
from glt.partition.arguments import chunks
from glt.partition.node_hotness import HotnessByType, NodeHotness, WholeHotness
from glt.partition.rows import require_plain

_MOST: Final = 1e30  # a float32 holds it, and the sum of 2**32 of them, the most nodes that a type has, is finite

# Of one node type, one array [num_nodes] per partition; the same array where they do not differ.
PartHotness = tuple[np.ndarray, ...]


def checked_hotness(
    name: str, value: object, schema: Schema, num_nodes: Sequence[int], num_parts: int
) -> tuple[NodeHotness | None, ...]:
    """Returns hotness by node type; arguments and errors as of :func:`hotness_by_type`."""
    if isinstance(value, HotnessByType):
        return value.by_type
    found = hotness_by_type(name, value, schema, num_nodes, num_parts)
    return tuple(None if each is None else WholeHotness(each) for each in found)


def hotness_by_type(
    name: str, value: object, schema: Schema, num_nodes: Sequence[int], num_parts: int
) -> list[PartHotness | None]:
    """Returns hotness by node type; None for types that none is given for.

    Args:
        name: The argument, for messages.
        value: Of each partition, in a list or tuple, ``[num_nodes]`` numbers of at least 0; or such numbers once, for
            all partitions. In a heterogeneous graph a dict of such by node type, or a list of dicts.
        schema, num_nodes: The node types, and how many nodes each has.
        num_parts: Number of partitions.

    Raises:
        TypeError, ValueError: If it does not fit; names the element, its value and what was expected.
        KeyError: If a dict names a type that there is not.
    """
    if schema.is_hetero and isinstance(value, list | tuple):
        _require_parts(name, value, num_parts)
        of_parts = [schema.per_node_type(f"{name}[{i}]", each) for i, each in enumerate(value)]
        per_type: list[Any] = []
        for node_type, several in zip(schema.node_types, zip(*of_parts, strict=True), strict=True):
            absent = [i for i, each in enumerate(several) if each is None]
            if 0 < len(absent) < num_parts:
                raise ValueError(f"{name}[{absent[0]}] has no {node_type!r}, which others have: pass it in all of them")
            per_type.append(None if absent else several)
    else:
        per_type = schema.per_node_type(name, value)
    found: list[PartHotness | None] = []
    for at, (given, count) in enumerate(zip(per_type, num_nodes, strict=True)):
        where = f"{name}[{schema.node_types[at]!r}]" if schema.is_hetero else name
        if given is None:
            found.append(None)
        elif isinstance(given, list | tuple):
            _require_parts(where, given, num_parts)
            found.append(tuple(_array(f"{where}[{i}]", each, count) for i, each in enumerate(given)))
        else:
            found.append((_array(where, given, count),) * num_parts)
    return found


def _require_parts(name: str, value: Sequence[Any], num_parts: int) -> None:
    if len(value) != num_parts:
        raise ValueError(
            f"{name} has {len(value)} elements: expected one for each partition, num_parts = {num_parts}, in order"
        )


def _array(name: str, value: object, num_nodes: int) -> np.ndarray:
    require_data(value, name)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    if isinstance(value, Mapping):
        raise TypeError(f"{name} is a dict: expected numbers, one per node")
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
        got = getattr(value, "dtype", type(value).__name__)
        raise TypeError(f"{name} is of {got}: expected a tensor or array of real numbers, [{num_nodes}]")
    require_plain(name, value)
    if value.shape != (num_nodes,):
        raise ValueError(f"{name} has shape {list(value.shape)}: expected one number per node, [{num_nodes}]")
    hotness = value if value.dtype in (np.float32, np.float64) else value.astype(np.float32)
    for begin, piece in chunks(hotness):
        bad = np.flatnonzero(~((piece >= 0) & (piece <= _MOST)))
        if bad.size:
            raise ValueError(
                f"{name}[{begin + bad[0]}] = {piece[bad[0]]}: expected finite numbers of at least 0, whose "
                f"sum is finite too: at most {_MOST:g}, such as the probabilities of NeighborSampler.sample_prob"
            )
    return hotness
